//! Looking at what the workers do: CPU accounting, items that use the CPU for too long, pods that
//! make no progress.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use tollgate_wakequeue::sync::{AtomicU64, Ordering};
use tollgate_wakequeue::{PodIndex, ShardId, WorkerId};

use crate::core::QueueCore;
use crate::cpu_accounts::account;
use crate::pool::{Pool, WorkerSlot};
use crate::queue_ref::QueueRef;
use crate::sys;

/// When something is too long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) cpu_intensive: Duration,
    pub(crate) mayday: Duration,
    pub(crate) report: Duration,
}

/// What the looks before saw.
#[derive(Default)]
pub(crate) struct Watchdog {
    seen: StdMutex<Seen>,
    /// Stalls that were reported.
    pub(crate) stalls: AtomicU64,
}

#[derive(Default)]
struct Seen {
    /// By pool and worker.
    workers: HashMap<(usize, u32), SeenWorker>,
    /// By pool and pod.
    pods: HashMap<(usize, u16), SeenPod>,
}

#[derive(Clone, Copy)]
struct SeenWorker {
    turn: u64,
    forked: u64,
    /// CPU time of the thread when this turn was first seen.
    cpu_at_turn_ns: u64,
    cpu_ns: u64,
    thread: u32,
}

struct SeenPod {
    /// Items taken from its shards.
    taken: u64,
    /// Since when nothing moved though work waited.
    since: Instant,
    reported: bool,
}

/// What a look found.
#[derive(Default)]
pub(crate) struct Found {
    /// Somebody works, or something waits.
    pub(crate) busy: bool,
    /// Numbers of the pools that have a pod which makes no progress.
    pub(crate) stalled: Vec<usize>,
}

impl Watchdog {
    /// A look at all pools.
    pub(crate) fn look(&self, pools: &[Arc<Pool>], patience: &Patience) -> Found {
        let mut found = Found::default();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for pool in pools {
            let (busy, moved) = seen.look_at_workers(pool, patience.cpu_intensive);
            found.busy |= busy || pool.has_backlog() || pool.queue.has_active_workers();
            if self.look_at_pods(&mut seen, pool, &moved, patience) {
                found.stalled.push(pool.number);
            }
        }
        found
    }

    /// Brings the CPU times of the queues up to date.
    pub(crate) fn account(&self, pools: &[Arc<Pool>], patience: &Patience) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for pool in pools {
            seen.look_at_workers(pool, patience.cpu_intensive);
        }
    }

    /// True when a pod stands still for so long that rescuers shall be called. One pod's progress
    /// says nothing about another: the stuck one may be strict.
    fn look_at_pods(
        &self,
        seen: &mut Seen,
        pool: &Pool,
        moved: &[bool],
        patience: &Patience,
    ) -> bool {
        let mut mayday = false;
        for (number, &moved) in (0_u16..).zip(moved) {
            let pod = PodIndex(number);
            let taken = pool.queue.taken_from(pod);
            let before = seen.pods.get(&(pool.number, number));
            let stands =
                !moved && !pool.queue.is_pod_empty(pod) && before.is_none_or(|b| b.taken == taken);
            if !stands {
                let now = SeenPod { taken, since: Instant::now(), reported: false };
                seen.pods.insert((pool.number, number), now);
                continue;
            }
            let new = || SeenPod { taken, since: Instant::now(), reported: false };
            let pod = seen.pods.entry((pool.number, number)).or_insert_with(new);
            let stalled = pod.since.elapsed();
            if !pod.reported && stalled >= patience.report {
                pod.reported = true;
                self.stalls.fetch_add(1, Ordering::Relaxed);
                let (pool, pod, millis) = (pool.number, number, stalled.as_millis());
                tracing::warn!(pool, pod, millis, "a pod makes no progress though work waits");
            }
            mayday |= stalled >= patience.mayday;
        }
        mayday
    }
}

impl Seen {
    /// Whether any worker runs an item, and by pod, whether one of its workers moved on.
    fn look_at_workers(&mut self, pool: &Pool, cpu_intensive: Duration) -> (bool, Vec<bool>) {
        let mut busy = false;
        let mut moved = vec![false; pool.plan.layout.pods()];
        for (number, worker_slot) in (0_u32..).zip(&pool.worker_slots) {
            let thread = worker_slot.thread.load(Ordering::Relaxed);
            if thread == 0 {
                self.workers.remove(&(pool.number, number));
                continue;
            }
            let same = self.look_at_worker(pool, number, worker_slot, thread, cpu_intensive);
            let home =
                ShardId(u16::try_from(worker_slot.home.load(Ordering::Relaxed)).unwrap_or(0));
            moved[pool.plan.layout.pod_of(home).index()] |= !same;
            busy |= worker_slot.turn.load(Ordering::Acquire) & 1 == 1;
        }
        (busy, moved)
    }

    /// True when the worker is where it was at the look before.
    fn look_at_worker(
        &mut self,
        pool: &Pool,
        number: u32,
        worker_slot: &WorkerSlot,
        thread: u32,
        cpu_intensive: Duration,
    ) -> bool {
        let turn = worker_slot.turn.load(Ordering::Acquire);
        let forked = worker_slot.forked.load(Ordering::Acquire);
        let cpu_ns = sys::cpu_time_ns(thread);
        let before = self.workers.get(&(pool.number, number)).copied();
        let same = before.filter(|b| b.thread == thread && b.turn == turn && b.forked == forked);
        let cpu_at_turn_ns = same.map_or(cpu_ns, |before| before.cpu_at_turn_ns);
        let now = SeenWorker { turn, forked, cpu_at_turn_ns, cpu_ns, thread };
        self.workers.insert((pool.number, number), now);
        let queue =
            NonNull::new(worker_slot.queue.load(Ordering::Relaxed)).map(QueueRef::from_address);
        match (&queue, same) {
            // One item all the time, or none since the last one: the worker does not account.
            (Some(queue), Some(_)) => {
                let rest_ns = account(thread, &worker_slot.accounted_ns);
                queue.core().stats.cpu_ns.fetch_add(rest_ns, Ordering::Relaxed);
            }
            _ => worker_slot.accounts_due.store(true, Ordering::Relaxed),
        }
        // By CPU time: an item that sleeps, or whose thread has to wait for a CPU, takes none away.
        let used_ns = u128::from(cpu_ns.saturating_sub(cpu_at_turn_ns));
        let grows = same.is_some_and(|before| cpu_ns > before.cpu_ns);
        let declared = worker_slot.blocking.load(Ordering::Relaxed);
        let too_long = grows && !declared && used_ns >= cpu_intensive.as_nanos();
        if turn & 1 == 1
            && too_long
            && let Some(queue) = &queue
        {
            leave_out(pool, worker_slot, WorkerId(number), queue.core());
        }
        same.is_some()
    }
}

/// The item stops counting against concurrency: another worker may run beside it.
fn leave_out(pool: &Pool, worker_slot: &WorkerSlot, worker: WorkerId, queue: &QueueCore) {
    if worker_slot.cpu_intensive.swap(true, Ordering::Relaxed) {
        return;
    }
    let home = u16::try_from(worker_slot.home.load(Ordering::Relaxed)).unwrap_or(0);
    if pool.queue.discount(worker, ShardId(home), |claim| pool.grow(claim)) {
        queue.stats.concurrency_wakes.fetch_add(1, Ordering::Relaxed);
    }
    let items = queue.stats.cpu_intensive.fetch_add(1, Ordering::Relaxed) + 1;
    if items.is_power_of_two() {
        tracing::warn!(queue = queue.name(), items, "items use the CPU for long");
    }
}
