//! Worker threads shared by the queues of equal attributes.

#![expect(unsafe_code, reason = "jobs carry a pointer to their queue")]

use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use tollgate_topology::CpuId;
use tollgate_wakequeue::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use tollgate_wakequeue::{
    Claim, Closed, Config, ItemCell, Next, PushError, ShardId, WakeQueue, Worker, WorkerId,
};

use crate::context::{self, SeatHere, WorkerContext};
use crate::core::{Owed, QueueCore};
use crate::job::{Job, Tag};
use crate::placement::{PlacementKey, Plan};
use crate::runtime::Shared;
use crate::shares::Shares;
use crate::sys;
use crate::tally::Seat;

/// What the queues of a pool have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    pub(crate) placement: PlacementKey,
    pub(crate) localize: bool,
    pub(crate) nice: i32,
}

/// Items that a worker runs between two looks at where it is.
const LOOK_EVERY: u32 = 32;

/// A pool of workers, by pods.
pub(crate) struct Pool {
    pub(crate) key: PoolKey,
    pub(crate) plan: Plan,
    pub(crate) queue: WakeQueue<Job>,
    /// Whether the issuing CPU matters to this pool.
    pub(crate) needs_cpu: bool,
    /// Whether workers may stray from their pod, and must be brought back.
    strays: bool,
    /// By worker number.
    pub(crate) desks: Box<[CachePadded<Desk>]>,
    threads: StdMutex<Vec<(WorkerId, JoinHandle<()>)>>,
    pub(crate) start_failures: AtomicU64,
    /// The system refused something to a worker, and that was said.
    warned: AtomicBool,
    pub(crate) number: usize,
    me: Weak<Pool>,
    shared: Weak<Shared>,
}

/// What a worker shows of itself. Written by the worker with plain stores.
pub(crate) struct Desk {
    /// Odd while it runs an item; grows with every item.
    pub(crate) turn: AtomicU64,
    /// The queue of the current or latest item.
    pub(crate) queue: AtomicPtr<QueueCore>,
    /// The kernel's number of the thread; 0 when there is none.
    pub(crate) thread: AtomicU32,
    pub(crate) home: AtomicU32,
    /// In a declared blocking section.
    pub(crate) blocking: AtomicBool,
    /// Set by the keeper: the current item holds the CPU for too long and does not count.
    pub(crate) hogging: AtomicBool,
    /// Set by the keeper: the queues shall get the CPU time used for them.
    pub(crate) accounts_due: AtomicBool,
    /// CPU time of the thread that some queue got, in nanoseconds.
    pub(crate) accounted_ns: AtomicU64,
}

