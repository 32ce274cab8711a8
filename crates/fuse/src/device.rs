//! The `/dev/fuse` transport.
//!
//! One descriptor per queue, made by `FUSE_DEV_IOC_CLONE`, so that each has a processing list of its
//! own in the kernel. A request costs one `read` and one `write` (`writev` with several parts).
#![expect(unsafe_code, reason = "ioctl, dup3 onto a shared descriptor, signals")]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::abi::BackingMap;
use crate::buffer::{Buffers, ReplyArea};
use crate::transport::{Control, Queue, Raw, ReceiveError, ReplySink, Transport};

/// An open `/dev/fuse`. It becomes a connection when it is mounted.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
}

impl Device {
    /// Opens `/dev/fuse`.
    ///
    /// # Errors
    /// `ENOENT` or `ENODEV` if the kernel has no FUSE, `EACCES` and `EPERM` where it is not allowed.
    pub fn open() -> io::Result<Self> {
        Self::open_at(Path::new("/dev/fuse"))
    }

    fn open_at(path: &Path) -> io::Result<Self> {
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { fd })
    }
}

/// Takes a descriptor from elsewhere: from `fusermount3`, or from a supervisor.
impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl Device {
    /// Takes a descriptor from elsewhere; the same as `From`.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The transport over a mounted [`Device`].
#[derive(Debug)]
pub struct DeviceTransport {
    main: Arc<SharedFd>,
    opened: bool,
    spin: Duration,
    /// Set while a worker spins: one at a time.
    spinning: Arc<AtomicBool>,
}

impl DeviceTransport {
    /// The transport of a connection that begins with `device`.
    /// See [`crate::SessionConfig::spin`].
    pub fn new(device: Device, spin: Duration) -> Self {
        let spinning = Arc::new(AtomicBool::new(false));
        Self { main: Arc::new(SharedFd(device.fd)), opened: false, spin, spinning }
    }

    /// A descriptor of the same connection with a processing list of its own. Where `/dev/fuse` cannot
    /// be opened (after a change of root), the queue shares the first descriptor, which works too.
    fn clone_queue(&self) -> Arc<SharedFd> {
        let cloned = Device::open().and_then(|device| {
            ioc_clone(device.as_fd(), self.main.0.as_fd())?;
            Ok(device.fd)
        });
        match cloned {
            Ok(fd) => Arc::new(SharedFd(fd)),
            Err(error) => {
                tracing::warn!(%error, "a queue shares the first /dev/fuse descriptor");
                Arc::clone(&self.main)
            }
        }
    }
}

impl Transport for DeviceTransport {
    type Queue = DeviceQueue;

    fn queue(&mut self) -> io::Result<DeviceQueue> {
        let first = !std::mem::replace(&mut self.opened, true);
        let fd = if first { Arc::clone(&self.main) } else { self.clone_queue() };
        let spinning = Arc::clone(&self.spinning);
        Ok(DeviceQueue { fd, spin: self.spin, spinning, nonblocking: false })
    }

    fn control(&self) -> Arc<dyn Control> {
        Arc::clone(&self.main) as Arc<dyn Control>
    }
}

/// One queue of `/dev/fuse`.
#[derive(Debug)]
pub struct DeviceQueue {
    fd: Arc<SharedFd>,
    spin: Duration,
    spinning: Arc<AtomicBool>,
    nonblocking: bool,
}

impl Queue for DeviceQueue {
    fn receive<'q>(
        &'q mut self,
        buffers: &'q mut Buffers,
    ) -> Result<(Raw<'q>, &'q mut ReplyArea), ReceiveError> {
        let len = match self.spin_for_request(&mut buffers.request) {
            Some(len) => len?,
            None => self.wait_for_request(&mut buffers.request)?,
        };
        buffers.received = len;
        Ok((Raw::Contiguous(&buffers.request[..len]), &mut buffers.reply))
    }

    fn sink(&self) -> Arc<dyn ReplySink> {
        Arc::clone(&self.fd) as Arc<dyn ReplySink>
    }
}

