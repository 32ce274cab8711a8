//! Whether it is root who listens at a socket: the broker is handed the descriptors of a server, so
//! nobody else may pretend to be it.

#![expect(unsafe_code, reason = "rustix reads SO_PEERCRED into a pid that cannot be 0")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The user who listens at the other end, as the kernel knew it when that began, and as this
/// process's user namespace has it: 0 is root there, and never a user that the namespace lacks.
pub(crate) fn listening_user(socket: &OwnedFd) -> io::Result<u32> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let size = size_of::<libc::ucred>();
    let mut len = libc::socklen_t::try_from(size).expect("a few bytes");
    let to = (&raw mut credentials).cast();
    // SAFETY: the kernel writes at most `len` bytes to `credentials`, which has as many and lives
    // until the call returns, and to `len`. Its three integers hold every value.
    let rc = unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(socket.as_raw_fd(), level, option, to, &raw mut len)
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    assert_eq!(len as usize, size, "SO_PEERCRED has one size");
    Ok(credentials.uid)
}
