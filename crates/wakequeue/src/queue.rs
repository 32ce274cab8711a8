//! The queue: shards, groups and workers put together.

#![expect(unsafe_code, reason = "an item is moved into its slot only when there is one")]

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::group::{Bed, Claimed, Group};
use crate::parker::Parker;
use crate::patience::Patience;
use crate::place::Place;
use crate::placement::{LOOK_EVERY, Layout, Load, ShardId, fair_victim, next_look};
use crate::ring::Ring;
use crate::sync::{AtomicU32, AtomicU64, Ordering, seq_cst_gap};
use crate::worker::{Claim, Next, Worker, WorkerId};
use crate::{Config, ConfigError, Full};

/// A sharded FIFO with its workers. See the crate's documentation.
pub struct WakeQueue<T> {
    rings: Box<[Ring<T>]>,
    groups: Box<[Group]>,
    desks: Box<[CachePadded<Desk>]>,
    layout: Layout,
    config: Config,
    /// `config.spin`, settable, in nanoseconds.
    spin_ns: AtomicU32,
    wakes: CachePadded<AtomicU64>,
    grown: AtomicU64,
}

/// What belongs to one worker number. The counters have one writer at a time.
struct Desk {
    parker: Parker,
    own: AtomicU64,
    taken: AtomicU64,
    parks: AtomicU64,
    spun: AtomicU64,
}

/// What happened so far; sums over the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Items taken from the worker's own shard.
    pub own: u64,
    /// Items taken from another shard.
    pub taken: u64,
    /// Times a worker went to sleep.
    pub parks: u64,
    /// Items found by searching rather than by sleeping.
    pub spun: u64,
    /// Sleepers woken for an item.
    pub wakes: u64,
    /// Workers asked for.
    pub grown: u64,
}

impl<T: Send> WakeQueue<T> {
    /// An empty queue without workers; the first push asks for one.
    ///
    /// # Errors
    /// A capacity that is no power of two or out of range; no workers.
    pub fn new(layout: Layout, config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let per_group = u32::from(config.max_workers);
        let mut first = 0;
        let mut groups = Vec::new();
        for group in 0..layout.groups() {
            groups.push(Group::new(&layout, group, first, &config));
            first += per_group;
        }
        Ok(Self {
            rings: layout.shards().iter().map(|_| Ring::new(config.shard_capacity)).collect(),
            groups: groups.into(),
            desks: (0..first).map(|_| CachePadded::new(Desk::new())).collect(),
            spin_ns: AtomicU32::new(nanos(config.spin)),
            layout,
            config,
            wakes: CachePadded::new(AtomicU64::new(0)),
            grown: AtomicU64::new(0),
        })
    }

    /// The shards and who sees whom.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Appends to a shard and gets one worker going if that helps; `grow` is called when that
    /// worker has to be started. Never waits, and makes no system call when a worker is searching
    /// or all are busy.
    ///
    /// # Errors
    /// The shard is full: the item comes back.
    #[inline]
    pub fn push(&self, shard: ShardId, item: T, grow: impl FnOnce(Claim)) -> Result<(), Full<T>> {
        let item = ManuallyDrop::new(item);
        // SAFETY: called at most once, and the item is not used again when it was called.
        let pushed = self.push_with(shard, || unsafe { std::ptr::read(&raw const *item) }, grow);
        pushed.map_err(|Full(())| Full(ManuallyDrop::into_inner(item)))
    }

    /// As [`push`](Self::push), for an item that is made where it will lie, which saves moving it.
    /// `make` must be quick and must not panic: the shard stands still until it returns.
    ///
    /// # Errors
    /// The shard is full: `make` was not called.
    #[inline]
    pub fn push_with(
        &self,
        shard: ShardId,
        make: impl FnOnce() -> T,
        grow: impl FnOnce(Claim),
    ) -> Result<(), Full<()>> {
        if !self.rings[shard.index()].push_with(make) {
            return Err(Full(()));
        }
        seq_cst_gap();
        if self.group(shard).wants_wake() {
            self.wake_for(shard, None, grow);
        }
        Ok(())
    }

    /// As [`push`](Self::push), waiting while the shard is full. Not for workers: with all of them
    /// waiting here nobody would make room.
    pub fn push_blocking(&self, shard: ShardId, item: T, grow: impl Fn(Claim)) {
        let mut item = item;
        while let Err(Full(back)) = self.push(shard, item, &grow) {
            item = back;
            self.rings[shard.index()].wait_for_room();
        }
    }

    /// The worker that a claim stands for. Call it on the worker's own thread.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "a claim is good once")]
    pub fn worker(&self, claim: Claim) -> Worker {
        let Claim { worker: id, home } = claim;
        // A claim is counted as an awake searcher from the moment it was made.
        Worker {
            id,
            home,
            searching: true,
            pulls: 0,
            look_every: *LOOK_EVERY.start(),
            slept_since: None,
        }
    }

