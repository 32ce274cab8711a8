//! What a preset has to know about the directory: where its hooks are, which languages it uses.

use std::path::{Path, PathBuf};

use crate::git::{Config, Repository};

/// What was found in a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// Paths relative to the directory that run later outside, beside the usual ones.
    pub(crate) protected: Vec<String>,
    /// What the directory is, for people: `git repository`, `Cargo.toml`.
    pub(crate) seen: Vec<String>,
    /// The preset that suits it.
    pub(crate) suits: Suits,
}

/// The language that a directory is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Suits {
    Node,
    Python,
    Rust,
    /// Several, or none that is known.
    #[default]
    Any,
}

const LANGUAGES: [(&str, Suits); 8] = [
    ("package.json", Suits::Node),
    ("pnpm-workspace.yaml", Suits::Node),
    ("pyproject.toml", Suits::Python),
    ("setup.py", Suits::Python),
    ("requirements.txt", Suits::Python),
    ("Pipfile", Suits::Python),
    ("Cargo.toml", Suits::Rust),
    ("rust-toolchain.toml", Suits::Rust),
];

/// Looks at a few well-known names in `dir`; cheap enough for every start.
pub(crate) fn look(dir: &Path) -> Findings {
    let mut findings = Findings::default();
    let mut found: Vec<Suits> = Vec::new();
    for (name, suits) in LANGUAGES {
        if dir.join(name).is_file() {
            findings.seen.push(name.to_owned());
            if !found.contains(&suits) {
                found.push(suits);
            }
        }
    }
    if let [only] = found[..] {
        findings.suits = only;
    }
    if let Some(repository) = Repository::at(dir) {
        findings.seen.insert(0, repository.kind().to_owned());
        findings.protected = run_later(dir, &repository);
    }
    findings
}

/// Hooks outside of `.git`, settings that its settings include, and the links of submodules, which
/// say where their settings are.
fn run_later(dir: &Path, repository: &Repository) -> Vec<String> {
    let own = repository.config();
    let user = Config::of_user();
    let hooks = own.values("core.hookspath").chain(user.values("core.hookspath"));
    let included = own.values("include.path").map(|path| (repository.git_dir(), path));
    let submodules = Config::read(&dir.join(".gitmodules"));
    let links = submodules.values_of_any("submodule", "path").map(|path| format!("{path}/.git"));
    let mut paths: Vec<String> = hooks
        .map(|path| (dir, path))
        .chain(included)
        .filter_map(|(base, path)| beneath(dir, &base.join(path)))
        .chain(links.filter_map(|path| beneath(dir, &dir.join(path))))
        .collect();
    if repository.is_linked() {
        paths.push(".git".to_owned());
    }
    paths.retain(|path| !path.starts_with(".git/hooks") && path != ".git/config");
    paths.sort();
    paths.dedup();
    paths
}

/// The path relative to `dir`, if it lies in it; without `.` and `..`.
fn beneath(dir: &Path, path: &Path) -> Option<String> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    let inside = plain.strip_prefix(dir).ok()?.to_str()?;
    (!inside.is_empty()).then(|| inside.to_owned())
}

impl Findings {
    /// The rules for what was found, as text; empty when there is nothing to add.
    pub(super) fn rules(&self) -> String {
        if self.protected.is_empty() {
            return String::new();
        }
        let paths: Vec<String> =
            self.protected.iter().map(|path| toml_string(&escape_glob(path))).collect();
        format!(
            "# Found in this directory: hooks, settings that git includes, links of submodules.\n\n\
             [[rule]]\nname = \"hooks and links found here\"\npath = [{}]\n\
             operation = [\"write\", \"create\"]\naction = \"read-only\"\n\n",
            paths.join(", ")
        )
    }
}

/// A glob that matches exactly this path.
pub(crate) fn escape_glob(path: &str) -> String {
    path.chars()
        .flat_map(|c| {
            let special = matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\');
            special.then_some('\\').into_iter().chain([c])
        })
        .collect()
}

/// A basic string of TOML.
pub(crate) fn toml_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted += &format!("\\u{:04X}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_later_is_found_where_the_repository_says() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(".git/HEAD", "ref: refs/heads/main\n");
        write(
            ".git/config",
            "[core]\n\thooksPath = \"tools/my hooks\" ; here\n[include]\npath = ../shared.conf\n",
        );
        write(".gitmodules", "[submodule \"a b\"]\n\tpath = libs/a\n\turl = ../a\n");
        write("Cargo.toml", "");
        let findings = look(dir.path());
        assert_eq!(findings.protected, ["libs/a/.git", "shared.conf", "tools/my hooks"]);
        assert_eq!(findings.seen, ["git repository", "Cargo.toml"]);
        assert_eq!(findings.suits, Suits::Rust);
        write("package.json", "");
        assert_eq!(look(dir.path()).suits, Suits::Any);
    }

    #[test]
    fn globs_and_strings_are_escaped() {
        assert_eq!(escape_glob("a[b]*"), r"a\[b\]\*");
        assert_eq!(toml_string("a\"\\\n"), "\"a\\\"\\\\\\u000A\"");
    }
}
