//! Sockets that dead servers left, and the lock under which those at chosen paths are replaced.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::peer::Credentials;
use crate::{ControlError, TIME_LIMIT, client};

/// Held while a socket is made at a path that its user has chosen, and while the leftover at such a
/// path is removed. A socket exists for a moment before its server listens; without the lock it would
/// look like a leftover. Who may read a directory may hold its lock for ever: names that nobody uses
/// twice are made and removed without it.
#[derive(Debug)]
pub(crate) struct Lock(OwnedFd);

impl Lock {
    /// Locks the directory that `path` lies in. Waits at most [`TIME_LIMIT`].
    pub(crate) fn of_parent(path: &Path) -> Result<Self, ControlError> {
        let parent = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => Path::new("/"),
        };
        Self::of(CWD, parent, parent, Instant::now() + TIME_LIMIT)
    }

    /// Locks the directory `name` in `directory`, and waits until `end`. Errors call it `path`.
    fn of(
        directory: impl AsFd,
        name: &Path,
        path: &Path,
        end: Instant,
    ) -> Result<Self, ControlError> {
        let failed = |error: Errno| ControlError::system(path, error);
        // Without the flag, the open of a FIFO would wait for one who writes to it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::openat(directory, name, flags, Mode::empty()).map_err(failed)?;
        loop {
            match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(directory)),
                Err(Errno::WOULDBLOCK) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(ControlError::Locked { path: path.to_owned() });
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

/// A socket in a directory that is open. Whoever may write to the directory around that can exchange
/// it for a link to another one: what its path leads to may be another server's.
#[derive(Debug)]
pub(crate) struct Spot<'d> {
    pub(crate) directory: &'d OwnedFd,
    pub(crate) name: &'d OsStr,
    /// As it was found.
    pub(crate) path: PathBuf,
}

impl Spot<'_> {
    /// Connects to what has that name in the directory, wherever its path leads to now.
    pub(crate) fn connect(
        &self,
        until: Instant,
    ) -> Result<(UnixStream, Credentials), ControlError> {
        client::connect_by(&address(self.directory, self.name), &self.path, until)
    }

    /// Removes a socket that refused, whose name nobody uses again.
    pub(crate) fn remove(&self) -> Result<(), ControlError> {
        match rustix::fs::unlinkat(self.directory, self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(ControlError::system(&self.path, error)),
        }
    }

    /// Removes the socket if nobody listens at it. Waits until `until` for others.
    ///
    /// # Errors
    /// A server listens there; there is a file of another type; the directory cannot be locked.
    pub(crate) fn remove_leftover(&self, until: Instant) -> Result<(), ControlError> {
        self.leftover(until)?.map_or(Ok(()), Leftover::remove)
    }

    /// Makes sure that nobody listens at the socket; `None` if it is gone.
    fn leftover(&self, until: Instant) -> Result<Option<Leftover<'_>>, ControlError> {
        let parent = self.path.parent().unwrap_or(&self.path);
        // Opened anew: a lock belongs to all copies of a descriptor.
        let lock = Lock::of(self.directory, Path::new("."), parent, until)?;
        let is_left = is_leftover(&address(&lock.0, self.name), &self.path, until)?;
        Ok(is_left.then_some(Leftover { lock, spot: self }))
    }
}

/// A path to what has that name in an open directory.
fn address(directory: &OwnedFd, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
}

/// A socket that nobody listens at, in a directory that is locked.
#[derive(Debug)]
struct Leftover<'s> {
    lock: Lock,
    spot: &'s Spot<'s>,
}

impl Leftover<'_> {
    fn remove(self) -> Result<(), ControlError> {
        rustix::fs::unlinkat(&self.lock.0, self.spot.name, AtFlags::empty())
            .map_err(|error| ControlError::system(&self.spot.path, error))
    }
}

/// As [`Spot::remove_leftover`], of a path that its user has chosen, for those who hold the lock.
pub(crate) fn remove_leftover_locked(path: &Path, until: Instant) -> Result<(), ControlError> {
    if is_leftover(path, path, until)? {
        std::fs::remove_file(path).map_err(|error| ControlError::system(path, error))?;
    }
    Ok(())
}

/// Whether nobody listens at the socket `address`, which errors name as `path`; false if it is gone.
fn is_leftover(address: &Path, path: &Path, until: Instant) -> Result<bool, ControlError> {
    match client::connect_by(address, path, until) {
        Err(ControlError::Gone { .. }) => Ok(true),
        Err(ControlError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(false)
        }
        Err(error @ (ControlError::NotASocket { .. } | ControlError::System { .. })) => Err(error),
        // Whoever it is, somebody listens.
        Ok(_) | Err(_) => Err(ControlError::InUse { path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no Unix sockets")]
    fn the_socket_that_refused_is_the_one_that_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let (inner, outer) = (home.path().join("inner"), home.path().join("outer"));
        for directory in [&inner, &outer] {
            std::fs::create_dir(directory).unwrap();
        }
        let name = OsStr::new("socket");
        let _server = UnixListener::bind(outer.join(name)).unwrap();
        drop(UnixListener::bind(inner.join(name)).unwrap());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&inner, flags, Mode::empty()).unwrap();
        let spot = Spot { directory: &directory, name, path: inner.join(name) };
        // A child that another test forks at this moment listens there, too, for that moment.
        let leftover = loop {
            match spot.leftover(Instant::now() + TIME_LIMIT) {
                Err(ControlError::InUse { .. }) => std::thread::yield_now(),
                other => break other.unwrap().unwrap(),
            }
        };
        let moved = home.path().join("moved");
        std::fs::rename(&inner, &moved).unwrap();
        std::os::unix::fs::symlink(&outer, &inner).unwrap();
        leftover.remove().unwrap();
        assert!(outer.join(name).exists());
        assert!(!moved.join(name).exists());
        // Nor is the server asked that the path leads to now.
        assert!(spot.leftover(Instant::now() + TIME_LIMIT).unwrap().is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no FIFOs")]
    fn nobody_waits_at_a_fifo_in_the_place_of_a_directory() {
        let home = tempfile::tempdir().unwrap();
        let fifo = home.path().join("fifo");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(Lock::of_parent(&fifo.join("socket")), Err(ControlError::System { .. })));
    }
}
