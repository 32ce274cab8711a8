//! Listings of directories that the kernel reads without opening them.
//!
//! Where OPENDIR is refused with `ENOSYS`, the kernel sends neither it nor RELEASEDIR, and asks for
//! entries of an inode from a cookie on. What is left of a listing is kept for its next request, so
//! that a directory is not opened and searched for each. Of a listing that was given to its end that
//! is noted alone: the kernel asks once more, and gets an empty reply.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tollgate_fuse::NodeId;

use crate::handles::OpenDir;

/// Most listings that wait for their next request; beyond it the oldest is dropped, and its next
/// request begins at the cookie in a new one.
const MAX: usize = 32;

/// How long it is believed that nothing follows a cookie. A name that others add in this time is
/// reported by the watch, and what the kernel cached then goes, also what it got a little later.
const END_LASTS: Duration = Duration::from_millis(50);

/// Listings that wait: the directory, the cookie to go on from, and the rest.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    waiting: Mutex<VecDeque<(NodeId, u64, OpenDir)>>,
    /// Those that were given to their ends: the directory, the cookie there, and when. At most
    /// [`MAX`].
    ended: Mutex<VecDeque<(NodeId, u64, Instant)>>,
    /// OPENDIR was refused with `ENOSYS`: the kernel does not send it any more, whatever policy
    /// follows. One more than the epoch of the policy that allowed that; 0 while it is sent.
    unopened: AtomicUsize,
}

impl Listings {
    /// The kernel lists without OPENDIR from now on, as the policy of this `epoch` allows.
    pub(crate) fn go_unopened(&self, epoch: usize) {
        // OPENDIRs that were under way together: the later policy is asked anew.
        let _ = self.unopened.compare_exchange(0, epoch + 1, Ordering::Release, Ordering::Relaxed);
    }

    /// Whether it does.
    pub(crate) fn are_unopened(&self) -> bool {
        self.unopened.load(Ordering::Acquire) != 0
    }

    /// Whether it does as the policy of this `epoch` allows.
    pub(crate) fn were_unopened_at(&self, epoch: usize) -> bool {
        self.unopened.load(Ordering::Acquire) == epoch + 1
    }

    /// Notes that nothing follows `offset` in `node`.
    pub(crate) fn keep_end(&self, node: NodeId, offset: u64) {
        let mut ended = self.ended.lock();
        if ended.len() >= MAX {
            ended.pop_front();
        }
        ended.push_back((node, offset, Instant::now()));
    }

    /// Whether nothing follows `offset` in `node`, as far as is known. The note is gone then.
    pub(crate) fn take_end(&self, node: NodeId, offset: u64) -> bool {
        let mut ended = self.ended.lock();
        let at = ended.iter().position(|(id, end, _)| (*id, *end) == (node, offset));
        let noted = at.and_then(|at| ended.remove(at));
        noted.is_some_and(|(_, _, at)| at.elapsed() < END_LASTS)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_listing_is_noted_once_and_for_few_directories() {
        let listings = Listings::default();
        listings.keep_end(NodeId(1), 7);
        assert!(!listings.take_end(NodeId(1), 6) && !listings.take_end(NodeId(2), 7));
        for node in 2..=MAX as u64 {
            listings.keep_end(NodeId(node), 7);
        }
        listings.keep_end(NodeId(3), 9);
        assert!(!listings.take_end(NodeId(1), 7), "the oldest makes room");
        assert_eq!(listings.ended.lock().len(), MAX);
        // What was noted long ago is not believed; only a test that was held up sees that here.
        let noted = listings.ended.lock().back().map(|(_, _, at)| *at).unwrap();
        let believed = listings.take_end(NodeId(3), 9);
        assert!(believed || noted.elapsed() >= END_LASTS);
        assert!(!listings.take_end(NodeId(3), 9));
    }

    #[test]
    fn an_end_that_was_noted_long_ago_is_not_believed() {
        let listings = Listings::default();
        let long_ago = Instant::now().checked_sub(END_LASTS).unwrap();
        listings.ended.lock().push_back((NodeId(1), 7, long_ago));
        assert!(!listings.take_end(NodeId(1), 7));
    }

    #[test]
    fn a_policy_that_follows_is_asked_about_listings() {
        let listings = Listings::default();
        assert!(!listings.are_unopened() && !listings.were_unopened_at(0));
        listings.go_unopened(0);
        listings.go_unopened(1);
        assert!(listings.are_unopened() && listings.were_unopened_at(0));
        assert!(!listings.were_unopened_at(1));
    }
}
