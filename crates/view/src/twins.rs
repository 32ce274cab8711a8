//! Inodes that share a number.
//!
//! An overlay shows a file with several names in a lower layer by the inode number that it has there,
//! whichever name is asked about. Yet each of the names has an inode of its own: the first change by one of them
//! copies the file to the upper layer for that name alone, unless the overlay keeps an index (`index=on`).
//! Who takes them for one file, by their number, writes what is meant for one name into the file of
//! the other. No attribute tells them apart, nor whether there is an index. The kernel does: inotify has
//! one watch for one inode, so two watches that are one are of the same inode.

use std::os::fd::{BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::lower::ProcPath;

/// Compares inodes.
#[derive(Debug)]
pub(crate) struct Twins {
    /// An inotify instance, which has watches only while two inodes are compared.
    watches: Mutex<OwnedFd>,
}

impl Twins {
    /// `None` where no inotify instance can be had: then inodes that share a number pass for one.
    pub(crate) fn new() -> Option<Self> {
        match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(watches) => Some(Self { watches: Mutex::new(watches) }),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "no inotify instance: hard links in a lower layer of the overlay pass for one file"
                );
                None
            }
        }
    }

    /// Whether two descriptors name one inode, as only the kernel knows; `None` where it does not tell,
    /// as of a file that this process may not read.
    pub(crate) fn are_one(&self, one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Option<bool> {
        let watches = self.watches.lock();
        let watch = |fd| {
            // An event that no program causes.
            let unmounted = WatchFlags::from_bits_retain(libc::IN_UNMOUNT);
            inotify::add_watch(&*watches, ProcPath::of(fd).as_c_str(), unmounted)
        };
        let first = watch(one).ok()?;
        let second = watch(other);
        for number in [Some(first), second.ok().filter(|second| *second != first)] {
            number.map(|number| inotify::remove_watch(&*watches, number));
        }
        // The end of each watch is reported.
        let mut events = [0; 256];
        while rustix::io::read(&*watches, &mut events).is_ok_and(|bytes| bytes > 0) {}
        Some(second.ok()? == first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::open_path;
    use rustix::io::Errno;
    use std::os::fd::AsFd;

    #[test]
    fn names_of_one_inode_are_one_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        std::fs::write(dir.path().join("b"), "").unwrap();
        std::fs::hard_link(dir.path().join("a"), dir.path().join("c")).unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let [a, b, c] = [c"a", c"b", c"c"].map(|name| open_path(root.as_fd(), name).unwrap());
        let twins = Twins::new().unwrap();
        for _ in 0..3 {
            assert_eq!(twins.are_one(a.as_fd(), c.as_fd()), Some(true));
            assert_eq!(twins.are_one(a.as_fd(), b.as_fd()), Some(false));
            assert_eq!(twins.are_one(a.as_fd(), a.as_fd()), Some(true));
        }
        assert_eq!(rustix::io::read(&*twins.watches.lock(), &mut [0; 64]), Err(Errno::AGAIN));
    }
}
