//! The inside of a queue: where its items go, its limits and its counters.

#![expect(unsafe_code, reason = "pools are reached through a swappable pointer")]

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tollgate_topology::CpuId;
use tollgate_wakequeue::sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex, Ordering, seq_cst_gap};
use tollgate_wakequeue::{ItemCell, PushError, ShardId};

use crate::context::{self, RuntimeId};
use crate::gate::{Entry, Gate};
use crate::job::{Job, Tag};
use crate::pool::Pool;
use crate::rescuer::Rescuer;
use crate::tally::{Seat, Tally};
use crate::{Attributes, SubmitError, sys};

/// What happens to an item when its shard, or its queue's backlog, is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// The caller waits until there is room. Inside an item, where waiting could block the very
    /// workers that make room, the new item runs at once on the same worker instead; in the 32nd
    /// such item within another, it is refused as by `Refuse`.
    #[default]
    Block,
    /// The caller gets [`SubmitError::Full`].
    Refuse,
    /// The item runs at once on the caller's thread. Queues with a backlog of their own (ordered,
    /// limited or with a rescuer) wait instead, because running there would break their promise.
    RunInline,
}

/// Items go through the gate.
const GATED: u32 = 1;
/// Only items of the queue itself may queue.
const DRAINED: u32 = 1 << 1;
/// Nobody may.
const SHUT: u32 = 1 << 2;
/// One gate for all nodes.
const ORDERED: u32 = 1 << 3;

/// Jobs of a gated queue that a worker runs in a row before it lets other queues have a turn.
const GATE_BATCH: u32 = 16;

/// How deep items run inside items that found no room; beyond, they are refused.
const MAX_INLINE_DEPTH: usize = 32;

/// Lock legend: (c) constant while the queue exists; (m) changed under `changing`, read without.
/// A `QueueCore` lives until its runtime is dropped and all workers are gone; dropped queues are
/// used again for new ones.
pub(crate) struct QueueCore {
    /// (m)
    mode: AtomicU32,
    /// The pool that serves the queue. (m)
    pool: AtomicPtr<Pool>,
    pub(crate) tally: Tally,
    /// (c)
    runtime: RuntimeId,
    /// By node; an ordered queue uses the first only.
    gates: Box<[Gate<Job>]>,
    /// By CPU number, the index of its gate. (c)
    node_of: Arc<[u16]>,
    pub(crate) attributes: Mutex<Attributes>,
    /// One change of attributes at a time.
    pub(crate) changing: Mutex<()>,
    pub(crate) identity: Mutex<Identity>,
    pub(crate) stats: Stats,
    pub(crate) rescuer: Mutex<Option<Arc<Rescuer>>>,
}

/// What a queue was built as.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) ordered: bool,
    pub(crate) high_priority: bool,
    pub(crate) capacity: usize,
    pub(crate) when_full: WhenFull,
}

/// Counters of the slow paths. What every item counts is in `tally`.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) panics: AtomicU64,
    pub(crate) cpu_ns: AtomicU64,
    pub(crate) cpu_intensive: AtomicU64,
    pub(crate) concurrency_wakes: AtomicU64,
    pub(crate) repatriated: AtomicU64,
    pub(crate) mayday: AtomicU64,
    pub(crate) rescued: AtomicU64,
    pub(crate) inlined: AtomicU64,
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
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// What `close` leaves possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    Drained,
    Shut,
}

impl QueueCore {
    pub(crate) fn new(
        runtime: RuntimeId,
        threads: usize,
        nodes: usize,
        node_of: Arc<[u16]>,
        pool: &Arc<Pool>,
        identity: Identity,
    ) -> Self {
        Self {
            mode: AtomicU32::new(0),
            pool: AtomicPtr::new(Arc::as_ptr(pool).cast_mut()),
            tally: Tally::new(threads),
            runtime,
            gates: (0..nodes).map(|_| Gate::new(u32::MAX, identity.capacity)).collect(),
            node_of,
            attributes: Mutex::new(Attributes::default()),
            changing: Mutex::new(()),
            identity: Mutex::new(identity),
            stats: Stats::default(),
            rescuer: Mutex::new(None),
        }
    }

    /// The pool that serves the queue now.
    #[inline]
    pub(crate) fn pool(&self) -> &Pool {
        // SAFETY: the pointer came from an `Arc<Pool>` in the runtime's list, which only grows and
        // is dropped after the last worker and the last queue handle are gone.
        unsafe { &*self.pool.load(Ordering::Acquire) }
    }

    pub(crate) fn name(&self) -> String {
        self.identity.lock().name.clone()
    }

