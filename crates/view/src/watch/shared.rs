//! What the view's threads and the watch's thread share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use tollgate_fuse::NodeId;

use super::fanotify::{Group, Handle};
use super::inodes::Marks;
use crate::fds::Descriptors;
use crate::links::Links;
use crate::table::{Node, Table};

/// Most directories that are watched; those beyond it have the timeouts of the configuration. The
/// kernel keeps the inode of each in memory, about 1 KiB.
pub(super) const MAX_DIRECTORIES: usize = 1 << 16;

/// Most directories that wait for what is cached of them to be dropped. Beyond it all is.
pub(super) const MAX_MOVED: usize = 1 << 10;

/// What is watched, and what is known of it.
pub(crate) struct Tree {
    pub(crate) table: Arc<Table>,
    pub(crate) fds: Arc<Descriptors>,
    pub(crate) links: Arc<Links>,
}

pub(super) struct Shared {
    pub(super) group: Group,
    /// From now on directories are watched.
    pub(super) begun: AtomicBool,
    /// Changes of files by names that are not watched; `None` where the kernel reports none.
    pub(super) files: Option<Group>,
    /// Those are reported at this moment.
    pub(super) files_on: AtomicBool,
    /// By a mark on each file, not one on the file system.
    pub(super) each_file: AtomicBool,
    /// These marks.
    pub(super) marks: Marks,
    pub(super) dirs: Mutex<Dirs>,
    pub(super) todo: Mutex<Todo>,
    /// Wakes the thread for what is in `todo`.
    pub(super) wake: rustix::fd::OwnedFd,
    pub(super) counts: Counts,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) changes: AtomicU64,
    pub(super) overflows: AtomicU64,
}

/// The watched directories. At most [`MAX_DIRECTORIES`].
#[derive(Default)]
pub(super) struct Dirs {
    pub(super) by_handle: FxHashMap<Handle, NodeId>,
    pub(super) by_node: FxHashMap<NodeId, Handle>,
}

#[derive(Default)]
pub(super) struct Todo {
    pub(super) stop: bool,
    /// Directories in which a file was opened for writing. At most the watched ones.
    pub(super) written: Vec<Arc<Node>>,
    /// Directories that were moved in the view. At most [`MAX_MOVED`].
    pub(super) moved: Vec<NodeId>,
    /// Directories whose listings the kernel should not keep. At most as many as it keeps.
    pub(super) list_anew: Vec<NodeId>,
    /// Directories whose listings depend on what is elsewhere.
    pub(super) listed: FxHashSet<NodeId>,
    /// Files that are hidden because of names that were made elsewhere.
    pub(super) hidden: FxHashSet<NodeId>,
    /// All that is cached has to go.
    pub(super) everything: bool,
}

impl Shared {
    pub(super) fn wake(&self) {
        // Full means that the thread will wake anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}
