//! A worker's life: its thread, its loop, and each job on its way through: whose it is, what it
//! counts against, where it may run.

use std::cell::Cell;
use std::sync::atomic::compiler_fence;
use std::sync::{Arc, PoisonError};

use tollgate_haltpoll::Hook;
use tollgate_topology::{CpuId, CpuSet};
use tollgate_wakequeue::sync::Ordering;
use tollgate_wakequeue::{Claim, ItemCell, Next, Worker};

use crate::context::{self, CounterSlotHere, WorkerContext};
use crate::core::{LIMITED, ORDERED, QueueCore, Waiter};
use crate::cpu_accounts::CpuAccounts;
use crate::in_flight::CounterSlot;
use crate::job::{Job, Tag};
use crate::pool::{Pool, SharedClaim, WorkerSlot};
use crate::queue_ref::QueueRef;
use crate::run::{DeferredNotify, TurnHolder, run_one, run_turn};
use crate::shared::Shared;
use crate::sys;

/// Items that a worker runs between two looks at where it is.
const LOOK_EVERY: u32 = 32;

/// What a worker's slot shows as the node of an item that is counted already.
const COUNTED: u32 = u32::MAX;

/// The body of a worker's thread.
pub(crate) fn serve(shared: &Arc<Shared>, pool: &Arc<Pool>, claim: &SharedClaim) {
    let claim = claim.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(claim) = claim {
        work(shared, pool, claim);
    }
}

fn work(shared: &Arc<Shared>, pool: &Arc<Pool>, claim: Claim) {
    let worker = pool.queue.worker(claim);
    settle(pool, &worker);
    let own_counter_slot = shared.take_counter_slot();
    let counter_slot =
        own_counter_slot.map_or(CounterSlot::Shared(worker.id().index()), CounterSlot::Own);
    let context = WorkerContext {
        counter_slots: CounterSlotHere { runtime: shared.id, counter_slot },
        cpu_accounts: CpuAccounts::new(sys::thread_id()),
        pool: Arc::clone(pool),
        id: worker.id(),
        home: worker.home(),
        blocking_depth: Cell::new(0),
    };
    let worker_slot = pool.worker_slot(worker.id());
    context::as_worker(&context, || {
        Serving {
            shared,
            pool,
            worker_slot,
            worker,
            cpu_accounts: &context.cpu_accounts,
            notify: DeferredNotify::default(),
            until_look: 0,
            latest: None,
            hand: ItemCell::empty(),
            held: None,
            hook: (shared.settings.keep_awake.as_ref())
                .map_or_else(Hook::inert, |awake| awake.hook()),
        }
        .serve();
    });
    worker_slot.thread.store(0, Ordering::Relaxed);
    if let Some(number) = own_counter_slot {
        shared.give_counter_slot(number);
    }
}

/// Gives the thread its CPUs and priority. What the system refuses, it does without.
fn settle(pool: &Pool, worker: &Worker) {
    let number = pool.number;
    let allowed = &pool.plan.shards[worker.home().index()].allowed;
    if let Err(error) = sys::set_affinity(allowed)
        && !pool.warned.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(pool = number, cpus = %allowed, %error, "no affinity for workers");
    }
    // A thread inherits the level of whoever starts it, which may be any that is not nicer.
    let nice = pool.nice;
    if let Err(error) = sys::set_nice(nice)
        && !pool.warned.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(pool = number, nice, %error, "workers keep their nice level");
    }
    let worker_slot = pool.worker_slot(worker.id());
    worker_slot.home.store(u32::from(worker.home().0), Ordering::Relaxed);
    // The number may have belonged to another thread.
    worker_slot.accounted_ns.store(0, Ordering::Relaxed);
    worker_slot.accounts_due.store(false, Ordering::Relaxed);
    worker_slot.thread.store(sys::thread_id(), Ordering::Relaxed);
}

/// What a worker has at hand.
struct Serving<'w> {
    shared: &'w Shared,
    pool: &'w Pool,
    worker_slot: &'w WorkerSlot,
    worker: Worker,
    cpu_accounts: &'w CpuAccounts,
    notify: DeferredNotify,
    /// Items until the next look at where this thread is.
    until_look: u32,
    /// The queue of the item before; none after sleep.
    latest: Option<QueueRef>,
    /// Every job is moved once, from its shard to here.
    hand: ItemCell<Job>,
    /// The queue and node whose limit counts this worker. It is kept from one item to the next, so
    /// that a run of items of one queue changes the count once.
    held: Option<(QueueRef, u16)>,
    /// Learns of each wake-up.
    hook: Hook,
}

