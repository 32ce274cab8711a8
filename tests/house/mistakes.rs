//! The deliberate mistakes of `tests/mistakes` fit today's sources. Whether the models notice them
//! takes hours to see (`tests/mistakes/run`); that a change of the sources has left one behind does
//! not.

use std::path::{Path, PathBuf};

/// Patches that do not say what they are for, or cannot be applied, one line each.
pub(crate) fn faults(root: &Path) -> Vec<String> {
    let patches = patches(&root.join("tests/mistakes"));
    assert!(!patches.is_empty(), "tests/mistakes has no patches");
    patches.iter().flat_map(|patch| faults_of(root, patch)).collect()
}

fn patches(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory of the tree");
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "patch")).collect()
}

fn faults_of(root: &Path, patch: &Path) -> Vec<String> {
    let text = read(patch);
    let name = patch.file_name().expect("it is a file").to_string_lossy();
    let mut faults = Vec::new();
    let says_which = text.lines().nth(1).is_some_and(|line| {
        line.strip_prefix("models: ").is_some_and(|models| {
            matches!(models.split(' ').next(), Some("seal" | "view" | "wakequeue" | "workqueue"))
        })
    });
    if !says_which {
        faults.push(format!("{name}: its second line is not `models: CRATE [NAME...]`"));
    }
    let hunks = hunks(&text);
    if hunks.is_empty() {
        faults.push(format!("{name}: changes nothing"));
    }
    for (file, before) in hunks {
        match read(&root.join(&file)).matches(&before).count() {
            1 => {}
            0 => faults.push(format!("{name}: {file} has changed there: make the patch anew")),
            many => faults.push(format!("{name}: {file} has such lines {many} times")),
        }
    }
    faults
}

/// Each hunk's file, and the lines that it expects there.
fn hunks(patch: &str) -> Vec<(String, String)> {
    let mut hunks: Vec<(String, String)> = Vec::new();
    let mut file = String::new();
    for line in patch.lines() {
        if let Some(name) = line.strip_prefix("+++ b/") {
            name.clone_into(&mut file);
        } else if line.starts_with("@@ ") {
            hunks.push((file.clone(), String::new()));
        } else if let (Some((_, before)), Some(rest)) = (hunks.last_mut(), expected(line)) {
            before.push_str(rest);
            before.push('\n');
        }
    }
    hunks
}

/// A line that is there before the patch. Editors take the only space of an empty one away.
fn expected(line: &str) -> Option<&str> {
    if line.is_empty() || line.starts_with("--- ") {
        return line.is_empty().then_some("");
    }
    line.strip_prefix([' ', '-'])
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
