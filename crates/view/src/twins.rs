//! Inodes that share a number, and an inode that gets another one.
//!
//! An overlay shows a file with several names in a lower layer by the inode number that it has there,
//! whichever name is asked about. Yet each of the names has an inode of its own: the first change by one of them
//! copies the file to the upper layer for that name alone, unless the overlay keeps an index (`index=on`).
//! Who takes them for one file, by their number, writes what is meant for one name into the file of
//! the other. No attribute tells them apart, nor whether there is an index. The kernel does: inotify has
//! one watch for one inode, so two watches that are one are of the same inode.
//!
//! The copy has another number, as has each file that is copied up where the layers lie on different file
//! systems. Who takes it for another file has two caches of one, which both write. So it is kept which file was
//! met by which name: when that leads to an unknown number, the descriptor of the file tells whether it is
//! this one that has it now.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tollgate_fuse::{Name, NodeId};

use crate::lower::ProcPath;
use crate::table::Node;

/// What tells inodes apart, where numbers do not.
#[derive(Debug)]
pub(crate) struct Twins {
    /// An inotify instance, which has watches only while two inodes are compared. None where it cannot be had:
    /// then inodes that share a number pass for one.
    watches: Option<Mutex<OwnedFd>>,
    /// Files by the directory and the name that they were met by last.
    met: Mutex<FxHashMap<NodeId, Names>>,
}

/// Files by their names in a directory.
type Names = FxHashMap<Box<CStr>, NodeId>;

impl Twins {
    pub(crate) fn new() -> Self {
        let watches = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let watches = watches.inspect_err(|error| {
            tracing::warn!(
                %error,
                "no inotify instance: hard links in a lower layer of the overlay pass for one file"
            );
        });
        Self { watches: watches.ok().map(Mutex::new), met: Mutex::default() }
    }

    /// The file `node` was met at `name` in `dir`. `is_known` tells of a node whether the kernel remembers
    /// it.
    pub(crate) fn met(
        &self,
        dir: NodeId,
        name: Name<'_>,
        node: NodeId,
        is_known: impl Fn(NodeId) -> bool,
    ) {
        let mut met = self.met.lock();
        let names = met.entry(dir).or_default();
        if let Some(known) = names.get_mut(name.as_c_str()) {
            *known = node;
            return;
        }
        if names.len() == names.capacity() {
            // Others moved or removed them, or the kernel had no more use for them.
            names.retain(|_, node| is_known(*node));
        }
        names.insert(name.as_c_str().into(), node);
    }

    /// The view took this name away from a file.
    pub(crate) fn left(&self, dir: NodeId, name: Name<'_>) {
        if let Some(names) = self.met.lock().get_mut(&dir) {
            names.remove(name.as_c_str());
        }
    }

    /// The kernel forgot `node`.
    pub(crate) fn forgotten(&self, node: &Node) {
        let mut met = self.met.lock();
        if node.is_dir() {
            met.remove(&node.id);
            return;
        }
        for place in node.places() {
            let Some(names) = met.get_mut(&place.parent.id) else { continue };
            if names.get(&*place.name) == Some(&node.id) {
                names.remove(&*place.name);
            }
        }
    }

    /// What was met at `name` in `dir` last.
    pub(crate) fn met_at(&self, dir: NodeId, name: Name<'_>) -> Option<NodeId> {
        self.met.lock().get(&dir)?.get(name.as_c_str()).copied()
    }

    /// Whether two descriptors name one inode, as only the kernel knows; `None` where it does not tell,
    /// as of a file that this process may not read.
    pub(crate) fn are_one(&self, one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Option<bool> {
        let watches = self.watches.as_ref()?.lock();
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
        let twins = Twins::new();
        for _ in 0..3 {
            assert_eq!(twins.are_one(a.as_fd(), c.as_fd()), Some(true));
            assert_eq!(twins.are_one(a.as_fd(), b.as_fd()), Some(false));
            assert_eq!(twins.are_one(a.as_fd(), a.as_fd()), Some(true));
        }
        let watches = twins.watches.unwrap();
        assert_eq!(rustix::io::read(&*watches.lock(), &mut [0; 64]), Err(Errno::AGAIN));
    }

    #[test]
    fn names_of_what_was_forgotten_take_no_room() {
        let (twins, dir) = (Twins::new(), NodeId(1));
        for n in 2..10_000_u64 {
            let name = std::ffi::CString::new(format!("save-{n}")).unwrap();
            let name = Name::new(&name).unwrap();
            twins.met(dir, name, NodeId(n), |node| node.0 + 3 > n);
            assert_eq!(twins.met_at(dir, name), Some(NodeId(n)));
        }
        let met = twins.met.lock();
        assert!(met[&dir].len() < 100 && met[&dir].capacity() < 100, "{}", met[&dir].len());
    }
}
