//! Directories inside the directory of sockets, for processes that are to see the sockets of others
//! and not to change them: their mount namespace has the outer directory read-only, and their own
//! one writable in it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::ControlError;
use crate::lock::Lock;
use crate::peer::own_uid;
use crate::removal::remove_all;

/// How many directories may lie in each other.
const DEPTH_MAX: usize = 8;
/// The most directories that are looked into.
const DIRECTORIES_MAX: usize = 1024;
const PREFIX: &str = "in-";

/// A directory for the sockets of some processes, which is removed with everything in it when this
/// is dropped; not by a copy of the process (fork). What a killed process left is removed by the next one that makes such a directory.
#[derive(Debug)]
pub struct Nested {
    path: PathBuf,
    /// The process that made it.
    maker: u32,
    /// A file beside the directory, out of reach of those who use it, locked as long as it is in
    /// use. The directory's own lock is that of its sockets.
    _used: File,
}

impl Nested {
    /// Makes one in `parent`, named by half of `id`: paths of sockets have at most 107 bytes, and
    /// directories lie in each other.
    pub(crate) fn make(parent: &Path, id: u64) -> Result<Self, ControlError> {
        let path = parent.join(format!("{PREFIX}{:08x}", id >> 32));
        let failed = |error: io::Error| ControlError::system(&path, error);
        // The same lock as for sockets: nobody removes the directory before it is locked itself.
        let _lock = Lock::of_parent(&path)?;
        remove_leftovers(parent);
        let used = File::create_new(lock_of(&path)).map_err(failed)?;
        rustix::fs::flock(&used, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| failed(error.into()))?;
        let nested = Self { path, maker: std::process::id(), _used: used };
        let made = std::fs::DirBuilder::new().mode(0o700).create(&nested.path);
        made.map_err(|error| ControlError::system(&nested.path, error))?;
        Ok(nested)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        if self.maker == std::process::id() {
            remove(&self.path);
        }
    }
}

/// What cannot be removed is removed as a leftover, later.
fn remove(path: &Path) {
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    if remove_all(path).as_ref().map_or_else(is_gone, |()| true) {
        let _ = std::fs::remove_file(lock_of(path));
    }
}

fn lock_of(path: &Path) -> PathBuf {
    path.with_extension("lock")
}

/// Removes the directories that nobody uses any more, whatever their modes are now. The parent is
/// locked.
fn remove_leftovers(parent: &Path) {
    for path in children(parent, |_| true) {
        if !is_used(&lock_of(&path)) {
            remove(&path);
        }
    }
}

fn is_used(lock: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(lock, flags, Mode::empty()).is_ok_and(|lock| {
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err()
    })
}

/// `top` and the directories in it, those further out first.
pub(crate) fn all(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut level = vec![top.to_owned()];
    for _ in 0..DEPTH_MAX {
        level = level.iter().flat_map(|directory| children(directory, is_private)).collect();
        level.truncate(DIRECTORIES_MAX.saturating_sub(found.len()));
        found.extend(level.iter().cloned());
    }
    found
}

/// The directory of `top` that this process may make sockets in: `top` itself, where it is not
/// read-only here.
pub(crate) fn writable(top: &Path) -> PathBuf {
    let is_writable = |path: &PathBuf| {
        rustix::fs::access(path, rustix::fs::Access::WRITE_OK) != Err(rustix::io::Errno::ROFS)
    };
    all(top).into_iter().find(is_writable).unwrap_or_else(|| top.to_owned())
}

fn is_private(found: &Metadata) -> bool {
    found.mode() & 0o077 == 0
}

/// Directories of this kind, of this user and as they are to be, directly in `parent`.
fn children(parent: &Path, is_wanted: impl Fn(&Metadata) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let paths = entries.filter(|entry| is_name(&entry.file_name())).map(|entry| entry.path());
    let is_one = |path: &PathBuf| {
        std::fs::symlink_metadata(path)
            .is_ok_and(|found| found.is_dir() && found.uid() == own_uid() && is_wanted(&found))
    };
    paths.filter(is_one).take(DIRECTORIES_MAX).collect()
}

fn is_name(name: &std::ffi::OsStr) -> bool {
    name.to_str()
        .and_then(|name| name.strip_prefix(PREFIX))
        .is_some_and(|id| id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
