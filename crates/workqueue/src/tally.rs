//! Counting what is queued and what is finished, so that a flush can wait for the difference.
//!
//! Every worker counts in a cell of its own, with plain stores; other threads spread over further
//! cells, which they share. Each item is counted under one of two colours. A flush waits until the other colour is empty (stragglers that read
//! it before the last flush), makes it the current one, and waits until the old one is empty: the
//! two-counter scheme of sleepable RCU. New items never delay it.
//!
//! A colour is empty when the finished ones, summed first, equal the queued ones, summed after. An item
//! is counted in before it is counted out, and the counts are released and acquired, so whoever sees
//! the one sees the other: the second sum has every item of the first. Where they are equal, every
//! item that was counted in before the look began, in the sense of happens-before, is counted out.

use std::time::Duration;

use crossbeam_utils::CachePadded;
use tollgate_wakequeue::Patience;
use tollgate_wakequeue::sync::{
    AtomicU32, AtomicU64, Futex, Mutex, Observe, Ordering, fence, seq_cst_gap,
};

/// The most cells of each kind. More threads share them.
const MAX_CELLS: usize = 64;

/// Where a thread counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// In the cell of this number, which is this thread's alone.
    Own(usize),
    /// In one of those that all other threads share, picked by this number.
    Shared(usize),
}

/// How many seats of their own workers may have, for about `threads` threads at once.
pub(crate) fn own_seats(threads: usize) -> usize {
    threads.clamp(1, MAX_CELLS)
}

/// The current colour, the cells, and who waits.
pub(crate) struct Tally {
    /// By number of the seat: written by one thread.
    own: Box<[CachePadded<Cell>]>,
    /// A power of two of them, written by everybody else.
    shared: Box<[CachePadded<Cell>]>,
    colour: AtomicU32,
    /// Threads waiting for a colour to become empty.
    waiters: AtomicU32,
    /// Bumped when one may have become so.
    emptied: Futex,
    /// One flush changes the colour at a time.
    flushing: Mutex<()>,
}

#[derive(Default)]
struct Cell {
    queued: [AtomicU64; 2],
    finished: [AtomicU64; 2],
}

impl Tally {
    /// For about `threads` threads at once.
    pub(crate) fn new(threads: usize) -> Self {
        let cells = |count| (0..count).map(|_| CachePadded::new(Cell::default())).collect();
        Self {
            own: cells(own_seats(threads)),
            shared: cells(threads.next_power_of_two().clamp(1, MAX_CELLS)),
            colour: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            emptied: Futex::new(0),
            flushing: Mutex::new(()),
        }
    }

    fn shared(&self, thread: usize) -> &Cell {
        &self.shared[thread & (self.shared.len() - 1)]
    }

    /// Counts an item in; its colour is due back at [`finish`](Self::finish). Whoever then looks
    /// whether the queue is closed sees that it is, or is seen here by whoever closed it.
    #[inline]
    pub(crate) fn enter(&self, seat: Seat) -> u8 {
        let colour = self.colour.load(Ordering::SeqCst) & 1;
        let cell = match seat {
            Seat::Own(number) => &self.own[number],
            Seat::Shared(thread) => self.shared(thread),
        };
        cell.queued[colour as usize].fetch_add(1, Ordering::SeqCst);
        u8::from(colour == 1)
    }

    /// Counts in an item that is queued from inside an item of the same queue. That item is counted
    /// out by the same thread later, so nobody takes the queue for empty before this one is seen.
    #[inline]
    pub(crate) fn enter_within(&self, seat: Seat) -> u8 {
        let Seat::Own(number) = seat else { return self.enter(seat) };
        let colour = self.colour.load(Ordering::Relaxed) & 1;
        count(&self.own[number].queued[colour as usize]);
        u8::from(colour == 1)
    }

