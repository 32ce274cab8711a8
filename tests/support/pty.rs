//! A terminal for a test.

#![expect(unsafe_code, reason = "terminals have no safe wrapper")]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// With both its ends.
pub(crate) struct Terminal {
    pub(crate) master: File,
    pub(crate) slave: OwnedFd,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        // Closed in what others execute meanwhile: the terminal is gone with its last master.
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY);
        let master = options.open("/dev/ptmx").unwrap();
        let unlocked: libc::c_int = 0;
        let (fd, flags) = (master.as_raw_fd(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        // SAFETY: the first request reads a number, the second one takes flags and makes a descriptor.
        let slave = unsafe {
            assert_eq!(libc::ioctl(fd, libc::TIOCSPTLCK, &raw const unlocked), 0);
            libc::ioctl(fd, libc::TIOCGPTPEER, flags)
        };
        assert!(slave >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call succeeded, and nobody else has the descriptor.
        let slave = unsafe { OwnedFd::from_raw_fd(slave) };
        Self { master, slave }
    }
}
