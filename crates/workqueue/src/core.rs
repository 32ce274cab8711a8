//! The inside of a queue: its pool, limits, order and counters. Queueing is in `submit`, running in
//! `run`.

#![expect(unsafe_code, reason = "queues and pools are reached by pointer")]

use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tollgate_topology::CpuId;
use tollgate_wakequeue::ShardId;
use tollgate_wakequeue::sync::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Mutex, Ordering, fence,
};

use crate::attributes::Attributes;
use crate::error::Panic;
use crate::in_flight::{CounterSlot, InFlightCounter};
use crate::job::Job;
use crate::latency::Observed;
use crate::limit::{ConcurrencyLimit, NO_LIMIT};
use crate::pool::Pool;
use crate::queue_ref::QueueRef;
use crate::rescuer::Rescuer;
use crate::runtime_id::RuntimeId;
use crate::sequence::Sequence;
use crate::sys;

/// What happens to an item when its shard, or its queue's backlog, is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// The caller waits until there is room. Inside an item, where waiting could block the very
    /// workers that make room, the new item goes to a list beside the shard instead, which takes
    /// 65,536 more; beyond that, and at the backlog of a limited or ordered queue, it is refused as
    /// by `Refuse`. Nothing runs inside the caller, so locks may be held.
    #[default]
    Block,
    /// The caller gets [`SubmitError::Full`](crate::SubmitError::Full).
    Refuse,
    /// The item runs at once on the caller's thread, up to 32 deep. Queues that are ordered,
    /// limited or strict do as with `Block` instead, because running there would break their
    /// promise.
    RunInline,
}

/// Jobs count against a limit.
pub(crate) const LIMITED: u32 = 1;
/// Only items of the queue itself may queue.
pub(crate) const DRAINED: u32 = 1 << 1;
/// Nobody may.
pub(crate) const SHUT: u32 = 1 << 2;
/// Jobs go through the sequence.
pub(crate) const ORDERED: u32 = 1 << 3;
/// A rescuer must find the jobs. Not of an ordered queue, whose turns it finds anyhow.
pub(crate) const RESCUED: u32 = 1 << 4;

/// A queue, from its pool's side.
///
/// Lock legend: (c) constant while the queue exists; (m) changed under `changing`, read without;
/// (i) has a lock or protocol of its own inside; (x) a mutex that is held for a few loads and
/// stores.
pub(crate) struct QueueCore {
    /// (m)
    mode: AtomicU32,
    /// The pool that serves the queue. (m)
    pool: AtomicPtr<Pool>,
    /// The queue had another pool before, where jobs of it may be left. (m)
    has_moved: AtomicBool,
    /// (i)
    pub(crate) in_flight: InFlightCounter,
    /// (c)
    pub(crate) runtime: RuntimeId,
    /// By node. (i)
    pub(crate) limits: Box<[ConcurrencyLimit<Waiter>]>,
    /// (i)
    pub(crate) sequence: Sequence<Job>,
    /// Whether `uncounted` holds anything. (x)
    has_uncounted: AtomicBool,
    /// Items that began before there was a limit, and count against it. (x)
    uncounted: Mutex<Vec<Uncounted>>,
    /// (x)
    pub(crate) attributes: Mutex<Attributes>,
    /// One change of attributes at a time. (i)
    pub(crate) changing: Mutex<()>,
    /// The number of the thread that holds `changing`, for that thread. Outside the shim, as it is
    /// no part of any protocol. (m)
    pub(crate) changer: std::sync::atomic::AtomicUsize,
    /// (x)
    pub(crate) identity: Mutex<Identity>,
    /// (i)
    pub(crate) stats: Stats,
    /// (x)
    pub(crate) rescuer: Mutex<Option<Arc<Rescuer>>>,
    /// What users want to know of its items. (i)
    pub(crate) observed: Observed,
}

/// A job that waits for a limit: where it came from is where it goes.
pub(crate) struct Waiter {
    job: Job,
    pool: NonNull<Pool>,
}

// SAFETY: a `Job` may cross threads, and a `Pool` is shared by all of them; it lives as long as the
// runtime (see `QueueCore::pool`).
unsafe impl Send for Waiter {}

/// An item that was running when its queue got a limit.
struct Uncounted {
    /// In the worker's slot, and what it was then.
    shown: NonNull<AtomicU64>,
    turn: u64,
    node: usize,
}

// SAFETY: an atomic is shared by all threads; it is part of a `Pool`, as for `Waiter`.
unsafe impl Send for Uncounted {}

