//! From paths to globs: single paths, and whole directories where many files were used alike.

use std::collections::{BTreeMap, BTreeSet};

/// Paths in a directory, at any depth, that were used alike, from which on the directory stands for
/// them.
const MANY: usize = 12;

/// Globs, with the operations that each allows.
pub(super) type Allowed = BTreeMap<u8, Vec<String>>;

/// The narrowest globs; with `exact` none stands for more than one path. None stands for a path that
/// was `refused`.
pub(super) fn globs(
    granted: &BTreeMap<String, u8>,
    refused: &BTreeSet<&str>,
    exact: bool,
) -> Allowed {
    let mut allowed = Allowed::new();
    let mut add = |operations: u8, glob: String| {
        if operations != 0 {
            allowed.entry(operations).or_default().push(glob);
        }
    };
    let mut left = granted.clone();
    if !exact {
        for (dir, operations) in crowded(granted, refused) {
            let inside = format!("{dir}/");
            left.retain(|path, had| *had != operations || !path.starts_with(&inside));
            add(operations, format!("{}/**", literal(&dir)));
        }
    }
    for (path, operations) in left {
        add(operations, literal(&path));
    }
    allowed
}

/// Directories with many paths used alike, outermost first, none inside another of the same
/// operations. Never the root: that would be everything.
fn crowded(granted: &BTreeMap<String, u8>, refused: &BTreeSet<&str>) -> Vec<(String, u8)> {
    let mut counts = BTreeMap::<(String, u8), usize>::new();
    for (path, operations) in granted {
        for (at, _) in path.match_indices('/') {
            *counts.entry((path[..at].to_owned(), *operations)).or_default() += 1;
        }
    }
    let mut chosen: Vec<(String, u8)> = Vec::new();
    for ((dir, operations), count) in counts {
        let covered = chosen.iter().any(|(outer, had)| {
            *had == operations
                && dir.strip_prefix(outer.as_str()).is_some_and(|r| r.starts_with('/'))
        });
        let all_allowed = || {
            let within = |path: &&str| {
                path.strip_prefix(dir.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('/'))
            };
            !refused.iter().any(within)
        };
        if count >= MANY && !covered && all_allowed() {
            chosen.push((dir, operations));
        }
    }
    chosen
}

/// A glob that matches the path alone.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::seen::{READ, WRITE};

    #[test]
    fn a_crowded_directory_stands_for_its_files() {
        let mut granted: BTreeMap<_, _> =
            (0..20).map(|n| (format!("src/{}/{n}.rs", n % 3), READ)).collect();
        granted.insert("src/0/made".to_owned(), WRITE);
        granted.insert("a*b".to_owned(), READ);
        let none = BTreeSet::new();
        let allowed = globs(&granted, &none, false);
        assert_eq!(allowed[&READ], ["src/**", "a\\*b"]);
        assert_eq!(allowed[&WRITE], ["src/0/made"]);
        assert_eq!(globs(&granted, &none, true)[&READ].len(), 21);
        let refused = BTreeSet::from(["src/1/key"]);
        assert_eq!(globs(&granted, &refused, false)[&READ].len(), 21);
    }
}
