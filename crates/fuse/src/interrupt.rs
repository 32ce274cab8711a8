//! The requests being served, so that an INTERRUPT finds them. Lock-free, bounded.
//!
//! A worker has one slot for the request in its hands; a detached reply takes a place in a table of
//! [`Interrupts::MAX_DETACHED`]. Either holds the request's `unique`, whose lowest bit Linux leaves
//! free (ids of requests are even; it uses the bit itself to mark INTERRUPT requests) and which
//! serves as the mark "interrupted". A set mark is never lost while a request moves from slot to
//! table: the worker that detaches writes the table first and then reads its slot; the thread that
//! handles the INTERRUPT marks the slots first and then the table. Whichever comes second sees the
//! other's change (a sequentially consistent fence stands between the two steps of each).
//!
//! A request that was sent again (`FUSE_NOTIFY_RESEND`) has the highest bit of its id set, and so
//! has its INTERRUPT from then on. The bit is ignored here: an INTERRUPT with either id marks both
//! the first and the second arrival of the request.
//!
//! At the maximum: a detached reply without a place cannot be interrupted; it is counted, and while
//! such replies exist an unknown INTERRUPT is dropped: the kernel is not asked to send it again.

use crate::abi::UNIQUE_RESEND;
use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence};

const INTERRUPTED: u64 = 1;

/// Identifies a request, whether it was sent again or not, and leaves the mark's bit free.
fn key(unique: u64) -> u64 {
    unique & !(INTERRUPTED | UNIQUE_RESEND)
}

/// One slot, on a pair of cache lines of its own because it is written for every request.
#[derive(Debug)]
#[repr(align(128))]
struct Slot(AtomicU64);

/// The outcome of an INTERRUPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The request is marked.
    Marked,
    /// No such request; the kernel may send the INTERRUPT again.
    Unknown,
    /// No such request, but there are some that are not in the table.
    Untracked,
}

/// The requests being served.
#[derive(Debug)]
pub(crate) struct Interrupts {
    workers: Box<[Slot]>,
    detached: Box<[AtomicU64]>,
    untracked: AtomicUsize,
}

/// The index of a detached reply in the table, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DetachedIndex(Option<usize>);

impl Interrupts {
    /// Detached replies that can be interrupted at the same time.
    #[cfg(not(loom))]
    pub(crate) const MAX_DETACHED: usize = 1024;
    /// Small enough to be explored.
    #[cfg(loom)]
    pub(crate) const MAX_DETACHED: usize = 1;

    pub(crate) fn new(workers: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| Slot(AtomicU64::new(0))).collect(),
            detached: (0..Self::MAX_DETACHED).map(|_| AtomicU64::new(0)).collect(),
            untracked: AtomicUsize::new(0),
        }
    }

    /// `worker` starts to serve `unique`. An id with the lowest bit set, which Linux does not send,
    /// is taken for its even neighbour: at worst that one's INTERRUPT marks it too.
    pub(crate) fn begin(&self, worker: usize, unique: u64) {
        let before = self.workers[worker].0.swap(key(unique), Ordering::AcqRel);
        debug_assert_eq!(before, 0, "worker {worker} serves two requests");
    }

    /// `worker` serves nothing.
    pub(crate) fn end(&self, worker: usize) {
        self.workers[worker].0.swap(0, Ordering::AcqRel);
    }

    /// `worker` is between [`Interrupts::begin`] and [`Interrupts::end`].
    pub(crate) fn is_serving(&self, worker: usize) -> bool {
        self.workers[worker].0.load(Ordering::Acquire) != 0
    }

    /// The request in `worker`'s hands was interrupted.
    pub(crate) fn is_interrupted(&self, worker: usize) -> bool {
        self.workers[worker].0.load(Ordering::Acquire) & INTERRUPTED != 0
    }

    /// Takes a place in the table for the request in `worker`'s hands.
    pub(crate) fn detach(&self, worker: usize, unique: u64) -> DetachedIndex {
        let unique = key(unique);
        let Some(place) = self.insert(unique) else {
            self.untracked.fetch_add(1, Ordering::SeqCst);
            return DetachedIndex(None);
        };
        // After the insertion: see the module's head.
        fence(Ordering::SeqCst);
        if self.workers[worker].0.load(Ordering::SeqCst) == unique | INTERRUPTED {
            mark(&self.detached[place], unique);
        }
        DetachedIndex(Some(place))
    }

    fn insert(&self, unique: u64) -> Option<usize> {
        // 0 means "free". Linux does not send it.
        if unique == 0 {
            return None;
        }
        let len = self.detached.len();
        // Ids go up in steps of two: neighbours in time are neighbours in the table.
        let start = usize::try_from(unique >> 1).unwrap_or(0) % len;
        (0..len).map(|i| (start + i) % len).find(|&i| {
            let place = &self.detached[i];
            place.compare_exchange(0, unique, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        })
    }

    /// The detached reply at `place` was interrupted.
    pub(crate) fn is_detached_interrupted(&self, place: DetachedIndex) -> bool {
        place.0.is_some_and(|i| self.detached[i].load(Ordering::Acquire) & INTERRUPTED != 0)
    }

    /// The detached reply at `place` is sent.
    pub(crate) fn release(&self, place: DetachedIndex) {
        match place.0 {
            Some(i) => {
                let before = self.detached[i].swap(0, Ordering::AcqRel);
                debug_assert_ne!(before, 0, "a detached reply was sent twice");
            }
            None => {
                let before = self.untracked.fetch_sub(1, Ordering::SeqCst);
                debug_assert_ne!(before, 0, "more untracked replies were sent than detached");
            }
        }
    }

    /// An INTERRUPT for `unique` arrived.
    pub(crate) fn interrupt(&self, unique: u64) -> Interrupted {
        let unique = key(unique);
        // 0 means "free": marked, free places would be taken for ever.
        if unique == 0 {
            return Interrupted::Untracked;
        }
        let mut found = false;
        for slot in &self.workers {
            found |= mark(&slot.0, unique);
        }
        fence(Ordering::SeqCst);
        for place in &self.detached {
            found |= mark(place, unique);
        }
        match (found, self.untracked.load(Ordering::SeqCst)) {
            (true, _) => Interrupted::Marked,
            (false, 0) => Interrupted::Unknown,
            (false, _) => Interrupted::Untracked,
        }
    }
}

