//! The queue: shards, pods and workers put together.

#![expect(unsafe_code, reason = "an item is moved into its slot only when there is one")]
#![expect(clippy::needless_pass_by_value, reason = "a host is mostly a closure, given by value")]

mod findable;

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::item_cell::ItemCell;
use crate::parker::Parker;
use crate::patience::Patience;
use crate::placement::{
    LOOK_EVERY, Layout, Load, OUTSIDE_FACTOR, PodIndex, ShardId, fair_victim, next_look,
    share_workers,
};
use crate::pod::{Bed, Claimed, Pod, SparePods};
use crate::shard::Shard;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering, seq_cst_gap, yield_now};
use crate::worker::{Claim, Host, Next, Worker, WorkerId};
use crate::{Closed, Config, ConfigError, PushError};

/// A sharded FIFO with its workers. See the crate's documentation.
pub struct WakeQueue<T> {
    shards: Box<[Shard<T>]>,
    pods: Box<[Pod]>,
    slots: Box<[CachePadded<WorkerSlot>]>,
    /// By pod: how many workers it may have.
    rooms: Box<[u16]>,
    layout: Layout,
    config: Config,
    /// `config.spin`, settable, in nanoseconds.
    spin_ns: AtomicU32,
    /// Idle workers leave, see `set_resting`.
    resting: AtomicBool,
    wakes: CachePadded<AtomicU64>,
    grown: AtomicU64,
}

/// What belongs to one worker number. The counters have one writer at a time.
struct WorkerSlot {
    parker: Parker,
    /// It came back from where it did not count, and has not asked for an item since.
    recounted: AtomicBool,
    own: AtomicU64,
    in_pod: AtomicU64,
    outside: AtomicU64,
    parks: AtomicU64,
    spun: AtomicU64,
}

