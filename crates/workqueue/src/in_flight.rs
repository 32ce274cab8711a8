//! Counting what is queued and what is finished, so that a flush can wait for the difference.
//!
//! Every worker counts in a cell of its own, with plain stores; other threads spread over further
//! cells, which they share. Each item is counted under one of two phases. A flush waits until the
//! other phase is empty (stragglers that read it before the last flush), makes it the current one,
//! and waits until the old one is empty: the two-counter scheme of sleepable RCU. New items never
//! delay it.
//!
//! A phase is empty when the finished ones, summed first, equal the queued ones, summed after. An
//! item is counted in before it is counted out, and the counts are released and acquired, so
//! whoever sees the one sees the other: the second sum has every item of the first. Where they are
//! equal, every item that was counted in before the look began, in the sense of happens-before, is
//! counted out.

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
pub(crate) enum CounterSlot {
    /// In the cell of this number, which is this thread's alone.
    Own(usize),
    /// In one of those that all other threads share, picked by this number.
    Shared(usize),
}

/// How many counter slots of their own workers may have, for about `threads` threads at once.
pub(crate) fn own_counter_slots(threads: usize) -> usize {
    threads.clamp(1, MAX_CELLS)
}

/// The current phase, the cells, and who waits.
pub(crate) struct InFlightCounter {
    /// By number of the counter slot: written by one thread.
    own: Box<[CachePadded<Cell>]>,
    /// A power of two of them, written by everybody else.
    shared: Box<[CachePadded<Cell>]>,
    phase: AtomicU32,
    /// Threads waiting for a phase to become empty.
    waiters: AtomicU32,
    /// Bumped when one may have become so.
    emptied: Futex,
    /// One flush changes the phase at a time.
    flushing: Mutex<()>,
}

#[derive(Default)]
struct Cell {
    queued: [AtomicU64; 2],
    finished: [AtomicU64; 2],
}

impl InFlightCounter {
    /// For about `threads` threads at once.
    pub(crate) fn new(threads: usize) -> Self {
        let cells = |count| (0..count).map(|_| CachePadded::new(Cell::default())).collect();
        Self {
            own: cells(own_counter_slots(threads)),
            shared: cells(threads.next_power_of_two().clamp(1, MAX_CELLS)),
            phase: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            emptied: Futex::new(0),
            flushing: Mutex::new(()),
        }
    }

    fn shared(&self, thread: usize) -> &Cell {
        &self.shared[thread & (self.shared.len() - 1)]
    }

    /// Counts an item in; its phase is due back at [`finish`](Self::finish). Whoever then looks
    /// whether the queue is closed sees that it is, or is seen here by whoever closed it.
    #[inline]
    pub(crate) fn enter(&self, counter_slot: CounterSlot) -> u8 {
        let phase = self.phase.load(Ordering::SeqCst) & 1;
        let cell = match counter_slot {
            CounterSlot::Own(number) => &self.own[number],
            CounterSlot::Shared(thread) => self.shared(thread),
        };
        cell.queued[phase as usize].fetch_add(1, Ordering::SeqCst);
        u8::from(phase == 1)
    }

    /// Counts in an item that is queued from inside an item of the same queue. That item is counted
    /// out by the same thread later, so nobody takes the queue for empty before this one is seen.
    #[inline]
    pub(crate) fn enter_within(&self, counter_slot: CounterSlot) -> u8 {
        let CounterSlot::Own(number) = counter_slot else { return self.enter(counter_slot) };
        let phase = self.phase.load(Ordering::Relaxed) & 1;
        count(&self.own[number].queued[phase as usize]);
        u8::from(phase == 1)
    }

