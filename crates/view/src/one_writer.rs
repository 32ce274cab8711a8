//! One server at a time writes the sealed files of a directory: each keeps the map of a file's blocks
//! in its own memory, and a commit of one would undo that of another.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// The lock of who writes. It ends with the process, however that ends.
pub(crate) struct OneWriter {
    lock: Result<OwnedFd, Errno>,
    is_held: AtomicBool,
}

impl OneWriter {
    /// `lock` is open, or tells why it cannot be.
    pub(crate) fn new(lock: Result<OwnedFd, Errno>) -> OneWriter {
        OneWriter { lock, is_held: AtomicBool::new(false) }
    }

    /// Whether this process was the writer when it tried last. Once it is, it stays so.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// Becomes the writer, unless it is.
    ///
    /// # Errors
    /// `EWOULDBLOCK` if another process is the writer; else why there is no lock to be had.
    pub(crate) fn take(&self) -> Result<(), Errno> {
        if self.is_held() {
            return Ok(());
        }
        let lock = self.lock.as_ref().map_err(|errno| *errno)?;
        rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive)?;
        self.is_held.store(true, Ordering::Release);
        Ok(())
    }
}

impl fmt::Debug for OneWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneWriter").field("is_held", &self.is_held()).finish_non_exhaustive()
    }
}
