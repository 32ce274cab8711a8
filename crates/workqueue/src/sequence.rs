//! The FIFO of an ordered queue, and who runs it.
//!
//! Order needs one FIFO. While it holds anything, one *turn* is in a shard of the pool or in the hands
//! of a worker: the right to run the next jobs, some of them in a row. So one job runs at a time, and
//! the pool's FIFOs hold one entry for the queue however many jobs wait here.

use std::collections::VecDeque;

use crossbeam_utils::CachePadded;
use tollgate_wakequeue::sync::{AtomicUsize, Futex, Mutex, MutexGuard, Ordering, seq_cst_gap};

/// Jobs in order, one at a time.
///
/// Lock legend: (t) changed by whoever has the turn, read by others; the rest is under `state`.
pub(crate) struct Sequence<J> {
    state: Mutex<State<J>>,
    /// Jobs in the hands of whoever has the turn, and not begun. (t)
    in_hand: CachePadded<AtomicUsize>,
    /// Threads that wait for room.
    producers: AtomicUsize,
    /// Bumped for them.
    room: Futex,
}

struct State<J> {
    /// What the turn before left over; goes first.
    rest: VecDeque<J>,
    jobs: VecDeque<J>,
    capacity: usize,
    /// The turn is in the pool or in somebody's hands.
    has_turn: bool,
}

/// What became of a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry<J> {
    /// It waits, and the caller must put the turn into the pool.
    NeedsTurn,
    /// It waits.
    Waits,
    /// No room.
    Full(J),
}

impl<J> Sequence<J> {
    pub(crate) fn new(capacity: usize) -> Self {
        let state =
            State { rest: VecDeque::new(), jobs: VecDeque::new(), capacity, has_turn: false };
        Self {
            state: Mutex::new(state),
            in_hand: CachePadded::new(AtomicUsize::new(0)),
            producers: AtomicUsize::new(0),
            room: Futex::new(0),
        }
    }

    /// Appends a job; `always` though there may be no room, because others wait for it already.
    #[inline]
    pub(crate) fn push(&self, job: J, always: bool) -> Entry<J> {
        let mut state = self.state.lock();
        if !always && self.is_full(&state) {
            return Entry::Full(job);
        }
        state.jobs.push_back(job);
        if std::mem::replace(&mut state.has_turn, true) {
            return Entry::Waits;
        }
        Entry::NeedsTurn
    }

    fn is_full(&self, state: &MutexGuard<'_, State<J>>) -> bool {
        let waiting = state.rest.len() + state.jobs.len();
        waiting + self.in_hand.load(Ordering::SeqCst) >= state.capacity
    }

