//! Repositories below a directory.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::files;

/// Most directories that are read: some 14 us each where the kernel has them in memory, 0.5 s in all.
const MAX_DIRECTORIES: usize = 1 << 15;
/// Most names that are looked at.
const MAX_NAMES: usize = 1 << 20;
/// Most repositories that are looked for.
const MAX_FOUND: usize = 1024;
/// Directories with what tools fetched and built, which have repositories that the tools change.
const PASSED: [&str; 12] = [
    "node_modules",
    "target",
    "site-packages",
    "_deps",
    ".build",
    ".cache",
    ".cargo",
    ".pnpm-store",
    ".terraform",
    ".tox",
    ".nox",
    ".yarn",
];

/// What git keeps in a bare repository: nobody works in these.
const OF_BARE: [&str; 8] =
    ["objects", "refs", "hooks", "info", "logs", "lfs", "modules", "worktrees"];

/// What was found, as paths relative to the directory; the nearest to it first.
#[derive(Debug, Default)]
pub(crate) struct Below {
    /// Directories with a `.git`, not the top itself.
    pub(crate) work_trees: Vec<PathBuf>,
    /// Bare repositories, not the top itself.
    pub(crate) bare: Vec<PathBuf>,
    /// Whether the top is one: git uses it where the `.git` beside is missing or broken.
    pub(crate) top_is_bare: bool,
    /// Directories that could not be read, as somebody of this user has closed them.
    pub(crate) closed: Vec<PathBuf>,
    /// Whether every directory was looked at, but for those of other users that this one may not read.
    pub(crate) whole: bool,
}

/// Looks for the repositories in `dir`. Follows no symbolic link and enters no mount.
pub(crate) fn below(dir: &Path) -> Below {
    let mut found = Below::default();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(top) = rustix::fs::openat(CWD, dir, flags, Mode::empty()) else { return found };
    let mut pending = VecDeque::from([PathBuf::new()]);
    let (mut directories, mut names, mut has_unread) = (0, 0, false);
    while let Some(path) = pending.pop_front() {
        directories += 1;
        let full = found.work_trees.len() + found.bare.len() >= MAX_FOUND;
        if names > MAX_NAMES || full {
            return found;
        }
        let entries = entries(&top, &path).unwrap_or_else(|error| {
            if is_to_be_said(dir, &path, error) {
                has_unread = true;
                found.closed.extend((error == Errno::ACCESS).then(|| path.clone()));
            }
            Vec::new()
        });
        names += entries.len();
        let is_top = path == Path::new("");
        let is_bare = is_repository(&entries);
        match (is_bare, is_top) {
            (true, true) => found.top_is_bare = true,
            // One with a `.git` besides is both: git takes that if it is whole.
            (true, false) => found.bare.push(path.clone()),
            (false, _) => {}
        }
        for (name, kind) in entries {
            // Some file systems do not say what a name is.
            let may_be_directory = matches!(kind, FileType::Directory | FileType::Unknown);
            if name == b".git" {
                if !is_top {
                    found.work_trees.push(path.clone());
                }
            } else if may_be_directory
                && !is_among(&PASSED, &name)
                && !(is_bare && is_among(&OF_BARE, &name))
            {
                // The others would not be read, and their paths may be long and many.
                if directories + pending.len() < MAX_DIRECTORIES {
                    pending.push_back(path.join(OsStr::from_bytes(&name)));
                } else {
                    has_unread = true;
                }
            }
        }
    }
    found.whole = !has_unread;
    found
}

/// Whether there may be something in a directory that could not be read. One of another user's is read
/// neither by git nor by CMD; CMD can have closed one of this user, and open it later.
fn is_to_be_said(dir: &Path, path: &Path, error: Errno) -> bool {
    match error {
        // It is gone, or something else by now, or a mount.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => false,
        Errno::ACCESS => files::is_closed_by_own(&dir.join(path)),
        _ => true,
    }
}

fn is_among(names: &[&str], name: &[u8]) -> bool {
    names.iter().any(|one| one.as_bytes() == name)
}

/// As git tells: HEAD has to be there, and the other two, or what says where they are.
fn is_repository(entries: &[(Vec<u8>, FileType)]) -> bool {
    let has = |wanted: &str| entries.iter().any(|(name, _)| name == wanted.as_bytes());
    has("HEAD") && (has("commondir") || (has("objects") && has("refs")))
}

/// The names in a directory beneath `top`.
fn entries(top: &OwnedFd, path: &Path) -> rustix::io::Result<Vec<(Vec<u8>, FileType)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let path = if path == Path::new("") { Path::new(".") } else { path };
    let opened = rustix::fs::openat2(top.as_fd(), path, flags, Mode::empty(), beneath);
    let names = opened
        .and_then(Dir::new)?
        .flatten()
        .map(|entry| (entry.file_name().to_bytes().to_vec(), entry.file_type()))
        .filter(|(name, _)| !matches!(name.as_slice(), b"." | b".."));
    Ok(names.take(MAX_NAMES).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_trees_and_bare_repositories_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| std::fs::create_dir_all(dir.path().join(name)).unwrap();
        let repository = |name: &str| {
            make(&format!("{name}/objects"));
            make(&format!("{name}/refs"));
            std::fs::write(dir.path().join(name).join("HEAD"), "ref: refs/heads/main\n").unwrap();
        };
        let found = below(dir.path());
        assert!(found.work_trees.is_empty() && found.bare.is_empty() && found.whole);
        repository(".git");
        repository("a/lib/.git");
        repository("a/lib/inner/.git");
        repository("store.git");
        repository("node_modules/pkg/.git");
        // What is in one, or beside its files, hides in none of them.
        repository("store.git/in/.git");
        repository("both");
        repository("both/.git");
        make("elsewhere");
        std::fs::write(dir.path().join("elsewhere/HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::write(dir.path().join("elsewhere/commondir"), "../store.git\n").unwrap();
        make("linked");
        std::fs::write(dir.path().join("linked/.git"), "gitdir: ../store.git\n").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        // What lacks one of the three is none.
        make("none/objects");
        let mut found = below(dir.path());
        found.work_trees.sort();
        found.bare.sort();
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let work_trees = ["a/lib", "a/lib/inner", "both", "linked", "store.git/in"];
        assert_eq!(found.work_trees, paths(&work_trees));
        assert_eq!(found.bare, paths(&["both", "elsewhere", "store.git"]));
        assert!(found.whole && !found.top_is_bare);
        repository(".");
        assert!(below(dir.path()).top_is_bare);
    }

    #[test]
    fn a_search_that_is_given_up_says_so() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..=MAX_FOUND {
            std::fs::create_dir_all(dir.path().join(format!("{number}/.git"))).unwrap();
        }
        let found = below(dir.path());
        assert_eq!((found.work_trees.len(), found.whole), (MAX_FOUND, false));
    }
}
