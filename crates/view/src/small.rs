//! Which files are read from the view's own page cache instead of the lower file's.
//!
//! A small file is opened far more often than its bytes are worth a registration, and each
//! passthrough read makes the kernel ask for the attributes again, because it may have changed the
//! access time. So a small file that is only read is open in [`crate::mode::IoMode::Cached`]: the
//! server reads it once, when it is opened, and hands its content to the kernel before it answers
//! (FUSE_NOTIFY_STORE). As long as the file is the same at the next OPEN, the kernel keeps these
//! pages, and neither READ nor GETATTR is sent.
//!
//! What keeps it from showing what is not there any more:
//!
//! * Each OPEN compares size, modification and change time with those that the pages have, in
//!   `ops/small.rs`. That they tell two contents apart is certain only of a file that was settled
//!   ([`Version::is_settled`]) and that nobody had open for writing ([`lower::is_not_written`]).
//! * Reads of a handle that is held make the kernel compare the modification time when the
//!   attributes expire. Mappings do not, so open files are compared each second besides: see
//!   `revalidate.rs`.
//! * The mode holds while a handle is open, so somebody who writes the file meanwhile does it
//!   through this process. From then on the file is served by passthrough as soon as it is closed.
//!
//! [`Version::is_settled`]: crate::lower::Version::is_settled
//! [`lower::is_not_written`]: crate::lower::is_not_written

use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, OFlags};
use rustix::time::ClockId;

use crate::config::{Config, SmallFiles};
use crate::idle::LINGER;
use crate::lower::Stat;
use crate::probe;

/// The largest file that is served from the view's page cache, in bytes. Reading it and handing it
/// over takes time and memory that grow with it; what is saved does not. Most sources and headers
/// are smaller; where exactly it stops to pay was not measured.
pub(crate) const MAX_BYTES: usize = 64 << 10;

/// Whether small files are served from the view's page cache, and which.
#[derive(Debug)]
pub(crate) struct Small {
    on: bool,
    /// The device of the lower directory: of others nothing is known.
    dev: u64,
}

impl Small {
    /// For the lower directory `source` on the device `dev`.
    pub(crate) fn new(config: &Config, watched: bool, source: BorrowedFd<'_>, dev: u64) -> Self {
        let wanted = match config.small_files {
            SmallFiles::Passthrough => false,
            SmallFiles::Cached => true,
            SmallFiles::Auto => watched,
        };
        // Open files are compared once in this time: not as soon as a shorter timeout promises.
        let in_time = config.attr_timeout >= LINGER;
        Self { on: wanted && in_time && probe::times_tell_changes(source), dev }
    }

    /// Whether any file is served so.
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Whether a file with these attributes is. A file that says it is empty may still have
    /// content (`/proc`).
    pub(crate) fn suits(&self, stat: &Stat) -> bool {
        stat.file_type() == FileType::RegularFile
            && stat.dev() == self.dev
            && (1..=MAX_BYTES as u64).contains(&stat.size())
            && stat.version().is_settled(now())
    }
}

/// Whether a file that is opened with `flags` is only read, and may be read through a page cache.
pub(crate) fn only_reads(flags: OFlags) -> bool {
    (flags & OFlags::ACCMODE) == OFlags::RDONLY && !flags.intersects(OFlags::TRUNC | OFlags::DIRECT)
}

/// Seconds by the clock of file systems.
pub(crate) fn now() -> i64 {
    rustix::time::clock_gettime(ClockId::RealtimeCoarse).tv_sec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_writes_truncates_or_wants_no_cache_does_not_only_read() {
        assert!(only_reads(OFlags::RDONLY | OFlags::NOATIME | OFlags::CLOEXEC));
        for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::TRUNC, OFlags::DIRECT] {
            assert!(!only_reads(flags), "{flags:?}");
        }
    }
}
