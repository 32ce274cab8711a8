//! Worker threads shared by the queues of equal attributes: their FIFOs, slots and growth. What a
//! worker does is in `worker`.

use std::io;
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use crossbeam_utils::CachePadded;
use tollgate_topology::CpuId;
use tollgate_wakequeue::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tollgate_wakequeue::{Claim, Closed, Config, Host, PushError, ShardId, WakeQueue, WorkerId};

use crate::hooks::Hooks;
use crate::job::Job;
use crate::nested::NestedItems;
use crate::sharding::{Plan, Shard, ShardingKey};
use crate::sys;

/// What the queues of a pool have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    pub(crate) sharding: ShardingKey,
    pub(crate) localize: bool,
    pub(crate) nice: i32,
}

/// Items that an overflow list takes from inside other items, which must not wait for room.
pub(crate) const MAX_OVERFLOW: usize = 65_536;

/// A claim on its way to a thread that may fail to start.
pub(crate) type SharedClaim = Arc<StdMutex<Option<Claim>>>;
/// Starts a worker thread. Given by the runtime, which is above the pool.
pub(crate) type StartThread =
    Box<dyn Fn(Arc<Pool>, WorkerId, SharedClaim) -> io::Result<JoinHandle<()>> + Send + Sync>;
/// Has another thread call [`Pool::start`].
pub(crate) type StartElsewhere = Box<dyn Fn(Arc<Pool>, Claim) + Send + Sync>;
/// Called when a thread could not be started, so that it is tried again.
pub(crate) type OnFailure = Box<dyn Fn() + Send + Sync>;

/// A pool of workers, by pods.
///
/// Lock legend: (c) constant while the pool exists; (a) changed by atomic operations alone; (i) has
/// a lock or protocol of its own inside.
pub(crate) struct Pool {
    /// (c)
    pub(crate) key: PoolKey,
    /// (c)
    pub(crate) plan: Plan,
    /// (i)
    pub(crate) queue: WakeQueue<Job>,
    /// By shard: the index of its node. (c)
    node_of: Box<[u16]>,
    /// By shard: its first CPU. (c)
    cpu_of: Box<[CpuId]>,
    /// Whether the issuing CPU matters to this pool. (c)
    pub(crate) needs_cpu: bool,
    /// Whether workers may stray from their pod, and must be brought back. (c)
    pub(crate) strays: bool,
    /// By worker number. (a)
    pub(crate) worker_slots: Box<[CachePadded<WorkerSlot>]>,
    /// (i)
    threads: StdMutex<Vec<Thread>>,
    /// (a)
    pub(crate) start_failures: AtomicU64,
    /// The system refused something to a worker, and that was said. (a)
    pub(crate) warned: AtomicBool,
    /// (c)
    pub(crate) number: usize,
    /// (c)
    me: Weak<Pool>,
    /// (c)
    start_thread: StartThread,
    /// (c)
    start_elsewhere: StartElsewhere,
    /// The nice level of the workers, as far as the system allows it. (c)
    pub(crate) nice: i32,
    /// The nice level of whoever starts threads elsewhere. (c)
    base_nice: i32,
    /// (c)
    on_failure: OnFailure,
    /// What the program has to say about threads and panics. (c)
    pub(crate) hooks: Hooks,
}

/// A worker's thread, which may have ended.
struct Thread {
    id: WorkerId,
    home: ShardId,
    thread: JoinHandle<()>,
}

/// What a worker shows of itself. Written by the worker with plain stores.
pub(crate) struct WorkerSlot {
    /// Odd while it runs an item; grows with every item.
    pub(crate) turn: AtomicU64,
    /// Grows while the item works off forked jobs; see `context::progress`.
    pub(crate) forked: AtomicU64,
    /// Address of the queue of the current or latest item.
    pub(crate) queue: tollgate_wakequeue::sync::AtomicPtr<()>,
    /// Node of the item's shard.
    pub(crate) node: AtomicU32,
    /// What the item runs inside itself.
    pub(crate) nested: NestedItems,
    /// The kernel's number of the thread; 0 when there is none.
    pub(crate) thread: AtomicU32,
    pub(crate) home: AtomicU32,
    /// In a declared blocking section.
    pub(crate) blocking: AtomicBool,
    /// Set by the watchdog: the current item uses the CPU for too long and does not count.
    pub(crate) cpu_intensive: AtomicBool,
    /// Set by the watchdog: the queues shall get the CPU time used for them.
    pub(crate) accounts_due: AtomicBool,
    /// CPU time of the thread that some queue got, in nanoseconds.
    pub(crate) accounted_ns: AtomicU64,
}