/// What a queue was built as.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) ordered: bool,
    pub(crate) high_priority: bool,
    pub(crate) capacity: usize,
    pub(crate) when_full: WhenFull,
}

/// Counters of the slow paths. What every item counts is in `in_flight`.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) panics: AtomicU64,
    pub(crate) cpu_ns: CachePadded<AtomicU64>,
    pub(crate) cpu_intensive: AtomicU64,
    pub(crate) concurrency_wakes: AtomicU64,
    pub(crate) repatriated: AtomicU64,
    pub(crate) mayday: AtomicU64,
    pub(crate) rescued: AtomicU64,
    pub(crate) inlined: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Counted in and out without having been started: no room, closed, aborted or cancelled; or
    /// for a queue that had this place before.
    pub(crate) unstarted: AtomicU64,
    /// The most items that anybody was told had ended.
    pub(crate) finished_seen: AtomicU64,
}

impl Stats {
    pub(crate) fn reset(&self) {
        for counter in [
            &self.panics,
            &self.cpu_ns,
            &self.cpu_intensive,
            &self.concurrency_wakes,
            &self.repatriated,
            &self.mayday,
            &self.rescued,
            &self.inlined,
            &self.refused,
            &self.unstarted,
            &self.finished_seen,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// No thread's number.
pub(crate) const NOBODY: usize = usize::MAX;

/// What `close` leaves possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    Drained,
    Shut,
}

impl QueueRef {
    #[inline]
    pub(crate) fn of(core: &QueueCore) -> Self {
        Self::from_address(NonNull::from(core).cast())
    }

    #[inline]
    pub(crate) fn core(&self) -> &QueueCore {
        // SAFETY: made by `of` from a live queue, which outlives its workers (see `QueueRef`).
        unsafe { self.address().cast().as_ref() }
    }
}

impl QueueCore {
    pub(crate) fn new(
        runtime: RuntimeId,
        threads: usize,
        nodes: usize,
        pool: &Arc<Pool>,
        identity: Identity,
    ) -> Self {
        let sequence = Sequence::new(identity.capacity);
        if identity.ordered {
            sequence.reset(identity.capacity);
        }
        Self {
            mode: AtomicU32::new(if identity.ordered { ORDERED } else { 0 }),
            pool: AtomicPtr::new(Arc::as_ptr(pool).cast_mut()),
            has_moved: AtomicBool::new(false),
            in_flight: InFlightCounter::new(threads),
            runtime,
            limits: (0..nodes).map(|_| ConcurrencyLimit::new(identity.capacity)).collect(),
            sequence,
            has_uncounted: AtomicBool::new(false),
            uncounted: Mutex::new(Vec::new()),
            attributes: Mutex::new(Attributes::default()),
            changing: Mutex::new(()),
            changer: std::sync::atomic::AtomicUsize::new(NOBODY),
            identity: Mutex::new(identity),
            stats: Stats::default(),
            rescuer: Mutex::new(None),
            observed: Observed::default(),
        }
    }

    /// Makes a queue of which nothing is left as good as new.
    pub(crate) fn renew(&self, pool: &Arc<Pool>, identity: Identity) {
        for limit in &self.limits {
            limit.set_capacity(identity.capacity);
        }
        if identity.ordered {
            self.sequence.reset(identity.capacity);
        }
        self.stats.reset();
        // What ended before was not started by the new queue.
        self.stats.unstarted.store(self.in_flight.totals().1, Ordering::SeqCst);
        self.observed.reset();
        self.set_pool(pool);
        self.has_moved.store(false, Ordering::Relaxed);
        self.mode.store(if identity.ordered { ORDERED } else { 0 }, Ordering::SeqCst);
        *self.identity.lock() = identity;
    }

    #[inline]
    pub(crate) fn mode(&self) -> u32 {
        self.mode.load(Ordering::SeqCst)
    }

    /// Whether items count against a limit, or run one at a time.
    #[inline]
    pub(crate) fn is_gated(&self) -> bool {
        self.mode() & (LIMITED | ORDERED) != 0
    }

    /// The pool that serves the queue now.
    #[inline]
    pub(crate) fn pool(&self) -> &Pool {
        // SAFETY: the pointer came from an `Arc<Pool>` in the runtime's list, which only grows and
        // is dropped after the last worker and the last queue handle are gone.
        unsafe { &*self.pool.load(Ordering::Acquire) }
    }

    /// Whether jobs of the queue may be in this pool.
    pub(crate) fn may_be_in(&self, pool: &Pool) -> bool {
        std::ptr::eq(self.pool(), pool) || self.has_moved.load(Ordering::Relaxed)
    }

    pub(crate) fn name(&self) -> String {
        self.identity.lock().name.clone()
    }

    /// Sends later items to this pool. Items in the old one are run there.
    pub(crate) fn set_pool(&self, pool: &Arc<Pool>) {
        if !std::ptr::eq(self.pool(), Arc::as_ptr(pool)) {
            self.has_moved.store(true, Ordering::Relaxed);
        }
        self.pool.store(Arc::as_ptr(pool).cast_mut(), Ordering::Release);
    }

    /// Sets a limit per node, or none at all. It counts for what is queued and what runs already.
    /// What waits and may now run is released. `pools` are all that there are. One call at a time.
    pub(crate) fn set_limits(&self, limits: Option<&[u32]>, pools: &[Arc<Pool>]) {
        if self.mode() & ORDERED != 0 {
            return;
        }
        let Some(limits) = limits else {
            self.mode.fetch_and(!LIMITED, Ordering::SeqCst);
            self.limits.iter().for_each(|limit| self.release(limit, NO_LIMIT));
            self.forget_uncounted();
            return;
        };
        if self.mode.load(Ordering::SeqCst) & LIMITED == 0 {
            // Nothing begins until those that run already are counted.
            self.limits.iter().for_each(|limit| self.release(limit, 0));
            self.mode.fetch_or(LIMITED, Ordering::SeqCst);
            self.count_running(pools);
        }
        for (limit, &most) in self.limits.iter().zip(limits) {
            self.release(limit, most);
        }
        self.end_uncounted();
    }

    fn release(&self, limit: &ConcurrencyLimit<Waiter>, most: u32) {
        limit.set_limit(most).into_iter().for_each(|waiter| self.dispatch(waiter));
    }

    /// Counts the items that began while there was no limit.
    fn count_running(&self, pools: &[Arc<Pool>]) {
        if self.in_flight.totals().0 == 0 {
            return;
        }
        // A worker shows what it runs, then reads the mode: it sees the limit, or is seen here. What
        // runs elsewhere has counted itself.
        sys::barrier_everywhere();
        for worker_slot in pools.iter().flat_map(|pool| &pool.worker_slots) {
            self.count_shown(&worker_slot.turn, &worker_slot.queue, &worker_slot.node);
            for nested in worker_slot.nested.all() {
                self.count_shown(&nested.turn, &nested.queue, &nested.node);
            }
        }
        self.has_uncounted.store(true, Ordering::SeqCst);
    }

    /// Counts what a worker's slot shows, if that is an item of this queue that runs.
    fn count_shown(&self, shown: &AtomicU64, queue: &AtomicPtr<()>, node: &AtomicU32) {
        let turn = shown.load(Ordering::SeqCst);
        let me = QueueRef::of(self).address().as_ptr();
        if turn & 1 == 0 || queue.load(Ordering::SeqCst) != me {
            return;
        }
        let node = node.load(Ordering::SeqCst) as usize;
        let Some(limit) = self.limits.get(node) else { return };
        limit.adopt();
        self.uncounted.lock().push(Uncounted { shown: NonNull::from(shown), turn, node });
    }

    /// Gives back the counts of items that began before there was a limit and have ended.
    #[cold]
    pub(crate) fn end_uncounted(&self) {
        // A worker has shown just now that its item has ended. Either it sees here that the item was
        // counted, or whoever counts it sees below that it has ended.
        fence(Ordering::SeqCst);
        if !self.has_uncounted.load(Ordering::SeqCst) {
            return;
        }
        let mut ended = Vec::new();
        let mut uncounted = self.uncounted.lock();
        uncounted.retain(|item| {
            // SAFETY: pools live as long as the runtime (see `pool`), and each as long as what its
            // workers show.
            let shown = unsafe { item.shown.as_ref() };
            let runs = shown.load(Ordering::SeqCst) == item.turn;
            if !runs {
                ended.push(item.node);
            }
            runs
        });
        self.has_uncounted.store(!uncounted.is_empty(), Ordering::SeqCst);
        drop(uncounted);
        for node in ended {
            self.end_counted(node);
        }
    }

    /// Gives back the counts of items that began before there was a limit, which is gone again: the
    /// next limit counts those that still run. A worker whose item ends meanwhile finds nothing here.
    fn forget_uncounted(&self) {
        let mut uncounted = self.uncounted.lock();
        let forgotten = std::mem::take(&mut *uncounted);
        self.has_uncounted.store(false, Ordering::SeqCst);
        drop(uncounted);
        for item in forgotten {
            self.end_counted(item.node);
        }
    }

    /// An item that counted against the limit of this node has ended.
    pub(crate) fn end_counted(&self, node: usize) {
        if let Some(waiter) = self.limits[node].end() {
            self.dispatch(waiter);
        }
    }

    /// Sends a job that waited for the limit back to its shard. It is counted already.
    pub(crate) fn dispatch(&self, waiter: Waiter) {
        let Waiter { mut job, pool } = waiter;
        job.tag = job.tag.counted();
        // SAFETY: pools live as long as the runtime (see `pool`).
        let pool = unsafe { pool.as_ref() };
        // There are no more of these than the limit. A pool is closed after its queues are empty.
        if pool.push_unbounded(job.tag.shard(), job).is_err() {
            debug_assert!(false, "a pool is closed after its queues are empty");
        }
    }

    /// Puts the turn of the sequence into the pool, near where its next job was issued.
    pub(crate) fn put_turn(&self, cpu: CpuId) {
        let pool = self.pool();
        let shard = pool.plan.shard_of(cpu);
        // There is one of these. A pool is closed after its queues are empty; the caller's job, too,
        // has run then, in the turn that ended before the caller asked for one.
        if pool.push_unbounded(shard, Job::turn(QueueRef::of(self), shard, cpu)).is_err() {
            debug_assert!(self.sequence.is_empty(), "a pool is closed after its queues are empty");
        }
    }

    /// Gives the queue, which nobody uses yet, a rescuer.
    pub(crate) fn set_rescuer(&self, rescuer: Arc<Rescuer>) {
        *self.rescuer.lock() = Some(rescuer);
        if self.mode() & ORDERED == 0 {
            self.mode.fetch_or(RESCUED, Ordering::SeqCst);
        }
    }

    pub(crate) fn close(&self, how: Close) {
        let bit = if how == Close::Drained { DRAINED } else { SHUT };
        self.mode.fetch_or(bit, Ordering::SeqCst);
    }

    /// Undoes a drain.
    pub(crate) fn reopen(&self) {
        self.mode.fetch_and(!DRAINED, Ordering::SeqCst);
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.mode() & (DRAINED | SHUT) != 0
    }

    pub(crate) fn full_policy(&self) -> (WhenFull, usize) {
        let identity = self.identity.lock();
        (identity.when_full, identity.capacity)
    }

    /// By node: items that run and count, and items that wait for the limit.
    pub(crate) fn active(&self) -> Vec<(u32, u32)> {
        let counts = self.limits.iter().map(ConcurrencyLimit::counts);
        counts.map(|(active, _, waiting)| (active, waiting)).collect()
    }

    /// Tells the program of a panic that nobody else learns of.
    #[cold]
    pub(crate) fn report_panic(&self, panic: &Panic) {
        self.pool().hooks.report(&self.name(), panic);
    }

    #[cold]
    pub(crate) fn count_panic(&self) {
        self.stats.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts out an item that was not queued, or was cancelled since.
    #[cold]
    pub(crate) fn turn_away(&self, counter_slot: CounterSlot, phase: u8) {
        self.count_unstarted();
        self.count_out(counter_slot, phase);
    }

    /// An item that is about to be counted out was never started.
    #[cold]
    pub(crate) fn count_unstarted(&self) {
        self.stats.unstarted.fetch_add(1, Ordering::SeqCst);
    }

    /// How many of `finished` items had been started. As many are missing as were not started since
    /// these were counted; the number told never falls for that.
    pub(crate) fn were_started(&self, finished: u64) -> u64 {
        let started = finished.saturating_sub(self.stats.unstarted.load(Ordering::SeqCst));
        self.stats.finished_seen.fetch_max(started, Ordering::Relaxed).max(started)
    }

    /// Counts out an item whose job is over.
    #[cold]
    pub(crate) fn count_out(&self, counter_slot: CounterSlot, phase: u8) {
        self.in_flight.finish(counter_slot, phase);
        self.in_flight.announce(phase);
    }
}

impl Waiter {
    pub(crate) fn new(job: Job, pool: &Pool) -> Self {
        Self { job, pool: NonNull::from(pool) }
    }

    /// The job, when a worker of this pool at home there may run it without leaving its pod.
    pub(crate) fn take_near(self, pool: &Pool, home: ShardId) -> Result<Job, Self> {
        let near =
            std::ptr::eq(self.pool.as_ptr(), pool) && pool.is_near(home, self.job.tag.shard());
        if near { Ok(self.job) } else { Err(self) }
    }

    /// The job itself, wherever it came from.
    pub(crate) fn into_job(self) -> Job {
        self.job
    }
}
