//! Who connected, and what the log says of it.
#![expect(unsafe_code, reason = "rustix has no SO_PEERGROUPS, and no process 0")]

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::Gid;

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
    /// a connection's process must not ask the system for. What is longer is cut.
    pub(super) fn log(&self, what: fmt::Arguments<'_>) {
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
