//! From paths to globs: single paths, and whole directories where many files were used alike.

use std::collections::{BTreeMap, BTreeSet};

use super::allowed::{Allowed, Reach};

/// Paths in a directory, at any depth, that were used alike, from which on the directory stands for
/// them.
const MANY: usize = 12;

/// Puts the narrowest globs for files that were `granted` something in `allowed`; with `exact` none
/// stands for more than one path. None stands for a path that was `refused`.
pub(super) fn add_files(
    granted: &BTreeMap<String, u8>,
    refused: &BTreeSet<String>,
    exact: bool,
    allowed: &mut Allowed,
) {
    let mut left = granted.clone();
    if !exact {
        for (dir, operations) in crowded(granted, refused) {
            let inside = format!("{dir}/");
            left.retain(|path, had| *had != operations || !path.starts_with(&inside));
            allowed.add(&dir, Reach::Below, operations);
        }
    }
    for (path, operations) in left {
        allowed.add(&path, Reach::All, operations);
    }
}

/// Directories with many paths used alike, outermost first, none inside another of the same
/// operations. Never the root: that would be everything.
fn crowded(granted: &BTreeMap<String, u8>, refused: &BTreeSet<String>) -> Vec<(String, u8)> {
    let mut counts = BTreeMap::<(String, u8), usize>::new();
    for (path, operations) in granted {
        for (at, _) in path.match_indices('/') {
            *counts.entry((path[..at].to_owned(), *operations)).or_default() += 1;
        }
    }
    let mut chosen: Vec<(String, u8)> = Vec::new();
    for ((dir, operations), count) in counts {
        let covered = chosen.iter().any(|(outer, had)| *had == operations && is_below(outer, &dir));
        let all_allowed = || !refused.iter().any(|path| *path == dir || is_below(&dir, path));
        if count >= MANY && !covered && all_allowed() {
            chosen.push((dir, operations));
        }
    }
    chosen
}

/// Whether `path` lies in `dir`, at any depth.
pub(super) fn is_below(dir: &str, path: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
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
        let globs = |refused: &[&str], exact: bool| {
            let refused = refused.iter().map(|path| (*path).to_owned()).collect();
            let mut allowed = Allowed::default();
            add_files(&granted, &refused, exact, &mut allowed);
            let all = allowed.globs();
            all.into_iter().map(|((_, bits), globs)| (bits, globs)).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(globs(&[], false)[&READ], ["a\\*b", "src/**"]);
        assert_eq!(globs(&[], false)[&WRITE], ["src/0/made"]);
        assert_eq!(globs(&[], true)[&READ].len(), 21);
        assert_eq!(globs(&["src/1/key"], false)[&READ].len(), 21);
    }
}
