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
//! An INTERRUPT can overtake its request, because they come on different queues. Over /dev/fuse the
//! kernel could be asked to send it again (`EAGAIN`); over io_uring it does not find the request
//! then. So an INTERRUPT whose request is not there is kept in a table of early ones, where
//! [`Interrupts::begin`] finds it. It writes the table first and then looks at slots and detached
//! replies once more; a request that begins writes its slot first and then reads the table. Again
//! whichever comes second sees the other's change.
//!
//! At the maximum: a detached reply without a place cannot be interrupted; it is counted, and while
//! such replies exist an unknown INTERRUPT is dropped. A further early INTERRUPT takes the place of
//! another one, whose client then waits until its request is served.

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
    /// No such request; it is marked if it begins later.
    Early,
    /// No such request, but there are some that are not in the table.
    Untracked,
}

/// The requests being served.
#[derive(Debug)]
pub(crate) struct Interrupts {
    workers: Box<[Slot]>,
    detached: Box<[AtomicU64]>,
    untracked: AtomicUsize,
    /// Requests that were interrupted before they began; 0 is a free place.
    early: Box<[AtomicU64]>,
    /// INTERRUPTs that were kept, ever: how many places of `early` may be in use.
    kept: AtomicUsize,
}

/// The index of a detached reply in the table, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DetachedIndex(Option<usize>);

impl Interrupts {
    /// Detached replies that can be interrupted at the same time.
    #[cfg(not(loom))]
    pub(crate) const MAX_DETACHED: usize = 1280;
    /// Small enough to be explored.
    #[cfg(loom)]
    pub(crate) const MAX_DETACHED: usize = 1;

    /// Early INTERRUPTs that are kept at the same time.
    #[cfg(not(loom))]
    pub(crate) const MAX_EARLY: usize = 64;
    /// Small enough to be explored.
    #[cfg(loom)]
    pub(crate) const MAX_EARLY: usize = 1;

    /// Ids grow with time. An early INTERRUPT whose request has not begun when one with an id
    /// larger by this begins was late, not early: its request is over.
    const EARLY_FOR: u64 = 1 << 21;

    pub(crate) fn new(workers: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| Slot(AtomicU64::new(0))).collect(),
            detached: (0..Self::MAX_DETACHED).map(|_| AtomicU64::new(0)).collect(),
            untracked: AtomicUsize::new(0),
            early: (0..Self::MAX_EARLY).map(|_| AtomicU64::new(0)).collect(),
            kept: AtomicUsize::new(0),
        }
    }

    /// `worker` starts to serve `unique`. An id with the lowest bit set, which Linux does not send,
    /// is taken for its even neighbour: at worst that one's INTERRUPT marks it too.
    pub(crate) fn begin(&self, worker: usize, unique: u64) {
        let before = self.workers[worker].0.swap(key(unique), Ordering::AcqRel);
        debug_assert_eq!(before, 0, "worker {worker} serves two requests");
        // After the slot is written: see the module's head.
        fence(Ordering::SeqCst);
        if self.kept.load(Ordering::SeqCst) > 0 {
            self.take_early(worker, key(unique));
        }
    }

    #[cold]
    fn take_early(&self, worker: usize, unique: u64) {
        for place in &self.early {
            let early = place.load(Ordering::SeqCst);
            if early == unique && unique != 0 && self.forget_early(place, early) {
                mark(&self.workers[worker].0, unique);
            } else if early != 0 && early < unique.saturating_sub(Self::EARLY_FOR) {
                self.forget_early(place, early);
            }
        }
    }

    fn forget_early(&self, place: &AtomicU64, unique: u64) -> bool {
        let freed = place.compare_exchange(unique, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if freed {
            self.kept.fetch_sub(1, Ordering::SeqCst);
        }
        freed
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
        if self.mark_all(unique) {
            return Interrupted::Marked;
        }
        if self.untracked.load(Ordering::SeqCst) > 0 {
            return Interrupted::Untracked;
        }
        let place = self.keep_early(unique);
        // After the table is written: see the module's head.
        fence(Ordering::SeqCst);
        if self.mark_all(unique) {
            self.forget_early(place, unique);
            return Interrupted::Marked;
        }
        Interrupted::Early
    }

    /// Marks the request wherever it is, and returns whether it is anywhere.
    fn mark_all(&self, unique: u64) -> bool {
        let mut found = false;
        for slot in &self.workers {
            found |= mark(&slot.0, unique);
        }
        fence(Ordering::SeqCst);
        for place in &self.detached {
            found |= mark(place, unique);
        }
        found
    }

    fn keep_early(&self, unique: u64) -> &AtomicU64 {
        // Counted first, so that whoever sees the entry sees the count.
        self.kept.fetch_add(1, Ordering::SeqCst);
        let free = self.early.iter().find(|place| {
            place.compare_exchange(0, unique, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        });
        free.unwrap_or_else(|| {
            // Ids go up in steps of two: the place of the one that came longest before, about.
            let len = self.early.len();
            let place = &self.early[usize::try_from(unique >> 1).map_or(0, |id| id % len)];
            if place.swap(unique, Ordering::SeqCst) != 0 {
                self.kept.fetch_sub(1, Ordering::SeqCst);
            }
            place
        })
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
        assert_eq!(all.interrupt(12), Interrupted::Early);
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
        assert_eq!(all.interrupt(10), Interrupted::Early);
    }

    #[test]
    fn an_interrupt_that_overtakes_its_request_marks_it_when_it_begins() {
        let all = Interrupts::new(2);
        assert_eq!(all.interrupt(10), Interrupted::Early);
        all.begin(0, 12);
        all.begin(1, 10 | UNIQUE_RESEND);
        assert!(!all.is_interrupted(0) && all.is_interrupted(1));
        all.end(1);
        all.begin(1, 10);
        assert!(!all.is_interrupted(1), "an INTERRUPT is used once");
    }

    #[test]
    fn early_interrupts_are_bounded_and_do_not_stay_for_ever() {
        let all = Interrupts::new(1);
        let many = 3 * Interrupts::MAX_EARLY as u64;
        for id in 1..=many {
            assert_eq!(all.interrupt(2 * id), Interrupted::Early);
        }
        assert_eq!(all.kept.load(Ordering::SeqCst), Interrupts::MAX_EARLY);
        all.begin(0, 2 * many);
        assert!(all.is_interrupted(0), "the latest is there");
        all.end(0);
        all.begin(0, 2 * many + Interrupts::EARLY_FOR + 2);
        assert!(!all.is_interrupted(0));
        assert_eq!(all.kept.load(Ordering::SeqCst), 0);
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
        assert_eq!(all.interrupt(1 << 20), Interrupted::Early);
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
    fn loom_no_interrupt_is_lost_that_comes_about_when_its_request_does() {
        check(|| {
            let all = Arc::new(Interrupts::new(1));
            let marker = run(&all, |all| all.interrupt(10));
            all.begin(0, 10);
            let before = all.is_interrupted(0);
            let index = all.detach(0, 10);
            all.end(0);
            marker.join().unwrap();
            assert!(before || all.is_detached_interrupted(index));
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