impl Pool {
    pub(crate) fn new(
        key: PoolKey,
        plan: Plan,
        config: Config,
        number: usize,
        shared: Weak<Shared>,
    ) -> Result<Arc<Self>, tollgate_wakequeue::ConfigError> {
        let queue = WakeQueue::new(plan.layout.clone(), config)?;
        let desks = queue.max_workers();
        Ok(Arc::new_cyclic(|me| Self {
            needs_cpu: plan.shards.len() > 1 || key.localize,
            strays: plan.pods.len() > 1 && !key.placement.strict && !key.localize,
            key,
            plan,
            queue,
            desks: (0..desks).map(|_| CachePadded::new(Desk::new())).collect(),
            threads: StdMutex::new(Vec::new()),
            start_failures: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            number,
            me: me.clone(),
            shared,
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

    /// Starts the worker that a claim stands for.
    #[cold]
    pub(crate) fn grow(&self, claim: Claim) {
        let id = claim.id();
        let name = format!("workqueue-{}.{}", self.number, id.0);
        // The claim has to survive a failure to start the thread, which drops the closure.
        let claim = Arc::new(StdMutex::new(Some(claim)));
        let started = match (self.me.upgrade(), self.shared.upgrade()) {
            (Some(pool), Some(shared)) => {
                let claim = Arc::clone(&claim);
                thread::Builder::new().name(name).spawn(move || {
                    let claim = claim.lock().unwrap_or_else(PoisonError::into_inner).take();
                    if let Some(claim) = claim {
                        pool.work(&shared, claim);
                    }
                })
            }
            _ => Err(std::io::Error::other("the runtime is gone")),
        };
        match started {
            Ok(thread) => self.remember(id, thread),
            Err(error) => self.cannot_grow(&claim, &error),
        }
    }

    fn remember(&self, id: WorkerId, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // The number may have belonged to a worker that retired.
        threads.retain(|(other, _)| *other != id);
        threads.push((id, thread));
    }

    fn cannot_grow(&self, claim: &StdMutex<Option<Claim>>, error: &std::io::Error) {
        if self.start_failures.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(pool = self.number, %error, "a worker thread could not be started");
        }
        if let Some(claim) = claim.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.queue.abandon(claim);
        }
        if let Some(shared) = self.shared.upgrade() {
            shared.keeper.arm();
        }
    }

    /// Lets the workers finish what is queued and waits for them to end.
    pub(crate) fn close(&self) {
        self.queue.close();
        loop {
            let next = self.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match next {
                // Dropped from inside an item, a runtime cannot wait for that item's thread.
                Some((_, thread)) if thread.thread().id() == thread::current().id() => {}
                // A worker catches the panics of its items; there is nothing to learn here.
                Some((_, thread)) => drop(thread.join()),
                None => return,
            }
        }
    }

    fn work(self: &Arc<Self>, shared: &Arc<Shared>, claim: Claim) {
        let mut worker = self.queue.worker(claim);
        self.settle(&worker, shared.base_nice);
        let own_seat = shared.take_seat();
        let seat = own_seat.map_or(Seat::Shared(worker.id().index()), Seat::Own);
        let context = WorkerContext {
            seats: SeatHere { runtime: shared.id, seat },
            shares: Shares::new(sys::thread_id()),
            pool: Arc::clone(self),
            id: worker.id(),
            home: worker.home(),
            blocking_depth: std::cell::Cell::new(0),
        };
        context::as_worker(&context, || self.serve(shared, &mut worker, &context.shares));
        self.desk(worker.id()).thread.store(0, Ordering::Relaxed);
        if let Some(number) = own_seat {
            shared.give_seat(number);
        }
    }

    /// Gives the thread its CPUs and priority. What the system refuses, it does without.
    fn settle(&self, worker: &Worker, base_nice: i32) {
        let allowed = &self.plan.shards[worker.home().index()].allowed;
        if let Err(error) = sys::set_affinity(allowed)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(pool = self.number, cpus = %allowed, %error, "no affinity for workers");
        }
        // A thread inherits the level of whoever starts it, which may be any worker.
        let nice = if self.key.nice == 0 { base_nice } else { self.key.nice };
        if let Err(error) = sys::set_nice(nice)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(pool = self.number, nice, %error, "workers keep their nice level");
        }
        let desk = self.desk(worker.id());
        desk.home.store(u32::from(worker.home().0), Ordering::Relaxed);
        // The number may have belonged to another thread.
        desk.accounted_ns.store(0, Ordering::Relaxed);
        desk.accounts_due.store(false, Ordering::Relaxed);
        desk.thread.store(sys::thread_id(), Ordering::Relaxed);
    }

    fn serve(&self, shared: &Shared, worker: &mut Worker, shares: &Shares) {
        let desk = self.desk(worker.id());
        let mut owed = Owed::default();
        let mut until_look = 0;
        // The queue of the item before; null after sleep.
        let mut latest = std::ptr::null();
        // Every job is moved once, from its shard to here.
        let mut hand = ItemCell::empty();
        shared.keeper.arm();
        loop {
            if !self.queue.try_next_into(worker, &mut hand) {
                owed.pay();
                let next = self.queue.next_into(worker, &mut hand, |claim| self.grow(claim));
                if next != Next::Item(()) {
                    break;
                }
            }
            if let Some(since) = worker.slept_since() {
                until_look = 0;
                latest = std::ptr::null();
                shares.slept(since, &desk.accounted_ns);
                shared.keeper.arm();
            }
            let Some(queue) = hand.get().map(Job::queue) else { continue };
            if queue != latest {
                latest = queue;
                desk.queue.store(queue.cast_mut(), Ordering::Relaxed);
                // SAFETY: a queue outlives its jobs and its workers (see `QueueCore`).
                shares.switch(unsafe { &*queue }, &desk.accounted_ns);
            }
            // SAFETY: as above.
            let queue = unsafe { &*queue };
            self.serve_one(desk, worker, queue, &mut hand, &mut owed, &mut until_look);
            if desk.accounts_due.load(Ordering::Relaxed) {
                desk.accounts_due.store(false, Ordering::Relaxed);
                shares.divide(&desk.accounted_ns);
            }
        }
        owed.pay();
        shares.divide(&desk.accounted_ns);
    }

