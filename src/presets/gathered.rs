//! What was found that runs later, as far as a policy has room for it. The names may be those of
//! whoever writes in the directory, and must not make a policy that is refused.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::quote::{glob, toml_string};

/// Most globs for what was found, braces spread out: half of what a policy may have.
const MAX_GLOBS: usize = tollgate_policy::MAX_GLOBS / 2;
/// Most bytes of the lines with them.
const MAX_LEN: usize = tollgate_policy::MAX_TEXT_LEN / 2;
/// Most names in a glob; see `docs/policy.md`.
const MAX_COMPONENTS: usize = 62;
/// How many of them the rules put behind the path of a repository.
const BEHIND: usize = 6;
/// Longest path that a system call takes, in bytes.
const MAX_PATH_LEN: usize = 4095;

/// Paths relative to the directory.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) paths: BTreeSet<PathBuf>,
    pub(super) repositories: BTreeSet<PathBuf>,
    pub(super) work_trees: BTreeSet<PathBuf>,
    room: Room,
}

#[derive(Debug, Default)]
struct Room {
    globs: usize,
    len: usize,
    is_full: bool,
}

/// What the rules for one path have at most.
struct Lines {
    number: usize,
    globs: usize,
    /// Bytes of a line beside those of the path.
    rest: usize,
}

impl Gathered {
    /// Adds what a rule covers with all below it; of a path that is too long for a glob, what is above.
    pub(super) fn path(&mut self, path: &Path) {
        if let Some(path) = nameable(path) {
            self.room.put(&mut self.paths, path, &Lines { number: 1, globs: 1, rest: 8 });
        }
    }

    /// Adds the directory of a repository.
    pub(super) fn repository(&mut self, path: &Path) {
        if leaves_room_behind(path) {
            let lines = Lines { number: 4, globs: 16, rest: 96 };
            self.room.put(&mut self.repositories, path.to_owned(), &lines);
        } else {
            self.path(path);
        }
    }

    /// Adds what a repository keeps of a linked working tree.
    pub(super) fn work_tree(&mut self, path: &Path) {
        if leaves_room_behind(path) {
            let lines = Lines { number: 2, globs: 2, rest: 10 };
            self.room.put(&mut self.work_trees, path.to_owned(), &lines);
        } else {
            self.path(path);
        }
    }

    /// Something was found that is not here.
    pub(super) fn is_full(&self) -> bool {
        self.room.is_full
    }
}

impl Room {
    fn put(&mut self, list: &mut BTreeSet<PathBuf>, path: PathBuf, lines: &Lines) {
        if self.is_full || list.contains(&path) {
            return;
        }
        self.globs += lines.globs;
        self.len += lines.number * (toml_string(&glob(&path)).len() + lines.rest);
        self.is_full = self.globs > MAX_GLOBS || self.len > MAX_LEN;
        if !self.is_full {
            list.insert(path);
        }
    }
}

/// The path, or the nearest one above it that a glob can name. None where no system call takes it.
fn nameable(path: &Path) -> Option<PathBuf> {
    let mut kept = PathBuf::new();
    for name in path.components().take(MAX_COMPONENTS) {
        let next = kept.join(name);
        if next.as_os_str().len() > MAX_PATH_LEN {
            break;
        }
        kept = next;
    }
    (kept != Path::new("")).then_some(kept)
}

fn leaves_room_behind(path: &Path) -> bool {
    path.components().count() <= MAX_COMPONENTS - BEHIND && path.as_os_str().len() <= MAX_PATH_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_between_two_names() {
        let cut = |path: &str| nameable(Path::new(path)).map(|path| path.display().to_string());
        assert_eq!(cut("a/b").unwrap(), "a/b");
        assert_eq!(cut(&"a/".repeat(63)).unwrap(), ["a"; 62].join("/"));
        assert_eq!(cut(&format!("a/{}/b", "b".repeat(4094))).unwrap(), "a");
        assert_eq!(cut(&"b".repeat(4096)), None);
    }

    #[test]
    fn no_more_is_gathered_than_a_policy_may_have() {
        let (mut all, mut long) = (Gathered::default(), Gathered::default());
        let path = |number: usize| PathBuf::from(format!("w{number}"));
        for number in 0..MAX_GLOBS / 2 {
            // What is there already takes no room.
            (0..2).for_each(|_| all.work_tree(&path(number)));
        }
        assert_eq!((all.work_trees.len(), all.is_full()), (MAX_GLOBS / 2, false));
        all.path(Path::new("x"));
        assert!(all.is_full() && all.paths.is_empty());
        for number in 0..1000 {
            long.path(&path(number).join("\u{1}".repeat(1000)));
        }
        assert!(long.is_full() && long.paths.len() > 300);
    }
}
