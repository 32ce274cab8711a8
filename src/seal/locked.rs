//! Whether somebody has a lock on a file. A file that takes its place would have none, and who locks that
//! one would not be kept out.
//!
//! The kernel lists all locks that this process may know of. Asking for a lock would tell as much, and refuse
//! others theirs in that moment.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

const LOCKS: &str = "/proc/locks";
/// On btrfs a file's device is its subvolume's, and not the one that locks are listed with.
const BTRFS: u64 = 0x9123_683e;

/// Whether a process has locked `file`, or a part of it, or waits to. Leases do not count.
///
/// # Errors
/// Those of fstat(2) and fstatfs(2). Where locks are not listed, nobody is known to have one.
pub(super) fn is_locked(file: &File) -> io::Result<bool> {
    let Ok(list) = std::fs::read_to_string(LOCKS) else { return Ok(false) };
    let found = file.metadata()?;
    let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let by_inode_alone = rustix::fs::fstatfs(file)?.f_type.cast_unsigned() as u64 == BTRFS;
    let is_its =
        |lock: &Lock| lock.inode == found.ino() && (by_inode_alone || lock.device == device);
    Ok(list.lines().filter_map(Lock::parse).any(|lock| is_its(&lock)))
}

#[derive(Debug, PartialEq, Eq)]
struct Lock {
    device: (u32, u32),
    inode: u64,
}

impl Lock {
    /// A line such as `3: FLOCK  ADVISORY  WRITE 2361 fe:00:1835021 0 EOF`; with `->` after the number for who
    /// waits. `None` for a lease.
    fn parse(line: &str) -> Option<Lock> {
        let mut words = line.split_whitespace().skip(1).filter(|word| *word != "->");
        let kind = words.next()?;
        if !matches!(kind, "FLOCK" | "POSIX" | "OFDLCK") {
            return None;
        }
        let mut place = words.nth(3)?.split(':');
        let mut number = || u32::from_str_radix(place.next()?, 16).ok();
        let device = (number()?, number()?);
        Some(Lock { device, inode: place.next()?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::FlockOperation;

    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let at = |inode| Some(Lock { device: (0xfe, 0x10), inode });
        let parse = Lock::parse;
        assert_eq!(parse("1: FLOCK  ADVISORY  WRITE 2361 fe:10:1835021 0 EOF"), at(1_835_021));
        assert_eq!(parse("1: -> POSIX  ADVISORY  READ 2361 fe:10:7 0 9"), at(7));
        assert_eq!(parse("22: OFDLCK ADVISORY  READ  -1 fe:10:8 0 EOF"), at(8));
        for other in ["1: LEASE  ACTIVE    READ  1 fe:10:7 0 EOF", "", "1: FLOCK ADVISORY WRITE 1"]
        {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_lock_is_seen_as_long_as_it_is_held() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let locker = File::open(file.path()).expect("open");
        assert!(!is_locked(file.as_file()).expect("looked at"));
        for kind in [FlockOperation::LockShared, FlockOperation::LockExclusive] {
            rustix::fs::flock(&locker, kind).expect("locked");
            assert!(is_locked(file.as_file()).expect("looked at"), "{kind:?}");
        }
        // Not by a close: a program that another test starts at this moment has the file open, too.
        rustix::fs::flock(&locker, FlockOperation::Unlock).expect("unlocked");
        assert!(!is_locked(file.as_file()).expect("looked at"));
    }
}
