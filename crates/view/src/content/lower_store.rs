//! A lower file as the store of a sealed one.

use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use tollgate_seal::Store;

use crate::lower;

/// A lower file, by a descriptor that can be exchanged for one that may write.
///
/// Who opens a file, writes it or asks for its size has its header and map read, which is no access to the
/// file: its time of access stays until somebody reads the content.
pub(super) struct LowerStore {
    open: RwLock<Open>,
    /// What is read through the descriptor is access, or must never be.
    counts: AtomicBool,
    /// The lower file system cannot say that it would wait.
    always_waits: AtomicBool,
}

struct Open {
    fd: Arc<OwnedFd>,
    writes: bool,
}

impl LowerStore {
    pub(super) fn new(fd: Arc<OwnedFd>, writes: bool) -> LowerStore {
        let counts = AtomicBool::new(!keep_time_of_access(&fd));
        let open = RwLock::new(Open { fd, writes });
        LowerStore { open, counts, always_waits: AtomicBool::new(false) }
    }

    /// The same lower file, to be looked at anew.
    pub(super) fn again(&self) -> LowerStore {
        let open = self.open.read();
        LowerStore {
            counts: AtomicBool::new(self.counts.load(Ordering::Relaxed)),
            open: RwLock::new(Open { fd: Arc::clone(&open.fd), writes: open.writes }),
            always_waits: AtomicBool::new(false),
        }
    }

    /// A writer came: its descriptor serves all from now on.
    pub(super) fn widen(&self, fd: &Arc<OwnedFd>) {
        let mut open = self.open.write();
        if !open.writes {
            self.counts.store(!keep_time_of_access(fd), Ordering::Relaxed);
            *open = Open { fd: Arc::clone(fd), writes: true };
        }
    }

    /// Nobody writes any more: others are not to take it for open to be written.
    pub(super) fn narrow(&self) {
        let mut open = self.open.write();
        if open.writes
            && let Ok(fd) = lower::reopen(open.fd.as_fd(), OFlags::RDONLY)
        {
            self.counts.store(!keep_time_of_access(&fd), Ordering::Relaxed);
            *open = Open { fd: Arc::new(fd), writes: false };
        }
    }

    /// Somebody reads the content.
    pub(super) fn accessed(&self) {
        if self.counts.load(Ordering::Relaxed) {
            return;
        }
        let open = self.open.read();
        if !self.counts.swap(true, Ordering::Relaxed)
            && let Ok(flags) = rustix::fs::fcntl_getfl(&open.fd)
        {
            // Should it fail, a time of access is old.
            let _ = rustix::fs::fcntl_setfl(&open.fd, flags - OFlags::NOATIME);
        }
    }

    pub(super) fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.open.read().fd)
    }
}

/// Has reads through `fd` keep the file's time of access; `false` if they do so anyway, as whoever opened it
/// asked for that, or cannot (another user's file, without privilege).
fn keep_time_of_access(fd: &OwnedFd) -> bool {
    let flags = rustix::fs::fcntl_getfl(fd).unwrap_or(OFlags::NOATIME);
    !flags.contains(OFlags::NOATIME) && rustix::fs::fcntl_setfl(fd, flags | OFlags::NOATIME).is_ok()
}

impl Store for LowerStore {
    fn len(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstat(self.fd())?;
        u64::try_from(stat.st_size).map_err(io::Error::other)
    }

    fn read_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        let fd = self.fd();
        while !buffer.is_empty() {
            match rustix::io::pread(&fd, &mut *buffer, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buffer = &mut buffer[read..];
                    offset += read as u64;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// From the page cache, or not at all.
    fn read_at_once(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        if self.always_waits.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let (length, mut whole) = (buffer.len(), [IoSliceMut::new(buffer)]);
        match rustix::io::preadv2(self.fd(), &mut whole, offset, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(read == length),
            Err(Errno::OPNOTSUPP) => {
                self.always_waits.store(true, Ordering::Relaxed);
                Ok(false)
            }
            // Whoever waits learns what is wrong.
            Err(_) => Ok(false),
        }
    }

    fn write_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        let fd = self.fd();
        while !bytes.is_empty() {
            match rustix::io::pwrite(&fd, bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(self.fd())?)
    }

    fn give_back(&self, bytes: Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(self.fd(), flags, bytes.start, bytes.end - bytes.start)?)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(self.fd(), length)?)
    }
}