    #[inline]
    fn serve_one(
        &self,
        desk: &Desk,
        worker: &Worker,
        queue: &QueueCore,
        hand: &mut ItemCell<Job>,
        owed: &mut Owed,
        until_look: &mut u32,
    ) {
        queue.run(hand, owed, &mut |tag| {
            // The next odd number: running, and not the item of before.
            desk.turn.store((desk.turn.load(Ordering::Relaxed) + 1) | 1, Ordering::Release);
            if self.strays || self.key.localize {
                self.go_home(worker, tag, queue, until_look);
            }
        });
        desk.turn.store((desk.turn.load(Ordering::Relaxed) | 1) + 1, Ordering::Release);
        if desk.hogging.load(Ordering::Relaxed) {
            desk.hogging.store(false, Ordering::Relaxed);
            self.queue.recount(worker.id(), worker.home());
        }
    }

    /// Brings a worker back to its pod, or to the CPU of the issuer, before it starts an item.
    ///
    /// Workers of a soft pool may run anywhere; this looks at where they are for the first item
    /// after sleep and for every 32nd in a row, because being moved costs up to 44 us.
    fn go_home(&self, worker: &Worker, tag: Tag, queue: &QueueCore, until_look: &mut u32) {
        let shard = &self.plan.shards[worker.home().index()];
        let here = sys::current_cpu();
        if self.key.localize {
            let issuer = CpuId(tag.cpu());
            if here != issuer && shard.allowed.contains(issuer) {
                self.move_to(&[issuer].into_iter().collect(), &shard.allowed, queue);
            }
            return;
        }
        if *until_look > 0 {
            *until_look -= 1;
            return;
        }
        *until_look = LOOK_EVERY;
        let pod = &self.plan.pods[shard.pod.index()];
        if !pod.contains(here) {
            self.move_to(pod, &shard.allowed, queue);
        }
    }

    fn move_to(
        &self,
        there: &tollgate_topology::CpuSet,
        afterwards: &tollgate_topology::CpuSet,
        queue: &QueueCore,
    ) {
        let moved = sys::set_affinity(there).and_then(|()| sys::set_affinity(afterwards));
        if moved.is_ok() {
            queue.stats.repatriated.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn desk(&self, worker: WorkerId) -> &Desk {
        &self.desks[worker.index()]
    }

    /// Whether anything waits to be run.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.queue.is_empty()
    }
}

impl Desk {
    fn new() -> Self {
        Self {
            turn: AtomicU64::new(0),
            queue: AtomicPtr::new(std::ptr::null_mut()),
            thread: AtomicU32::new(0),
            home: AtomicU32::new(0),
            blocking: AtomicBool::new(false),
            hogging: AtomicBool::new(false),
            accounts_due: AtomicBool::new(false),
            accounted_ns: AtomicU64::new(0),
        }
    }
}

/// Declares that this thread is about to wait for something other than the CPU. Inside an item, the
/// pool may wake or start another worker meanwhile, up to its maximum; elsewhere it just runs `body`.
///
/// ```
/// # let path = "Cargo.toml";
/// let text = tollgate_workqueue::blocking(|| std::fs::read_to_string(path));
/// # drop(text);
/// ```
pub fn blocking<R>(body: impl FnOnce() -> R) -> R {
    context::with_worker(|worker| {
        let _section = worker.map(Section::enter);
        body()
    })
}

/// Ends the blocking section when dropped, also by a panic.
struct Section<'w> {
    worker: &'w WorkerContext,
    since: Instant,
}

impl<'w> Section<'w> {
    fn enter(worker: &'w WorkerContext) -> Self {
        let depth = worker.blocking_depth.get();
        worker.blocking_depth.set(depth + 1);
        if depth == 0 {
            let pool = &worker.pool;
            pool.desk(worker.id).blocking.store(true, Ordering::Relaxed);
            if pool.queue.discount(worker.id, worker.home, |claim| pool.grow(claim)) {
                context::current_queue(|queue| {
                    queue.stats.concurrency_wakes.fetch_add(1, Ordering::Relaxed);
                });
            }
        }
        Self { worker, since: Instant::now() }
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        let worker = self.worker;
        let depth = worker.blocking_depth.get() - 1;
        worker.blocking_depth.set(depth);
        if depth == 0 {
            let desk = worker.pool.desk(worker.id);
            desk.blocking.store(false, Ordering::Relaxed);
            desk.hogging.store(false, Ordering::Relaxed);
            worker.shares.leave_out(self.since.elapsed());
            worker.pool.queue.recount(worker.id, worker.home);
        }
    }
}