/// What happened so far; sums over the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Items taken from the worker's own shard.
    pub own: u64,
    /// Items taken from another shard of the worker's pod.
    pub in_pod: u64,
    /// Items taken from another pod.
    pub outside: u64,
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
        let rooms = share_workers(&layout, config.max_workers);
        let spare = spare_pods(&layout);
        let mut first = 0;
        let mut pods = Vec::new();
        for (pod, &room) in (0_u16..).map(PodIndex).zip(&rooms) {
            let most = config.max_searchers.map(std::num::NonZero::get);
            let spare = spare[layout.group_of(pod)].clone();
            pods.push(Pod::new(&layout, pod, first, room, most, spare));
            first += u32::from(room);
        }
        Ok(Self {
            shards: (layout.shards().iter())
                .map(|plan| Shard::new(config.shard_capacity, plan.pod))
                .collect(),
            pods: pods.into(),
            slots: (0..first).map(|_| CachePadded::new(WorkerSlot::new())).collect(),
            rooms: rooms.into(),
            spin_ns: AtomicU32::new(nanos(config.spin)),
            resting: AtomicBool::new(false),
            layout,
            config,
            wakes: CachePadded::new(AtomicU64::new(0)),
            grown: AtomicU64::new(0),
        })
    }

    /// The shards, their pods, and who sees whom.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The most workers there can be: one more than the highest number.
    #[must_use]
    pub fn max_workers(&self) -> usize {
        self.slots.len()
    }

    /// Appends to a shard and gets one worker going if that helps; the host is asked to start a
    /// thread when that worker has none. Never waits, and makes no system call when a worker is
    /// searching or all are busy.
    ///
    /// # Errors
    /// The shard is full or the queue is closed: the item comes back.
    ///
    /// # Panics
    /// If the layout has no such shard, as every function that takes a shard or a pod.
    #[inline]
    pub fn push(&self, shard: ShardId, item: T, host: impl Host) -> Result<(), PushError<T>> {
        self.push_item(shard, item, &host)
    }

    #[inline]
    fn push_item(&self, shard: ShardId, item: T, host: &impl Host) -> Result<(), PushError<T>> {
        let item = ManuallyDrop::new(item);
        // SAFETY: called at most once, and the item is not used again when it was called.
        let make = || unsafe { std::ptr::read(&raw const *item) };
        match self.shards[shard.index()].push_with(make) {
            Ok(()) => {
                self.pushed(shard, host);
                Ok(())
            }
            Err(error) => Err(error.map(|()| ManuallyDrop::into_inner(item))),
        }
    }

    /// As [`push`](Self::push), for an item that is made where it will lie, which saves moving it.
    /// `make` must be quick and must not panic: the shard stands still until it returns.
    ///
    /// # Errors
    /// As [`push`](Self::push): `make` was not called.
    #[inline]
    pub fn push_with(
        &self,
        shard: ShardId,
        make: impl FnOnce() -> T,
        host: impl Host,
    ) -> Result<(), PushError<()>> {
        self.shards[shard.index()].push_with(make)?;
        self.pushed(shard, &host);
        Ok(())
    }

    /// As [`push`](Self::push), for items that must not be refused for want of room: what others
    /// already wait for. The caller bounds how many there can be.
    ///
    /// # Errors
    /// The queue is closed: the item comes back.
    pub fn push_unbounded(
        &self,
        shard: ShardId,
        item: T,
        host: impl Host,
    ) -> Result<(), Closed<T>> {
        self.shards[shard.index()].push_unbounded(item)?;
        self.pushed(shard, &host);
        Ok(())
    }

    /// As [`push`](Self::push), waiting while the shard is full. Not for workers: with all of them
    /// waiting here nobody would make room.
    ///
    /// # Errors
    /// The queue is closed, or was closed meanwhile: the item comes back.
    pub fn push_blocking(&self, shard: ShardId, item: T, host: impl Host) -> Result<(), Closed<T>> {
        // Whoever waits still is woken by the pop of what was pushed.
        self.push_when_room(shard, item, |item| self.push_item(shard, item, &host)).map(drop)
    }

    /// Pushes, and waits while the shard is full. True when it waited.
    fn push_when_room(
        &self,
        shard: ShardId,
        item: T,
        push: impl Fn(T) -> Result<(), PushError<T>>,
    ) -> Result<bool, Closed<T>> {
        let (mut item, mut waited) = (item, false);
        loop {
            match push(item) {
                Ok(()) => return Ok(waited),
                Err(PushError::Closed(back)) => return Err(Closed(back)),
                Err(PushError::Full(back)) => item = back,
            }
            self.shards[shard.index()].ring().wait_for_room();
            waited = true;
        }
    }

    /// Takes the first item that `wanted` accepts out of the order of its shard; the others keep
    /// theirs. For a thread that is no worker and works for some of the items only. Costs as much
    /// as there are items. What lies before is moved beside the shard's ring, up to the capacity of that.
    /// Who asks again before workers have taken those may not see what was pushed meanwhile, except by
    /// [`push_findable`](Self::push_findable) and [`push_unbounded`](Self::push_unbounded).
    ///
    /// `wanted` is called under the lock of a shard: it must not use this queue. If it panics, every
    /// item is still there, and the next push to that shard gets somebody going for them.
    pub fn take_if(&self, mut wanted: impl FnMut(&T) -> bool, host: impl Host) -> Option<T> {
        for (number, shard) in (0_u16..).map(ShardId).zip(&self.shards) {
            let found = shard.take_if(&mut wanted);
            // Items that were being moved may have been overlooked by a worker that lay down.
            if !shard.is_empty() {
                self.pushed(number, &host);
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The worker that a claim stands for, of this queue. Call it on the worker's own thread, and
    /// keep the worker until [`next`](Self::next) says that it retired or that the queue is closed:
    /// until then pushes count on it. A thread whose items may panic must catch that, or the queue
    /// has a worker less for good.
    #[must_use]
    pub fn worker(&self, claim: Claim) -> Worker {
        let Claim { worker: id, home } = claim;
        // A claim is counted as an awake searcher from the moment it was made.
        Worker {
            id,
            home,
            searching: true,
            outside: false,
            pulls: 0,
            look_every: *LOOK_EVERY.start(),
            slept_since: None,
        }
    }

    /// The thread of this claim could not be started. Wakes a sleeper instead where there is one.
    /// No thread is asked for in this pod until [`retry_growth`](Self::retry_growth) is called.
    pub fn abandon(&self, claim: Claim) {
        let withhold = |claim: Claim| {
            let Claim { worker, home } = claim;
            self.pod(home).withhold_room(worker, home);
        };
        let home = claim.home;
        withhold(claim);
        seq_cst_gap();
        self.look_around(home, None, &withhold);
    }

    /// Allows threads to be asked for again where one could not be started, and asks for them where
    /// items wait. Call it some time after [`abandon`](Self::abandon). True when there was any
    /// need.
    pub fn retry_growth(&self, host: impl Host) -> bool {
        let mut any = false;
        for pod in (0_u16..).map(PodIndex).take(self.pods.len()) {
            if self.pods[pod.index()].restore_room() {
                any = true;
                seq_cst_gap();
                self.look_around(self.layout.shards_of(pod)[0], None, &host);
            }
        }
        any
    }

    /// The next item for this worker, into `cell`, if there is one right now. False says nothing
    /// about later: follow it with [`next_into`](Self::next_into).
    #[inline]
    pub fn try_next_into(&self, worker: &mut Worker, cell: &mut ItemCell<T>) -> bool {
        worker.slept_since = None;
        // A searcher has to stop being one, by the protocol of `next_into`.
        !worker.searching && !self.is_surplus(worker) && self.pull(worker, cell)
    }

    /// Whether this worker came back from where it did not count (see [`recount`](Self::recount))
    /// to a pod that has as many workers awake as it has CPUs without it. It gets no item then: it
    /// sleeps in [`next_into`](Self::next_into), if that is so still.
    #[must_use]
    #[inline]
    pub fn is_surplus(&self, worker: &Worker) -> bool {
        self.slots[worker.id.index()].recounted.load(Ordering::Relaxed)
            && self.is_surplus_now(worker)
    }

    #[cold]
    fn is_surplus_now(&self, worker: &Worker) -> bool {
        let surplus = self.pod(worker.home).has_surplus();
        // Whoever comes back from now on finds out for himself.
        self.slots[worker.id.index()].recounted.store(surplus, Ordering::Relaxed);
        surplus
    }

    /// The next item for this worker: sleeps while there is none.
    pub fn next(&self, worker: &mut Worker, host: impl Host) -> Next<T> {
        let mut cell = ItemCell::empty();
        match (self.next_into(worker, &mut cell, host), cell.take()) {
            (Next::Item(()), Some(item)) => Next::Item(item),
            (Next::Retired, _) => Next::Retired,
            // An item would be in its cell.
            (Next::Closed | Next::Item(()), _) => Next::Closed,
        }
    }

    /// As [`next`](Self::next), with the item put into `cell`.
    pub fn next_into(
        &self,
        worker: &mut Worker,
        cell: &mut ItemCell<T>,
        host: impl Host,
    ) -> Next<()> {
        let pod = self.pod(worker.home);
        worker.slept_since = None;
        if self.is_surplus(worker) && !self.give_way(worker, &host) {
            return Next::Retired;
        }
        if !worker.searching {
            if self.pull(worker, cell) {
                return Next::Item(());
            }
            worker.searching = pod.start_search();
        }
        loop {
            if worker.searching && self.search(worker, cell) {
                worker.searching = false;
                if pod.stop_search() {
                    seq_cst_gap();
                    self.look_around(worker.home, None, &host);
                }
                return Next::Item(());
            }
            if pod.lie_down(worker.id, worker.home, worker.searching) == Bed::Closed {
                return self.next_when_closed(worker, cell);
            }
            seq_cst_gap();
            self.look_around(worker.home, Some(worker.id), &host);
            // Sleeping costs much more than looking at the clock.
            worker.slept_since = worker.slept_since.or_else(|| Some(Instant::now()));
            if !self.sleep(worker, &host) {
                return Next::Retired;
            }
            worker.searching = true;
            // Somebody may have come back since it was claimed, or nobody asked how many are awake.
            if !self.give_way(worker, &host) {
                return Next::Retired;
            }
        }
    }

    /// Sleeps while more workers are awake than the pod has CPUs. False when it retired.
    fn give_way(&self, worker: &mut Worker, host: &impl Host) -> bool {
        let pod = self.pod(worker.home);
        self.slots[worker.id.index()].recounted.store(false, Ordering::Relaxed);
        while pod.lie_down_if_surplus(worker.id, worker.home, worker.searching) {
            if worker.searching {
                // Pushes relied on this search, and asked no other pod.
                seq_cst_gap();
                self.look_around(worker.home, Some(worker.id), host);
            }
            worker.slept_since = worker.slept_since.or_else(|| Some(Instant::now()));
            if !self.sleep(worker, host) {
                return false;
            }
            worker.searching = true;
        }
        true
    }

    fn next_when_closed(&self, worker: &mut Worker, cell: &mut ItemCell<T>) -> Next<()> {
        let pod = self.pod(worker.home);
        let near = self.layout.near(worker.home);
        loop {
            if near.iter().any(|&shard| self.pull_from(worker, shard, cell)) {
                if std::mem::take(&mut worker.searching) {
                    // All are awake and nobody lies down any more: nobody is left to be woken.
                    pod.stop_search();
                }
                return Next::Item(());
            }
            // A push that was accepted before the queue was closed may still be under way.
            if near.iter().all(|&shard| self.len(shard) == 0) {
                break;
            }
            yield_now();
        }
        pod.leave(worker.id, worker.home, worker.searching);
        Next::Closed
    }

    /// The worker stops counting as awake (a blocking section, an item that holds the CPU for
    /// long): another one may run instead, and is woken if there is work. True when somebody was.
    pub fn discount(&self, id: WorkerId, home: ShardId, host: impl Host) -> bool {
        let discounted = self.pod(home).discount(id);
        seq_cst_gap();
        discounted && self.look_around(home, None, &host)
    }

    /// The worker counts as awake again.
    ///
    /// Where that makes more than the pod has CPUs, it sleeps when it asks for an item next, unless
    /// there are fewer by then.
    pub fn recount(&self, id: WorkerId, home: ShardId) {
        if self.pod(home).recount(id) {
            self.slots[id.index()].recounted.store(true, Ordering::Relaxed);
        }
    }

    /// Refuses pushes from now on, and lets every worker leave once it finds nothing more. What was
    /// accepted is still taken: by the workers there are, or by one that its push asks for.
    pub fn close(&self) {
        self.shards.iter().for_each(Shard::close);
        for pod in &self.pods {
            for worker in pod.close() {
                self.slots[worker.index()].parker.unpark();
            }
        }
    }

    /// Has every worker leave that slept for `rest_after`, those included that stay otherwise;
    /// `false` undoes that. For a queue that nobody uses for the time being: what is pushed all the
    /// same asks for a worker as the first push does.
    pub fn set_resting(&self, resting: bool) {
        if self.resting.swap(resting, Ordering::SeqCst) || !resting {
            return;
        }
        for pod in &self.pods {
            // They come as searchers, and look for work once more before they leave.
            for worker in pod.claim_all() {
                self.slots[worker.index()].parker.unpark();
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
        self.shards[shard.index()].len()
    }

    /// Whether no shard holds an item.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(Shard::is_empty)
    }

    /// Whether no shard of this pod holds an item.
    #[must_use]
    pub fn is_pod_empty(&self, pod: PodIndex) -> bool {
        self.layout.shards_of(pod).iter().all(|shard| self.shards[shard.index()].is_empty())
    }

    /// Items taken from the rings of this pod so far, modulo 2^64: whether it makes progress.
    #[must_use]
    pub fn taken_from(&self, pod: PodIndex) -> u64 {
        let popped = |shard: &ShardId| self.shards[shard.index()].ring().popped() as u64;
        self.layout.shards_of(pod).iter().map(popped).fold(0, u64::wrapping_add)
    }

    /// The most items of a shard.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.config.shard_capacity
    }

    /// How busy a pod is.
    #[must_use]
    pub fn load(&self, pod: PodIndex) -> Load {
        self.pods[pod.index()].load()
    }

    /// Workers of a pod that run but do not count as awake: see [`discount`](Self::discount).
    #[must_use]
    pub fn discounted(&self, pod: PodIndex) -> usize {
        self.pods[pod.index()].discounted()
    }

    /// Whether any worker is not asleep (running, searching, in a blocking section, or just
    /// claimed), or a thread waits to be asked for again. In the order of `SeqCst` accesses with
    /// the claim that woke or started a worker.
    #[must_use]
    pub fn has_active_workers(&self) -> bool {
        self.pods.iter().zip(&self.rooms).any(|(pod, &room)| {
            let load = pod.load();
            u32::from(load.parked) + u32::from(load.room) < u32::from(room)
        })
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = Counters {
            wakes: self.wakes.load(Ordering::Relaxed),
            grown: self.grown.load(Ordering::Relaxed),
            ..Counters::default()
        };
        for slot in &self.slots {
            sum.own += slot.own.load(Ordering::Relaxed);
            sum.in_pod += slot.in_pod.load(Ordering::Relaxed);
            sum.outside += slot.outside.load(Ordering::Relaxed);
            sum.parks += slot.parks.load(Ordering::Relaxed);
            sum.spun += slot.spun.load(Ordering::Relaxed);
        }
        sum
    }

    #[inline]
    fn pod(&self, shard: ShardId) -> &Pod {
        &self.pods[self.shards[shard.index()].pod().index()]
    }

    /// After an item was published.
    #[inline]
    fn pushed(&self, shard: ShardId, host: &impl Host) {
        seq_cst_gap();
        if self.pod(shard).wants_help() {
            self.summon(shard, None, host);
        }
    }

    fn pod_has_work(&self, home: ShardId) -> bool {
        self.layout.inside(home).iter().any(|shard| !self.shards[shard.index()].is_empty())
    }

    /// A shard of another pod that has items nobody is coming for.
    fn overloaded_elsewhere(&self, home: ShardId) -> Option<ShardId> {
        let outside = self.layout.outside(home).iter();
        outside.copied().find(|&shard| self.may_steal(shard))
    }

    fn may_steal(&self, shard: ShardId) -> bool {
        !self.shards[shard.index()].is_empty() && self.pod(shard).is_overloaded()
    }

    /// Looks whether items wait that nobody is coming for, in the own pod or in others, and gets
    /// one worker going for them. Whoever ends what others relied on calls this afterwards. True
    /// when somebody was woken or asked for.
    fn look_around(&self, home: ShardId, prefer: Option<WorkerId>, host: &impl Host) -> bool {
        let pod = self.pod(home);
        let wants_wake = pod.wants_wake();
        if !wants_wake && !pod.others_are_spare() {
            return false;
        }
        if self.pod_has_work(home) && self.summon(home, prefer, host) {
            return true;
        }
        match self.overloaded_elsewhere(home) {
            None => false,
            // This pod became spare just now: it is the one that pushes did not know of.
            Some(_) if wants_wake => self.claim_in(home, prefer, host),
            Some(shard) => self.summon_elsewhere(shard, host),
        }
    }

    /// Gets one more worker going for an item of this shard: in its own pod, or when that is
    /// overloaded, in the nearest one that is not.
    #[cold]
    fn summon(&self, shard: ShardId, prefer: Option<WorkerId>, host: &impl Host) -> bool {
        self.claim_in(shard, prefer, host) || self.summon_elsewhere(shard, host)
    }

    fn summon_elsewhere(&self, shard: ShardId, host: &impl Host) -> bool {
        let pod = self.pod(shard);
        if !pod.is_overloaded() || !pod.others_are_spare() {
            return false;
        }
        for &other in self.layout.others(self.layout.pod_of(shard)) {
            if self.pods[other.index()].load().searchers > 0 {
                // It looks at this shard before it sleeps, and looks around when it does not.
                return false;
            }
            if self.claim_in(self.layout.shards_of(other)[0], None, host) {
                return true;
            }
        }
        false
    }

    /// Wakes or starts a worker of the pod of this shard, the nearest to it.
    fn claim_in(&self, shard: ShardId, prefer: Option<WorkerId>, host: &impl Host) -> bool {
        match self.pod(shard).claim(&self.layout, self.layout.inside(shard), prefer) {
            None => return false,
            Some(Claimed::Sleeper(worker)) => {
                self.wakes.fetch_add(1, Ordering::Relaxed);
                self.slots[worker.index()].parker.unpark();
            }
            Some(Claimed::New { worker, home }) => {
                self.grown.fetch_add(1, Ordering::Relaxed);
                host.grow(Claim { worker, home });
            }
        }
        true
    }

    /// Sleeps on the worker's parker. False when it retired.
    fn sleep(&self, worker: &Worker, host: &impl Host) -> bool {
        let slot = &self.slots[worker.id.index()];
        bump(&slot.parks);
        host.before_sleep(worker);
        let Config { retire_after, rest_after, .. } = self.config;
        // Whoever sets `resting` then wakes all that were on the list of sleepers; this one is on
        // it since before, or sees that here.
        let resting = self.resting.load(Ordering::SeqCst);
        let longest = if resting { Some(rest_after) } else { retire_after };
        let mut woken = slot.parker.park(longest);
        if !woken {
            let resting = self.resting.load(Ordering::SeqCst);
            let keep = if resting { 0 } else { self.config.keep_per_shard };
            if self.pod(worker.home).retire(worker.id, worker.home, keep) {
                return false;
            }
            // One of those that stay, or just claimed: sleep on.
            woken = slot.parker.park(None);
        }
        debug_assert!(woken, "a sleep without a limit ends with a token");
        host.after_sleep(worker);
        true
    }

    /// Takes an item from the nearest shard of the pod that has one, now and then from the one that
    /// needs it; from another pod only while this worker is on loan there.
    #[inline]
    fn pull(&self, worker: &mut Worker, cell: &mut ItemCell<T>) -> bool {
        worker.pulls += 1;
        if worker.pulls < worker.look_every && self.shards[worker.home.index()].pop_into(cell) {
            bump(&self.slots[worker.id.index()].own);
            worker.outside = false;
            return true;
        }
        self.pull_elsewhere(worker, cell)
    }

    #[inline(never)]
    fn pull_elsewhere(&self, worker: &mut Worker, cell: &mut ItemCell<T>) -> bool {
        let near = self.layout.near(worker.home);
        if worker.pulls >= worker.look_every {
            worker.pulls = 0;
            let found = near.len() > 1 && self.pull_fairly(worker, near, cell);
            worker.look_every = next_look(worker.look_every, found);
            if found {
                return true;
            }
        }
        let inside = self.layout.inside(worker.home);
        if inside.iter().any(|&shard| self.pull_from(worker, shard, cell)) {
            worker.outside = false;
            return true;
        }
        worker.outside && self.steal(worker, cell)
    }

    #[cold]
    fn pull_fairly(&self, worker: &Worker, near: &[ShardId], cell: &mut ItemCell<T>) -> bool {
        let Some((&own, others)) = near.split_first() else { return false };
        let pod = self.layout.pod_of(own);
        let lengths = others.iter().map(|&shard| {
            let factor = if self.layout.pod_of(shard) == pod { 1 } else { OUTSIDE_FACTOR };
            (shard, self.len(shard) / factor)
        });
        let workers = self.layout.shards()[own.index()].workers;
        fair_victim(self.len(own), workers, lengths)
            .is_some_and(|victim| self.pull_from(worker, victim, cell))
    }

    /// Takes an item from another pod that has more of them than it can do. The worker then stays
    /// on loan until its own pod has work, or nobody needs it.
    #[cold]
    fn steal(&self, worker: &mut Worker, cell: &mut ItemCell<T>) -> bool {
        let outside = self.layout.outside(worker.home).iter();
        worker.outside = outside
            .copied()
            .any(|shard| self.may_steal(shard) && self.pull_from(worker, shard, cell));
        worker.outside
    }

    fn pull_from(&self, worker: &Worker, shard: ShardId, cell: &mut ItemCell<T>) -> bool {
        let found = self.shards[shard.index()].pop_into(cell);
        if found {
            let slot = &self.slots[worker.id.index()];
            bump(if shard == worker.home {
                &slot.own
            } else if self.layout.pod_of(shard) == self.layout.pod_of(worker.home) {
                &slot.in_pod
            } else {
                &slot.outside
            });
        }
        found
    }

    /// Looks for work for as long as the settings allow: in the own pod, and from `steal_after` on
    /// in overloaded ones too.
    fn search(&self, worker: &mut Worker, cell: &mut ItemCell<T>) -> bool {
        let has_others = !self.layout.outside(worker.home).is_empty();
        if self.pull(worker, cell) {
            return true;
        }
        let budget_ns = self.spin_ns.load(Ordering::Relaxed);
        // A worker that slept has left the local ones enough time, and so has one that may not
        // spin.
        let at_once = has_others && (worker.slept_since.is_some() || budget_ns == 0);
        if at_once && self.steal(worker, cell) {
            return true;
        }
        if budget_ns == 0 {
            return false;
        }
        let mut patience = Patience::new(Duration::from_nanos(budget_ns.into()));
        while patience.wait_a_little() {
            let found = self.pod_has_work(worker.home) && self.pull(worker, cell)
                || has_others
                    && (at_once || patience.has_lasted(self.config.steal_after))
                    && self.steal(worker, cell);
            if found {
                bump(&self.slots[worker.id.index()].spun);
                return true;
            }
        }
        false
    }
}

/// By group of pods that see each other: their common count of spare ones, where there are several.
fn spare_pods(layout: &Layout) -> Vec<Option<SparePods>> {
    let pods = || (0_u16..).map(PodIndex).take(layout.pods());
    let members = |group| pods().filter(|&pod| layout.group_of(pod) == group).count();
    let count = || Arc::new(CachePadded::new(AtomicU32::new(0)));
    (0..layout.groups()).map(|group| (members(group) > 1).then(count)).collect()
}

impl WorkerSlot {
    fn new() -> Self {
        Self {
            parker: Parker::new(),
            recounted: AtomicBool::new(false),
            own: AtomicU64::new(0),
            in_pod: AtomicU64::new(0),
            outside: AtomicU64::new(0),
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
