//! Forked jobs of one thread: the owner pushes and pops at the bottom, thieves take from the top.
//!
//! The algorithm is the work-stealing deque of Chase and Lev (SPAA 2005) with the memory orderings
//! of Lê, Pop, Cohen and Zappella Nardelli (PPoPP 2013), on an array that does not grow. Two things
//! are added. The owner pops only above a mark, so that it never takes what it pushed before the
//! current scope began. And the word that thieves change carries an *epoch*: a deque that serves
//! another queue than before has a new one, and a thief that comes late takes nothing.

use std::ptr::NonNull;

use crossbeam_utils::CachePadded;
use tollgate_wakequeue::sync::{AtomicPtr, AtomicU64, Ordering, fence};

/// The most jobs of a thread that wait to be taken back or stolen.
pub(crate) const CAPACITY: usize = if cfg!(loom) { 2 } else { 256 };

/// Places are counted modulo 2^40; the epoch has the rest of the word.
const PLACE_BITS: u32 = 40;
const PLACE: u64 = (1 << PLACE_BITS) - 1;

pub(crate) struct Deque<T> {
    /// Epoch and place of the oldest job. Changed by whoever takes it.
    top: CachePadded<AtomicU64>,
    /// The place after the youngest job. Written by the owner only.
    bottom: CachePadded<AtomicU64>,
    jobs: Box<[AtomicPtr<T>]>,
}

/// A place in a deque. See [`Deque::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u64);

/// Which queue's jobs a deque holds, modulo 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(u32);

impl<T> Deque<T> {
    pub(crate) fn new() -> Self {
        Self {
            top: CachePadded::new(AtomicU64::new(0)),
            bottom: CachePadded::new(AtomicU64::new(0)),
            jobs: (0..CAPACITY).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
        }
    }

    fn job(&self, place: u64) -> &AtomicPtr<T> {
        #[expect(clippy::cast_possible_truncation, reason = "only the lowest bits are used")]
        &self.jobs[place as usize % CAPACITY]
    }

    /// Where the next job will be put. Owner only.
    #[inline]
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.bottom.load(Ordering::Relaxed))
    }

    /// Adds a job. False when there is no room. Owner only.
    #[inline]
    pub(crate) fn push(&self, job: NonNull<T>) -> bool {
        let bottom = self.bottom.load(Ordering::Relaxed);
        let top = self.top.load(Ordering::Acquire);
        if distance(top, bottom) >= CAPACITY.cast_signed() as i64 {
            return false;
        }
        self.job(bottom).store(job.as_ptr(), Ordering::Relaxed);
        // What is in the job is visible to whoever sees the new bottom.
        self.bottom.store((bottom + 1) & PLACE, Ordering::Release);
        true
    }

    /// Takes the youngest job back, unless it lies below the mark or was stolen. Owner only.
    #[inline]
    pub(crate) fn pop(&self, mark: Mark) -> Option<NonNull<T>> {
        let bottom = self.bottom.load(Ordering::Relaxed);
        if distance(mark.0, bottom) <= 0 {
            return None;
        }
        let last = bottom.wrapping_sub(1) & PLACE;
        self.bottom.store(last, Ordering::Relaxed);
        // A thief that does not see the new bottom has moved the top before, and is seen here.
        fence(Ordering::SeqCst);
        let top = self.top.load(Ordering::Relaxed);
        let left = distance(top, last);
        if left > 0 {
            return NonNull::new(self.job(last).load(Ordering::Relaxed));
        }
        let won = left == 0
            && (self.top)
                .compare_exchange(top, advanced(top), Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
        let job = if won { NonNull::new(self.job(last).load(Ordering::Relaxed)) } else { None };
        self.bottom.store(bottom, Ordering::Relaxed);
        job
    }

    /// Takes the oldest job, if the deque still is of this epoch.
    pub(crate) fn steal(&self, epoch: Epoch) -> Option<NonNull<T>> {
        loop {
            let top = self.top.load(Ordering::Acquire);
            if epoch_of(top) != epoch {
                return None;
            }
            fence(Ordering::SeqCst);
            let bottom = self.bottom.load(Ordering::Acquire);
            if distance(top, bottom) <= 0 {
                return None;
            }
            // May be overwritten meanwhile; then the top has moved as well.
            let job = self.job(top).load(Ordering::Relaxed);
            if (self.top)
                .compare_exchange(top, advanced(top), Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                return NonNull::new(job);
            }
        }
    }

    /// Whether there is nothing to steal. Of use as a hint only, except to the owner.
    pub(crate) fn is_empty(&self) -> bool {
        let top = self.top.load(Ordering::Acquire);
        distance(top, self.bottom.load(Ordering::Acquire)) <= 0
    }

    /// Jobs that were there at some time during the call, or more.
    pub(crate) fn len(&self) -> usize {
        let top = self.top.load(Ordering::Acquire);
        usize::try_from(distance(top, self.bottom.load(Ordering::Acquire))).unwrap_or(0)
    }

    pub(crate) fn epoch(&self) -> Epoch {
        epoch_of(self.top.load(Ordering::Acquire))
    }

    /// Begins a new epoch. Owner only, on an empty deque.
    pub(crate) fn renew(&self) -> Epoch {
        debug_assert!(self.is_empty());
        let top = self.top.load(Ordering::Relaxed);
        // Nobody else changes the top of an empty deque.
        self.top.store(top.wrapping_add(1 << PLACE_BITS), Ordering::SeqCst);
        self.epoch()
    }
}