/// What a pool is made of.
pub(crate) struct PoolParts {
    pub(crate) key: PoolKey,
    pub(crate) plan: Plan,
    pub(crate) config: Config,
    pub(crate) number: usize,
    pub(crate) node_of_cpu: Arc<[u16]>,
    pub(crate) start_thread: StartThread,
    pub(crate) start_elsewhere: StartElsewhere,
    pub(crate) base_nice: i32,
    pub(crate) on_failure: OnFailure,
    pub(crate) hooks: Hooks,
}

impl Pool {
    pub(crate) fn new(parts: PoolParts) -> Result<Arc<Self>, tollgate_wakequeue::ConfigError> {
        let PoolParts { key, plan, config, number, node_of_cpu, hooks, .. } = parts;
        let PoolParts { start_thread, start_elsewhere, base_nice, on_failure, .. } = parts;
        let queue = WakeQueue::new(plan.layout.clone(), config)?;
        let worker_slots = queue.max_workers();
        let node = |cpu: CpuId| node_of_cpu.get(cpu.index()).copied().unwrap_or(0);
        let first = |shard: &Shard| shard.cpus.lowest().unwrap_or(CpuId(0));
        let cpu_of: Box<[CpuId]> = plan.shards.iter().map(first).collect();
        let node_of = cpu_of.iter().map(|&cpu| node(cpu)).collect();
        Ok(Arc::new_cyclic(|me| Self {
            hooks,
            needs_cpu: plan.shards.len() > 1 || key.localize,
            strays: plan.pods.len() > 1 && !key.sharding.strict && !key.localize,
            nice: if key.nice == 0 { base_nice } else { key.nice },
            base_nice,
            key,
            plan,
            queue,
            node_of,
            cpu_of,
            worker_slots: (0..worker_slots).map(|_| CachePadded::new(WorkerSlot::new())).collect(),
            threads: StdMutex::new(Vec::new()),
            start_failures: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            number,
            me: me.clone(),
            start_thread,
            start_elsewhere,
            on_failure,
        }))
    }

    #[inline]
    pub(crate) fn push(&self, shard: ShardId, job: Job) -> Result<(), PushError<Job>> {
        self.queue.push(shard, job, |claim| self.grow(claim))
    }

    #[inline]
    pub(crate) fn push_with(
        &self,
        shard: ShardId,
        make: impl FnOnce() -> Job,
    ) -> Result<(), PushError<()>> {
        self.queue.push_with(shard, make, |claim| self.grow(claim))
    }

    pub(crate) fn push_blocking(&self, shard: ShardId, job: Job) -> Result<(), Closed<Job>> {
        self.queue.push_blocking(shard, job, |claim| self.grow(claim))
    }

    /// For a job that the rescuer of its queue must find.
    pub(crate) fn push_findable(&self, shard: ShardId, job: Job) -> Result<(), PushError<Job>> {
        self.queue.push_findable(shard, job, MAX_OVERFLOW, |claim| self.grow(claim))
    }

    pub(crate) fn push_findable_blocking(
        &self,
        shard: ShardId,
        job: Job,
    ) -> Result<(), Closed<Job>> {
        self.queue.push_findable_blocking(shard, job, MAX_OVERFLOW, |claim| self.grow(claim))
    }

    /// For jobs that others wait for already, of which there is a bounded number: needs no room.
    pub(crate) fn push_unbounded(&self, shard: ShardId, job: Job) -> Result<(), Closed<Job>> {
        self.queue.push_unbounded(shard, job, |claim| self.grow(claim))
    }

    /// Starts the worker that a claim stands for, or has it started. A thread begins at the nice
    /// level of whoever starts it, and may need a privilege to come back from a higher one.
    #[cold]
    pub(crate) fn grow(&self, claim: Claim) {
        match self.me.upgrade() {
            Some(pool) if sys::nice() > self.nice.max(self.base_nice) => {
                (self.start_elsewhere)(pool, claim);
            }
            _ => self.start(claim),
        }
    }

