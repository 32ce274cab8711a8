//! The FIFO of an ordered queue, and who runs it.
//!
//! Order needs one FIFO. While it holds anything, one *turn* is in a shard of the pool or in the
//! hands of a worker: the right to run the next jobs, some of them in a row. So one job runs at a
//! time, and the pool's FIFOs hold one entry for the queue however many jobs wait here.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use tollgate_wakequeue::ItemCell;
use tollgate_wakequeue::sync::{
    AtomicBool, AtomicUsize, Futex, Mutex, Ordering, seq_cst_gap, yield_now,
};

use crate::lane::Lane;
use crate::maxima::KEPT_ROOM;

/// Jobs that a lane holds before the list has to. A queue whose backlog is not much more does
/// without.
const LANE_CAPACITY: usize = match (cfg!(loom), cfg!(miri)) {
    (true, _) => 2,
    (_, true) => 16,
    _ => 512,
};

/// A producer that waits for room looks for itself now and then.
const LOOK_FOR_ROOM_AFTER: Duration = Duration::from_millis(5);

/// Jobs in order, one at a time.
///
/// A job goes to the lane, and when that is full or the list has any, to the list. So the list
/// holds what is younger than the lane, and the jobs of one thread stay in their order. Whoever has
/// the turn takes the list into its hands as a whole when the lane is empty, and runs that first.
///
/// Lock legend: (t) used by whoever has the turn; (l) changed under `list`, read without; (a)
/// atomic; (i) has a lock or protocol of its own inside.
pub(crate) struct Sequence<J> {
    /// Made for the first ordered queue that does not do without. (i)
    lane: OnceLock<Lane<J>>,
    /// Whether jobs go to the lane. It stays empty where a queue that does without has the place of one
    /// that did not. No part of any protocol, hence outside the shim. Set by `reset`. (a)
    uses_lane: std::sync::atomic::AtomicBool,
    /// What the lane has no room for. (i)
    list: Mutex<List<J>>,
    /// Length of the list. (l)
    list_len: CachePadded<AtomicUsize>,
    /// The list has more room than it keeps when it is not needed. No part of any protocol, hence
    /// outside the shim. (l)
    list_is_large: std::sync::atomic::AtomicBool,
    /// The turn is in the pool or in somebody's hands. (a)
    has_turn: CachePadded<AtomicBool>,
    /// What a turn left over of the jobs in its hands. (t)
    rest: Mutex<VecDeque<J>>,
    /// Jobs in the hands of whoever has the turn, and left over. Written in the turn. (a)
    in_hand: CachePadded<AtomicUsize>,
    /// Threads that wait for room. (a)
    producers: CachePadded<AtomicUsize>,
    /// Jobs taken while any of them waited, since some were woken. Changed in the turn. (a)
    made_room: AtomicUsize,
    /// Jobs after which they are woken, for as many places. Set by `reset`. (a)
    room_at_once: AtomicUsize,
    /// Bumped for them. (i)
    room: Futex,
}

struct List<J> {
    jobs: VecDeque<J>,
    /// The most jobs that wait, in the lane and here.
    capacity: usize,
    /// Jobs that find room here without a look at how many wait elsewhere, which would fetch a line
    /// that the turn writes for every job. Elsewhere they only become fewer while this list holds
    /// any, so an old figure is good until it is used up.
    sure_room: usize,
}

impl<J> List<J> {
    fn new(capacity: usize) -> Self {
        Self { jobs: VecDeque::new(), capacity, sure_room: 0 }
    }

