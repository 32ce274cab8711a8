//! Crates use only what lies below them: the table in docs/ARCHITECTURE.md is the law.

use std::path::Path;

use crate::packages::Package;

const MAP: &str = "docs/ARCHITECTURE.md";
/// The head of the table: one crate per line, the higher ones first, and what each may use.
const HEAD: &str = "| crate | uses |";

/// What is wrong, one line each.
pub(crate) fn faults(packages: &[Package]) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(MAP);
    let text = std::fs::read_to_string(path).expect("the page is part of the tree");
    let map = read(&text);
    assert!(!map.is_empty(), "{MAP} has no table that starts with `{HEAD}`");
    let mut faults = upward(&map);
    for package in packages {
        let Some((_, allowed)) = map.iter().find(|(name, _)| *name == package.name) else {
            faults.push(format!("{}: is not in the table of {MAP}", package.name));
            continue;
        };
        let missing = package.uses.iter().filter(|used| !allowed.contains(used));
        faults.extend(missing.map(|used| {
            format!("{} uses {used}, which the table of {MAP} does not allow", package.name)
        }));
        let unused = allowed.iter().filter(|name| !package.uses.contains(name));
        faults.extend(unused.map(|name| {
            format!("{} does not use {name}, though the table of {MAP} says so", package.name)
        }));
    }
    let known = |name: &str| packages.iter().any(|package| package.name == name);
    let gone = map.iter().filter(|(name, _)| !known(name));
    faults.extend(gone.map(|(name, _)| format!("{name}: in the table of {MAP}, but no crate")));
    faults
}

/// Arrows that do not point down: to a line above, or to the same one.
fn upward(map: &[(String, Vec<String>)]) -> Vec<String> {
    let line = |wanted: &String| map.iter().position(|(name, _)| name == wanted);
    let arrows = map.iter().enumerate().flat_map(|(from, (name, uses))| {
        uses.iter().filter(move |used| line(used).is_none_or(|to| to <= from)).map(move |used| {
            format!("{name} uses {used}, which is not below it in the table of {MAP}")
        })
    });
    arrows.collect()
}

/// The table's lines: a crate, and what it uses.
fn read(text: &str) -> Vec<(String, Vec<String>)> {
    let lines = text.lines().skip_while(|line| *line != HEAD).skip(2);
    let rows = lines.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let mut cells = row.split('|').skip(1).map(names);
        let mut next = || -> Vec<String> { cells.next().unwrap_or_default() };
        (next().swap_remove(0), next())
    })
    .collect()
}

#[test]
fn an_arrow_that_points_up_is_found() {
    let map =
        read("| crate | uses |\n|---|---|\n| `a` | `b`, `c` |\n| `b` | `a` |\n| `c` | |\n\nx");
    assert_eq!(map.len(), 3);
    assert_eq!(map[0].1, ["b", "c"]);
    let faults = upward(&map);
    assert!(faults.len() == 1 && faults[0].starts_with("b uses a"), "{faults:?}");
}