    /// Starts the worker that a claim stands for.
    pub(crate) fn start(&self, claim: Claim) {
        let (id, home) = (claim.id(), claim.home());
        // The claim has to survive a failure to start the thread, which drops the closure.
        let claim = Arc::new(StdMutex::new(Some(claim)));
        let started = match self.me.upgrade() {
            Some(pool) => (self.start_thread)(pool, id, Arc::clone(&claim)),
            None => Err(io::Error::other("the runtime is gone")),
        };
        match started {
            Ok(thread) => self.remember(Thread { id, home, thread }),
            Err(error) => self.cannot_grow(&claim, &error),
        }
    }

    fn remember(&self, new: Thread) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // The number may have belonged to a worker that retired.
        threads.retain(|other| other.id != new.id);
        threads.push(new);
    }

    fn cannot_grow(&self, claim: &StdMutex<Option<Claim>>, error: &io::Error) {
        let failures = self.start_failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures.is_power_of_two() {
            let pool = self.number;
            tracing::warn!(pool, failures, %error, "a worker thread could not be started");
        }
        if let Some(claim) = claim.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.queue.abandon(claim);
        }
        (self.on_failure)();
    }

    /// Asks for threads again that could not be started some time ago. True when there was any
    /// need.
    pub(crate) fn retry_growth(&self) -> bool {
        self.queue.retry_growth(|claim| self.grow(claim))
    }

    /// Lets the workers finish what is queued and waits for them to end.
    pub(crate) fn close(&self) {
        self.queue.close();
        loop {
            let next = self.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match next {
                Some(Thread { thread, .. }) if thread.thread().id() == thread::current().id() => {}
                // A worker catches the panics of its items; there is nothing to learn here.
                Some(Thread { thread, .. }) => drop(thread.join()),
                None => return,
            }
        }
    }

    /// Where the workers are at home that there are.
    pub(crate) fn homes(&self) -> Vec<ShardId> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.iter().filter(|one| !one.thread.is_finished()).map(|one| one.home).collect()
    }

    pub(crate) fn worker_slot(&self, worker: WorkerId) -> &WorkerSlot {
        &self.worker_slots[worker.index()]
    }

    /// The index of the node of a shard.
    #[inline]
    pub(crate) fn node_of(&self, shard: ShardId) -> u16 {
        self.node_of[shard.index()]
    }

    /// A CPU of a shard.
    #[inline]
    pub(crate) fn cpu_of(&self, shard: ShardId) -> CpuId {
        self.cpu_of[shard.index()]
    }

    /// The CPU that this thread is running on; where the system does not say, one of the pool's.
    #[inline]
    pub(crate) fn current_cpu(&self) -> CpuId {
        sys::current_cpu().unwrap_or_else(|| self.cpu_of(ShardId(0)))
    }

    /// Whether a worker at home in `home` may run what was placed in `shard`: always, unless the
    /// pool is strict and they are of different pods.
    #[inline]
    pub(crate) fn may_run(&self, home: ShardId, shard: ShardId) -> bool {
        !self.key.sharding.strict || self.plan.layout.pod_of(home) == self.plan.layout.pod_of(shard)
    }

    /// Whether a worker at home in `home` is in the pod of `shard`.
    #[inline]
    pub(crate) fn is_near(&self, home: ShardId, shard: ShardId) -> bool {
        self.plan.layout.pod_of(home) == self.plan.layout.pod_of(shard)
    }

    /// Whether anything waits to be run.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.queue.is_empty()
    }
}

/// Where a worker is about to sleep and where it wakes up: `before_sleep` and `after_sleep` are the
/// place for whatever shall happen then.
impl Host for &Pool {
    fn grow(&self, claim: Claim) {
        Pool::grow(self, claim);
    }
}

impl WorkerSlot {
    fn new() -> Self {
        Self {
            turn: AtomicU64::new(0),
            forked: AtomicU64::new(0),
            queue: tollgate_wakequeue::sync::AtomicPtr::new(std::ptr::null_mut()),
            node: AtomicU32::new(0),
            nested: NestedItems::default(),
            thread: AtomicU32::new(0),
            home: AtomicU32::new(0),
            blocking: AtomicBool::new(false),
            cpu_intensive: AtomicBool::new(false),
            accounts_due: AtomicBool::new(false),
            accounted_ns: AtomicU64::new(0),
        }
    }
}