    /// The thread of this claim could not be started. Wakes a sleeper instead where there is one;
    /// otherwise the items wait for the workers that are awake, or for the next push.
    #[expect(clippy::needless_pass_by_value, reason = "a claim is good once")]
    pub fn abandon(&self, claim: Claim) {
        let Claim { worker, home } = claim;
        self.group(home).leave(worker, home, true);
        seq_cst_gap();
        let group = self.group(home);
        if group.load().parked > 0 && self.sees_work(home) {
            // A sleeper was seen; should it be gone by now, starting a thread is not tried again.
            self.wake_for(home, None, |claim| {
                self.group(claim.home).leave(claim.worker, claim.home, true);
            });
        }
    }

    /// The next item for this worker, into `place`, if there is one right now. False says nothing
    /// about later: follow it with [`next_into`](Self::next_into).
    #[inline]
    pub fn try_next_into(&self, worker: &mut Worker, place: &mut Place<T>) -> bool {
        worker.slept_since = None;
        // A searcher has to stop being one, by the protocol of `next_into`.
        !worker.searching && self.pull(worker, place)
    }

    /// The next item for this worker: sleeps while there is none.
    pub fn next(&self, worker: &mut Worker, grow: impl Fn(Claim)) -> Next<T> {
        let mut place = Place::empty();
        match (self.next_into(worker, &mut place, grow), place.take()) {
            (Next::Item(()), Some(item)) => Next::Item(item),
            (Next::Retired, _) => Next::Retired,
            // An item would be in its place.
            (Next::Closed | Next::Item(()), _) => Next::Closed,
        }
    }

    /// As [`next`](Self::next), with the item put into `place`.
    pub fn next_into(
        &self,
        worker: &mut Worker,
        place: &mut Place<T>,
        grow: impl Fn(Claim),
    ) -> Next<()> {
        let group = self.group(worker.home);
        worker.slept_since = None;
        if !worker.searching {
            if self.pull(worker, place) {
                return Next::Item(());
            }
            worker.searching = group.start_search();
        }
        loop {
            if worker.searching && self.search(worker, place) {
                worker.searching = false;
                if group.stop_search() {
                    seq_cst_gap();
                    self.wake_if_work(worker, None, &grow);
                }
                return Next::Item(());
            }
            if group.lie_down(worker.id, worker.home, worker.searching) == Bed::Closed {
                return self.next_when_closed(worker, place);
            }
            seq_cst_gap();
            self.wake_if_work(worker, Some(worker.id), &grow);
            // Sleeping costs much more than looking at the clock.
            worker.slept_since = worker.slept_since.or_else(|| Some(Instant::now()));
            if !self.sleep(worker) {
                return Next::Retired;
            }
            worker.searching = true;
        }
    }

    fn next_when_closed(&self, worker: &mut Worker, place: &mut Place<T>) -> Next<()> {
        let group = self.group(worker.home);
        if self.pull(worker, place) {
            if std::mem::take(&mut worker.searching) {
                // All are awake and nobody lies down any more: nobody is left to be woken.
                group.stop_search();
            }
            return Next::Item(());
        }
        group.leave(worker.id, worker.home, worker.searching);
        Next::Closed
    }

    /// The worker stops counting as awake (a blocking section, a hog): another one may run
    /// instead, and is woken if there is work. True when somebody was.
    pub fn discount(&self, id: WorkerId, home: ShardId, grow: impl FnOnce(Claim)) -> bool {
        let discounted = self.group(home).discount(id);
        seq_cst_gap();
        discounted && self.sees_work(home) && self.wake_for(home, None, grow)
    }

    /// The worker counts as awake again.
    pub fn recount(&self, id: WorkerId, home: ShardId) {
        self.group(home).recount(id);
    }

    /// Lets every worker leave once it finds nothing more. What is pushed afterwards may stay
    /// until the queue is dropped.
    pub fn close(&self) {
        for group in &self.groups {
            for worker in group.close() {
                self.desks[worker.index()].parker.unpark();
            }
        }
    }

    /// Sets how long workers search before they sleep. Takes effect with the next search.
    pub fn set_spin(&self, spin: Duration) {
        self.spin_ns.store(nanos(spin), Ordering::Relaxed);
    }

    /// Items waiting in a shard.
    #[must_use]
    pub fn len(&self, shard: ShardId) -> usize {
        self.rings[shard.index()].len()
    }

