//! What CMD took out of git's index without meaning to: a tracked file that the policy hides looks
//! deleted in the view, and `git add -A` or `git commit -a` records that.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tollgate_policy::{CallerFacts, Facts, Kind, Operation, Policy, Verdict};

use super::{Repository, enters, index};
use crate::escape::escaped;
use crate::files;

/// Largest index that is kept to be compared, in bytes: some 100,000 files.
const MAX_LEN: u64 = 16 << 20;
/// Files that are named.
const MAX_NAMED: usize = 4;

/// The indexes of DIR's repository and of its submodules, as they were before CMD.
#[derive(Default)]
pub(crate) struct IndexesBefore(Vec<IndexBefore>);

struct IndexBefore {
    work_tree: PathBuf,
    /// The path of the working tree in DIR, with a slash at its end; empty for the top.
    below: Vec<u8>,
    file: PathBuf,
    bytes: Vec<u8>,
    name_len: usize,
    /// Device and inode number.
    place: (u64, u64),
    identity: Identity,
}

/// Tells whether a file was written, or another put in its place.
type Identity = (u64, i64, i64);

impl IndexesBefore {
    /// Those of the repository whose working tree is `dir`, and of its submodules, but for those that are
    /// larger than 16 MiB, or would be together. Each index once, whatever leads to it.
    pub(crate) fn of(dir: &Path) -> Self {
        let (mut all, mut left) = (Vec::new(), MAX_LEN);
        let (mut pending, mut seen) = (vec![Vec::new()], HashSet::new());
        while let Some(below) = pending.pop() {
            if !below.is_empty() && !enters(dir, Path::new(OsStr::from_bytes(&below))) {
                continue;
            }
            let Some(index) = IndexBefore::of(dir, below, left) else { continue };
            if !seen.insert(index.place) {
                continue;
            }
            left -= index.bytes.len() as u64;
            let tracked = index::parse(&index.bytes, index.name_len).unwrap_or_default();
            let submodules = tracked.into_iter().filter(|one| one.is_repository);
            pending.extend(submodules.map(|one| [&index.below, &*one.path, b"/"].concat()));
            all.push(index);
        }
        Self(all)
    }

    /// A line about files that are not in an index any more, although they are there and were only
    /// hidden.
    pub(crate) fn lost(&self, policy: &Policy) -> Option<String> {
        // What is only recorded hides nothing.
        let enforced = policy.enforced();
        let policy = enforced.as_ref().unwrap_or(policy);
        let lost: Vec<_> = self.0.iter().flat_map(|index| index.lost(policy)).collect();
        let more = match lost.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = lost.iter().take(MAX_NAMED);
        let names: Vec<_> =
            names.map(|path| format!("`{}`", escaped(&String::from_utf8_lossy(path)))).collect();
        (!lost.is_empty()).then(|| {
            format!(
                "CMD took out of git's index what it could not see: {}{more}. A commit of it \
                 deletes these files for everybody. To undo it outside: `git reset -q -- FILE`, \
                 and after a commit `git checkout HEAD~1 -- FILE`; `git update-index \
                 --skip-worktree FILE` prevents it",
                names.join(", ")
            )
        })
    }
}

impl IndexBefore {
    fn of(dir: &Path, below: Vec<u8>, max_len: u64) -> Option<Self> {
        let work_tree = dir.join(OsStr::from_bytes(&below));
        let repository = Repository::at(&work_tree)?;
        let file = repository.git_dir().join("index");
        let meta = std::fs::metadata(&file).ok()?;
        let (place, identity) = ((meta.dev(), meta.ino()), identity(&meta)?);
        let bytes = files::read_at_most(&file, max_len).ok()?;
        let name_len = repository.name_len();
        Some(Self { work_tree, below, file, bytes, name_len, place, identity })
    }