    /// Counts an item out. Whoever finishes must then call [`announce`](Self::announce) for this
    /// phase, unless it knows that another item of it is yet to finish.
    #[inline]
    pub(crate) fn finish(&self, counter_slot: CounterSlot, phase: u8) {
        let phase = usize::from(phase);
        match counter_slot {
            CounterSlot::Own(number) => count(&self.own[number].finished[phase]),
            CounterSlot::Shared(thread) => {
                self.shared(thread).finished[phase].fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Wakes those who wait for this phase, if it is empty.
    #[inline]
    pub(crate) fn announce(&self, phase: u8) {
        // The counting may have been a plain store: it must be out before the look at the waiters.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 && self.is_empty(phase) {
            self.emptied.word().fetch_add(1, Ordering::SeqCst);
            self.emptied.wake(i32::MAX);
        }
    }

    /// Waits until everything that was counted in before this call is counted out.
    pub(crate) fn flush(&self) {
        let flushing = self.flushing.lock();
        let current = u8::from(self.phase.observe(Ordering::SeqCst) & 1 == 1);
        self.wait_until_empty(1 - current);
        self.phase.publish(u32::from(1 - current), Ordering::SeqCst);
        seq_cst_gap();
        self.wait_until_empty(current);
        drop(flushing);
    }

    fn wait_until_empty(&self, phase: u8) {
        if self.is_empty(phase) {
            return;
        }
        let mut patience = Patience::new(SPIN);
        while patience.wait_a_little() {
            if self.is_empty(phase) {
                return;
            }
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        seq_cst_gap();
        loop {
            let epoch = self.emptied.word().load(Ordering::SeqCst);
            if self.is_empty(phase) {
                break;
            }
            self.emptied.wait(epoch, None);
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until nothing is counted in, for so long at most; true if that is so. For a queue that
    /// takes no more items. Unlike [`flush`](Self::flush) it waits for nobody else who flushes.
    pub(crate) fn wait_for_end(&self, timeout: Duration) -> bool {
        let is_over = || self.is_empty(0) && self.is_empty(1);
        self.waiters.fetch_add(1, Ordering::SeqCst);
        seq_cst_gap();
        let epoch = self.emptied.word().load(Ordering::SeqCst);
        if !is_over() {
            self.emptied.wait(epoch, Some(timeout));
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        is_over()
    }

    fn is_empty(&self, phase: u8) -> bool {
        let phase = usize::from(phase);
        let sum = |count: fn(&Cell) -> &[AtomicU64; 2]| -> u64 {
            self.cells().map(|cell| count(cell)[phase].load(Ordering::SeqCst)).sum()
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

impl InFlightCounter {
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
            let in_flight = Arc::new(InFlightCounter::new(2));
            let done = Arc::new(AtomicBool::new(false));
            let before = in_flight.enter(CounterSlot::Own(0));
            let runner = {
                let (in_flight, done) = (Arc::clone(&in_flight), Arc::clone(&done));
                thread::spawn(move || {
                    done.store(true, Ordering::SeqCst);
                    in_flight.finish(CounterSlot::Own(1), before);
                    in_flight.announce(before);
                })
            };
            let newcomer = {
                let in_flight = Arc::clone(&in_flight);
                thread::spawn(move || {
                    let phase = in_flight.enter(CounterSlot::Shared(0));
                    in_flight.finish(CounterSlot::Shared(0), phase);
                    in_flight.announce(phase);
                })
            };
            in_flight.flush();
            assert!(done.load(Ordering::SeqCst));
            runner.join().unwrap();
            newcomer.join().unwrap();
        });
    }

    /// A straggler that read the phase before a flush changed it is seen by the next flush.
    #[test]
    fn a_straggler_is_seen_by_the_next_flush() {
        model(|| {
            let in_flight = Arc::new(InFlightCounter::new(1));
            let counter_slot = CounterSlot::Own(0);
            let entered = Arc::new(AtomicU32::new(u32::MAX));
            let (t, e) = (Arc::clone(&in_flight), Arc::clone(&entered));
            let straggler = thread::spawn(move || {
                let phase = t.enter(counter_slot);
                e.store(phase.into(), Ordering::SeqCst);
                t.finish(counter_slot, phase);
                t.announce(phase);
                e.store(2, Ordering::SeqCst);
            });
            in_flight.flush();
            let was_in = entered.load(Ordering::SeqCst) < 2;
            in_flight.flush();
            if was_in {
                let (in_flight, finished) = in_flight.totals();
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
            let in_flight = Arc::new(InFlightCounter::new(1));
            let last_began = Arc::new(AtomicBool::new(false));
            let first = in_flight.enter(CounterSlot::Shared(0));
            let worker = {
                let (in_flight, last_began) = (Arc::clone(&in_flight), Arc::clone(&last_began));
                thread::spawn(move || {
                    let counter_slot = CounterSlot::Own(0);
                    let mut phase = first;
                    for _ in 0..2 {
                        let next = in_flight.enter_within(counter_slot);
                        in_flight.finish(counter_slot, phase);
                        in_flight.announce(phase);
                        phase = next;
                    }
                    last_began.store(true, Ordering::Relaxed);
                    in_flight.finish(counter_slot, phase);
                    in_flight.announce(phase);
                })
            };
            in_flight.flush();
            if in_flight.totals().0 == 0 {
                assert!(last_began.load(Ordering::Relaxed), "empty before the last item began");
            }
            worker.join().unwrap();
            assert_eq!(in_flight.totals(), (0, 3));
        });
    }
}
