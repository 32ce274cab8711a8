//! The one thread that watches the clock: delayed items, CPU accounting, hogs, stalls.
//!
//! While no item is delayed and no worker has anything to do it sleeps without a timeout, so that
//! an idle runtime costs nothing. A worker that wakes up arms it; it then ticks until a tick finds
//! everything idle.

#![expect(unsafe_code, reason = "workers show their queue by pointer")]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tollgate_wakequeue::sync::{AtomicBool, AtomicU64, Futex, Ordering};
use tollgate_wakequeue::{ShardId, WorkerId};

use crate::core::QueueCore;
use crate::item::Ticket;
use crate::pool::{Desk, Pool};
use crate::runtime::Shared;
use crate::shares::account;
use crate::work::WorkCore;
use crate::{SubmitError, sys};

/// The most items that wait for their time; more are refused.
pub const MAX_DELAYED: usize = 65_536;

pub(crate) struct Keeper {
    bell: Futex,
    armed: AtomicBool,
    stop: AtomicBool,
    timers: StdMutex<Timers>,
    watch: StdMutex<Watch>,
    next_timer: AtomicU64,
    /// Stalls that the watchdog reported.
    pub(crate) stalls: AtomicU64,
}

type Timers = BTreeMap<(Instant, u64), (Arc<WorkCore>, Ticket)>;

/// What the latest tick saw.
#[derive(Default)]
struct Watch {
    /// By pool and worker: turn, and CPU time so far.
    workers: HashMap<(usize, u32), Seen>,
    /// By pool: since when nothing moved though work waited, and whether that was reported.
    stalled: HashMap<usize, (Instant, bool)>,
}

#[derive(Clone, Copy)]
struct Seen {
    turn: u64,
    since: Instant,
    cpu_ns: u64,
    thread: u32,
}

/// What a look at a pool found.
#[derive(Default)]
struct Found {
    moved: bool,
    busy: bool,
}

impl Keeper {
    pub(crate) fn new() -> Self {
        Self {
            bell: Futex::new(0),
            armed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            timers: StdMutex::default(),
            watch: StdMutex::default(),
            next_timer: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
        }
    }

    /// There is something to watch. One load when that is known already.
    #[inline]
    pub(crate) fn arm(&self) {
        // After the claim of the worker that calls this; see `tick`.
        if !self.armed.load(Ordering::SeqCst) {
            self.armed.store(true, Ordering::SeqCst);
            self.ring();
        }
    }

