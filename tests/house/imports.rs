//! Which file of a crate imports which, and the circles among them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::files::{self, Module, ModulePath};

/// How deep names that stand for names are followed.
const ALIASES_MAX: usize = 8;

/// The imports of one crate: from a file to a file, with one of the paths that make it so.
#[derive(Debug)]
pub(crate) struct Imports(BTreeMap<PathBuf, BTreeMap<PathBuf, String>>);

impl Imports {
    /// Reads the crate that `root` (lib.rs or main.rs) begins.
    pub(crate) fn of(root: &Path) -> Imports {
        let modules = files::read(root);
        let mut imports = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (path, module) in &modules {
            for written in &module.written {
                let Some(to) = Resolver(&modules).file(path, written, ALIASES_MAX) else {
                    continue;
                };
                if *to != module.file {
                    let edges = imports.entry(module.file.clone()).or_default();
                    edges.entry(to.to_owned()).or_insert_with(|| written.join("::"));
                }
            }
        }
        Imports(imports)
    }

    /// Groups of files that reach each other, each with its imports, in words; paths relative to
    /// `base`.
    pub(crate) fn circles(&self, base: &Path) -> Vec<String> {
        let reach: BTreeMap<_, _> = self.0.keys().map(|file| (file, self.reach(file))).collect();
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for (file, reached) in &reach {
            if !reached.contains(*file) || seen.contains(*file) {
                continue;
            }
            let back = |other: &&PathBuf| reach.get(other).is_some_and(|r| r.contains(*file));
            let circle: BTreeSet<_> = reached.iter().filter(back).cloned().collect();
            circles.push(self.describe(&circle, base));
            seen.extend(circle);
        }
        circles
    }

    /// All files that `from` imports, directly or through others.
    fn reach(&self, from: &Path) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut open = vec![from.to_owned()];
        while let Some(file) = open.pop() {
            for to in self.0.get(&file).into_iter().flat_map(BTreeMap::keys) {
                if found.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        found
    }

    fn describe(&self, circle: &BTreeSet<PathBuf>, base: &Path) -> String {
        let short = |file: &Path| file.strip_prefix(base).unwrap_or(file).display().to_string();
        let mut lines = vec![format!("  a circle of {} files:", circle.len())];
        for from in circle {
            let edges = self.0.get(from).into_iter().flatten();
            for (to, written) in edges.filter(|(to, _)| circle.contains(*to)) {
                lines.push(format!("    {} -> {} ({written})", short(from), short(to)));
            }
        }
        lines.join("\n")
    }
}

/// Finds the file that a written path leads to.
struct Resolver<'a>(&'a BTreeMap<ModulePath, Module>);

impl<'a> Resolver<'a> {
    /// The file that defines what `written` names in the module `from`; `None` if it is of another
    /// crate.
    fn file(&self, from: &ModulePath, written: &[String], aliases: usize) -> Option<&'a Path> {
        let (mut at, mut rest) = (from.clone(), written);
        match rest.first()?.as_str() {
            "crate" => (at, rest) = (Vec::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            // A name in scope, or another crate.
            first => {
                let here = self.0.get(from)?;
                let known = here.children.contains(first)
                    || here.defines.contains(first)
                    || here.bound.contains_key(first);
                if !known {
                    return None;
                }
            }
        }
        self.descend(at, rest, aliases)
    }

    fn descend(&self, mut at: ModulePath, rest: &[String], aliases: usize) -> Option<&'a Path> {
        for (index, name) in rest.iter().enumerate() {
            let module = self.0.get(&at)?;
            if module.children.contains(name) {
                at.push(name.clone());
                continue;
            }
            if module.defines.contains(name) {
                return Some(&module.file);
            }
            if let Some(target) = module.bound.get(name) {
                let whole = [target, &rest[index + 1..]].concat();
                // Code that says `x::y` where `use z::x` brought x in depends on z::x::y.
                return self.file(&at, &whole, aliases.checked_sub(1)?);
            }
            let through_glob = module.globs.iter().find_map(|glob| {
                let whole = [glob, &rest[index..]].concat();
                self.file(&at, &whole, aliases.checked_sub(1)?)
            });
            // Else a name that a macro defines, or a method's type parameter.
            return Some(through_glob.unwrap_or(&module.file));
        }
        Some(&self.0.get(&at)?.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate in a directory for temporary files.
    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (name, text) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            std::fs::write(path, text).expect("a small file");
        }
        Imports::of(&directory.path().join("lib.rs")).circles(directory.path())
    }

    #[test]
    fn two_files_that_import_each_other_are_named() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f() { println!(\"{}\", super::a::g()); }"),
        ]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("a.rs -> b.rs (crate::b::B)"), "{found:?}");
        assert!(found[0].contains("b.rs -> a.rs (super::a::g)"), "{found:?}");
    }

    #[test]
    fn a_facade_is_looked_through() {
        let lib = "mod a; mod b; pub use a::A; pub use b::B; pub fn lib() {}";
        let open = [("lib.rs", lib), ("a.rs", "use super::B; pub struct A(B);")];
        assert!(circles(&[&open[..], &[("b.rs", "pub struct B;")]].concat()).is_empty());
        let back = ("b.rs", "pub struct B; fn f() -> crate::A { todo!() }");
        assert_eq!(circles(&[&open[..], &[back]].concat()).len(), 1);
        let lib = ("b.rs", "pub struct B; fn f() { crate::lib() }");
        assert!(circles(&[&open[..], &[lib]].concat()).is_empty(), "the facade only shows b");
    }

    #[test]
    fn modules_in_directories_and_tests_are_told_apart() {
        let found = circles(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod c; use c::C; pub struct A(C);"),
            ("a/c.rs", "pub struct C; #[cfg(test)] mod tests { use crate::a::A; }"),
        ]);
        assert!(found.is_empty(), "{found:?}");
        let found = circles(&[
            ("lib.rs", "mod a;"),
            ("a.rs", "mod c; use self::c::C; pub struct A(C);"),
            ("a/c.rs", "use super::*; pub struct C;"),
        ]);
        assert_eq!(found.len(), 1, "a glob of the parent counts");
    }
}
