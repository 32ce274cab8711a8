//! What CMD took out of git's index without meaning to: a tracked file that the policy hides looks
//! deleted in the view, and `git add -A` or `git commit -a` records that.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tollgate_policy::{CallerFacts, Facts, Kind, Operation, Policy, Verdict};

use super::{Repository, index};
use crate::escape::escaped;
use crate::files;

/// Largest index that is kept to be compared, in bytes: some 100,000 files.
const MAX_LEN: u64 = 16 << 20;
/// Files that are named.
const MAX_NAMED: usize = 4;

/// The index as it was before CMD.
pub(crate) struct IndexBefore {
    dir: PathBuf,
    file: PathBuf,
    bytes: Vec<u8>,
    name_len: usize,
    identity: Identity,
}

/// Tells whether a file was written, or another put in its place.
type Identity = (u64, i64, i64);

impl IndexBefore {
    /// The index of the repository whose working tree is `dir`; `None` without one, or where it is
    /// larger than 16 MiB.
    pub(crate) fn of(dir: &Path) -> Option<Self> {
        let repository = Repository::at(dir)?;
        let file = repository.git_dir().join("index");
        let identity = identity(&file)?;
        let bytes = files::read_at_most(&file, MAX_LEN).ok()?;
        let name_len = repository.name_len();
        Some(Self { dir: dir.to_owned(), file, bytes, name_len, identity })
    }

    /// A line about files that are not in the index any more, although they are there and were only
    /// hidden.
    pub(crate) fn lost(&self, policy: &Policy) -> Option<String> {
        if identity(&self.file).is_none_or(|identity| identity == self.identity) {
            return None;
        }
        let now = index::tracked(&self.file, self.name_len).ok()?;
        let now: HashSet<_> = now.into_iter().map(|one| one.path).collect();
        let before = index::parse(&self.bytes, self.name_len).ok()?;
        let is_there =
            |path: &[u8]| std::fs::symlink_metadata(self.dir.join(OsStr::from_bytes(path))).is_ok();
        let lost = before.into_iter().map(|one| one.path).filter(|path| !now.contains(path));
        let lost: Vec<String> = lost
            .filter(|path| is_hidden(policy, path) && is_there(path))
            .map(|path| format!("`{}`", escaped(&String::from_utf8_lossy(&path))))
            .collect();
        let more = match lost.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names: Vec<_> = lost.iter().take(MAX_NAMED).map(String::as_str).collect();
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

fn is_hidden(policy: &Policy, path: &[u8]) -> bool {
    let caller = CallerFacts { uid: 0, gid: 0, exe: None };
    let facts = Facts { path, kind: Kind::File, size: 0, head: None };
    policy.hidden_above(path).is_some()
        || policy.decide(&facts, Operation::Read, &caller).verdict == Verdict::Hide
}

fn identity(file: &Path) -> Option<Identity> {
    let meta = std::fs::metadata(file).ok().filter(|meta| meta.len() <= MAX_LEN)?;
    Some((meta.ino(), meta.ctime(), meta.ctime_nsec()))
}