impl Serving<'_> {
    fn serve(mut self) {
        self.shared.arm();
        while self.next() {
            if let Some(since) = self.worker.slept_since() {
                self.hook.touch();
                self.until_look = 0;
                self.latest = None;
                self.cpu_accounts.slept(since, &self.worker_slot.accounted_ns);
                self.shared.arm();
            }
            self.serve_one();
            if self.worker_slot.accounts_due.load(Ordering::Relaxed) {
                self.worker_slot.accounts_due.store(false, Ordering::Relaxed);
                self.cpu_accounts.divide(&self.worker_slot.accounted_ns);
            }
        }
        self.notify.send();
        self.cpu_accounts.divide(&self.worker_slot.accounted_ns);
    }

    /// Takes the next job in hand. False at the end of this worker.
    #[inline]
    fn next(&mut self) -> bool {
        let pool = self.pool;
        if pool.queue.try_next_into(&mut self.worker, &mut self.hand) {
            return true;
        }
        if pool.queue.is_surplus(&self.worker) {
            // It is about to sleep, and what waits for its count is for those who go on.
            self.let_go();
        } else if self.next_from_limit() {
            return true;
        }
        self.notify.send();
        let next = pool.queue.next_into(&mut self.worker, &mut self.hand, pool);
        next == Next::Item(())
    }

    /// Gives back the count that this worker holds. If a job waited for it in this pod, that is the
    /// next one.
    fn next_from_limit(&mut self) -> bool {
        let Some((queue, node)) = self.held.take() else { return false };
        let core = queue.core();
        let Some(waiter) = core.limits[usize::from(node)].end() else { return false };
        match waiter.take_near(self.pool, self.worker.home()) {
            Ok(mut job) => {
                job.tag = job.tag.counted();
                self.hand = ItemCell::of(job);
                true
            }
            Err(waiter) => {
                core.dispatch(waiter);
                false
            }
        }
    }

    /// Gives back the count that this worker holds; a job that waited for it goes to its shard.
    fn let_go(&mut self) {
        if let Some((queue, node)) = self.held.take() {
            queue.core().end_counted(usize::from(node));
        }
    }

    #[inline]
    fn serve_one(&mut self) {
        let Some((queue, tag)) = self.hand.get().map(|job| (job.queue(), job.tag)) else { return };
        let core = queue.core();
        if Some(queue) != self.latest {
            self.latest = Some(queue);
            self.worker_slot.queue.store(queue.address().as_ptr(), Ordering::Relaxed);
            self.cpu_accounts.switch(queue, &self.worker_slot.accounted_ns);
        }
        if core.mode() & (LIMITED | ORDERED) == 0 && !tag.is_counted() {
            if self.held.is_some() {
                self.let_go();
            }
            if self.run_uncounted(core, tag) {
                return;
            }
        }
        if tag.is_turn() {
            self.serve_turn(core, tag);
        } else {
            self.serve_limited(queue, tag);
        }
    }

    /// Runs a job of a queue without a limit. False when it got one just now.
    ///
    /// Whoever sets a limit counts what runs, by these slots, after a barrier on all CPUs
    /// ([`QueueCore::set_limits`]): so either this sees the limit before or after it runs the job,
    /// or the job is counted while it runs.
    #[inline]
    fn run_uncounted(&mut self, core: &QueueCore, tag: Tag) -> bool {
        self.begin(u32::from(tag.node()));
        compiler_fence(Ordering::SeqCst);
        if core.mode() & LIMITED != 0 {
            self.end();
            core.end_uncounted();
            return false;
        }
        self.go_home(core, tag);
        run_one(core, &mut self.hand, tag, &mut self.notify);
        self.end();
        compiler_fence(Ordering::SeqCst);
        if core.mode() & LIMITED != 0 {
            core.end_uncounted();
        }
        true
    }

    /// Runs a job of a limited queue, or another one that waited longer, or leaves it to wait.
    fn serve_limited(&mut self, queue: QueueRef, tag: Tag) {
        let core = queue.core();
        if !self.start(queue, tag) {
            return;
        }
        let Some(tag) = self.hand.get().map(|job| job.tag) else { return };
        self.begin(COUNTED);
        self.go_home(core, tag);
        run_one(core, &mut self.hand, tag, &mut self.notify);
        self.end();
    }

    /// Gets the job in hand counted. False when it waits now, and there is nothing in hand.
    fn start(&mut self, queue: QueueRef, tag: Tag) -> bool {
        let node = tag.node();
        let limit = &queue.core().limits[usize::from(node)];
        if self.held == Some((queue, node)) && !tag.is_counted() {
            if limit.may_go_on() {
                return true;
            }
            if self.swap_with_first(queue, node) {
                return true;
            }
        }
        self.let_go();
        if !tag.is_counted() && limit.try_start() {
            self.held = Some((queue, node));
            return true;
        }
        let Some(mut job) = self.hand.take() else { return false };
        job.tag = tag.not_counted();
        let waiter = Waiter::new(job, self.pool);
        let started =
            if tag.is_counted() { limit.confirm(waiter) } else { limit.start_or_wait(waiter) };
        let Some(waiter) = started else { return false };
        self.hand = ItemCell::of(waiter.into_job());
        self.held = Some((queue, node));
        true
    }

    /// Others wait for the count that this worker holds: the first of them goes before the job in
    /// hand. False when nothing was taken in hand instead; the count is given back then.
    fn swap_with_first(&mut self, queue: QueueRef, node: u16) -> bool {
        let core = queue.core();
        let limit = &core.limits[usize::from(node)];
        self.held = None;
        let Some(first) = limit.end() else { return false };
        match first.take_near(self.pool, self.worker.home()) {
            Ok(first) => {
                if let Some(job) = self.hand.take()
                    && let Some(started) = limit.start_or_wait(Waiter::new(job, self.pool))
                {
                    // There is room for both.
                    core.dispatch(started);
                }
                self.hand = ItemCell::of(first);
                self.held = Some((queue, node));
                true
            }
            Err(first) => {
                core.dispatch(first);
                false
            }
        }
    }

    fn serve_turn(&mut self, core: &QueueCore, turn: Tag) {
        self.let_go();
        drop(self.hand.take());
        let mut notify = std::mem::take(&mut self.notify);
        run_turn(core, turn, &mut Turn { core, serving: self }, &mut notify);
        self.notify = notify;
    }

    #[inline]
    fn begin(&self, node: u32) {
        begin(self.worker_slot, node);
    }

    #[inline]
    fn end(&self) {
        end(self.worker_slot, self.pool, &self.worker);
    }

    #[inline]
    fn go_home(&mut self, core: &QueueCore, tag: Tag) {
        go_home(self.pool, &self.worker, &mut self.until_look, core, tag);
    }
}