    /// Uses a place, when there is one. `elsewhere` counts the jobs that wait outside of this list.
    fn take_place(&mut self, elsewhere: impl FnOnce() -> usize) -> bool {
        if self.sure_room == 0 {
            self.sure_room = self.capacity.saturating_sub(self.jobs.len() + elsewhere());
        }
        let has_room = self.sure_room > 0;
        self.sure_room = self.sure_room.saturating_sub(1);
        has_room
    }
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

impl<J: Send> Sequence<J> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            lane: OnceLock::new(),
            uses_lane: std::sync::atomic::AtomicBool::new(false),
            list: Mutex::new(List::new(capacity)),
            list_len: CachePadded::new(AtomicUsize::new(0)),
            list_is_large: std::sync::atomic::AtomicBool::new(false),
            has_turn: CachePadded::new(AtomicBool::new(false)),
            rest: Mutex::new(VecDeque::new()),
            in_hand: CachePadded::new(AtomicUsize::new(0)),
            producers: CachePadded::new(AtomicUsize::new(0)),
            made_room: AtomicUsize::new(0),
            room_at_once: AtomicUsize::new(room_at_once(capacity)),
            room: Futex::new(0),
        }
    }

    /// Appends a job; `always` though there may be no room, because others wait for it already.
    pub(crate) fn push(&self, job: J, always: bool) -> Entry<J> {
        let mut cell = ItemCell::of(job);
        // Called at most once, so the job is still there.
        let entry = self.push_with(|| cell.take().expect("a job is pushed once"), always);
        match (entry, cell.take()) {
            (Entry::NeedsTurn, _) => Entry::NeedsTurn,
            (Entry::Full(()), Some(job)) => Entry::Full(job),
            _ => Entry::Waits,
        }
    }

    /// As [`push`](Self::push), for a job that is made where it will lie, which saves moving it.
    /// `make` must be quick and must not panic. For what finds no room it is not called.
    #[inline]
    pub(crate) fn push_with(&self, make: impl FnOnce() -> J, always: bool) -> Entry<()> {
        let mut make = make;
        if self.uses_lane.load(Ordering::Relaxed)
            && let Some(lane) = self.lane.get()
            && self.list_len.load(Ordering::SeqCst) == 0
        {
            match lane.push_with(make) {
                Ok(()) => return self.ask_for_turn(),
                Err(back) => make = back,
            }
        }
        let mut list = self.list.lock();
        let has_room = list.take_place(|| {
            self.in_hand.load(Ordering::SeqCst) + self.lane.get().map_or(0, Lane::len)
        });
        if !always && !has_room {
            return Entry::Full(());
        }
        list.jobs.push_back(make());
        self.list_len.store(list.jobs.len(), Ordering::SeqCst);
        if list.jobs.len() > KEPT_ROOM {
            self.list_is_large.store(true, Ordering::Relaxed);
        }
        drop(list);
        self.ask_for_turn()
    }

    /// After a job was published. Whoever ends a turn looks for jobs afterwards.
    #[inline]
    fn ask_for_turn(&self) -> Entry<()> {
        seq_cst_gap();
        if self.has_turn.load(Ordering::SeqCst) || self.has_turn.swap(true, Ordering::SeqCst) {
            Entry::Waits
        } else {
            Entry::NeedsTurn
        }
    }

    /// Sleeps while there is no room. May return early.
    ///
    /// No wake-up is lost: a producer sleeps only when, after it registered, the FIFO was full. All
    /// the jobs that it saw are taken with a look at `producers` afterwards, and there are at least
    /// as many of them as go before a wake-up.
    pub(crate) fn wait_for_room(&self) {
        self.producers.fetch_add(1, Ordering::SeqCst);
        seq_cst_gap();
        let epoch = self.room.word().load(Ordering::SeqCst);
        let capacity = self.list.lock().capacity;
        if self.waiting() >= capacity {
            // A job may wait for this producer while there is room for a few: they are not many
            // enough to be announced, so it looks for itself.
            self.room.wait(epoch, Some(LOOK_FOR_ROOM_AFTER));
        }
        self.producers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Begins a turn: the jobs that the turn before left over.
    pub(crate) fn begin_turn(&self) -> VecDeque<J> {
        std::mem::take(&mut *self.rest.lock())
    }

    /// The next job, into `cell`, for whoever has the turn. False when there is none. A producer
    /// that waits for its place is woken.
    #[inline]
    pub(crate) fn next_into(&self, hand: &mut VecDeque<J>, cell: &mut ItemCell<J>) -> bool {
        if hand.is_empty() {
            if self.lane.get().is_some_and(|lane| lane.pop_into(cell)) {
                self.announce_room();
                return true;
            }
            if !self.take_list(hand) {
                return false;
            }
        }
        let Some(job) = hand.pop_front() else { return false };
        *cell = ItemCell::of(job);
        // An exchange, so that a producer that registers sees it, or is seen below.
        self.in_hand.swap(hand.len(), Ordering::SeqCst);
        self.announce_room();
        true
    }

    #[cfg(test)]
    fn next(&self, hand: &mut VecDeque<J>) -> Option<J> {
        let mut cell = ItemCell::empty();
        self.next_into(hand, &mut cell).then(|| cell.take()).flatten()
    }

    /// Takes the list in hand when the lane, which is older, is empty.
    fn take_list(&self, hand: &mut VecDeque<J>) -> bool {
        while self.list_len.load(Ordering::SeqCst) > 0 {
            // Pushes under way included, which `is_empty` leaves out.
            let in_lane = self.lane.get().map_or(0, Lane::len);
            let Some(lane) = self.lane.get().filter(|_| in_lane > 0) else {
                let mut list = self.list.lock();
                std::mem::swap(&mut list.jobs, hand);
                // From here on jobs go to the lane.
                list.sure_room = 0;
                self.in_hand.store(hand.len(), Ordering::SeqCst);
                self.list_len.store(0, Ordering::SeqCst);
                return true;
            };
            // A push to the lane may not be complete.
            let mut cell = ItemCell::empty();
            if lane.pop_into(&mut cell) {
                hand.extend(cell.take());
                return true;
            }
            yield_now();
        }
        false
    }

    /// After a job was taken. A producer that is woken for each place costs two system calls per
    /// job, so they are woken for many at once.
    #[inline]
    fn announce_room(&self) {
        seq_cst_gap();
        if self.producers.load(Ordering::SeqCst) > 0 {
            self.note_room();
        }
    }

    #[cold]
    fn note_room(&self) {
        let made = self.made_room.load(Ordering::Relaxed) + 1;
        let at_once = self.room_at_once.load(Ordering::Relaxed);
        let enough = made >= at_once;
        self.made_room.store(if enough { 0 } else { made }, Ordering::Relaxed);
        if enough {
            // One place, one producer.
            self.room.word().fetch_add(1, Ordering::SeqCst);
            self.room.wake(i32::try_from(at_once).unwrap_or(i32::MAX));
        }
    }

    /// Puts what is in hand back, for the next turn.
    pub(crate) fn put_back(&self, hand: VecDeque<J>) {
        self.in_hand.store(hand.len(), Ordering::SeqCst);
        *self.rest.lock() = hand;
    }

    /// Whether there is nothing to do for the next turn.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.in_hand.load(Ordering::SeqCst) == 0
            && self.list_len.load(Ordering::SeqCst) == 0
            && self.lane.get().is_none_or(Lane::is_empty)
    }

    /// Whether the turn is in the pool or in somebody's hands, who may look for jobs.
    pub(crate) fn has_turn(&self) -> bool {
        self.has_turn.load(Ordering::SeqCst)
    }

    /// Ends the turn, with nothing in hand. True when it goes on all the same, because a job has
    /// come.
    pub(crate) fn end_turn(&self) -> bool {
        if self.list_is_large.load(Ordering::Relaxed) {
            self.free_room();
        }
        self.has_turn.swap(false, Ordering::SeqCst);
        seq_cst_gap();
        !self.is_empty() && !self.has_turn.swap(true, Ordering::SeqCst)
    }

    /// Gives back the room of a list that was long. In the turn.
    #[cold]
    fn free_room(&self) {
        let mut list = self.list.lock();
        if list.jobs.is_empty() {
            list.jobs = VecDeque::new();
            self.list_is_large.store(false, Ordering::Relaxed);
        }
    }

    /// For an ordered queue of this backlog, of which nothing is left. Not while it is used.
    pub(crate) fn reset(&self, capacity: usize) {
        *self.list.lock() = List::new(capacity);
        self.room_at_once.store(room_at_once(capacity), Ordering::Relaxed);
        let uses_lane = capacity >= 2 * LANE_CAPACITY;
        self.uses_lane.store(uses_lane, Ordering::Relaxed);
        if uses_lane {
            self.lane.get_or_init(|| Lane::new(LANE_CAPACITY));
        }
    }

    /// Jobs that wait.
    pub(crate) fn waiting(&self) -> usize {
        let in_lane = self.lane.get().map_or(0, Lane::len);
        let in_hand = self.in_hand.load(Ordering::SeqCst);
        self.list_len.load(Ordering::SeqCst) + in_lane + in_hand
    }
}