fn epoch_of(top: u64) -> Epoch {
    Epoch((top >> PLACE_BITS) as u32)
}

fn advanced(top: u64) -> u64 {
    top & !PLACE | (top + 1) & PLACE
}

/// How far `to` is after `from`, modulo 2^40; less than zero when it is before.
#[inline]
fn distance(from: u64, to: u64) -> i64 {
    let shift = u64::BITS - PLACE_BITS;
    (to.wrapping_sub(from) << shift).cast_signed() >> shift
}

impl Epoch {
    /// A number other than 0, for a word in which 0 says "none".
    pub(crate) fn number(self) -> u32 {
        self.0 + 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn job(number: usize) -> NonNull<u8> {
        NonNull::new(std::ptr::without_provenance_mut(number)).unwrap()
    }

    #[test]
    fn the_owner_takes_the_youngest_and_thieves_the_oldest() {
        let deque = Deque::new();
        let start = deque.mark();
        (1..=3).for_each(|n| assert!(deque.push(job(n))));
        assert_eq!(deque.steal(deque.epoch()), Some(job(1)));
        assert_eq!(deque.pop(start), Some(job(3)));
        assert_eq!(deque.pop(start), Some(job(2)));
        assert_eq!((deque.pop(start), deque.steal(deque.epoch())), (None, None));
    }

    #[test]
    fn nothing_below_the_mark_is_popped() {
        let deque = Deque::new();
        let start = deque.mark();
        deque.push(job(1));
        let inner = deque.mark();
        deque.push(job(2));
        assert_eq!(deque.pop(inner), Some(job(2)));
        assert_eq!(deque.pop(inner), None);
        assert_eq!(deque.pop(start), Some(job(1)));
    }

    #[test]
    fn a_full_deque_refuses_and_places_come_round() {
        let deque = Deque::new();
        let start = deque.mark();
        for round in 0..3 {
            (1..=CAPACITY).for_each(|n| assert!(deque.push(job(n)), "round {round}"));
            assert!(!deque.push(job(999)));
            (1..=CAPACITY).for_each(|n| assert_eq!(deque.steal(deque.epoch()), Some(job(n))));
            assert_eq!(deque.pop(start), None);
        }
    }

    #[test]
    fn a_thief_of_an_old_epoch_takes_nothing() {
        let deque = Deque::new();
        let old = deque.epoch();
        let new = deque.renew();
        deque.push(job(1));
        assert_eq!(deque.steal(old), None);
        assert_eq!(deque.steal(new), Some(job(1)));
    }

    #[test]
    fn distances_are_signed_and_come_round() {
        assert_eq!(distance(5, 7), 2);
        assert_eq!(distance(7, 5), -2);
        assert_eq!(distance(PLACE, 1), 2);
        assert_eq!(distance(1, PLACE), -2);
        let epoch = 3 << PLACE_BITS;
        assert_eq!(distance(epoch | PLACE, 0), 1);
        assert_eq!(advanced(epoch | PLACE), epoch);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use tollgate_wakequeue::sync::Arc;

    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(body);
    }

    fn job(number: usize) -> NonNull<u8> {
        NonNull::new(std::ptr::without_provenance_mut(number)).unwrap()
    }

    /// Two thieves against the owner: every job is taken once, the late thief's by nobody else.
    #[test]
    fn every_job_is_taken_once() {
        model(|| {
            let deque = Arc::new(Deque::<u8>::new());
            let start = deque.mark();
            assert!(deque.push(job(1)));
            assert!(deque.push(job(2)));
            let thief = |count: usize| {
                let deque = Arc::clone(&deque);
                thread::spawn(move || {
                    let epoch = deque.epoch();
                    (0..count).filter_map(|_| deque.steal(epoch)).collect::<Vec<_>>()
                })
            };
            let thieves = [thief(1), thief(1)];
            let mut taken: Vec<_> = (0..2).filter_map(|_| deque.pop(start)).collect();
            for thief in thieves {
                taken.extend(thief.join().unwrap());
            }
            taken.sort();
            assert_eq!(taken, [job(1), job(2)]);
        });
    }

    /// The owner pushes again after it popped, while a thief is in the middle of taking.
    #[test]
    fn a_place_that_is_used_again_is_not_mistaken() {
        model(|| {
            let deque = Arc::new(Deque::<u8>::new());
            let start = deque.mark();
            assert!(deque.push(job(1)));
            let thief = {
                let deque = Arc::clone(&deque);
                thread::spawn(move || deque.steal(deque.epoch()))
            };
            // Each push goes to the place of the job before, once that is gone.
            let mut taken = Vec::new();
            for number in 2..=3 {
                taken.extend(deque.pop(start));
                assert!(deque.push(job(number)));
            }
            while let Some(job) = deque.pop(start) {
                taken.push(job);
            }
            taken.extend(thief.join().unwrap());
            taken.sort();
            assert_eq!(taken, [job(1), job(2), job(3)]);
        });
    }

    /// A thief of the old epoch and the new owner of the deque.
    #[test]
    fn a_late_thief_takes_nothing_of_a_new_epoch() {
        model(|| {
            let deque = Arc::new(Deque::<u8>::new());
            let old = deque.epoch();
            let thief = {
                let deque = Arc::clone(&deque);
                thread::spawn(move || deque.steal(old))
            };
            deque.renew();
            let start = deque.mark();
            assert!(deque.push(job(1)));
            assert_eq!(thief.join().unwrap(), None);
            assert_eq!(deque.pop(start), Some(job(1)));
        });
    }
}