/// Marks `slot` if it holds `unique`, and returns whether it does.
fn mark(slot: &AtomicU64, unique: u64) -> bool {
    let marked = unique | INTERRUPTED;
    match slot.compare_exchange(unique, marked, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => true,
        Err(there) => there == marked,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_marks_the_request_in_hand_and_no_other() {
        let all = Interrupts::new(2);
        all.begin(0, 10);
        all.begin(1, 12);
        assert_eq!(all.interrupt(12), Interrupted::Marked);
        assert!(!all.is_interrupted(0));
        assert!(all.is_interrupted(1));
        all.end(1);
        all.begin(1, 14);
        assert!(!all.is_interrupted(1));
        assert_eq!(all.interrupt(12), Interrupted::Unknown);
    }

    #[test]
    fn a_mark_moves_along_when_a_reply_is_detached() {
        let all = Interrupts::new(1);
        all.begin(0, 10);
        all.interrupt(10);
        let place = all.detach(0, 10);
        all.end(0);
        assert!(all.is_detached_interrupted(place));
        all.release(place);
        assert_eq!(all.interrupt(10), Interrupted::Unknown);
    }

    #[test]
    fn an_interrupt_for_request_0_marks_no_free_place() {
        let all = Interrupts::new(1);
        for unique in [0, 1] {
            assert_eq!(all.interrupt(unique), Interrupted::Untracked);
        }
        all.begin(0, 10);
        let place = all.detach(0, 10);
        assert!(place.0.is_some() && !all.is_detached_interrupted(place));
        assert!(all.detached.iter().filter(|p| p.load(Ordering::Relaxed) != 0).count() == 1);
        let nowhere = all.detach(0, 0);
        assert_eq!(nowhere, DetachedIndex(None));
        all.release(nowhere);
    }

    #[test]
    fn an_interrupt_finds_a_request_that_was_sent_again_by_either_id() {
        for target in [10, 10 | UNIQUE_RESEND] {
            let all = Interrupts::new(2);
            all.begin(0, 10);
            let place = all.detach(0, 10);
            all.end(0);
            all.begin(1, 10 | UNIQUE_RESEND);
            assert_eq!(all.interrupt(target), Interrupted::Marked);
            assert!(all.is_detached_interrupted(place) && all.is_interrupted(1));
            let later = all.detach(1, 10 | UNIQUE_RESEND);
            assert!(all.is_detached_interrupted(later));
        }
    }

    #[test]
    fn a_full_table_says_so() {
        let all = Interrupts::new(1);
        let places: Vec<_> =
            (1..=Interrupts::MAX_DETACHED as u64).map(|i| all.detach(0, i * 2)).collect();
        let beyond = all.detach(0, 1 << 20);
        assert_eq!(beyond, DetachedIndex(None));
        assert_eq!(all.interrupt(1 << 20), Interrupted::Untracked);
        all.release(beyond);
        assert_eq!(all.interrupt(1 << 20), Interrupted::Unknown);
        assert!(places.iter().all(|p| p.0.is_some()));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::model::{Arc, check, run};

    #[test]
    fn loom_no_mark_is_lost_while_a_reply_is_detached() {
        check(|| {
            let all = Arc::new(Interrupts::new(1));
            all.begin(0, 10);
            let marker = run(&all, |all| all.interrupt(10));
            let index = all.detach(0, 10);
            all.end(0);
            let outcome = marker.join().unwrap();
            assert_eq!(outcome, Interrupted::Marked);
            assert!(all.is_detached_interrupted(index));
        });
    }

    #[test]
    fn loom_a_later_request_is_never_marked() {
        check(|| {
            let all = Arc::new(Interrupts::new(1));
            all.begin(0, 10);
            let marker = run(&all, |all| all.interrupt(10));
            all.end(0);
            all.begin(0, 12);
            assert!(!all.is_interrupted(0));
            marker.join().unwrap();
            assert!(!all.is_interrupted(0));
        });
    }
}
