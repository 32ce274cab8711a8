//! The `/dev/fuse` transport.
//!
//! One descriptor per queue, made by `FUSE_DEV_IOC_CLONE`, so that each has a processing list of its
//! own in the kernel. A request costs one `read` and one `write` (`writev` with several parts).
//!
//! With [`crate::SessionConfig::spin`] the workers form a [crew](crate::crew): as few as keep up wait for
//! requests, and the one that waits asks for a while before it sleeps. Without it every worker blocks
//! in `read`, and the kernel wakes them in turn.
#![expect(unsafe_code, reason = "ioctl, dup3 onto a shared descriptor, signals")]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::abi::{BackingMap, InHeader, opcode};
use crate::buffer::{Buffers, ReplyArea};
use crate::crew::{Crew, Parked};
use crate::follow::{Follower, take_short_turns};
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
    crew: Arc<Crew>,
}

impl DeviceTransport {
    /// The transport of a connection that begins with `device`; `spin` as in
    /// [`crate::SessionConfig::spin`].
    pub fn new(device: Device, spin: Duration) -> Self {
        let main = Arc::new(SharedFd(device.fd));
        Self { main, opened: false, spin, crew: Arc::new(Crew::new()) }
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
        let crew = (!self.spin.is_zero()).then(|| Member::new(&self.crew, first));
        if crew.is_some() {
            let flags = rustix::fs::fcntl_getfl(&fd.0)? | OFlags::NONBLOCK;
            rustix::fs::fcntl_setfl(&fd.0, flags)?;
        }
        Ok(DeviceQueue { fd, spin: self.spin, crew })
    }

    fn control(&self) -> Arc<dyn Control> {
        Arc::new(DeviceControl { fd: Arc::clone(&self.main), crew: Arc::clone(&self.crew) })
    }
}

/// One queue of `/dev/fuse`.
#[derive(Debug)]
pub struct DeviceQueue {
    fd: Arc<SharedFd>,
    spin: Duration,
    crew: Option<Member>,
}

impl Queue for DeviceQueue {
    fn receive<'q>(
        &'q mut self,
        buffers: &'q mut Buffers,
    ) -> Result<(Raw<'q>, &'q mut ReplyArea), ReceiveError> {
        let request = &mut buffers.request;
        let len = match &mut self.crew {
            None => rustix::io::read(&self.fd.0, &mut request[..]).map_err(receive_error)?,
            Some(member) => member.receive(&self.fd.0, self.spin, request)?,
        };
        buffers.received = len;
        Ok((Raw::Contiguous(&buffers.request[..len]), &mut buffers.reply))
    }

    fn sink(&self) -> Arc<dyn ReplySink> {
        Arc::clone(&self.fd) as Arc<dyn ReplySink>
    }
}

/// A worker's part in the crew.
#[derive(Debug)]
struct Member {
    crew: Arc<Crew>,
    active: bool,
    /// In a handler, as far as the crew knows.
    serving: bool,
    /// Two for each request that was there before this worker asked, from another thread than the one
    /// before; less one for each time that none was there. One thread alone never has two that it waits
    /// for, so this tells several callers.
    backlog: u32,
    last_caller: u32,
    /// Most workers that a backlog makes active: one for each CPU.
    enough: u32,
    follower: Follower,
}

/// So much of it makes another worker active.
const BACKLOG: u32 = 8;
/// Moving so many bytes takes longer than waking another worker.
const LARGE: u32 = 128 << 10;

