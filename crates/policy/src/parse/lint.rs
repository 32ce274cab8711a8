//! Globs that mean something else than they seem to, or nothing here, with a mark under the glob.

use toml::de::DeTable;

use super::values;
use crate::error::{Source, Warning};
use crate::glob::{Glob, compile_exe, has_special, unescaped};
use crate::rule::Rule;
use crate::words::Action;

/// Names that hold secrets in whatever directory they lie: a rule that keeps such a name away at the
/// top alone is hardly meant so.
const SECRET_NAMES: [&str; 22] = [
    ".env",
    ".envrc",
    ".netrc",
    "_netrc",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".htpasswd",
    ".git-credentials",
    ".dockercfg",
    ".vault-token",
    ".ssh",
    ".aws",
    ".gnupg",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "master.key",
];
/// Ends of names of keys and key stores.
const SECRET_ENDS: [&str; 6] = [".pem", ".key", ".p12", ".pfx", ".jks", ".kdbx"];

/// At most one warning for each glob of the rule.
pub(super) fn globs(source: &Source<'_>, table: &DeTable<'_>, rule: &Rule) -> Vec<Warning> {
    let Some(value) = table.get("path") else { return Vec::new() };
    let Ok(texts) = values::strings(source, "path", value, "") else { return Vec::new() };
    let warn = |text: &values::Text<'_>| {
        let (part, message) = mistake(text.text, rule)?;
        Some(source.warning(text.span_of(source, part), message))
    };
    texts.iter().filter_map(warn).collect()
}

/// Executables without wildcards that are not where they are named: a caller's executable has no
/// symbolic link in its path, so that none is ever the one named.
pub(super) fn executables(source: &Source<'_>, table: &DeTable<'_>, rule: &Rule) -> Vec<Warning> {
    let Some(value) = table.get("exe") else { return Vec::new() };
    let Ok(texts) = values::strings(source, "exe", value, "") else { return Vec::new() };
    let globs = rule.caller.as_ref().and_then(|caller| caller.exes.as_deref()).unwrap_or_default();
    let is_listed = |real: &str| globs.iter().any(|glob| glob.matches_exactly(real.as_bytes()));
    let warn = |text: &values::Text<'_>| {
        let named =
            compile_exe(text.text).ok()?.iter().filter_map(Glob::literal).find_map(|path| {
                let path = format!("/{path}");
                let real = source.names.executable(&path).filter(|real| !is_listed(real))?;
                Some((path, real))
            });
        let (path, real) = named?;
        let message = format!(
            "no caller's executable is `{path}`: a symbolic link leads to `{real}` here, which is \
             the path that callers have; write that, or both"
        );
        Some(source.warning(text.span_of(source, 0..text.text.len()), message))
    };
    texts.iter().filter_map(warn).collect()
}

/// What is wrong, and with which bytes of the glob.
fn mistake(glob: &str, rule: &Rule) -> Option<(std::ops::Range<usize>, String)> {
    if let Some(rest) = glob.strip_prefix('!') {
        let message = format!(
            "glob `{glob}` is about names that begin with `!`, and takes nothing back; for an exception \
             write a rule before this one, with path `{rest}` and action `passthrough`"
        );
        return Some((0..1, message));
    }
    if let Some(part) = home(glob) {
        let message = format!(
            "glob `{glob}` is about a name `{}` in DIR: no `~` and no variable stands for another \
             place here; paths are relative to DIR",
            &glob[..part]
        );
        return Some((0..part, message));
    }
    is_at_top_only(glob, rule).then(|| {
        let name = glob.trim_end_matches('/');
        let message = format!(
            "glob `{glob}` matches at the top of DIR only; write `**/{name}` for every directory"
        );
        (0..glob.len(), message)
    })
}

/// The length of the first component, where a shell would put something else in its place.
fn home(glob: &str) -> Option<usize> {
    let first = glob.split('/').next().unwrap_or_default();
    let variable = first.strip_prefix('$').is_some_and(|name| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '{'))
    });
    (first == "~" || variable).then_some(first.len())
}

/// A pattern without a slash, or a name that holds secrets wherever it is.
fn is_at_top_only(glob: &str, rule: &Rule) -> bool {
    let name = glob.trim_end_matches('/');
    if name.contains('/') || matches!(name, "*" | "**") {
        return false;
    }
    if has_special(name, &['*', '?', '[']) {
        return true;
    }
    let kept = matches!(rule.action, Action::Deny | Action::Hide);
    let everywhere = format!("**/{name}");
    kept && is_secret(&unescaped(name)) && !rule.glob_texts.contains(&everywhere)
}

fn is_secret(name: &str) -> bool {
    SECRET_NAMES.contains(&name)
        || name.starts_with(".env.")
        || SECRET_ENDS.iter().any(|end| name.ends_with(end))
}