    /// The paths in DIR of hidden files that are there, and were in the index.
    fn lost(&self, policy: &Policy) -> Vec<Vec<u8>> {
        let now = std::fs::metadata(&self.file).ok().and_then(|meta| identity(&meta));
        if now.is_none_or(|identity| identity == self.identity) {
            return Vec::new();
        }
        let parsed = index::parse(&self.bytes, self.name_len).ok();
        let (Some(before), Ok(now)) = (parsed, index::tracked(&self.file, self.name_len)) else {
            return Vec::new();
        };
        let now: HashSet<_> = now.into_iter().map(|one| one.path).collect();
        let is_there = |path: &[u8]| {
            std::fs::symlink_metadata(self.work_tree.join(OsStr::from_bytes(path))).is_ok()
        };
        let gone = before.into_iter().map(|one| one.path).filter(|path| !now.contains(path));
        let gone = gone.filter(|path| is_there(path)).map(|path| [&*self.below, &path].concat());
        gone.filter(|path| is_hidden(policy, path)).collect()
    }
}

fn is_hidden(policy: &Policy, path: &[u8]) -> bool {
    let caller = CallerFacts { uid: 0, gid: 0, exe: None };
    let facts = Facts { path, kind: Kind::File, size: 0, head: None };
    policy.hidden_above(path).is_some()
        || policy.decide(&facts, Operation::Read, &caller).verdict == Verdict::Hide
}

/// None of what is larger than all that is kept.
fn identity(meta: &Metadata) -> Option<Identity> {
    (meta.len() <= MAX_LEN).then(|| (meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::git::index::tests::of_repositories;

    /// A repository with other repositories in its index.
    fn repository(top: &Path, tracked: &[&str]) {
        create_dir_all(top.join(".git")).unwrap();
        write(top.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        write(top.join(".git/index"), of_repositories(tracked)).unwrap();
    }

    fn found(top: &Path) -> Vec<String> {
        let all = IndexesBefore::of(top).0.into_iter();
        all.map(|one| String::from_utf8(one.below).unwrap()).collect()
    }

    #[test]
    fn indexes_of_submodules_are_found() {
        let dir = tempfile::tempdir().unwrap();
        repository(dir.path(), &["a", "b/c", "missing"]);
        repository(&dir.path().join("a"), &["d"]);
        repository(&dir.path().join("a/d"), &[]);
        repository(&dir.path().join("b/c"), &[]);
        assert_eq!(found(dir.path()), ["", "b/c/", "a/", "a/d/"]);
    }

    /// Two links to the top would lead on in 2^40 ways.
    #[test]
    fn no_submodule_is_looked_for_behind_a_symbolic_link() {
        let dir = tempfile::tempdir().unwrap();
        repository(dir.path(), &["a", "b", "l/s", "/", ".."]);
        for name in ["a", "b"] {
            symlink(".", dir.path().join(name)).unwrap();
        }
        repository(&dir.path().join("r/s"), &[]);
        symlink("r", dir.path().join("l")).unwrap();
        assert_eq!(found(dir.path()), [""]);
    }

    #[test]
    fn what_is_only_recorded_as_hidden_was_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        repository(dir.path(), &["a", "b", "c"]);
        for name in ["a", "b"] {
            write(dir.path().join(name), "").unwrap();
        }
        let before = IndexesBefore::of(dir.path());
        write(dir.path().join(".git/index"), of_repositories(&["c"])).unwrap();
        let rules = "[[rule]]\npath = 'a'\naction = 'hide'\n\
                     [[rule]]\npath = 'b'\naction = 'hide'\nmode = 'audit'\n";
        let lost = before.lost(&Policy::parse(rules, "p.toml").unwrap()).unwrap();
        assert!(lost.contains("`a`. ") && !lost.contains("`b`"), "{lost}");
    }

    #[test]
    fn an_index_is_kept_once() {
        let dir = tempfile::tempdir().unwrap();
        repository(dir.path(), &["a", "b", "b"]);
        create_dir_all(dir.path().join("a")).unwrap();
        write(dir.path().join("a/.git"), "gitdir: ../.git\n").unwrap();
        repository(&dir.path().join("b"), &[]);
        assert_eq!(found(dir.path()), ["", "b/"]);
    }
}