    /// Sends later items to this pool. Items in the old one are run there.
    pub(crate) fn set_pool(&self, pool: &Arc<Pool>) {
        self.pool.store(Arc::as_ptr(pool).cast_mut(), Ordering::Release);
    }

    /// Sets a limit per gate, or none at all. What waits and may now run is released.
    pub(crate) fn set_limits(&self, limits: Option<&[u32]>, keep_gate: bool) {
        let gated = limits.is_some() || keep_gate;
        if gated {
            self.mode.fetch_or(GATED, Ordering::SeqCst);
        }
        for (index, gate) in self.gates.iter().enumerate() {
            let limit = limits.map_or(u32::MAX, |limits| limits[index]);
            let node = u16::try_from(index).unwrap_or(0);
            for _ in 0..gate.set_limit(limit) {
                self.put_token(node, None);
            }
        }
        if !gated {
            self.mode.fetch_and(!GATED, Ordering::SeqCst);
        }
    }

    pub(crate) fn set_capacity(&self, capacity: usize) {
        for gate in &self.gates {
            gate.set_capacity(capacity);
        }
    }

    pub(crate) fn close(&self, how: Close) {
        let bit = if how == Close::Drained { DRAINED } else { SHUT };
        self.mode.fetch_or(bit, Ordering::SeqCst);
    }

    /// Undoes a drain, or everything for a new life.
    pub(crate) fn open(&self, anew: bool) {
        let bits = if anew { GATED | DRAINED | SHUT | ORDERED } else { DRAINED };
        self.mode.fetch_and(!bits, Ordering::SeqCst);
        if anew && self.identity.lock().ordered {
            self.mode.fetch_or(ORDERED, Ordering::SeqCst);
        }
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.mode.load(Ordering::SeqCst) & (DRAINED | SHUT) != 0
    }

    /// Queues a closure, issued on this CPU or on behalf of `near`. One that is refused is dropped.
    #[inline]
    pub(crate) fn submit<F>(&self, closure: F, near: Option<CpuId>) -> Result<(), SubmitError>
    where
        F: FnOnce() + Send + 'static,
    {
        let seat = context::seat(self.runtime);
        let colour = if context::is_running_for(self) {
            self.tally.enter_within(seat)
        } else {
            self.tally.enter(seat)
        };
        // Counted first and looked second, so that a drain that misses the count is seen here.
        seq_cst_gap();
        let mode = self.mode.load(Ordering::SeqCst);
        let pool = self.pool();
        let home = if near.is_none() { context::home_in(pool) } else { None };
        // Asking for the CPU is left out where nothing depends on it.
        let anywhere = mode == 0 && self.gates.len() == 1 && (!pool.needs_cpu || home.is_some());
        let cpu = near.unwrap_or_else(|| {
            if anywhere && !pool.key.localize { CpuId(0) } else { sys::current_cpu() }
        });
        // What a worker issues stays with it, wherever the system has put it.
        let shard = home.unwrap_or_else(|| pool.plan.shard_of(cpu));
        let tag = Tag::direct(colour, self.node(cpu), cpu.0);
        let queued = if mode == 0 {
            self.put_closure(pool, tag, closure, shard)
        } else {
            self.submit_in_mode(mode, pool, Job::new(self, tag, closure), shard)
        };
        queued.inspect_err(|_| self.count_out(seat, colour))
    }

    /// As [`submit`](Self::submit), but never waits and runs nothing here: without room, or behind
    /// a limit, the closure is refused and dropped. Does not panic.
    pub(crate) fn try_submit<F>(&self, closure: F) -> Result<(), SubmitError>
    where
        F: FnOnce() + Send + 'static,
    {
        let seat = context::seat(self.runtime);
        let colour = self.tally.enter(seat);
        seq_cst_gap();
        let mode = self.mode.load(Ordering::SeqCst);
        let pool = self.pool();
        let cpu = sys::current_cpu();
        let shard = context::home_in(pool).unwrap_or_else(|| pool.plan.shard_of(cpu));
        let tag = Tag::direct(colour, self.node(cpu), cpu.0);
        let open = mode == 0 || mode == DRAINED && context::is_inside_queue(self);
        if open && pool.push(shard, Job::new(self, tag, closure)).is_ok() {
            return Ok(());
        }
        self.count_out(seat, colour);
        Err(SubmitError::Full { queue: self.name(), capacity: pool.queue.capacity() })
    }

