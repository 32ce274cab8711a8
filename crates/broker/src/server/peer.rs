//! Who connected, and what the log says of it.
#![expect(unsafe_code, reason = "rustix has no SO_PEERGROUPS, and no process 0")]

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::Gid;

/// How long a window lasts: of the log, and of what one connection registers.
pub(super) const WINDOW_S: u64 = 15;
/// Lines that a user has in the log in a window.
const MAX_LOGGED: u64 = 12;

/// The window of each user and the lines in it so far, the window's number in the upper half. Users
/// whose ids are a multiple of 1,024 apart share a place.
type Logged = [AtomicU64; 1024];

/// When windows began to be counted, and one of these for all processes of the broker: memory that is
/// shared with those that are forked.
pub(super) static LOGGED: LazyLock<(Instant, &Logged)> = LazyLock::new(|| {
    let (access, bytes) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Logged>());
    // SAFETY: it is put where no memory is.
    let memory = unsafe { mmap_anonymous(null_mut(), bytes, access, MapFlags::SHARED) };
    // SAFETY: nothing else has it, and nobody unmaps it. It begins with a page, which suits the
    // alignment, and is all zeros, a value of the type.
    (Instant::now(), unsafe { &*memory.expect("8 KiB, at the start").cast::<Logged>() })
});

/// Who connected, as the kernel knew it at that moment, in the initial user namespace.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<Gid>,
    /// 0 in a pid namespace that is not below ours.
    pid: i32,
}

impl Peer {
    pub(super) fn of(socket: &OwnedFd) -> io::Result<Self> {
        let mut of = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        // As many as a process can have (`NGROUPS_MAX`).
        let mut groups = vec![Gid::ROOT; 65_536];
        option(socket, libc::SO_PEERCRED, std::slice::from_mut(&mut of))?;
        let len = option(socket, libc::SO_PEERGROUPS, &mut groups)?;
        groups.truncate(len / size_of::<Gid>());
        Ok(Self { uid: of.uid, gid: of.gid, groups, pid: of.pid })
    }

    /// Whether it is in `group`; root is in all.
    pub(super) fn is_in(&self, group: u32) -> bool {
        self.uid == 0 || self.gid == group || self.groups.contains(&Gid::from_raw(group))
    }

    /// Says what became of it, a line on standard error: in one write and without the heap, which
    /// a connection's process must not ask the system for. What is longer is cut, and what a user has
    /// too much of in a window is left out, however many connections it comes from.
    pub(super) fn log(&self, what: fmt::Arguments<'_>) {
        let (begun, logged) = *LOGGED;
        let window = (begun.elapsed().as_secs() / WINDOW_S) << 32;
        let next = |was: u64| Some(was.max(window).wrapping_add(1));
        let was = logged[self.uid as usize % logged.len()].fetch_update(Relaxed, Relaxed, next);
        if was.is_ok_and(|was| was.max(window) - window >= MAX_LOGGED) {
            return;
        }
        let mut line = [0; 256];
        let mut rest = &mut line[..];
        let _ = writeln!(rest, "tollgate broker: user {} (process {}): {what}", self.uid, self.pid);
        let left = rest.len();
        let _ = rustix::io::write(rustix::stdio::stderr(), &line[..256 - left]);
    }
}

/// Reads an option of a socket into `to`, plain integers; returns its bytes.
fn option<T>(socket: &OwnedFd, option: libc::c_int, to: &mut [T]) -> io::Result<usize> {
    let mut len = libc::socklen_t::try_from(size_of_val(to)).expect("a few KiB");
    let (socket, value) = (socket.as_raw_fd(), to.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most `len` bytes to `to`, which has as many, and to `len`. Every
    // value of the integers in `T` is valid.
    match unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, option, value, &raw mut len) } {
        0 => Ok(len as usize),
        _ => Err(io::Error::last_os_error()),
    }
}