    /// Counts an item out. Whoever finishes must then call [`announce`](Self::announce) for this
    /// colour, unless it knows that another item of it is yet to finish.
    #[inline]
    pub(crate) fn finish(&self, seat: Seat, colour: u8) {
        let colour = usize::from(colour);
        match seat {
            Seat::Own(number) => count(&self.own[number].finished[colour]),
            Seat::Shared(thread) => {
                self.shared(thread).finished[colour].fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Wakes those who wait for this colour, if it is empty.
    #[inline]
    pub(crate) fn announce(&self, colour: u8) {
        // The counting may have been a plain store: it must be out before the look at the waiters.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 && self.is_empty(colour) {
            self.emptied.word().fetch_add(1, Ordering::SeqCst);
            self.emptied.wake(i32::MAX);
        }
    }

    /// Waits until everything that was counted in before this call is counted out.
    pub(crate) fn flush(&self) {
        let flushing = self.flushing.lock();
        let current = u8::from(self.colour.observe(Ordering::SeqCst) & 1 == 1);
        self.wait_until_empty(1 - current);
        self.colour.publish(u32::from(1 - current), Ordering::SeqCst);
        seq_cst_gap();
        self.wait_until_empty(current);
        drop(flushing);
    }

    fn wait_until_empty(&self, colour: u8) {
        if self.is_empty(colour) {
            return;
        }
        let mut patience = Patience::new(SPIN);
        while patience.wait_a_little() {
            if self.is_empty(colour) {
                return;
            }
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        seq_cst_gap();
        loop {
            let epoch = self.emptied.word().load(Ordering::SeqCst);
            if self.is_empty(colour) {
                break;
            }
            self.emptied.wait(epoch, None);
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_empty(&self, colour: u8) -> bool {
        let colour = usize::from(colour);
        let sum = |count: fn(&Cell) -> &[AtomicU64; 2]| -> u64 {
            self.cells().map(|cell| count(cell)[colour].load(Ordering::SeqCst)).sum()
        };
        let finished = sum(|cell| &cell.finished);
        finished == sum(|cell| &cell.queued)
    }

    /// Items counted in and not yet out, and items counted out, ever.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let sum = |count: fn(&Cell) -> &[AtomicU64; 2]| -> u64 {
            let both = |cell: &Cell| {
                let [a, b] = count(cell);
                a.load(Ordering::SeqCst) + b.load(Ordering::SeqCst)
            };
            self.cells().map(both).sum()
        };
        let finished = sum(|cell| &cell.finished);
        (sum(|cell| &cell.queued).saturating_sub(finished), finished)
    }
}

impl Tally {
    fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.own.iter().chain(&self.shared).map(|cell| &**cell)
    }
}

/// One more, where this thread alone counts.
#[inline]
fn count(counter: &AtomicU64) {
    counter.publish(counter.observe(Ordering::Relaxed) + 1, Ordering::Release);
}

const SPIN: Duration = if cfg!(loom) { Duration::ZERO } else { Duration::from_micros(20) };

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use tollgate_wakequeue::sync::{Arc, AtomicBool};

    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(2));
        builder.check(body);
    }

    /// flush against queue: an item counted in before the flush began is finished when it ends,
    /// whoever else is being counted in meanwhile.
    #[test]
    fn a_flush_waits_for_what_was_queued_before() {
        model(|| {
            let tally = Arc::new(Tally::new(2));
            let done = Arc::new(AtomicBool::new(false));
            let before = tally.enter(Seat::Own(0));
            let runner = {
                let (tally, done) = (Arc::clone(&tally), Arc::clone(&done));
                thread::spawn(move || {
                    done.store(true, Ordering::SeqCst);
                    tally.finish(Seat::Own(1), before);
                    tally.announce(before);
                })
            };
            let newcomer = {
                let tally = Arc::clone(&tally);
                thread::spawn(move || {
                    let colour = tally.enter(Seat::Shared(0));
                    tally.finish(Seat::Shared(0), colour);
                    tally.announce(colour);
                })
            };
            tally.flush();
            assert!(done.load(Ordering::SeqCst));
            runner.join().unwrap();
            newcomer.join().unwrap();
        });
    }

    /// A straggler that read the colour before a flush changed it is seen by the next flush.
    #[test]
    fn a_straggler_is_seen_by_the_next_flush() {
        model(|| {
            let tally = Arc::new(Tally::new(1));
            let seat = Seat::Own(0);
            let entered = Arc::new(AtomicU32::new(u32::MAX));
            let (t, e) = (Arc::clone(&tally), Arc::clone(&entered));
            let straggler = thread::spawn(move || {
                let colour = t.enter(seat);
                e.store(colour.into(), Ordering::SeqCst);
                t.finish(seat, colour);
                t.announce(colour);
                e.store(2, Ordering::SeqCst);
            });
            tally.flush();
            let was_in = entered.load(Ordering::SeqCst) < 2;
            tally.flush();
            if was_in {
                let (in_flight, finished) = tally.totals();
                assert_eq!((in_flight, finished), (0, 1));
            }
            straggler.join().unwrap();
        });
    }
    /// Items that queue another one before they end, with plain stores: whoever drains never takes
    /// the queue for empty in between.
    #[test]
    fn a_chain_is_never_taken_for_empty() {
        model(|| {
            let tally = Arc::new(Tally::new(1));
            let last_began = Arc::new(AtomicBool::new(false));
            let first = tally.enter(Seat::Shared(0));
            let worker = {
                let (tally, last_began) = (Arc::clone(&tally), Arc::clone(&last_began));
                thread::spawn(move || {
                    let seat = Seat::Own(0);
                    let mut colour = first;
                    for _ in 0..2 {
                        let next = tally.enter_within(seat);
                        tally.finish(seat, colour);
                        tally.announce(colour);
                        colour = next;
                    }
                    last_began.store(true, Ordering::Relaxed);
                    tally.finish(seat, colour);
                    tally.announce(colour);
                })
            };
            tally.flush();
            if tally.totals().0 == 0 {
                assert!(last_began.load(Ordering::Relaxed), "empty before the last item began");
            }
            worker.join().unwrap();
            assert_eq!(tally.totals(), (0, 3));
        });
    }
}