    /// Sleeps while there is no room. May return early.
    pub(crate) fn wait_for_room(&self) {
        self.producers.fetch_add(1, Ordering::SeqCst);
        seq_cst_gap();
        let epoch = self.room.word().load(Ordering::SeqCst);
        if self.is_full(&self.state.lock()) {
            self.room.wait(epoch, None);
        }
        self.producers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Takes all jobs into the hands of whoever has the turn.
    pub(crate) fn take(&self) -> VecDeque<J> {
        let mut state = self.state.lock();
        let taken = if state.rest.is_empty() {
            std::mem::take(&mut state.jobs)
        } else {
            std::mem::take(&mut state.rest)
        };
        self.in_hand.store(taken.len(), Ordering::SeqCst);
        taken
    }

    /// The next job in hand. Whoever waits for its place is woken.
    #[inline]
    pub(crate) fn next(&self, in_hand: &mut VecDeque<J>) -> Option<J> {
        let job = in_hand.pop_front()?;
        // An exchange, so that a producer that registers sees it, or is seen by the load below.
        self.in_hand.swap(in_hand.len(), Ordering::SeqCst);
        seq_cst_gap();
        if self.producers.load(Ordering::SeqCst) > 0 {
            self.room.word().fetch_add(1, Ordering::SeqCst);
            self.room.wake(1);
        }
        Some(job)
    }

    /// Gives back what is left in hand. True: the turn goes on, and the caller must put it into the
    /// pool.
    pub(crate) fn give_back(&self, in_hand: VecDeque<J>) -> bool {
        let mut state = self.state.lock();
        if in_hand.is_empty() && state.jobs.is_empty() {
            // Its memory is used again.
            state.jobs = in_hand;
        } else {
            state.rest = in_hand;
        }
        self.in_hand.store(0, Ordering::SeqCst);
        state.has_turn = !(state.rest.is_empty() && state.jobs.is_empty());
        state.has_turn
    }

    pub(crate) fn set_capacity(&self, capacity: usize) {
        self.state.lock().capacity = capacity;
        self.room.word().fetch_add(1, Ordering::SeqCst);
        self.room.wake(i32::MAX);
    }

    /// Jobs that wait, and whether one may be running.
    pub(crate) fn waiting(&self) -> (usize, bool) {
        let state = self.state.lock();
        let in_hand = self.in_hand.load(Ordering::SeqCst);
        (state.rest.len() + state.jobs.len() + in_hand, state.has_turn)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_asked_for_once_and_goes_on_while_jobs_wait() {
        let sequence = Sequence::new(8);
        assert_eq!(sequence.push(1, false), Entry::NeedsTurn);
        assert_eq!(sequence.push(2, false), Entry::Waits);
        let mut hand = sequence.take();
        assert_eq!(sequence.next(&mut hand), Some(1));
        assert_eq!(sequence.push(3, false), Entry::Waits);
        assert!(sequence.give_back(hand), "two are left");
        let mut hand = sequence.take();
        assert_eq!((sequence.next(&mut hand), sequence.next(&mut hand)), (Some(2), None));
        assert!(sequence.give_back(hand));
        let mut hand = sequence.take();
        assert_eq!(sequence.next(&mut hand), Some(3));
        assert!(!sequence.give_back(hand));
        assert_eq!(sequence.push(4, false), Entry::NeedsTurn);
    }

    #[test]
    fn what_is_in_hand_and_not_begun_takes_room() {
        let sequence = Sequence::new(2);
        sequence.push('a', false);
        sequence.push('b', false);
        assert_eq!(sequence.push('c', false), Entry::Full('c'));
        let mut hand = sequence.take();
        assert_eq!(sequence.push('c', false), Entry::Full('c'));
        sequence.next(&mut hand);
        assert_eq!(sequence.push('c', false), Entry::Waits);
        assert_eq!(sequence.push('d', false), Entry::Full('d'));
        assert_eq!(sequence.push('d', true), Entry::Waits);
        assert_eq!(sequence.waiting(), (3, true));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use tollgate_wakequeue::sync::{Arc, AtomicU32};

    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(body);
    }

    /// Has the turn: one job at a time, then gives the turn back to itself while it goes on.
    fn serve(sequence: &Sequence<u32>, running: &AtomicU32, seen: &AtomicU32) {
        loop {
            let mut hand = sequence.take();
            if let Some(job) = sequence.next(&mut hand) {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                seen.store(seen.load(Ordering::SeqCst) * 10 + job, Ordering::SeqCst);
                running.fetch_sub(1, Ordering::SeqCst);
            }
            if !sequence.give_back(hand) {
                return;
            }
        }
    }

    /// Two threads queue, and run when they got the turn: never two jobs at once, each once, those of
    /// one thread in order.
    #[test]
    fn one_at_a_time_in_order_and_nothing_left() {
        model(|| {
            let sequence = Arc::new(Sequence::new(8));
            let (running, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            let queue = |jobs: &'static [u32]| {
                let (sequence, running, seen) =
                    (Arc::clone(&sequence), Arc::clone(&running), Arc::clone(&seen));
                move || {
                    for &job in jobs {
                        if sequence.push(job, false) == Entry::NeedsTurn {
                            serve(&sequence, &running, &seen);
                        }
                    }
                }
            };
            let other = thread::spawn(queue(&[3]));
            queue(&[1, 2])();
            other.join().unwrap();
            assert_eq!(sequence.waiting(), (0, false));
            assert!([123, 132, 312].contains(&seen.load(Ordering::SeqCst)));
        });
    }

    /// A producer waits for room: whoever takes a job out of the full FIFO wakes it.
    #[test]
    fn room_is_announced() {
        model(|| {
            let sequence = Arc::new(Sequence::new(1));
            assert_eq!(sequence.push(1, false), Entry::NeedsTurn);
            let producer = {
                let sequence = Arc::clone(&sequence);
                thread::spawn(move || {
                    let mut job = 2;
                    while let Entry::Full(back) = sequence.push(job, false) {
                        job = back;
                        sequence.wait_for_room();
                    }
                })
            };
            let mut hand = sequence.take();
            assert_eq!(sequence.next(&mut hand), Some(1));
            producer.join().unwrap();
            assert!(sequence.give_back(hand));
        });
    }
}
