//! Directories inside the directory of sockets, for processes that are to see the sockets of others
//! and not to change them: their mount namespace has the outer directory read-only, and their own
//! one writable in it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::path::Arg;

use crate::ControlError;
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
        remove_leftovers(parent);
        // Locked before the directory is there: what has no such lock is a leftover.
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

/// Removes the directories that nobody uses any more, whatever their modes are now. Two may do so at
/// the same time: what one of them leaves, the next one removes.
fn remove_leftovers(parent: &Path) {
    let Ok(directory) = open(CWD, parent) else { return };
    for path in children(&directory, |_| true).into_iter().map(|name| parent.join(name)) {
        if !is_used(&lock_of(&path)) {
            remove(&path);
        }
    }
}

fn is_used(lock: &Path) -> bool {
    // The open of a FIFO would wait for one who writes to it.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(lock, flags, Mode::empty()).is_ok_and(|lock| {
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err()
    })
}

/// A directory of sockets: the outermost one, or one inside it.
#[derive(Clone, Debug)]
pub(crate) struct Place<'t> {
    top: &'t Path,
    /// The names of the directories on the way; empty for the outermost one.
    inner: PathBuf,
}

impl Place<'_> {
    pub(crate) fn path(&self) -> PathBuf {
        self.inner.iter().fold(self.top.to_owned(), |path, name| path.join(name))
    }

    /// Opens it name by name, and follows no link: who uses a directory may exchange those in it, at
    /// any moment, for something that leads elsewhere, or for a FIFO.
    ///
    /// # Errors
    /// It is no directory any more, or not one that is private to this user.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let mut directory = open(CWD, self.top)?;
        for name in &self.inner {
            directory = open(&directory, name)?;
            let found = rustix::fs::fstat(&directory)?;
            if !(is_own(&found) && is_private(&found)) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
        }
        Ok(directory)
    }
}

/// Opens a directory, and follows no link.
pub(crate) fn open(parent: impl AsFd, name: impl Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// `top` and the directories in it, those further out first.
pub(crate) fn all(top: &Path) -> Vec<Place<'_>> {
    let mut found = vec![Place { top, inner: PathBuf::new() }];
    let mut level = found.clone();
    for _ in 0..DEPTH_MAX {
        level = level.iter().flat_map(places_in).collect();
        level.truncate(DIRECTORIES_MAX.saturating_sub(found.len()));
        found.extend(level.iter().cloned());
    }
    found
}

fn places_in<'t>(place: &Place<'t>) -> Vec<Place<'t>> {
    let Ok(directory) = place.open() else { return Vec::new() };
    let names = children(&directory, is_private).into_iter();
    names.map(|name| Place { top: place.top, inner: place.inner.join(name) }).collect()
}

/// The directory of `top` that this process may make sockets in: `top` itself, where it is not
/// read-only here.
pub(crate) fn writable(top: &Path) -> PathBuf {
    let is_writable = |path: &PathBuf| {
        rustix::fs::access(path, rustix::fs::Access::WRITE_OK) != Err(rustix::io::Errno::ROFS)
    };
    let mut paths = all(top).into_iter().map(|place| place.path());
    paths.find(is_writable).unwrap_or_else(|| top.to_owned())
}

fn is_own(found: &Stat) -> bool {
    found.st_uid == own_uid()
}

fn is_private(found: &Stat) -> bool {
    found.st_mode & 0o077 == 0
}

/// The names in a directory.
pub(crate) fn names(directory: &OwnedFd) -> impl Iterator<Item = OsString> + use<> {
    let entries = Dir::read_from(directory).into_iter().flatten().flatten();
    entries.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned())
}

/// Directories of this kind, of this user and as they are to be, directly in `parent`.
fn children(parent: &OwnedFd, is_wanted: impl Fn(&Stat) -> bool) -> Vec<OsString> {
    let is_one = |name: &OsString| {
        rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| {
            FileType::from_raw_mode(found.st_mode) == FileType::Directory
                && is_own(&found)
                && is_wanted(&found)
        })
    };
    let names = names(parent).filter(|name| is_name(name)).filter(is_one);
    names.take(DIRECTORIES_MAX).collect()
}

fn is_name(name: &OsStr) -> bool {
    name.to_str()
        .and_then(|name| name.strip_prefix(PREFIX))
        .is_some_and(|id| id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Directory;

    const INNER: [&str; 2] = ["in-00000001", "in-00000002"];

    /// A directory with one in it, and one in that.
    fn nested() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let mut path = home.path().to_owned();
        for name in INNER {
            path.push(name);
            std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        }
        home
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such calls")]
    fn a_place_is_not_opened_by_way_of_what_was_put_in_its_place() {
        let home = nested();
        let places = all(home.path());
        let paths: Vec<_> = places.iter().map(Place::path).collect();
        let inner = home.path().join(INNER[0]);
        assert_eq!(paths, [home.path().to_owned(), inner.clone(), inner.join(INNER[1])]);
        assert!(places.iter().all(|place| place.open().is_ok()));
        // The outer one by a link to itself, then the inner one by a link out of it, and by a FIFO.
        let moved = home.path().join("moved");
        std::fs::rename(&inner, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &inner).unwrap();
        assert!(places[1].open().is_err() && places[2].open().is_err());
        assert_eq!(all(home.path()).len(), 1);
        std::fs::remove_file(&inner).unwrap();
        std::fs::rename(&moved, &inner).unwrap();
        std::fs::remove_dir(&paths[2]).unwrap();
        std::os::unix::fs::symlink(home.path(), &paths[2]).unwrap();
        assert!(places[1].open().is_ok() && places[2].open().is_err());
        std::fs::remove_file(&paths[2]).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &paths[2], FileType::Fifo, mode, 0).unwrap();
        assert!(places[2].open().is_err());
        assert!(Directory::at(home.path()).servers("test").is_ok());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such calls")]
    fn a_fifo_for_a_lock_holds_up_nobody() {
        let home = nested();
        let lock = lock_of(&home.path().join(INNER[0]));
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &lock, FileType::Fifo, mode, 0).unwrap();
        assert!(!is_used(&lock));
    }
}