impl Member {
    fn new(crew: &Arc<Crew>, first: bool) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let enough = u32::try_from(cpus).unwrap_or(u32::MAX);
        Self {
            crew: Arc::clone(crew),
            active: first,
            serving: false,
            backlog: 0,
            last_caller: 0,
            enough,
            follower: Follower::new(),
        }
    }

    fn receive(
        &mut self,
        fd: &OwnedFd,
        spin: Duration,
        buffer: &mut [u8],
    ) -> Result<usize, ReceiveError> {
        if std::mem::take(&mut self.serving) {
            self.crew.back();
        }
        loop {
            if !self.active {
                self.active = self.crew.park() == Parked::Promoted;
                if !self.active {
                    return Err(ReceiveError::Retry);
                }
            }
            match rustix::io::read(fd, &mut *buffer) {
                Err(Errno::AGAIN) => self.backlog = self.backlog.saturating_sub(1),
                other => return self.took(other, buffer, true),
            }
            if self.crew.retire() {
                self.active = false;
                self.follower.stay_anywhere();
                continue;
            }
            if self.follower.is_bound()
                && let Some(read) = ask_again(fd, spin, buffer)
            {
                return self.took(read, buffer, false);
            }
            let mut readable = [PollFd::new(fd, PollFlags::IN)];
            rustix::event::poll(&mut readable, None).map_err(receive_error)?;
        }
    }

    /// Tells the crew of a request, and sees to it that nobody has to wait behind it.
    fn took(
        &mut self,
        read: Result<usize, Errno>,
        buffer: &[u8],
        was_there: bool,
    ) -> Result<usize, ReceiveError> {
        let len = read.map_err(receive_error)?;
        self.serving = true;
        let another_left = self.crew.took();
        let Ok((header, _)) = InHeader::read_from_prefix(&buffer[..len]) else { return Ok(len) };
        if header.pid != 0 {
            self.backlog += 2 * u32::from(was_there && header.pid != self.last_caller);
            self.last_caller = header.pid;
            self.follower.request_from(header.pid);
        }
        let queued = self.backlog >= BACKLOG && self.crew.active() < self.enough;
        if queued || (!another_left && takes_long(&header, buffer)) {
            self.backlog = 0;
            self.crew.promote();
        }
        Ok(len)
    }
}

/// Whether others should not wait behind this request.
fn takes_long(header: &InHeader, buffer: &[u8]) -> bool {
    // Sizes as the kernel sends them: `fuse_read_in`, `fuse_copy_file_range_in`.
    let field = |at: usize| {
        let at = size_of::<InHeader>() + at;
        buffer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)
    };
    match header.opcode {
        opcode::FSYNC | opcode::FSYNCDIR | opcode::SETLKW => true,
        opcode::WRITE => header.len >= LARGE,
        opcode::READ => field(16).is_some_and(|size| size >= LARGE),
        // The low half of the length; the kernel asks for less than 4 GiB at a time.
        opcode::COPY_FILE_RANGE => field(40).is_some_and(|len| len >= LARGE),
        _ => false,
    }
}

/// Asks again and again for `spin`; `None` if nothing came.
fn ask_again(fd: &OwnedFd, spin: Duration, buffer: &mut [u8]) -> Option<Result<usize, Errno>> {
    let start = Instant::now();
    while start.elapsed() < spin {
        // Whoever wants this CPU, above all the caller that was just answered, gets it first.
        rustix::thread::sched_yield();
        match rustix::io::read(fd, &mut *buffer) {
            Err(Errno::AGAIN) => {}
            other => return Some(other),
        }
    }
    None
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

/// The connection apart from its queues.
#[derive(Debug)]
struct DeviceControl {
    fd: Arc<SharedFd>,
    crew: Arc<Crew>,
}

impl Control for DeviceControl {
    fn notify(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        rustix::io::writev(&self.fd.0, parts)?;
        Ok(())
    }

    fn open_backing(&self, fd: BorrowedFd<'_>) -> io::Result<u32> {
        let map = BackingMap { fd: fd.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the request reads a `struct fuse_backing_map`, which `map` is (layout checked in
        // `abi`), and which lives until the call returns.
        let id = unsafe { libc::ioctl(self.fd.0.as_raw_fd(), IOC_BACKING_OPEN, &raw const map) };
        u32::try_from(id).ok().filter(|&id| id != 0).ok_or_else(io::Error::last_os_error)
    }

    fn close_backing(&self, id: u32) -> io::Result<()> {
        // SAFETY: the request reads a `u32`, which lives until the call returns.
        let rc = unsafe { libc::ioctl(self.fd.0.as_raw_fd(), IOC_BACKING_CLOSE, &raw const id) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn prepare_thread(&self) {
        crate::signal::prepare_thread();
        take_short_turns();
    }

    fn wake(&self, tid: i32) {
        crate::signal::wake(tid);
        self.crew.kick();
    }

    fn retire(&self) {
        self.fd.let_go();
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