/// Of a FIFO of this capacity: how many places are announced at once.
fn room_at_once(capacity: usize) -> usize {
    (capacity / 8).clamp(1, 4096)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_asked_for_once_and_goes_on_while_jobs_wait() {
        let sequence = Sequence::new(8);
        assert_eq!(sequence.push(1, false), Entry::NeedsTurn);
        assert_eq!(sequence.push(2, false), Entry::Waits);
        let mut hand = sequence.begin_turn();
        assert_eq!(sequence.next(&mut hand), Some(1));
        assert_eq!(sequence.push(3, false), Entry::Waits);
        sequence.put_back(hand);
        assert!(!sequence.is_empty());
        let mut hand = sequence.begin_turn();
        assert_eq!(sequence.next(&mut hand), Some(2));
        assert!(hand.is_empty() && sequence.end_turn(), "one has come");
        assert_eq!((sequence.next(&mut hand), sequence.next(&mut hand)), (Some(3), None));
        assert!(!sequence.end_turn());
        assert_eq!(sequence.push(4, false), Entry::NeedsTurn);
    }

    #[test]
    fn there_is_room_for_as_many_as_agreed() {
        let sequence = Sequence::new(2);
        assert_eq!(sequence.push('a', false), Entry::NeedsTurn);
        assert_eq!(sequence.push('b', false), Entry::Waits);
        assert_eq!(sequence.push('c', false), Entry::Full('c'));
        let mut hand = sequence.begin_turn();
        assert_eq!(sequence.next(&mut hand), Some('a'));
        assert_eq!(sequence.push('c', false), Entry::Waits);
        assert_eq!(sequence.push('d', false), Entry::Full('d'));
        assert_eq!(sequence.push('d', true), Entry::Waits);
        assert_eq!(sequence.waiting(), 3);
    }

    #[test]
    fn order_holds_through_ring_and_list() {
        let most = 4 * LANE_CAPACITY;
        let sequence = Sequence::new(most);
        sequence.reset(most);
        let (mut pushed, mut taken) = (0, 0);
        let mut hand = sequence.begin_turn();
        for round in 0..5 {
            while sequence.push(pushed, false) != Entry::Full(pushed) {
                pushed += 1;
            }
            assert_eq!(sequence.waiting(), most);
            for _ in 0..most / (1 + round % 3) {
                assert_eq!(sequence.next(&mut hand), Some(taken));
                taken += 1;
            }
        }
        std::iter::from_fn(|| sequence.next(&mut hand)).for_each(|job| {
            assert_eq!(job, taken);
            taken += 1;
        });
        assert_eq!(taken, pushed);
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

    /// Has the turn: runs what there is, one at a time.
    fn serve(sequence: &Sequence<u32>, running: &AtomicU32, seen: &AtomicU32) {
        let mut hand = sequence.begin_turn();
        loop {
            while let Some(job) = sequence.next(&mut hand) {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                seen.store(seen.load(Ordering::SeqCst) * 10 + job, Ordering::SeqCst);
                running.fetch_sub(1, Ordering::SeqCst);
            }
            if !sequence.end_turn() {
                return;
            }
        }
    }

    /// Two threads queue, and run when they got the turn: never two jobs at once, each once, those
    /// of one thread in order.
    fn one_at_a_time(capacity: usize, mine: &'static [u32], orders: &'static [u32]) {
        model(move || {
            let sequence = Arc::new(Sequence::new(capacity));
            sequence.reset(capacity);
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
            let other = thread::spawn(queue(&[9]));
            queue(mine)();
            other.join().unwrap();
            assert!(sequence.is_empty());
            let seen = seen.load(Ordering::SeqCst);
            assert!(orders.contains(&seen), "{seen}");
        });
    }

    #[test]
    fn one_at_a_time_from_the_list() {
        one_at_a_time(3, &[1, 2], &[129, 192, 912]);
    }

    #[test]
    fn one_at_a_time_from_the_ring() {
        one_at_a_time(8, &[1, 2], &[129, 192, 912]);
    }

    /// The lane of two is full for the third job.
    #[test]
    fn one_at_a_time_from_ring_and_list() {
        one_at_a_time(8, &[1, 2, 3], &[1239, 1293, 1923, 9123]);
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
            assert_eq!(sequence.next(&mut sequence.begin_turn()), Some(1));
            producer.join().unwrap();
            assert!(sequence.end_turn());
        });
    }
}
