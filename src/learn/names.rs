//! Names of one thing, and globs that match one name.

use std::collections::BTreeSet;

/// Names of one thing: `(old, new)`.
pub(super) type Names = BTreeSet<(String, String)>;

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
