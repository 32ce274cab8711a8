//! Where a struct has a lock legend, every field has one of its letters: a reader, and whoever adds
//! a field, knows under what it may be used.

use std::path::{Path, PathBuf};

const LEGEND: &str = "/// Lock legend:";

/// Fields without a letter of their struct's legend, one line each.
pub(crate) fn faults(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    let mut legends = 0;
    let mut faults = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for part in text.split(LEGEND).skip(1) {
            legends += 1;
            let shown = file.strip_prefix(root).unwrap_or(&file).display();
            faults.extend(without_letter(part).iter().map(|field| format!("{shown}: {field}")));
        }
    }
    assert!(legends > 0, "no struct has a legend that begins with `{LEGEND}`");
    faults
}

fn sources(directory: &Path, files: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

/// The fields without a letter, of the struct that follows this legend.
fn without_letter(text: &str) -> Vec<String> {
    let Some((legend, rest)) = text.split_once(" {\n") else { return Vec::new() };
    let letters = letters(legend);
    let fields = rest.split("\n}").next().unwrap_or_default();
    let (mut documented, mut faults) = (String::new(), Vec::new());
    for line in fields.lines().map(str::trim) {
        if line.starts_with("//") {
            documented.push_str(line);
        } else if !line.starts_with("#[") && !line.is_empty() {
            if !letters.iter().any(|letter| documented.contains(letter.as_str())) {
                faults.push(line.to_owned());
            }
            documented.clear();
        }
    }
    faults
}

/// `(a)` and the like.
fn letters(legend: &str) -> Vec<String> {
    let parts = legend.split('(').skip(1).filter_map(|part| part.split_once(')'));
    let single = parts.map(|(letter, _)| letter).filter(|letter| letter.len() == 1);
    single.map(|letter| format!("({letter})")).collect()
}

#[test]
fn a_field_without_a_letter_is_found() {
    let text = " (c) constant; (a)\n/// atomic.\npub struct S {\n    /// (c)\n    a: u8,\n    \
                /// None.\n    b: u8,\n    /// Two lines,\n    /// and a letter. (a)\n    c: u8,\n}\n";
    assert_eq!(without_letter(text), ["b: u8,"]);
}
