//! Pages name source files; each one named must be there, so that a file that gets another name
//! takes the pages along.

use std::path::{Path, PathBuf};

/// Names in pages that no file has, one line each.
pub(crate) fn faults(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    walk(root, &mut files);
    let pages = files.iter().filter(|file| is_page(file));
    pages.flat_map(|page| faults_of(root, page, &files)).collect()
}

/// READMEs and the pages of `docs`. Those of old runs and the list of changes speak of the past.
fn is_page(file: &Path) -> bool {
    let is_readme = file.ends_with("README.md") || file.ends_with("CONTRIBUTING.md");
    let is_doc = file.starts_with("docs") && file.extension().is_some_and(|end| end == "md");
    (is_readme || is_doc) && !file.starts_with("bench/runs")
}

fn faults_of(root: &Path, page: &Path, files: &[PathBuf]) -> Vec<String> {
    let path = root.join(page);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // A crate's README speaks of that crate's files.
    let own = page.strip_prefix("crates").ok().and_then(|rest| rest.iter().next());
    let own = own.map(|name| Path::new("crates").join(name));
    let among = |file: &&PathBuf| own.as_ref().is_none_or(|own| file.starts_with(own));
    let there = |name: &str| {
        files.iter().filter(among).any(|file| file.ends_with(name))
            || files.iter().any(|file| file == Path::new(name))
    };
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for name in quoted(line).flat_map(alternatives).filter(|name| is_source(name)) {
            if !there(&name) {
                let number = number + 1;
                faults.push(format!("{}:{number}: there is no `{name}`", page.display()));
            }
        }
    }
    faults
}

/// What stands between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// `a/{b,c}.rs` stands for `a/b.rs` and `a/c.rs`.
fn alternatives(name: &str) -> Vec<String> {
    let parts = name.split_once('{').and_then(|(before, rest)| {
        let (within, after) = rest.split_once('}')?;
        Some(within.split(',').map(|part| format!("{before}{part}{after}")).collect())
    });
    parts.unwrap_or_else(|| vec![name.to_owned()])
}

/// Whether this is the name of a file of this project that is written in Rust, and not a pattern.
fn is_source(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    name.ends_with(".rs") && name.len() > ".rs".len() && name.bytes().all(plain)
}

/// All files that may be named, below `root`. Builds and what git hides are left out.
fn walk(root: &Path, files: &mut Vec<PathBuf>) {
    let mut rest = vec![root.to_owned()];
    while let Some(directory) = rest.pop() {
        let entries = std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for entry in entries.flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let hidden = name.as_encoded_bytes().starts_with(b".");
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !hidden && name != "target" => rest.push(path),
                Ok(kind) if kind.is_file() => {
                    files.push(path.strip_prefix(root).expect("it lies below").to_owned());
                }
                _ => {}
            }
        }
    }
}

#[test]
fn names_of_sources_are_told_from_other_words() {
    let names = |line: &str| -> Vec<String> {
        quoted(line).flat_map(alternatives).filter(|name| is_source(name)).collect()
    };
    assert_eq!(names("see `a/{b,c}.rs`, `d.rs` and d.rs"), ["a/b.rs", "a/c.rs", "d.rs"]);
    assert_eq!(names("`*.rs`, `ls x.rs`, `.rs`, `a.md`"), [] as [&str; 0]);
}