    fn ring(&self) {
        self.bell.word().fetch_add(1, Ordering::SeqCst);
        self.bell.wake(1);
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Delivers a ticket after `delay`.
    pub(crate) fn delay(
        &self,
        delay: Duration,
        work: &Arc<WorkCore>,
        ticket: Ticket,
    ) -> Result<(), SubmitError> {
        let when = Instant::now().checked_add(delay).ok_or(SubmitError::Delay(delay))?;
        let mut timers = self.timers();
        if timers.len() >= MAX_DELAYED {
            timers.retain(|_, (work, ticket)| work.state.awaits_timer(*ticket));
            if timers.len() >= MAX_DELAYED {
                return Err(SubmitError::TooManyDelayed(timers.len()));
            }
        }
        let number = self.next_timer.fetch_add(1, Ordering::Relaxed);
        let first = timers.first_key_value().is_none_or(|((first, _), _)| when < *first);
        timers.insert((when, number), (Arc::clone(work), ticket));
        drop(timers);
        if first {
            self.ring();
        }
        Ok(())
    }

    /// Forgets all delayed items: the runtime is going away.
    pub(crate) fn clear_delayed(&self) {
        let timers = std::mem::take(&mut *self.timers());
        for (work, _) in timers.into_values() {
            work.state.cancel();
        }
    }

    /// Delayed items now waiting.
    pub(crate) fn delayed(&self) -> usize {
        self.timers().values().filter(|(work, ticket)| work.state.awaits_timer(*ticket)).count()
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keeper's thread.
    pub(crate) fn serve(&self, shared: &Shared) {
        let mut last_tick = Instant::now();
        let mut last_look = false;
        loop {
            let rings = self.bell.word().load(Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let next_timer = self.expire();
            let tick = shared.settings.cpu_intensive_after;
            let ticking = self.armed.load(Ordering::SeqCst) || last_look;
            if ticking && last_tick.elapsed() >= tick {
                last_tick = Instant::now();
                // One more look, a tick later, gives the queues what workers used before they slept.
                last_look = self.tick(shared);
            }
            let ticking = self.armed.load(Ordering::SeqCst) || last_look;
            let next_tick = ticking.then(|| last_tick + tick);
            let next = [next_timer, next_tick].into_iter().flatten().min();
            let sleep = next.map(|next| next.saturating_duration_since(Instant::now()));
            if sleep != Some(Duration::ZERO) {
                self.bell.wait(rings, sleep);
            }
        }
    }

    /// Queues what is due. Returns when the next one will be.
    fn expire(&self) -> Option<Instant> {
        loop {
            let mut timers = self.timers();
            let (&key, _) = timers.first_key_value()?;
            if key.0 > Instant::now() {
                return Some(key.0);
            }
            let due = timers.remove(&key);
            drop(timers);
            if let Some((work, ticket)) = due
                && work.state.expire(ticket)
            {
                work.deliver_or_cancel(ticket);
            }
        }
    }

    /// One round over the workers: who runs what, for how long. True when this round disarmed the
    /// keeper.
    ///
    /// It disarms before it looks. A worker counts as active from its claim on, and looks at `armed`
    /// after that; so either it sees the keeper disarmed and arms it, or it is seen here.
    fn tick(&self, shared: &Shared) -> bool {
        let was_armed = self.armed.swap(false, Ordering::SeqCst);
        let mut busy = false;
        for pool in shared.pools() {
            let found = self.look_at(shared, &pool);
            busy |= found.busy || pool.has_backlog() || pool.queue.has_active_workers();
            self.watch_progress(shared, &pool, &found);
        }
        if busy {
            self.armed.store(true, Ordering::SeqCst);
        }
        was_armed && !busy
    }

    /// Brings the CPU times of the queues up to date.
    pub(crate) fn account(&self, shared: &Shared) {
        for pool in shared.pools() {
            self.look_at(shared, &pool);
        }
    }

    fn look_at(&self, shared: &Shared, pool: &Pool) -> Found {
        let mut found = Found::default();
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, desk) in (0_u32..).zip(&pool.desks) {
            let thread = desk.thread.load(Ordering::Relaxed);
            if thread == 0 {
                continue;
            }
            let turn = desk.turn.load(Ordering::Acquire);
            let now =
                Seen { turn, since: Instant::now(), cpu_ns: sys::cpu_time_ns(thread), thread };
            let before = watch.workers.get(&(pool.number, index)).copied();
            let before = before.filter(|before| before.thread == thread);
            // SAFETY: null, or a queue, which lives until all workers are gone.
            let queue = unsafe { desk.queue.load(Ordering::Relaxed).as_ref() };
            let used_ns = now.cpu_ns.saturating_sub(before.map_or(0, |before| before.cpu_ns));
            let stuck = before.filter(|before| before.turn == turn);
            match queue {
                // One item all the time, or none since the last one: the worker does not account.
                Some(queue) if stuck.is_some() => {
                    let rest_ns = account(thread, &desk.accounted_ns);
                    queue.stats.cpu_ns.fetch_add(rest_ns, Ordering::Relaxed);
                }
                _ => desk.accounts_due.store(true, Ordering::Relaxed),
            }
            let since = stuck.map_or(now.since, |before| before.since);
            watch.workers.insert((pool.number, index), Seen { since, ..now });
            found.busy |= turn & 1 == 1;
            found.moved |= stuck.is_none();
            if turn & 1 == 1 && since.elapsed() >= shared.settings.cpu_intensive_after {
                // An item that only sleeps uses no CPU and is not a hog.
                let burning = used_ns > 0 && !desk.blocking.load(Ordering::Relaxed);
                if burning && let Some(queue) = queue {
                    discount_hog(pool, desk, WorkerId(index), queue);
                }
            }
        }
        found
    }

    fn watch_progress(&self, shared: &Shared, pool: &Pool, found: &Found) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if found.moved || !pool.has_backlog() {
            watch.stalled.remove(&pool.number);
            return;
        }
        let (since, reported) =
            watch.stalled.entry(pool.number).or_insert_with(|| (Instant::now(), false));
        let stalled = since.elapsed();
        let report = !*reported && stalled >= shared.settings.watchdog_after;
        *reported |= report;
        drop(watch);
        if report {
            self.stalls.fetch_add(1, Ordering::Relaxed);
            let (pool, millis) = (pool.number, stalled.as_millis());
            tracing::warn!(pool, millis, "workqueue pool makes no progress though work waits");
        }
        if stalled >= shared.settings.mayday_after {
            call_rescuers(shared, pool);
        }
    }
}

/// The item stops counting against concurrency: another worker may run beside it.
fn discount_hog(pool: &Pool, desk: &Desk, worker: WorkerId, queue: &QueueCore) {
    if desk.hogging.swap(true, Ordering::Relaxed) {
        return;
    }
    let home = u16::try_from(desk.home.load(Ordering::Relaxed)).unwrap_or(0);
    if pool.queue.discount(worker, ShardId(home), |claim| pool.grow(claim)) {
        queue.stats.concurrency_wakes.fetch_add(1, Ordering::Relaxed);
    }
    let hogs = queue.stats.cpu_intensive.fetch_add(1, Ordering::Relaxed) + 1;
    if hogs.is_power_of_two() {
        tracing::warn!(queue = queue.name(), hogs, "cpu-intensive items hog a worker");
    }
}

fn call_rescuers(shared: &Shared, pool: &Pool) {
    for queue in shared.live_queues() {
        let rescuer = queue.rescuer.lock().clone();
        if let Some(rescuer) = rescuer
            && std::ptr::eq(queue.pool(), pool)
            && queue.waiting().1 > 0
        {
            queue.stats.mayday.fetch_add(1, Ordering::Relaxed);
            rescuer.call();
        }
    }
}
