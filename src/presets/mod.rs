//! The built-in policies. Each is a file below `presets/`; lines such as `# %SECRETS%` stand for
//! the parts that several of them share.

mod budget;
mod fit;
mod gathered;
mod named;
mod places;
mod quote;
mod run_later;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate_policy::Policy;

pub(crate) use budget::Budget;
pub(crate) use fit::{Findings, Suits, look};
pub(crate) use quote::{escape_glob, toml_string};
pub(crate) use run_later::files_run;

/// A built-in policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Preset {
    /// For a coding agent: secrets are kept from it, and it cannot change what runs later outside
    Agent,
    /// As `agent`, with what npm, pnpm and yarn need and settings of registries kept
    Node,
    /// As `agent`, for pip, venv and pytest
    Python,
    /// As `agent`, with cargo's settings kept
    Rust,
    /// For a job that builds what others sent: no secrets, pipelines and repository stay as they are
    Ci,
    /// Everything but secrets can be read, nothing can be changed
    ReadOnly,
}

/// What marks a shared part in a preset, and its text.
const PARTS: [(&str, &str); 5] = [
    ("# %GIT%\n", include_str!("../../presets/parts/git.toml")),
    ("# %PACKAGES%\n", include_str!("../../presets/parts/packages.toml")),
    ("# %NAMES%\n", include_str!("../../presets/parts/names.toml")),
    ("# %SETTINGS%\n", include_str!("../../presets/parts/settings.toml")),
    ("# %SECRETS%\n", include_str!("../../presets/parts/secrets.toml")),
];
/// Where the rules for what was found in DIR stand.
const FITTED: &str = "# %FITTED%\n";

/// The directory that a preset was fitted to last: looking takes a while where it is large.
static FITTED_TO: Mutex<Option<Fitted>> = Mutex::new(None);

/// What was found in a directory.
#[derive(Clone)]
struct Fitted {
    dir: PathBuf,
    /// Device and inode number.
    identity: Option<(u64, u64)>,
    /// With what earlier looks found.
    findings: Findings,
}

impl Fitted {
    /// Looks at `dir`. What the `last` look found there stays, and has room before what is new: whoever writes
    /// in the directory can have a look find less, by so much that there is no room, or by removing HEAD of a
    /// bare repository. Where it was moved, absolute paths in it lead nowhere, until it is moved back.
    fn to(dir: &Path, last: Option<Fitted>) -> Self {
        let identity = std::fs::metadata(dir).ok().map(|found| (found.dev(), found.ino()));
        let mut findings = look(dir);
        let last = last.filter(|last| identity.is_some() && last.identity == identity);
        if let Some(last) = last {
            findings.later = findings.later.behind(&last.findings.later);
        }
        Self { dir: dir.to_owned(), identity, findings }
    }
}

