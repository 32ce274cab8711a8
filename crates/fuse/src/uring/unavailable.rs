//! Why requests do not come over io_uring.

use std::io;

use rustix::process::{Resource, getrlimit};
use thiserror::Error;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Why requests do not come over io_uring, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UringUnavailable {
    /// The kernel has no FUSE over io_uring.
    #[error(
        "the kernel has no FUSE over io_uring: it needs Linux 6.14 or later, built with \
         CONFIG_FUSE_IO_URING"
    )]
    Kernel,
    /// The module parameter is off.
    #[error(
        "it is switched off in the kernel: `echo Y > /sys/module/fuse/parameters/enable_uring` as \
         root switches it on for later mounts, `fuse.enable_uring=1` on the kernel's command line for \
         good"
    )]
    Parameter,
    /// The process may not use io_uring.
    #[error("this process may not use io_uring: {reason}")]
    NotPermitted {
        /// What forbids it.
        reason: &'static str,
    },
    /// The limit of locked memory is too small for the rings.
    #[error(
        "the limit of locked memory (RLIMIT_MEMLOCK, `ulimit -l`) is {limit_kib} KiB, and the rings need \
         {needed_kib} KiB beyond what this user's processes have locked already"
    )]
    LockedMemory {
        /// The limit in KiB.
        limit_kib: u64,
        /// What the rings need, in KiB.
        needed_kib: u64,
    },
    /// The kernel refused to register a ring entry.
    #[error("the kernel refused the ring of queue {queue}: {error}")]
    Registration {
        /// The queue, which is the CPU's number.
        queue: u16,
        /// The kernel's error.
        error: String,
    },
    /// A thread ended before its ring was registered.
    #[error("a thread ended before its ring was registered")]
    Thread,
    /// Another error of the system.
    #[error("{call} failed: {error}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        error: String,
    },
}

impl UringUnavailable {
    /// What can be known before a ring is made.
    pub(crate) fn check() -> Result<(), Self> {
        match std::fs::read_to_string(PARAMETER) {
            Ok(value) if value.trim() == "Y" || value.trim() == "1" => Ok(()),
            Ok(_) => Err(Self::Parameter),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Self::Kernel),
            // Without sysfs the kernel's offer in the handshake decides.
            Err(_) => Ok(()),
        }
    }

    /// Why io_uring_setup(2) failed for one of several rings that need `needed_bytes` together.
    pub(crate) fn from_setup(error: &io::Error, needed_bytes: u64) -> Self {
        match (error.raw_os_error(), getrlimit(Resource::Memlock).current) {
            (Some(libc::ENOMEM), Some(limit_bytes)) => Self::LockedMemory {
                limit_kib: limit_bytes >> 10,
                needed_kib: needed_bytes.div_ceil(1024),
            },
            (Some(libc::EPERM), _) => Self::NotPermitted { reason: forbidden_by() },
            (Some(libc::ENOSYS), _) => Self::NotPermitted {
                reason: "the kernel was built without it, or a seccomp filter (of a container, for \
                         example) hides it",
            },
            _ => Self::System { call: "io_uring_setup", error: error.to_string() },
        }
    }

    pub(crate) fn system(call: &'static str, error: &io::Error) -> Self {
        Self::System { call, error: error.to_string() }
    }
}

fn forbidden_by() -> &'static str {
    match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").as_deref().map(str::trim) {
        Ok("1") => {
            "`sysctl kernel.io_uring_disabled` is 1, which allows it to members of the group in \
             kernel.io_uring_group and to CAP_SYS_ADMIN"
        }
        Ok("2") => "`sysctl kernel.io_uring_disabled` is 2, which allows it to nobody",
        _ => "a seccomp filter or a security module forbids it",
    }
}