    /// Makes the job where it will lie.
    #[inline]
    fn put_closure<F>(
        &self,
        pool: &Pool,
        tag: Tag,
        closure: F,
        shard: ShardId,
    ) -> Result<(), SubmitError>
    where
        F: FnOnce() + Send + 'static,
    {
        let closure = ManuallyDrop::new(closure);
        // SAFETY: called at most once, and the closure is not used again when it was called.
        let make = || Job::new(self, tag, unsafe { std::ptr::read(&raw const *closure) });
        match pool.push_with(shard, make) {
            Ok(()) => Ok(()),
            Err(PushError::Closed(())) => Err(SubmitError::ShutDown(self.name())),
            Err(PushError::Full(())) => {
                let job = Job::new(self, tag, ManuallyDrop::into_inner(closure));
                self.put_when_full(pool, job, shard)
            }
        }
    }

    #[inline]
    fn node(&self, cpu: CpuId) -> u16 {
        if self.gates.len() == 1 {
            return 0;
        }
        self.node_of.get(cpu.index()).copied().unwrap_or(0)
    }

    fn submit_in_mode(
        &self,
        mode: u32,
        pool: &Pool,
        mut job: Job,
        shard: ShardId,
    ) -> Result<(), SubmitError> {
        if mode & SHUT != 0 {
            return Err(SubmitError::ShutDown(self.name()));
        }
        if mode & DRAINED != 0 && !context::is_inside_queue(self) {
            return Err(SubmitError::Drained(self.name()));
        }
        if mode & GATED == 0 {
            return self.put(pool, job, shard);
        }
        if mode & ORDERED != 0 {
            job.tag = job.tag.at_node(0);
        }
        self.put_gated(job)
    }

    #[inline]
    fn put(&self, pool: &Pool, job: Job, shard: ShardId) -> Result<(), SubmitError> {
        match pool.push(shard, job) {
            Ok(()) => Ok(()),
            Err(PushError::Closed(_)) => Err(SubmitError::ShutDown(self.name())),
            Err(PushError::Full(job)) => self.put_when_full(pool, job, shard),
        }
    }

    #[cold]
    fn put_when_full(&self, pool: &Pool, job: Job, shard: ShardId) -> Result<(), SubmitError> {
        let (when_full, _) = self.full_policy();
        let inline = when_full == WhenFull::RunInline
            || when_full == WhenFull::Block && context::is_worker();
        if inline && context::depth() < MAX_INLINE_DEPTH {
            self.run_inline(job);
            return Ok(());
        }
        if inline || when_full == WhenFull::Refuse {
            let capacity = pool.queue.capacity();
            return Err(SubmitError::Full { queue: self.name(), capacity });
        }
        pool.push_blocking(shard, job).map_err(|_| SubmitError::ShutDown(self.name()))
    }

    fn put_gated(&self, job: Job) -> Result<(), SubmitError> {
        let (node, cpu) = (job.tag.node(), job.tag.cpu());
        let gate = &self.gates[usize::from(node)];
        let mut job = job;
        loop {
            match gate.enter(job) {
                Entry::Token => {
                    self.put_token(node, Some(CpuId(cpu)));
                    return Ok(());
                }
                Entry::Waits => return Ok(()),
                Entry::Full(back) => job = back,
            }
            let (when_full, capacity) = self.full_policy();
            if when_full == WhenFull::Refuse || context::is_worker() {
                return Err(SubmitError::Full { queue: self.name(), capacity });
            }
            gate.wait_for_room();
        }
    }

    fn full_policy(&self) -> (WhenFull, usize) {
        let identity = self.identity.lock();
        (identity.when_full, identity.capacity)
    }

    /// Puts the right to run the next job of a gate into the pool.
    pub(crate) fn put_token(&self, node: u16, cpu: Option<CpuId>) {
        let pool = self.pool();
        let cpu = cpu.unwrap_or_else(sys::current_cpu);
        let shard = pool.plan.shard_of(cpu);
        if let Err(error) = pool.push(shard, Job::token(self, node, cpu.0)) {
            let token = error.into_item();
            if context::is_worker() {
                self.run_inline(token);
            } else {
                drop(pool.push_blocking(shard, token));
            }
        }
    }

    /// Runs a job here and now, because there is no room for it elsewhere.
    fn run_inline(&self, job: Job) {
        self.stats.inlined.fetch_add(1, Ordering::Relaxed);
        let mut owed = Owed::default();
        self.run(&mut ItemCell::of(job), &mut owed, &mut |_| ());
        owed.pay();
    }

