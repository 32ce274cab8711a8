//! The lock under which sockets are made, and leftovers removed.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::{ControlError, TIME_LIMIT, client};

/// Held while a socket is made or a leftover is removed. A socket exists for a moment before its
/// server listens; without the lock it would look like a leftover.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it unlocks")] File);

impl Lock {
    /// Locks the directory that `path` lies in. Waits at most [`TIME_LIMIT`].
    pub(crate) fn of_parent(path: &Path) -> Result<Self, ControlError> {
        Self::of_parent_until(path, Instant::now() + TIME_LIMIT)
    }

    /// The same, and waits until then.
    fn of_parent_until(path: &Path, end: Instant) -> Result<Self, ControlError> {
        let parent = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => Path::new("/"),
        };
        let failed = |error: io::Error| ControlError::system(parent, error);
        let directory = File::open(parent).map_err(failed)?;
        loop {
            match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(directory)),
                Err(Errno::WOULDBLOCK) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(ControlError::Locked { path: parent.to_owned() });
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
    }
}

/// Removes a socket that nobody listens at. Waits until `until` for others.
///
/// # Errors
/// A server listens there; there is a file of another type; the directory cannot be locked.
pub(crate) fn remove_leftover(path: &Path, until: Instant) -> Result<(), ControlError> {
    let _lock = Lock::of_parent_until(path, until)?;
    remove_leftover_locked(path, until)
}

/// As [`remove_leftover`], for those who hold the lock.
pub(crate) fn remove_leftover_locked(path: &Path, until: Instant) -> Result<(), ControlError> {
    match client::connect(path, until) {
        Err(ControlError::Gone { .. }) => {
            std::fs::remove_file(path).map_err(|error| ControlError::system(path, error))
        }
        Err(ControlError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(())
        }
        Err(error @ (ControlError::NotASocket { .. } | ControlError::System { .. })) => Err(error),
        // Whoever it is, somebody listens.
        Ok(_) | Err(_) => Err(ControlError::InUse { path: path.to_owned() }),
    }
}
