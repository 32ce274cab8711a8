//! Listings of directories that the kernel reads without opening them.
//!
//! Where OPENDIR is refused with `ENOSYS`, the kernel sends neither it nor RELEASEDIR, and asks for
//! entries of an inode from a cookie on. What is left of a listing is kept for its next request, so
//! that a directory is not opened and searched for each.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tollgate_fuse::NodeId;

use crate::handles::OpenDir;

/// Most listings that wait for their next request; beyond it the oldest is dropped, and its next
/// request begins at the cookie in a new one.
const MAX: usize = 32;

/// Listings that wait: the directory, the cookie to go on from, and the rest.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    waiting: Mutex<VecDeque<(NodeId, u64, OpenDir)>>,
    /// OPENDIR was refused with `ENOSYS`: the kernel does not send it any more, whatever policy
    /// follows.
    unopened: AtomicBool,
}

impl Listings {
    /// The kernel lists without OPENDIR from now on.
    pub(crate) fn go_unopened(&self) {
        self.unopened.store(true, Ordering::Release);
    }

    /// Whether it does.
    pub(crate) fn are_unopened(&self) -> bool {
        self.unopened.load(Ordering::Acquire)
    }

    /// The listing of `node` that goes on at `offset`.
    pub(crate) fn take(&self, node: NodeId, offset: u64) -> Option<OpenDir> {
        let mut waiting = self.waiting.lock();
        let at = waiting.iter().position(|(id, next, _)| (*id, *next) == (node, offset))?;
        waiting.remove(at).map(|(_, _, listing)| listing)
    }

    /// Keeps what is left of a listing, to go on at `offset`.
    pub(crate) fn keep(&self, node: NodeId, offset: u64, listing: OpenDir) {
        let surplus = {
            let mut waiting = self.waiting.lock();
            waiting.push_back((node, offset, listing));
            if waiting.len() > MAX { waiting.pop_front() } else { None }
        };
        // Closed outside the lock.
        drop(surplus);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().len()
    }
}