    /// Runs a job, or what a token stands for. `before` is called before each closure.
    #[inline]
    pub(crate) fn run(
        &self,
        place: &mut ItemCell<Job>,
        owed: &mut Owed,
        before: &mut impl FnMut(Tag),
    ) {
        let Some(tag) = place.get().map(|job| job.tag) else { return };
        if tag.is_token() {
            drop(place.take());
            self.run_gated(tag.node(), owed, before);
        } else {
            self.run_one(place, tag, owed, before);
        }
    }

    fn run_gated(&self, node: u16, owed: &mut Owed, before: &mut impl FnMut(Tag)) {
        let gate = &self.gates[usize::from(node)];
        let Some(mut job) = gate.redeem() else { return };
        for turn in 1.. {
            let tag = job.tag;
            self.run_one(&mut ItemCell::of(job), tag, owed, before);
            if turn % GATE_BATCH == 0 {
                if gate.leave() {
                    self.put_token(node, None);
                }
                return;
            }
            match gate.next() {
                Some(next) => job = next,
                None => return,
            }
        }
    }

    #[inline]
    fn run_one(
        &self,
        place: &mut ItemCell<Job>,
        tag: Tag,
        owed: &mut Owed,
        before: &mut impl FnMut(Tag),
    ) {
        let colour = tag.colour();
        owed.pay_unless(self, colour);
        before(tag);
        let outcome = context::in_frame(std::ptr::NonNull::from(self), colour, || {
            catch_unwind(AssertUnwindSafe(|| Job::run(place)))
        });
        if let Err(panic) = outcome {
            self.count_panic();
            // A payload may panic when dropped; the worker must survive that too.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
        }
        self.tally.finish(context::seat(self.runtime), colour);
        owed.incur(self, colour);
    }

    /// Runs one job that waits for a worker which does not come. False when there is none.
    pub(crate) fn rescue_one(&self) -> bool {
        for (index, gate) in self.gates.iter().enumerate() {
            if let Some(job) = gate.rescue() {
                // Before it runs: whoever waits for the item finds it counted.
                self.stats.rescued.fetch_add(1, Ordering::Relaxed);
                let mut owed = Owed::default();
                let tag = job.tag;
                self.run_one(&mut ItemCell::of(job), tag, &mut owed, &mut |_| ());
                owed.pay();
                if gate.leave() {
                    self.put_token(u16::try_from(index).unwrap_or(0), None);
                }
                return true;
            }
        }
        false
    }

    pub(crate) fn runtime(&self) -> RuntimeId {
        self.runtime
    }

    /// Whether items go through a gate: a limit, an order, a rescuer.
    pub(crate) fn is_gated(&self) -> bool {
        self.mode.load(Ordering::SeqCst) & GATED != 0
    }

    /// Counts once more under the phase of a job that is running, until [`let_go`](Self::let_go).
    pub(crate) fn hold(&self, phase: u8) {
        self.tally.enter_again(context::seat(self.runtime), phase);
    }

    /// Undoes one [`hold`](Self::hold).
    pub(crate) fn let_go(&self, phase: u8) {
        self.count_out(context::seat(self.runtime), phase);
    }

    /// Items that wait in front of a gate, and tokens that nobody redeemed yet.
    pub(crate) fn waiting(&self) -> (usize, u32) {
        self.gates.iter().map(Gate::waiting).fold((0, 0), |(a, b), (x, y)| (a + x, b + y))
    }

    #[cold]
    pub(crate) fn count_panic(&self) {
        self.stats.panics.fetch_add(1, Ordering::Relaxed);
    }

    #[cold]
    fn count_out(&self, seat: Seat, colour: u8) {
        self.tally.finish(seat, colour);
        self.tally.announce(colour);
    }
}

/// A finished item that a flush has not been told of yet.
///
/// While the next item has the same queue and colour, that colour is not empty and there is nothing
/// to tell, so a busy worker pays once per run of equal items.
#[derive(Default)]
pub(crate) struct Owed(Option<(std::ptr::NonNull<QueueCore>, u8)>);

impl Owed {
    #[inline]
    fn incur(&mut self, queue: &QueueCore, colour: u8) {
        self.0 = Some((std::ptr::NonNull::from(queue), colour));
    }

    #[inline]
    fn pay_unless(&mut self, queue: &QueueCore, colour: u8) {
        if self.0.is_some_and(|(owed, c)| !std::ptr::eq(owed.as_ptr(), queue) || c != colour) {
            self.pay();
        }
    }

    #[inline]
    pub(crate) fn pay(&mut self) {
        if let Some((queue, colour)) = self.0.take() {
            // SAFETY: queues live until all workers are gone (see `QueueCore`).
            unsafe { queue.as_ref() }.tally.announce(colour);
        }
    }
}
