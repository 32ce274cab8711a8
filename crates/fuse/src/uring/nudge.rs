//! How the kernel is made to put a request into a queue of its rings: see `occupancy.rs` for why.
//!
//! There are two ways. Neither works always.
//!
//! - Asking for an empty range of a file's cache (`FUSE_NOTIFY_RETRIEVE`). It needs a regular file
//!   that the kernel knows; older kernels take the root directory too.
//! - Asking for the mount's statistics by its device number (ustat(2)), which needs no descriptor that
//!   would keep the mount busy. The asking thread waits for the answer, so it is one made for this.
//!   Not on AArch64, which lacks the call.
#![expect(unsafe_code, reason = "ustat has no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::CpuSet;

/// Most threads that ask at the same time. One is enough, unless a request of another program comes
/// first, gets the entry that was meant for the question, and waits as well.
const MOST: usize = 64;

/// Threads of this process that ask for the mount's statistics.
#[derive(Debug)]
pub(crate) struct Askers {
    /// The mount's number; `None` if the kernel does not tell.
    mount: Option<u32>,
    /// Their ids. 0: free, [`BEGINS`]: not known yet.
    threads: [AtomicU32; MOST],
}

const BEGINS: u32 = u32::MAX;

impl Askers {
    /// For the mount of `device`.
    pub(crate) fn new(device: BorrowedFd<'_>) -> Self {
        Self { mount: mount_number(device), threads: [const { AtomicU32::new(0) }; MOST] }
    }

    /// Whether `thread` asks just now.
    pub(crate) fn asks(&self, thread: u32) -> bool {
        let known = thread != 0 && thread != BEGINS;
        known && self.threads.iter().any(|asking| asking.load(Ordering::Acquire) == thread)
    }

    /// Has a request made in the queue of `cpu`.
    ///
    /// # Errors
    /// Where it cannot be done, and errors of the system while a thread is made.
    pub(crate) fn ask(self: &Arc<Self>, cpu: u16) -> io::Result<()> {
        let mount = self.mount.filter(|_| CAN_ASK).ok_or(io::ErrorKind::Unsupported)?;
        let free = self.threads.iter().position(|thread| {
            thread.compare_exchange(0, BEGINS, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let place = free.ok_or(io::ErrorKind::QuotaExceeded)?;
        let askers = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tollgate-nudge".into());
        let made = thread.stack_size(64 << 10).spawn(move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            askers.threads[place].store(id, Ordering::Release);
            if let Err(error) = on_cpu(cpu, || ask(mount)) {
                tracing::debug!(%error, cpu, "a queue was not nudged");
            }
            askers.threads[place].store(0, Ordering::Release);
        });
        if made.is_err() {
            self.threads[place].store(0, Ordering::Release);
        }
        made.map(drop)
    }
}

/// The kernel writes the number beside what else it tells of a descriptor (Linux 6.16).
fn mount_number(device: BorrowedFd<'_>) -> Option<u32> {
    let path = format!("/proc/self/fdinfo/{}", device.as_raw_fd());
    let info = std::fs::read_to_string(path).ok()?;
    info.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse().ok()
}

const CAN_ASK: bool = cfg!(target_arch = "x86_64");

/// Returns once the question was answered, whatever the answer is.
#[cfg(target_arch = "x86_64")]
fn ask(mount: u32) -> io::Result<()> {
    // `struct ustat` has 32 bytes.
    let mut answer = [0u64; 4];
    // The number as programs pass it: 8 bits, 12 of the major number, which is 0, and the rest.
    let device = (mount & 0xff) | ((mount & !0xff) << 12);
    // SAFETY: the call writes a `struct ustat`, for which there is room.
    let asked = unsafe { libc::syscall(libc::SYS_ustat, device, answer.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // The answer is an error, see `RingQueue::answer_nudge`.
    if asked == 0 || error.raw_os_error() == Some(libc::EAGAIN) { Ok(()) } else { Err(error) }
}

#[cfg(not(target_arch = "x86_64"))]
fn ask(_mount: u32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Runs `work` on `cpu`, and lets this thread run where it could before.
pub(crate) fn on_cpu<T>(cpu: u16, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = rustix::thread::sched_getaffinity(None)?;
    let mut there = CpuSet::new();
    if usize::from(cpu) >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::Unsupported.into());
    }
    there.set(usize::from(cpu));
    rustix::thread::sched_setaffinity(None, &there)?;
    let done = work();
    // On failure the thread stays on a CPU that it may use.
    let _ = rustix::thread::sched_setaffinity(None, &before);
    done
}
