//! Counting what is queued and what is finished, so that a flush can wait for the difference.
//!
//! Every thread counts in a cell of its own, so the hot path shares no line. Each item is counted
//! under one of two colours. A flush waits until the other colour is empty (stragglers that read
//! it before the last flush), makes it the current one, and waits until the old one is empty: the
//! two-counter scheme of sleepable RCU. New items never delay it.
//!
//! A colour is empty when the finished ones, summed first, equal the queued ones, summed after: both
//! only grow and `finished <= queued` at all times, so equality means that they were equal in
//! between.

use std::time::Duration;

use crossbeam_utils::CachePadded;
use tollgate_wakequeue::Patience;
use tollgate_wakequeue::sync::{AtomicU32, AtomicU64, Futex, Mutex, Ordering, seq_cst_gap};

/// The most cells. More threads share them.
const MAX_CELLS: usize = 64;

/// The current colour, the cells, and who waits.
pub(crate) struct Tally {
    cells: Box<[CachePadded<Cell>]>,
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
        let cells = threads.next_power_of_two().clamp(1, MAX_CELLS);
        Self {
            cells: (0..cells).map(|_| CachePadded::new(Cell::default())).collect(),
            colour: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            emptied: Futex::new(0),
            flushing: Mutex::new(()),
        }
    }

    fn cell(&self, thread: usize) -> &Cell {
        &self.cells[thread & (self.cells.len() - 1)]
    }

    /// Counts an item in; its colour is due back at [`finish`](Self::finish).
    #[inline]
    pub(crate) fn enter(&self, thread: usize) -> u8 {
        let colour = self.colour.load(Ordering::SeqCst) & 1;
        self.cell(thread).queued[colour as usize].fetch_add(1, Ordering::SeqCst);
        u8::from(colour == 1)
    }

    /// Counts an item out. Whoever finishes must then call [`announce`](Self::announce) for this
    /// colour, unless it knows that another item of it is yet to finish.
    #[inline]
    pub(crate) fn finish(&self, thread: usize, colour: u8) {
        self.cell(thread).finished[usize::from(colour)].fetch_add(1, Ordering::SeqCst);
    }

    /// Wakes those who wait for this colour, if it is empty.
    #[inline]
    pub(crate) fn announce(&self, colour: u8) {
        seq_cst_gap();
        if self.waiters.load(Ordering::SeqCst) > 0 && self.is_empty(colour) {
            self.emptied.word().fetch_add(1, Ordering::SeqCst);
            self.emptied.wake(i32::MAX);
        }
    }

    /// Waits until everything that was counted in before this call is counted out.
    pub(crate) fn flush(&self) {
        let flushing = self.flushing.lock();
        let current = u8::from(self.colour.load(Ordering::SeqCst) & 1 == 1);
        self.wait_until_empty(1 - current);
        self.colour.store(u32::from(1 - current), Ordering::SeqCst);
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
            self.cells.iter().map(|cell| count(cell)[colour].load(Ordering::SeqCst)).sum()
        };
        let finished = sum(|cell| &cell.finished);
        finished == sum(|cell| &cell.queued)
    }

    /// Items counted in and not yet out, and items counted out, ever.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let sum = |count: fn(&Cell) -> &[AtomicU64; 2]| -> u64 {
            let both = |cell: &CachePadded<Cell>| {
                let [a, b] = count(cell);
                a.load(Ordering::SeqCst) + b.load(Ordering::SeqCst)
            };
            self.cells.iter().map(both).sum()
        };
        let finished = sum(|cell| &cell.finished);
        (sum(|cell| &cell.queued).saturating_sub(finished), finished)
    }
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
            let before = tally.enter(0);
            let runner = {
                let (tally, done) = (Arc::clone(&tally), Arc::clone(&done));
                thread::spawn(move || {
                    done.store(true, Ordering::SeqCst);
                    tally.finish(1, before);
                    tally.announce(before);
                })
            };
            let newcomer = {
                let tally = Arc::clone(&tally);
                thread::spawn(move || {
                    let colour = tally.enter(1);
                    tally.finish(1, colour);
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
            let entered = Arc::new(AtomicU32::new(u32::MAX));
            let (t, e) = (Arc::clone(&tally), Arc::clone(&entered));
            let straggler = thread::spawn(move || {
                let colour = t.enter(0);
                e.store(colour.into(), Ordering::SeqCst);
                t.finish(0, colour);
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
}
