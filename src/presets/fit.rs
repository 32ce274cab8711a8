//! What a preset has to know about the directory: where its hooks are, which languages it uses.

use std::path::Path;

use super::run_later::{self, RunLater};
use crate::escape::shown;
use crate::git::Repository;

/// What was found in a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// What runs later outside, beside what every preset names.
    pub(crate) later: RunLater,
    /// What the directory is, for people: `git repository`, `Cargo.toml`.
    pub(crate) seen: Vec<String>,
    /// The preset that suits it.
    pub(crate) suits: Suits,
}

impl Findings {
    /// That there is more in `dir` than what was found.
    pub(crate) fn warning(&self, dir: &Path) -> Option<String> {
        (!self.later.whole).then(|| {
            format!(
                "`{}` has too many directories, repositories, or files that git would run, or \
                 settings or hooks of more than 1 MiB, or some of these that cannot be read, to keep \
                 all of them: what was not found can be written, hooks too; name a directory \
                 further below",
                shown(dir)
            )
        })
    }
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
    }
    findings.later = run_later::look(dir);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_language_suits_a_directory_and_two_do_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("Cargo.toml"), "").unwrap();
        std::fs::create_dir(dir.path().join(".git")).unwrap();
        std::fs::write(dir.path().join(".git/HEAD"), "").unwrap();
        let findings = look(dir.path());
        assert_eq!(findings.seen, ["git repository", "Cargo.toml"]);
        assert_eq!(findings.suits, Suits::Rust);
        std::fs::write(dir.path().join("package.json"), "").unwrap();
        assert_eq!(look(dir.path()).suits, Suits::Any);
    }
}
