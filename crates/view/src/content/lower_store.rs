//! A lower file as the store of a sealed one.

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use rustix::io::{Errno, ReadWriteFlags};
use tollgate_seal::Store;

/// A lower file, by a descriptor that can be exchanged for one that may write.
pub(super) struct LowerStore {
    open: RwLock<Open>,
    /// The lower file system cannot say that it would wait.
    always_waits: AtomicBool,
}

struct Open {
    fd: Arc<OwnedFd>,
    writes: bool,
}

impl LowerStore {
    pub(super) fn new(fd: Arc<OwnedFd>, writes: bool) -> LowerStore {
        LowerStore { open: RwLock::new(Open { fd, writes }), always_waits: AtomicBool::new(false) }
    }

    /// A writer came: its descriptor serves all from now on.
    pub(super) fn widen(&self, fd: &Arc<OwnedFd>) {
        let mut open = self.open.write();
        if !open.writes {
            *open = Open { fd: Arc::clone(fd), writes: true };
        }
    }

    pub(super) fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.open.read().fd)
    }
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
}
