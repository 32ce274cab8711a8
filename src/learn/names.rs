//! Names of one thing, and globs that match one name.

use std::collections::BTreeSet;

/// Names of one thing: `(old, new)`.
pub(super) type Names = BTreeSet<(String, String)>;

/// As [`literal`], for what is refused: a name in DIR itself is meant at any depth, which is safe, and is
/// not warned of.
pub(super) fn at_any_depth(path: &str) -> String {
    let deep = if path.contains('/') { "" } else { "**/" };
    deep.to_owned() + &literal(path)
}

/// A glob that matches the path, and what is below it.
pub(super) fn literal(path: &str) -> String {
    let mut glob = String::with_capacity(path.len());
    for char in path.chars() {
        if matches!(char, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
            glob.push('\\');
        }
        glob.push(char);
    }
    glob
}
