//! A crate's modules: which file each one is in, what it defines, what it imports, which paths it
//! writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// Names from the crate's root down.
pub(crate) type ModulePath = Vec<String>;

/// A path as it is written: `crate::a::B`, `super::c`, `d::E`.
pub(crate) type Written = Vec<String>;

/// One module. Those written within a file have that file.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) children: BTreeSet<String>,
    pub(crate) defines: BTreeSet<String>,
    /// Names that `use` brings in, and what they stand for.
    pub(crate) bound: BTreeMap<String, Written>,
    /// Modules whose names all come in (`use a::*`).
    pub(crate) globs: Vec<Written>,
    /// What the code depends on: private imports, and paths in the code. Re-exports are not among
    /// them: a facade does not depend on what it shows.
    pub(crate) written: Vec<Written>,
}

/// All modules of a crate, test code left out.
pub(crate) fn read(root: &Path) -> BTreeMap<ModulePath, Module> {
    let mut modules = BTreeMap::new();
    read_file(root, Vec::new(), true, &mut modules);
    modules
}

fn read_file(
    file: &Path,
    path: ModulePath,
    owns_directory: bool,
    modules: &mut BTreeMap<ModulePath, Module>,
) {
    let text =
        std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let parsed =
        syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let parent = file.parent().expect("a file lies in a directory");
    let stem = file.file_stem().expect("a source has a name");
    let directory = if owns_directory { parent.to_owned() } else { parent.join(stem) };
    read_items(&parsed.items, file, &directory, path, modules);
}

fn read_items(
    items: &[Item],
    file: &Path,
    directory: &Path,
    path: ModulePath,
    modules: &mut BTreeMap<ModulePath, Module>,
) {
    let mut module = Module { file: file.to_owned(), ..Module::default() };
    for item in items.iter().filter(|item| !is_test(attributes(item))) {
        match item {
            Item::Mod(child) => {
                let name = child.ident.to_string();
                module.children.insert(name.clone());
                let below = [&path[..], std::slice::from_ref(&name)].concat();
                match &child.content {
                    Some((_, items)) => {
                        read_items(items, file, &directory.join(&name), below, modules);
                    }
                    None => read_child(child, directory, below, modules),
                }
            }
            Item::Use(import) => {
                let private = matches!(import.vis, Visibility::Inherited);
                flatten(&import.tree, Vec::new(), private, &mut module);
            }
            other => {
                module.defines.extend(name_of(other));
                Paths(&mut module).visit_item(other);
            }
        }
    }
    modules.insert(path, module);
}

/// `mod child;` lies in child.rs or child/mod.rs, or where `#[path]` says.
fn read_child(
    child: &syn::ItemMod,
    directory: &Path,
    path: ModulePath,
    modules: &mut BTreeMap<ModulePath, Module>,
) {
    let name = child.ident.to_string();
    let told = child.attrs.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(literal) => match &literal.lit {
                syn::Lit::Str(text) => Some(directory.join(text.value())),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    let flat = directory.join(format!("{name}.rs"));
    match told {
        Some(file) => read_file(&file, path, true, modules),
        None if flat.is_file() => read_file(&flat, path, false, modules),
        None => read_file(&directory.join(&name).join("mod.rs"), path, true, modules),
    }
}

fn flatten(tree: &UseTree, mut prefix: Written, private: bool, module: &mut Module) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, private, module);
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, prefix.clone(), private, module);
            }
        }
        UseTree::Name(name) if name.ident == "self" => {
            let last = prefix.last().cloned().unwrap_or_default();
            bind(last, prefix, private, module);
        }
        UseTree::Name(name) => {
            prefix.push(name.ident.to_string());
            bind(name.ident.to_string(), prefix, private, module);
        }
        UseTree::Rename(rename) => {
            if rename.ident != "self" {
                prefix.push(rename.ident.to_string());
            }
            bind(rename.rename.to_string(), prefix, private, module);
        }
        UseTree::Glob(_) => {
            if private {
                module.written.push(prefix.clone());
            }
            module.globs.push(prefix);
        }
    }
}

fn bind(name: String, target: Written, private: bool, module: &mut Module) {
    if private {
        module.written.push(target.clone());
    }
    module.bound.insert(name, target);
}

/// Collects the paths that code writes, and the imports within functions.
struct Paths<'a>(&'a mut Module);

impl Visit<'_> for Paths<'_> {
    fn visit_path(&mut self, path: &syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let written = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.0.written.push(written);
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, import: &syn::ItemUse) {
        let mut scratch = Module::default();
        flatten(&import.tree, Vec::new(), true, &mut scratch);
        self.0.written.extend(scratch.written);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        self.visit_path(&call.path);
        tokens(call.tokens.clone(), &mut self.0.written);
    }

    fn visit_item_mod(&mut self, _: &syn::ItemMod) {}

    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }
}

/// Paths within the tokens of a macro: identifiers joined by `::`.
fn tokens(stream: TokenStream, written: &mut Vec<Written>) {
    let mut path = Written::new();
    let mut colons = 0;
    for token in stream {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => {
                path.push(ident.to_string());
                colons = 0;
            }
            other => {
                if path.len() > 1 {
                    written.push(std::mem::take(&mut path));
                }
                path.clear();
                colons = 0;
                match other {
                    TokenTree::Ident(ident) => path.push(ident.to_string()),
                    TokenTree::Group(group) => tokens(group.stream(), written),
                    TokenTree::Punct(_) | TokenTree::Literal(_) => {}
                }
            }
        }
    }
    if path.len() > 1 {
        written.push(path);
    }
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether this is code of tests only: `#[test]`, `#[cfg(test)]`, `#[cfg(all(test, not(loom)))]`.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => needs_test(list.tokens.clone()),
        _ => attribute.path().is_ident("test"),
    })
}

/// Whether a condition holds in tests only: it is `test`, or `all(...)` with it.
fn needs_test(condition: TokenStream) -> bool {
    let mut tokens = condition.into_iter();
    let Some(TokenTree::Ident(first)) = tokens.next() else { return false };
    match tokens.next() {
        Some(TokenTree::Group(group)) if first == "all" => parts(group.stream()).any(needs_test),
        _ => first == "test",
    }
}

/// What stands between commas.
fn parts(list: TokenStream) -> impl Iterator<Item = TokenStream> {
    let tokens: Vec<_> = list.into_iter().collect();
    let comma = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ',');
    let parts: Vec<_> = tokens.split(comma).map(|part| part.iter().cloned().collect()).collect();
    parts.into_iter()
}

#[test]
fn conditions_of_tests_are_told_from_others() {
    let is = |text: &str| needs_test(text.parse().expect("tokens"));
    for yes in
        ["test", "all(test, loom)", "all(not(loom), test)", "all(unix, all(test, x = \"y\"))"]
    {
        assert!(is(yes), "{yes}");
    }
    for no in
        ["loom", "not(test)", "any(test, fuzzing)", "all(not(test), loom)", "feature = \"test\""]
    {
        assert!(!is(no), "{no}");
    }
}