impl DeviceQueue {
    /// Asks again and again for `spin`. `None`: nothing came, or another worker spins.
    fn spin_for_request(&mut self, buffer: &mut [u8]) -> Option<Result<usize, ReceiveError>> {
        if self.spin.is_zero() || self.spinning.swap(true, Ordering::Acquire) {
            return None;
        }
        self.set_nonblocking(true);
        let start = Instant::now();
        let outcome = loop {
            match rustix::io::read(&self.fd.0, &mut *buffer) {
                // Whoever wants this CPU, above all the caller that was just answered, gets it first.
                Err(Errno::AGAIN) if start.elapsed() < self.spin => rustix::thread::sched_yield(),
                Err(Errno::AGAIN) => break None,
                other => break Some(other.map_err(receive_error)),
            }
        };
        self.spinning.store(false, Ordering::Release);
        outcome
    }

    fn wait_for_request(&mut self, buffer: &mut [u8]) -> Result<usize, ReceiveError> {
        self.set_nonblocking(false);
        rustix::io::read(&self.fd.0, buffer).map_err(receive_error)
    }

    fn set_nonblocking(&mut self, on: bool) {
        if self.nonblocking != on {
            let flags = if on { OFlags::NONBLOCK } else { OFlags::empty() };
            // On failure the next read blocks or does not: slower, never wrong.
            let _ = rustix::fs::fcntl_setfl(&self.fd.0, flags);
            self.nonblocking = on;
        }
    }
}

fn receive_error(errno: Errno) -> ReceiveError {
    match errno {
        // ENOENT: the request was interrupted while it was being read.
        Errno::INTR | Errno::AGAIN | Errno::NOENT => ReceiveError::Retry,
        Errno::NODEV => ReceiveError::Unmounted,
        Errno::CONNABORTED => ReceiveError::Aborted,
        other => ReceiveError::Io(other.into()),
    }
}

/// A descriptor used by many threads, whose file can be let go of while the number stays taken.
#[derive(Debug)]
struct SharedFd(OwnedFd);

impl SharedFd {
    /// Replaces the file behind the descriptor by one on which every operation fails with `EBADF`.
    fn let_go(&self) {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let Ok(inert) = rustix::fs::open("/", flags, Mode::empty()) else { return };
        // SAFETY: both are open descriptors owned by live values. The number stays owned by `self.0`;
        // only the file behind it changes, atomically for other threads, and every user copes with
        // failing calls.
        unsafe { libc::dup3(inert.as_raw_fd(), self.0.as_raw_fd(), libc::O_CLOEXEC) };
    }
}

impl ReplySink for SharedFd {
    fn commit(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        match parts {
            [one] => rustix::io::write(&self.0, one)?,
            many => rustix::io::writev(&self.0, many)?,
        };
        Ok(())
    }

    fn retire(&self) {
        self.let_go();
    }
}

impl Control for SharedFd {
    fn notify(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        rustix::io::writev(&self.0, parts)?;
        Ok(())
    }

    fn open_backing(&self, fd: BorrowedFd<'_>) -> io::Result<u32> {
        let map = BackingMap { fd: fd.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the request reads a `struct fuse_backing_map`, which `map` is (layout checked in
        // `abi`), and which lives until the call returns.
        let id = unsafe { libc::ioctl(self.0.as_raw_fd(), IOC_BACKING_OPEN, &raw const map) };
        u32::try_from(id).ok().filter(|&id| id != 0).ok_or_else(io::Error::last_os_error)
    }

    fn close_backing(&self, id: u32) -> io::Result<()> {
        // SAFETY: the request reads a `u32`, which lives until the call returns.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), IOC_BACKING_CLOSE, &raw const id) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn prepare_thread(&self) {
        crate::signal::prepare_thread();
    }

    fn wake(&self, tid: i32) {
        crate::signal::wake(tid);
    }

    fn retire(&self) {
        self.let_go();
    }
}

const IOC_MAGIC: u32 = 229;
const IOC_CLONE: libc::Ioctl = libc::_IOR::<u32>(IOC_MAGIC, 0);
const IOC_BACKING_OPEN: libc::Ioctl = libc::_IOW::<BackingMap>(IOC_MAGIC, 1);
const IOC_BACKING_CLOSE: libc::Ioctl = libc::_IOW::<u32>(IOC_MAGIC, 2);

/// Joins the fresh descriptor `new` to the connection of `old`.
fn ioc_clone(new: BorrowedFd<'_>, old: BorrowedFd<'_>) -> io::Result<()> {
    let old = old.as_raw_fd();
    // SAFETY: the request reads a `u32`, here an `i32` of the same size and a valid descriptor, which
    // lives until the call returns.
    let rc = unsafe { libc::ioctl(new.as_raw_fd(), IOC_CLONE, &raw const old) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