fn fitted() -> MutexGuard<'static, Option<Fitted>> {
    FITTED_TO.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Preset {
    pub(crate) const ALL: [Self; 6] =
        [Self::Agent, Self::Node, Self::Python, Self::Rust, Self::Ci, Self::ReadOnly];

    /// The preset of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Node => "node",
            Self::Python => "python",
            Self::Rust => "rust",
            Self::Ci => "ci",
            Self::ReadOnly => "read-only",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Agent => include_str!("../../presets/agent.toml"),
            Self::Node => include_str!("../../presets/node.toml"),
            Self::Python => include_str!("../../presets/python.toml"),
            Self::Rust => include_str!("../../presets/rust.toml"),
            Self::Ci => include_str!("../../presets/ci.toml"),
            Self::ReadOnly => include_str!("../../presets/read-only.toml"),
        }
    }

    /// The policy as text, with the rules that `findings` ask for.
    pub(crate) fn text(self, findings: &Findings) -> String {
        let mut text = self.file().replace(FITTED, &findings.later.rules());
        for (mark, part) in PARTS {
            text = match self {
                // What is an exception elsewhere must not become one to `default`.
                Self::ReadOnly => {
                    text.replace(mark, &part.replace("\"passthrough\"", "\"read-only\""))
                }
                _ => text.replace(mark, &format!("{part}\n")),
            };
        }
        text.trim_end().to_owned() + "\n"
    }

    /// The policy, fitted to the directory `dir`, and a warning if there is more in it than what the
    /// policy keeps.
    ///
    /// # Errors
    /// Never with the presets as they are; their text, and its regular expressions, are tested.
    pub(crate) fn policy(self, dir: &Path) -> anyhow::Result<(Policy, Option<String>)> {
        let origin = format!("preset {}", self.name());
        let last = fitted().clone();
        let now = Fitted::to(dir, last);
        let (text, warning) = (self.text(&now.findings), now.findings.warning(dir));
        *fitted() = Some(now);
        Ok((Policy::parse_tried(&text, &origin)?, warning))
    }

    /// The text of the policy that [`Preset::policy`] made last, if that was for `dir`.
    pub(crate) fn fitted_text(self, dir: &Path) -> String {
        let last = fitted().clone().filter(|last| last.dir == dir);
        self.text(&last.map_or_else(|| look(dir), |last| last.findings))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fmt::Write as _;
    use std::os::unix::ffi::OsStrExt;

    use tollgate_policy::{CallerFacts, Facts, Kind, Operation, Verdict};

    use super::*;

    fn write(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn repository(dir: &Path, top: &str) {
        for (name, text) in [("HEAD", "x"), ("config", ""), ("objects/x", ""), ("refs/x", "")] {
            write(dir, &format!("{top}.git/{name}"), text);
        }
    }

    fn is_kept(policy: &Policy, path: &str) -> bool {
        let caller = CallerFacts { uid: 0, gid: 0, exe: None };
        let facts = Facts { path: path.as_bytes(), kind: Kind::File, size: 0, head: None };
        let mut operations = [Operation::Write, Operation::Create].into_iter();
        operations.all(|one| policy.decide(&facts, one, &caller).verdict == Verdict::ReadOnly)
    }

    /// What no glob can name is kept with what is around it.
    #[test]
    fn paths_of_more_names_than_a_glob_may_have_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (module, deep, tree) = ("a/".repeat(70), "d/".repeat(61), "t/".repeat(57));
        repository(dir.path(), &deep);
        repository(dir.path(), &tree);
        for name in ["HEAD", "commondir", "gitdir"] {
            write(dir.path(), &format!("{tree}.git/worktrees/w/{name}"), "x");
        }
        let long = format!("{0}/{0}/{0}/{0}/{0}x/z", "l".repeat(1000));
        let text = format!("[submodule \"x\"]\n path = {module}z\n path = {long}\n");
        write(dir.path(), ".gitmodules", &text);
        for preset in Preset::ALL {
            let (policy, _) = preset.policy(dir.path()).unwrap();
            assert!(is_kept(&policy, &format!("{module}z/.git")));
            assert!(is_kept(&policy, &format!("{long}/.git")));
            assert!(is_kept(&policy, &format!("{deep}.git/hooks/pre-commit")));
            assert!(is_kept(&policy, &format!("{tree}.git/hooks/pre-commit")));
            assert!(is_kept(&policy, &format!("{tree}.git/worktrees/w/commondir")));
            let is_open = !is_kept(&policy, "a/b") && !is_kept(&policy, &format!("{deep}b"));
            assert!(is_open || preset == Preset::ReadOnly);
        }
    }

    /// git starts what `core.fsmonitor` says there, as soon as it is used in the submodule.
    #[test]
    fn settings_of_one_working_tree_of_a_submodule_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        repository(dir.path(), "");
        for name in ["HEAD", "config", "config.worktree", "worktrees/w/config.worktree"] {
            write(dir.path(), &format!(".git/modules/sub/{name}"), "");
        }
        write(dir.path(), "sub/.git", "gitdir: ../.git/modules/sub\n");
        for preset in Preset::ALL {
            let (policy, _) = preset.policy(dir.path()).unwrap();
            for name in ["sub/config.worktree", "sub/worktrees/w/config.worktree"] {
                let name = format!(".git/modules/{name}");
                assert!(is_kept(&policy, &name), "{}: {name}", preset.name());
            }
        }
    }

    /// They lie in the repository that the working tree is linked to, wherever that tree is.
    #[test]
    fn submodules_of_linked_working_trees_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let names =
            ["hooks/pre-commit", "config", "config.worktree", "commondir", "info/attributes"];
        for top in ["", "below/"] {
            repository(dir.path(), top);
            for name in ["HEAD", "commondir", "gitdir", "modules/a/b/HEAD", "modules/a/b/config"] {
                write(dir.path(), &format!("{top}.git/worktrees/w/{name}"), "x");
            }
        }
        for preset in Preset::ALL {
            let (policy, _) = preset.policy(dir.path()).unwrap();
            for top in ["", "below/"] {
                for name in names {
                    let name = format!("{top}.git/worktrees/w/modules/a/b/{name}");
                    assert!(is_kept(&policy, &name), "{}: {name}", preset.name());
                }
            }
        }
    }

    #[test]
    fn more_paths_than_a_policy_may_have_make_none_that_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        repository(dir.path(), "");
        write(dir.path(), ".git/config", "[core]\nhooksPath = tools/hooks\n");
        let mut text = "[submodule \"x\"]\n".to_owned();
        (0..70_000).for_each(|number| writeln!(text, "path=m{number}").unwrap());
        write(dir.path(), ".gitmodules", &text);
        let (policy, _) = Preset::Agent.policy(dir.path()).unwrap();
        assert!(is_kept(&policy, "tools/hooks/pre-commit") && is_kept(&policy, "m1/.git"));
        assert!(!look(dir.path()).later.whole);
    }

    /// Whoever writes in the directory can fill the room for what is found, or make a repository one that
    /// is not found.
    #[test]
    fn what_was_found_stays_whatever_comes_to_it() {
        let dir = tempfile::tempdir().unwrap();
        repository(dir.path(), "v/l/");
        for name in ["HEAD", "objects/x", "refs/x"] {
            write(dir.path(), &format!("bare/{name}"), "");
        }
        let first = Fitted::to(dir.path(), None);
        repository(dir.path(), "new/");
        let second = Fitted::to(dir.path(), Some(first));
        assert!(second.findings.later.whole);
        std::fs::remove_file(dir.path().join("bare/HEAD")).unwrap();
        for number in 0..9 {
            let mut text = "[submodule \"x\"]\n".to_owned();
            (0..4096).for_each(|one| writeln!(text, "path=m{number}/{one}").unwrap());
            write(dir.path(), &format!("z{number}/.gitmodules"), &text);
            write(dir.path(), &format!("z{number}/.git/x"), "");
        }
        let third = Fitted::to(dir.path(), Some(second));
        let fourth = Fitted::to(dir.path(), Some(third.clone()));
        for fitted in [third, fourth] {
            assert!(!fitted.findings.later.whole);
            let policy = Policy::parse(&Preset::Agent.text(&fitted.findings), "x").unwrap();
            for place in ["v/l/.git", "bare", "new/.git"] {
                assert!(is_kept(&policy, &format!("{place}/hooks/pre-commit")), "{place}");
            }
        }
    }

    #[test]
    fn no_warning_is_about_a_name_in_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["!neg", "~", "$HOME", "${x}"] {
            repository(dir.path(), &format!("{name}/"));
        }
        let odd = OsStr::from_bytes(b"h\xff");
        std::fs::create_dir(dir.path().join(odd)).unwrap();
        let config = [b"[core]\nhooksPath = ".as_slice(), odd.as_bytes(), b"\n"].concat();
        // As `init` writes it.
        let policy = Policy::parse(&Preset::Agent.text(&look(dir.path())), "x").unwrap();
        assert!(policy.warnings().is_empty(), "{:?}", policy.warnings());
        for name in ["!neg", "~", "$HOME", "${x}"] {
            assert!(is_kept(&policy, &format!("{name}/.git/config")), "{name}");
        }
        // One that is not UTF-8 has no glob without a wildcard.
        repository(dir.path(), "");
        std::fs::write(dir.path().join(".git/config"), config).unwrap();
        let (policy, _) = Preset::Agent.policy(dir.path()).unwrap();
        assert!(policy.warnings().is_empty(), "{:?}", policy.warnings());
        let hook = Facts { path: b"h\xff/pre-commit", kind: Kind::File, size: 0, head: None };
        let caller = CallerFacts { uid: 0, gid: 0, exe: None };
        assert_eq!(policy.decide(&hook, Operation::Write, &caller).verdict, Verdict::ReadOnly);
    }

    #[test]
    fn files_that_are_too_long_to_be_looked_into_are_said() {
        for (file, text) in [
            (".gitmodules", "[submodule \"x\"]\n path = m\n"),
            (".git/config", "[alias]\n z = !./run.sh\n"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            repository(dir.path(), "");
            write(dir.path(), file, text);
            assert!(look(dir.path()).later.whole, "{file}");
            write(dir.path(), file, &format!("{text}{}", "# more\n".repeat(200_000)));
            assert!(!look(dir.path()).later.whole, "{file}");
        }
    }

    #[test]
    fn hooks_that_name_more_than_a_policy_may_have_make_none_that_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut text = (0..4).map(|number| format!("cd c{number}\n")).collect::<String>();
        (0..6000).for_each(|number| writeln!(text, "x{number}/y").unwrap());
        repository(dir.path(), "new/");
        for name in ["pre-commit", "pre-push", "post-merge"] {
            write(dir.path(), &format!("new/.git/hooks/{name}"), &text);
        }
        let (policy, _) = Preset::Agent.policy(dir.path()).unwrap();
        assert!(is_kept(&policy, "new/x1/y") && is_kept(&policy, "new/.git/hooks/pre-push"));
        assert!(!look(dir.path()).later.whole);
    }

    #[test]
    fn every_preset_is_a_policy_without_warnings() {
        let mut findings = Findings::default();
        findings.later.paths = vec!["hooks here/[x]".into(), "sub/.git".into()];
        findings.later.repositories = vec!["lib {a,b}/.git".into(), "x.git".into()];
        findings.later.work_trees = vec![".git/worktrees/a b".into(), "x.git/worktrees/[c]".into()];
        for preset in Preset::ALL {
            for findings in [&Findings::default(), &findings] {
                let text = preset.text(findings);
                let policy = Policy::parse(&text, preset.name()).unwrap_or_else(|e| panic!("{e}"));
                assert!(policy.warnings().is_empty(), "{:?}", policy.warnings());
                assert!(!text.contains("# %") && policy.rules().len() > 5, "{text}");
                assert_eq!(Preset::named(preset.name()), Some(preset));
            }
        }
    }
}
