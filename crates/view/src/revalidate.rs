//! Small files that are open from the view's page cache, compared with the lower file once a
//! second.
//!
//! A read makes the kernel compare them when the attributes expire. A mapping does not, and the
//! watch does not hear of everything: of stores through a mapping, and of writes through a name in
//! a directory that is not watched. What was seen to change once is dropped each second from then
//! on: after the first store through a mapping, further ones need not change the time.

use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tollgate_fuse::Connection;

use crate::lower;
use crate::mode::Pages;
use crate::table::Node;

const SHARDS: usize = 16;

/// The small files that are open. As many as programs have open; each has a descriptor within the
/// [`crate::budget::Budget`].
#[derive(Default)]
pub(crate) struct OpenSmall {
    shards: [crossbeam_utils::CachePadded<Mutex<Shard>>; SHARDS],
}

type Shard = FxHashMap<u64, Arc<Node>>;

impl OpenSmall {
    /// `node` is open. Under the lock of its `io`, like [`OpenSmall::remove`].
    pub(crate) fn insert(&self, node: &Arc<Node>) {
        self.shard(node).lock().insert(node.id.0, Arc::clone(node));
    }

    /// `node` is not open any more.
    pub(crate) fn remove(&self, node: &Node) {
        self.shard(node).lock().remove(&node.id.0);
    }

    /// Compares each with its lower file, and drops the pages of those that changed. Returns
    /// whether any is open. May wait for replies to READs: not for a thread that serves requests.
    pub(crate) fn revalidate(&self, connection: &Connection) -> bool {
        let mut any = false;
        for shard in &self.shards {
            let nodes: Vec<_> = shard.lock().values().cloned().collect();
            any |= !nodes.is_empty();
            for node in nodes.iter().filter(|node| has_changed(node)) {
                // ENOENT: the kernel has forgotten it in the meantime.
                let _ = connection.invalidate_inode(node.id, 0, 0);
            }
        }
        any
    }

    #[expect(clippy::cast_possible_truncation, reason = "the remainder is below SHARDS")]
    fn shard(&self, node: &Node) -> &Mutex<Shard> {
        &self.shards[(node.id.0 % SHARDS as u64) as usize]
    }
}

/// Whether the pages of `node` may differ from its lower file. From then on nothing is known of
/// them.
fn has_changed(node: &Node) -> bool {
    let (pages, fd) = {
        let io = node.io.lock();
        if !io.is_small() {
            return false;
        }
        (io.pages, node.fd.lock().clone())
    };
    if let (Pages::Of(version) | Pages::Dropped(version), Some(fd)) = (pages, fd)
        && lower::stat_fd(fd.as_fd()).is_ok_and(|stat| stat.version() == version)
    {
        return false;
    }
    let mut io = node.io.lock();
    // Closed and opened again while it was looked at: that open compared it.
    if io.pages == pages {
        io.pages = Pages::Unknown;
    }
    io.is_small()
}