/// A worker that has the turn of an ordered queue.
struct Turn<'t, 'w> {
    core: &'t QueueCore,
    serving: &'t mut Serving<'w>,
}

impl TurnHolder for Turn<'_, '_> {
    fn may_run(&self, cpu: CpuId) -> bool {
        let pool = self.serving.pool;
        pool.may_run(self.serving.worker.home(), pool.plan.shard_of(cpu))
    }

    /// While nothing else waits in this pod, handing the turn to another worker would only move the
    /// queue between CPUs. A queue that was given another pool goes there.
    fn may_go_on(&self) -> bool {
        let Serving { pool, worker, worker_slot, .. } = &*self.serving;
        let pod = pool.plan.layout.pod_of(worker.home());
        std::ptr::eq(self.core.pool(), *pool)
            && !worker_slot.accounts_due.load(Ordering::Relaxed)
            && pool.queue.is_pod_empty(pod)
    }

    fn must_stop(&self) -> bool {
        self.serving.pool.queue.is_surplus(&self.serving.worker)
    }

    fn before(&mut self, tag: Tag) {
        self.serving.begin(0);
        self.serving.go_home(self.core, tag);
    }

    fn after(&mut self) {
        self.serving.end();
    }
}

/// Shows that an item runs: the next odd number, which is not that of the item before.
#[inline]
fn begin(worker_slot: &WorkerSlot, node: u32) {
    worker_slot.node.store(node, Ordering::Relaxed);
    worker_slot.turn.store((worker_slot.turn.load(Ordering::Relaxed) + 1) | 1, Ordering::Release);
}

#[inline]
fn end(worker_slot: &WorkerSlot, pool: &Pool, worker: &Worker) {
    worker_slot.turn.store((worker_slot.turn.load(Ordering::Relaxed) | 1) + 1, Ordering::Release);
    if worker_slot.cpu_intensive.load(Ordering::Relaxed) {
        worker_slot.cpu_intensive.store(false, Ordering::Relaxed);
        pool.queue.recount(worker.id(), worker.home());
    }
}

/// Brings a worker back to its pod, or to the CPU of the issuer, before it starts an item.
///
/// Workers of a soft pool may run anywhere; this looks at where they are for the first item after
/// sleep and for every 32nd in a row, because being moved costs up to 44 us.
#[inline]
fn go_home(pool: &Pool, worker: &Worker, until_look: &mut u32, core: &QueueCore, tag: Tag) {
    if pool.strays || pool.key.localize {
        look_where(pool, worker, until_look, core, tag);
    }
}

fn look_where(pool: &Pool, worker: &Worker, until_look: &mut u32, core: &QueueCore, tag: Tag) {
    let shard = &pool.plan.shards[worker.home().index()];
    if pool.key.localize {
        let issuer = tag.cpu();
        if sys::current_cpu().is_some_and(|here| here != issuer) && shard.allowed.contains(issuer) {
            move_to(&[issuer].into_iter().collect(), &shard.allowed, core);
        }
        return;
    }
    if *until_look > 0 {
        *until_look -= 1;
        return;
    }
    *until_look = LOOK_EVERY;
    let pod = &pool.plan.pods[shard.pod.index()];
    // Where nobody says where this thread is, moving it could do as much harm as good.
    if sys::current_cpu().is_some_and(|here| !pod.contains(here)) {
        move_to(pod, &shard.allowed, core);
    }
}

fn move_to(there: &CpuSet, afterwards: &CpuSet, core: &QueueCore) {
    let moved = sys::set_affinity(there).and_then(|()| sys::set_affinity(afterwards));
    if moved.is_ok() {
        core.stats.repatriated.fetch_add(1, Ordering::Relaxed);
    }
}
