//! Who a caller is, as far as the kernel says.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

/// Looks up callers.
pub(crate) struct CallerLookup;

impl CallerLookup {
    pub(crate) fn new() -> Self {
        Self
    }

    /// The executable of thread `tid`, or `None` when it cannot be told: the thread is gone, or its id
    /// may have been taken by another in the meantime.
    pub(crate) fn executable(&self, tid: u32) -> Option<Arc<[u8]>> {
        let pid = Pid::from_raw(i32::try_from(tid).ok()?)?;
        // Held while /proc is read: the id cannot be reused without this descriptor showing an exit.
        let pidfd =
            rustix::process::pidfd_open(pid, PidfdFlags::from_bits_retain(PIDFD_THREAD)).ok()?;
        let exe = std::fs::read_link(format!("/proc/{tid}/exe")).ok()?;
        let mut poll = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        let exited =
            rustix::event::poll(&mut poll, Some(&rustix::event::Timespec::default())).ok()?;
        (exited == 0).then(|| exe.into_os_string().into_vec().into())
    }
}

/// `PIDFD_THREAD` (Linux 6.9): FUSE tells the caller's thread, which need not lead its process.
const PIDFD_THREAD: u32 = 0o200;
