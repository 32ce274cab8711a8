//! The descriptor of `/dev/fuse`: replies, notifications, backing files.
#![expect(unsafe_code, reason = "ioctl, dup3 onto a shared descriptor")]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Mode, OFlags};

use crate::abi::BackingMap;
use crate::device::leader::LeaderFollowers;
use crate::device::signal;
use crate::transport::{Control, ReplySink};

/// What takes the place of the device at the end: a descriptor on which every operation fails with
/// `EBADF`. Opened when a connection begins, for at its end the process may have no descriptor left.
#[derive(Debug, Default)]
pub(crate) struct Inert(OnceLock<OwnedFd>);

impl Inert {
    /// Opens it, unless it is open.
    ///
    /// # Errors
    /// Errors of open(2).
    pub(crate) fn open(&self) -> io::Result<()> {
        if self.0.get().is_none() {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let fd = rustix::fs::open("/", flags, Mode::empty())?;
            // Where somebody else was first, theirs serves as well.
            let _ = self.0.set(fd);
        }
        Ok(())
    }
}

/// A descriptor used by many threads, whose file can be closed while the number stays taken.
#[derive(Debug)]
pub(crate) struct SharedFd(pub(crate) OwnedFd, Arc<Inert>);

impl SharedFd {
    /// `fd`, which `inert` replaces at the end.
    pub(crate) fn new(fd: OwnedFd, inert: &Arc<Inert>) -> Self {
        Self(fd, Arc::clone(inert))
    }

    /// Replaces the file behind the descriptor by one on which every operation fails with `EBADF`.
    fn close_file(&self) {
        // Without it no queue was ever opened, and nobody holds the descriptor for long.
        let Some(inert) = self.1.0.get() else { return };
        // SAFETY: both are open descriptors owned by live values. The number stays owned by
        // `self.0`; only the file behind it changes, atomically for other threads, and every user
        // copes with failing calls.
        let fd = unsafe { libc::dup3(inert.as_raw_fd(), self.0.as_raw_fd(), libc::O_CLOEXEC) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            tracing::error!(%error, "/dev/fuse stays open: who uses the mount may wait for ever");
        }
    }
}

/// Most parts that writev(2) takes (`UIO_MAXIOV`).
const MAX_PARTS: usize = 1024;

impl SharedFd {
    /// Sends more parts than the system takes: copies the last ones into one.
    #[cold]
    fn commit_joined(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let (apart, rest) = parts.split_at(MAX_PARTS - 1);
        let mut joined = Vec::new();
        joined.try_reserve_exact(rest.iter().map(|part| part.len()).sum())?;
        rest.iter().for_each(|part| joined.extend_from_slice(part));
        let mut all = apart.to_vec();
        all.push(IoSlice::new(&joined));
        rustix::io::writev(&self.0, &all)?;
        Ok(())
    }
}

impl ReplySink for SharedFd {
    fn commit(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        match parts {
            [one] => rustix::io::write(&self.0, one)?,
            many if many.len() > MAX_PARTS => return self.commit_joined(many),
            many => rustix::io::writev(&self.0, many)?,
        };
        Ok(())
    }

    fn close(&self) {
        self.close_file();
    }
}

/// The connection apart from its queues.
#[derive(Debug)]
pub(crate) struct DeviceControl {
    pub(crate) fd: Arc<SharedFd>,
    pub(crate) workers: Arc<LeaderFollowers>,
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

    fn device(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.0.as_fd())
    }

    fn prepare_thread(&self) {
        signal::prepare_thread();
        tollgate_haltpoll::take_short_slices();
    }

    fn wake(&self, tid: i32) {
        signal::wake(tid);
        self.workers.kick();
    }

    fn close(&self) {
        self.fd.close_file();
    }
}

const IOC_MAGIC: u32 = 229;
const IOC_CLONE: libc::Ioctl = libc::_IOR::<u32>(IOC_MAGIC, 0);
const IOC_BACKING_OPEN: libc::Ioctl = libc::_IOW::<BackingMap>(IOC_MAGIC, 1);
const IOC_BACKING_CLOSE: libc::Ioctl = libc::_IOW::<u32>(IOC_MAGIC, 2);

/// Joins the fresh descriptor `new` to the connection of `old`.
pub(crate) fn clone_onto(new: BorrowedFd<'_>, old: BorrowedFd<'_>) -> io::Result<()> {
    let old = old.as_raw_fd();
    // SAFETY: the request reads a `u32`, here an `i32` of the same size and a valid descriptor,
    // which lives until the call returns.
    let rc = unsafe { libc::ioctl(new.as_raw_fd(), IOC_CLONE, &raw const old) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