    /// Whether no shard holds an item.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rings.iter().all(Ring::is_empty)
    }

    /// The most items of a shard.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.rings[0].capacity()
    }

    /// How busy the group of this shard is.
    #[must_use]
    pub fn load(&self, shard: ShardId) -> Load {
        self.group(shard).load()
    }

    /// Whether any worker is not asleep: running, searching, in a blocking section, or just claimed.
    /// In the order of `SeqCst` accesses with the claim that woke or started it.
    #[must_use]
    pub fn has_active_workers(&self) -> bool {
        let all = u32::from(self.config.max_workers);
        self.groups
            .iter()
            .map(Group::load)
            .any(|load| u32::from(load.parked) + u32::from(load.room) < all)
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = Counters {
            wakes: self.wakes.load(Ordering::Relaxed),
            grown: self.grown.load(Ordering::Relaxed),
            ..Counters::default()
        };
        for desk in &self.desks {
            sum.own += desk.own.load(Ordering::Relaxed);
            sum.taken += desk.taken.load(Ordering::Relaxed);
            sum.parks += desk.parks.load(Ordering::Relaxed);
            sum.spun += desk.spun.load(Ordering::Relaxed);
        }
        sum
    }

    fn group(&self, shard: ShardId) -> &Group {
        &self.groups[self.layout.group_of(shard)]
    }

    fn sees_work(&self, shard: ShardId) -> bool {
        self.layout.near(shard).iter().any(|near| !self.rings[near.index()].is_empty())
    }

    fn wake_if_work(&self, worker: &Worker, prefer: Option<WorkerId>, grow: impl FnOnce(Claim)) {
        if self.group(worker.home).wants_wake() && self.sees_work(worker.home) {
            self.wake_for(worker.home, prefer, grow);
        }
    }

    /// True when somebody was woken or asked for.
    #[cold]
    fn wake_for(&self, shard: ShardId, prefer: Option<WorkerId>, grow: impl FnOnce(Claim)) -> bool {
        let near = self.layout.near(shard);
        match self.group(shard).claim(&self.layout, near, prefer) {
            None => return false,
            Some(Claimed::Sleeper(worker)) => {
                self.wakes.fetch_add(1, Ordering::Relaxed);
                self.desks[worker.index()].parker.unpark();
            }
            Some(Claimed::New { worker, home }) => {
                self.grown.fetch_add(1, Ordering::Relaxed);
                grow(Claim { worker, home });
            }
        }
        true
    }

    /// Sleeps on the worker's parker. False when it retired.
    fn sleep(&self, worker: &Worker) -> bool {
        let desk = &self.desks[worker.id.index()];
        bump(&desk.parks);
        let keep = self.config.keep_per_shard;
        if !desk.parker.park(self.config.retire_after) {
            if self.group(worker.home).retire(worker.id, worker.home, keep) {
                return false;
            }
            // One of those that stay, or just claimed: sleep on.
            desk.parker.park(None);
        }
        true
    }

    /// Takes an item from the nearest shard that has one, now and then from the one that needs it.
    #[inline]
    fn pull(&self, worker: &mut Worker, place: &mut Place<T>) -> bool {
        let near = self.layout.near(worker.home);
        worker.pulls += 1;
        if worker.pulls >= worker.look_every && near.len() > 1 {
            worker.pulls = 0;
            let found = self.pull_fairly(worker, near, place);
            worker.look_every = next_look(worker.look_every, found);
            if found {
                return true;
            }
        }
        near.iter().any(|&shard| self.pull_from(worker, shard, place))
    }

    #[cold]
    fn pull_fairly(&self, worker: &Worker, near: &[ShardId], place: &mut Place<T>) -> bool {
        let Some((&own, others)) = near.split_first() else { return false };
        let lengths = others.iter().map(|&shard| (shard, self.len(shard)));
        let workers = self.layout.shards()[own.index()].workers;
        fair_victim(self.len(own), workers, lengths)
            .is_some_and(|victim| self.pull_from(worker, victim, place))
    }

    #[inline]
    fn pull_from(&self, worker: &Worker, shard: ShardId, place: &mut Place<T>) -> bool {
        let found = self.rings[shard.index()].pop_into(place);
        if found {
            let desk = &self.desks[worker.id.index()];
            bump(if shard == worker.home { &desk.own } else { &desk.taken });
        }
        found
    }

    /// Looks for work for as long as the settings allow.
    fn search(&self, worker: &mut Worker, place: &mut Place<T>) -> bool {
        if self.pull(worker, place) {
            return true;
        }
        let budget_ns = self.spin_ns.load(Ordering::Relaxed);
        if budget_ns == 0 {
            return false;
        }
        let mut patience = Patience::new(Duration::from_nanos(budget_ns.into()));
        while patience.wait_a_little() {
            if self.sees_work(worker.home) && self.pull(worker, place) {
                bump(&self.desks[worker.id.index()].spun);
                return true;
            }
        }
        false
    }
}

impl Desk {
    fn new() -> Self {
        Self {
            parker: Parker::new(),
            own: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            parks: AtomicU64::new(0),
            spun: AtomicU64::new(0),
        }
    }
}

/// A counter with a single writer needs no read-modify-write instruction.
#[inline]
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

fn nanos(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX)
}
