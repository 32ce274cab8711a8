//! Files that are known to have no capabilities of their own (`security.capability`).
//!
//! Before the first write to an inode the kernel asks for them: for each file that is made a request,
//! which costs the server a path through /proc, and a look at the caller. A file has none when it is
//! made. Who gives it some changes its change time, and since Linux 6.13 a change after a look has a
//! time of its own on ext4, xfs, btrfs and tmpfs. Elsewhere the clock of change times stands still for
//! 10 ms at most: what is given to a file so soon after it was made may not be told until the file
//! changes again. No write goes by it there either: the lower file system looks for itself.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::lower::Stat;

/// The change time at which a file had none; 0 if that is not known.
#[derive(Debug, Default)]
pub(crate) struct NoCapabilities(AtomicU64);

impl NoCapabilities {
    /// It was made, and `stat` is the first look at it.
    pub(crate) fn made(&self, stat: &Stat) {
        self.0.store(change_time(stat), Ordering::Relaxed);
    }

    /// Whether it was known to have none once: then a look tells whether that still holds.
    pub(crate) fn may_be_known(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Whether it has none by this look. It is not known any more if the file has changed.
    pub(crate) fn holds(&self, stat: &Stat) -> bool {
        let known = self.0.load(Ordering::Relaxed);
        let holds = known != 0 && known == change_time(stat);
        if !holds {
            self.0.store(0, Ordering::Relaxed);
        }
        holds
    }
}

/// In nanoseconds since 1970; 0 for times that are not after that.
fn change_time(stat: &Stat) -> u64 {
    let (seconds, nanoseconds) = stat.changed();
    let seconds = u64::try_from(seconds).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::lower::stat_fd;

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn a_file_that_has_changed_is_not_known() {
        let file = tempfile::tempfile().unwrap();
        let look = || stat_fd(file.as_fd()).unwrap();
        let none = NoCapabilities::default();
        assert!(!none.may_be_known() && !none.holds(&look()));
        none.made(&look());
        assert!(none.may_be_known() && none.holds(&look()));
        std::thread::sleep(std::time::Duration::from_millis(30));
        file.set_len(1).unwrap();
        assert!(none.may_be_known());
        assert!(!none.holds(&look()));
        assert!(!none.may_be_known(), "nor is it looked at again");
    }
}
