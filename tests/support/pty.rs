//! A terminal for a test.

#![expect(unsafe_code, reason = "openpty has no safe wrapper")]

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};

/// With both its ends.
pub(crate) struct Terminal {
    pub(crate) master: File,
    pub(crate) slave: OwnedFd,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let (mut master, mut slave) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: the two numbers are written to; name, modes and size may be null.
        let made = unsafe {
            libc::openpty(&raw mut master, &raw mut slave, none, std::ptr::null(), std::ptr::null())
        };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call succeeded, and nobody else has these descriptors.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        Self { master, slave }
    }
}
