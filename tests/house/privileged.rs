//! The privileged process of the broker stays small enough to be read in one sitting.

use std::path::Path;

/// Lines without comments and tests.
const MOST: usize = 620;

/// What is wrong with its size, or with what the page says of it.
pub(crate) fn faults(root: &Path) -> Vec<String> {
    let server = root.join("crates/broker/src/server");
    let entries = std::fs::read_dir(&server).unwrap().map(|entry| entry.unwrap().path());
    let others =
        ["crates/broker/src/protocol.rs", "src/broker/start.rs"].map(|name| root.join(name));
    let files = entries.chain(others);
    let lines: usize = files.map(|file| code(&std::fs::read_to_string(file).unwrap())).sum();
    let page = std::fs::read_to_string(root.join("docs/broker.md")).unwrap();
    let mut faults = Vec::new();
    if lines > MOST {
        faults.push(format!("the privileged process has {lines} lines, of at most {MOST}"));
    }
    if !page.contains(&format!("The privileged process has {lines} lines of code")) {
        faults.push(format!("docs/broker.md does not say that it has {lines} lines of code"));
    }
    faults
}

fn code(text: &str) -> usize {
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
    let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
    lines.map(str::trim).filter(is_code).count()
}
