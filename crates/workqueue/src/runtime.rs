//! The runtime: building it, and ending it.

use std::sync::{Arc, Condvar, Mutex as StdMutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tollgate_haltpoll::KeepAwake;
use tollgate_topology::{CpuSet, Scope, Topology};
use tollgate_wakequeue::WorkerId;
use tollgate_wakequeue::sync::{AtomicBool, Ordering};

use crate::blocking::blocking;
use crate::core::Close;
use crate::cpus::{self, Cpus};
use crate::error::{AttributeError, BuildError};
use crate::hooks::Hooks;
use crate::pool::{Pool, SharedClaim};
use crate::queue::QueueBuilder;
use crate::shared::{MAX_SHARD_CAPACITY, Settings, Shared};
use crate::watchdog::Patience;
use crate::{cgroup, context, forked, housekeeper, own_thread, stranded, worker};

/// Queues and the workers that serve them. Dropping it shuts it down.
///
/// ```
/// use tollgate_workqueue::{Runtime, Scope};
///
/// let runtime = Runtime::builder().default_scope(Scope::Cache).build()?;
/// let crypt = runtime.queue("crypt").scope(Scope::Numa).max_active(4).build()?;
/// let sums: Vec<_> =
///     (0..4_u64).map(|n| crypt.spawn(move || (0..=n).sum::<u64>())).collect::<Result<_, _>>()?;
/// let sums: Vec<_> = sums.into_iter().map(|sum| sum.wait()).collect::<Result<_, _>>()?;
/// assert_eq!(sums, [0, 1, 3, 6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Runtime {
    shared: Arc<Shared>,
    housekeeper: StdMutex<Option<JoinHandle<()>>>,
    /// Nobody waits for the workers to end.
    left: AtomicBool,
    ended: Arc<Ended>,
}

/// Whether the last thread of a runtime has ended, and a place to wait for that.
#[derive(Default)]
struct Ended {
    yes: StdMutex<bool>,
    told: Condvar,
}

impl Ended {
    fn tell(&self) {
        *self.yes.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }

    fn wait(&self) {
        let yes = self.yes.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.told.wait_while(yes, |yes| !*yes));
    }
}

/// A runtime to be.
#[derive(Clone, Debug)]
#[must_use = "call build()"]
pub struct Builder {
    pub(crate) settings: Settings,
    topology: Option<Topology>,
    default_scope: Option<Scope>,
    pub(crate) cpumask: Option<CpuSet>,
}

impl Runtime {
    /// Starts to describe a runtime. Its defaults are good ones.
    pub fn builder() -> Builder {
        Builder {
            settings: Settings {
                concurrency: None,
                sharded: true,
                spin: Duration::from_micros(50),
                shard_capacity: None,
                max_workers: None,
                retire_after: Some(Duration::from_secs(300)),
                patience: Patience {
                    cpu_intensive: Duration::from_millis(10),
                    mayday: Duration::from_millis(10),
                    report: Duration::from_secs(30),
                },
                hooks: Hooks::default(),
                keep_awake: None,
            },
            topology: None,
            default_scope: None,
            cpumask: None,
        }
    }

    /// Starts to describe a queue.
    pub fn queue(&self, name: &str) -> QueueBuilder<'_> {
        QueueBuilder::new(&self.shared, name)
    }

    /// The machine as the runtime sees it.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.shared.topology
    }

    /// Sets how long workers search for work before they sleep, those of pools to come too. Zero on
    /// battery, or where CPUs are shared with others.
    pub fn set_spin(&self, spin: Duration) {
        self.shared.set_spin(spin);
    }

    /// Refuses new items, forgets delayed ones, runs what is queued and ends the workers. Items
    /// that queue further items are refused too. Called from inside an item of this runtime, or a
    /// hook on one of its threads, it returns at once and leaves the rest to a thread of its own.
    /// Whoever else calls it waits for the end, also when somebody called it before.
    ///
    /// Where a pool has no worker because the system starts no thread, what waits there is run by the
    /// thread that ends the runtime, as a rule the one that called this.
    pub fn shutdown(&self) {
        forked::check(self.shared.id.generation());
        self.shared.shut_down();
        let inside = context::is_inside_runtime(self.shared.id);
        let housekeeper = self.housekeeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if housekeeper.is_some() {
            self.refuse_items();
        }
        match housekeeper {
            Some(housekeeper) if inside => self.end_elsewhere(housekeeper),
            // The caller may be an item of another runtime.
            Some(housekeeper) => blocking(|| end(&self.shared, housekeeper, &self.ended)),
            None if inside || self.left.load(Ordering::SeqCst) => {}
            None => blocking(|| self.ended.wait()),
        }
    }

    /// As [`shutdown`](Self::shutdown), for so long at most. True when everything that was queued
    /// has been run and the workers have ended.
    ///
    /// Otherwise nobody waits any more, dropping the runtime included: what is queued is still run,
    /// and the workers end after it, if the program lives that long. From inside an item it waits
    /// in vain for that item.
    pub fn shutdown_timeout(&self, timeout: Duration) -> bool {
        forked::check(self.shared.id.generation());
        let start = Instant::now();
        self.shared.shut_down();
        self.refuse_items();
        let queues = self.shared.all_queues();
        while queues.iter().any(|queue| queue.in_flight.totals().0 > 0) {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                self.leave();
                return false;
            }
            blocking(|| thread::sleep(left.min(Duration::from_millis(1))));
        }
        self.shutdown();
        true
    }

    /// Closes all queues for good, and forgets what is delayed.
    fn refuse_items(&self) {
        for queue in self.shared.all_queues() {
            queue.close(Close::Shut);
        }
        self.shared.timer.clear();
    }

    /// Has a thread of its own wait for the end, or nobody.
    fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
        let housekeeper = self.housekeeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(housekeeper) = housekeeper {
            self.end_elsewhere(housekeeper);
        }
    }

    fn end_elsewhere(&self, housekeeper: JoinHandle<()>) {
        let (shared, ended) = (Arc::clone(&self.shared), Arc::clone(&self.ended));
        let ending = thread::Builder::new().name(shared.settings.hooks.name("end"));
        let started = ending.spawn(move || {
            // What it drops may own the runtime.
            own_thread::mark(shared.id);
            end(&shared, housekeeper, &ended);
        });
        if let Err(error) = started {
            // The workers run what is queued, and then sleep until the process ends.
            tracing::warn!(%error, "a runtime that was shut down keeps its threads");
            self.ended.tell();
        }
    }

    /// In a copy of the process there are no threads to end. Nor to detach, which is what dropping a
    /// handle does: the C library gives the memory of the parent's threads to new ones, so that
    /// would detach somebody else.
    #[expect(clippy::mem_forget, reason = "dropping it is what must not happen")]
    fn forget_threads(&mut self) {
        let housekeeper = self.housekeeper.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(housekeeper.take());
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if forked::is_copy(self.shared.id.generation()) {
            self.forget_threads();
        } else if !self.left.load(Ordering::SeqCst) {
            self.shutdown();
        }
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Builder {
    /// The machine to place on; the real one otherwise. A synthetic topology must name CPUs that
    /// exist, or workers run without affinity.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = Some(topology);
        self
    }

    /// The scope of queues that do not choose: otherwise what the variable
    /// [`SCOPE_VARIABLE`](crate::SCOPE_VARIABLE) names, otherwise `cache`.
    pub fn default_scope(mut self, scope: Scope) -> Self {
        self.default_scope = Some(scope);
        self
    }

    /// False puts one FIFO where there would be several, for comparison.
    pub fn sharded(mut self, sharded: bool) -> Self {
        self.settings.sharded = sharded;
        self
    }

    /// How long a worker searches before it sleeps: 50 us by default, four seconds at most. Zero on
    /// battery, or where CPUs are shared with others.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.settings.spin = spin;
        self
    }

    /// Keeps CPUs from halting while workers are woken again and again, at most 0.4 ms apart. For
    /// machines where waking a CPU is slow, such as virtual ones; see [`KeepAwake`]. A program that
    /// serves several things has one `KeepAwake` for all of them. Left out, CPUs halt as they like.
    ///
    /// It costs a worker nothing for each item, and some nanoseconds each time it was asleep.
    pub fn keep_awake(mut self, keep_awake: Arc<KeepAwake>) -> Self {
        self.settings.keep_awake = Some(keep_awake);
        self
    }

    /// Items per shard (64 bytes each), a power of two. By default the shards of a pool hold 65,536
    /// together, each from 512 to 8,192. When a shard is full, the queue's
    /// [`WhenFull`](crate::WhenFull) decides.
    pub fn shard_capacity(mut self, items: usize) -> Self {
        self.settings.shard_capacity = Some(items);
        self
    }

    /// The most workers of a pool (of each pod, when strict): by default four per CPU, at least
    /// 32. A pool has one per CPU and grows beyond that while workers are blocked; at the maximum,
    /// items wait.
    pub fn max_workers(mut self, workers: u16) -> Self {
        self.settings.max_workers = Some(workers);
        self
    }

    /// How long a worker is idle before its thread ends: five minutes by default. One per shard
    /// stays.
    pub fn retire_after(mut self, idle: Duration) -> Self {
        self.settings.retire_after = Some(idle);
        self
    }

    /// How long an item may use its CPU before it stops counting against concurrency: 10 ms by
    /// default, 1 ms at least. CPU times are brought up to date as often while there is work, and
    /// once a second at least.
    pub fn cpu_intensive_after(mut self, time: Duration) -> Self {
        self.settings.patience.cpu_intensive = time;
        self
    }

    /// How long a pool may stand still before rescuers are called: 10 ms by default. While there is
    /// work and any queue has a rescuer, pools are looked at that often, every millisecond at most
    /// and every second at least; so rescuers come after one to three times as long.
    pub fn mayday_after(mut self, time: Duration) -> Self {
        self.settings.patience.mayday = time;
        self
    }

    /// How long a pool may stand still before that is reported: 30 s by default.
    pub fn watchdog_after(mut self, time: Duration) -> Self {
        self.settings.patience.report = time;
        self
    }

    /// Starts the runtime. Workers are started when there is work.
    ///
    /// # Errors
    /// A setting is out of range; the machine could not be understood; no thread could be started.
    pub fn build(mut self) -> Result<Runtime, BuildError> {
        self.settings.check()?;
        let concurrency = self.settings.concurrency.or_else(concurrency_from_quota);
        self.settings.concurrency = concurrency;
        let default_scope = match self.default_scope {
            Some(scope) => scope,
            None => cpus::scope_from_environment()?.unwrap_or(Scope::Cache),
        };
        let watched = self.topology.is_none();
        let topology = match self.topology {
            Some(topology) => topology,
            None => Topology::current()?,
        };
        if let Some(cpus) = &self.cpumask {
            topology.check_mask(cpus).map_err(AttributeError::from)?;
        }
        let cpus = Cpus::new(&topology, watched, self.cpumask, default_scope);
        let shared = Shared::new(topology, cpus, self.settings, start_worker);
        let housekeeper = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name(shared.settings.hooks.name("housekeeper"))
                .spawn(move || housekeeper::serve(&shared))
                .map_err(BuildError::Thread)?
        };
        Ok(Runtime {
            shared,
            housekeeper: StdMutex::new(Some(housekeeper)),
            left: AtomicBool::new(false),
            ended: Arc::default(),
        })
    }
}

/// As many items at once as the control groups leave CPUs, rounded up.
fn concurrency_from_quota() -> Option<u16> {
    let quota = cgroup::quota_cpus()?.ceil();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    Some(quota.clamp(1.0, f64::from(u16::MAX)) as u16)
}

/// Starts a worker's thread, for pools.
fn start_worker(
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    id: WorkerId,
    claim: SharedClaim,
) -> std::io::Result<JoinHandle<()>> {
    let name = format!("{}.{}", pool.number, id.0);
    let (hooks, runtime) = (pool.hooks.clone(), shared.id);
    hooks.start(&name, runtime, move || worker::serve(&shared, &pool, &claim))
}

/// Waits until all queues are empty, and for all threads. Nothing is queued any more.
fn end(shared: &Shared, housekeeper: JoinHandle<()>, ended: &Ended) {
    let queues = shared.all_queues();
    stranded::run_out(shared, &queues);
    for queue in &queues {
        let rescuer = queue.rescuer.lock().take();
        if let Some(rescuer) = rescuer {
            rescuer.stop_and_wait();
        }
    }
    // Before the pools, because it starts workers, which those wait for.
    shared.alarm.stop();
    // The housekeeper runs no user code and does not panic by itself.
    drop(housekeeper.join());
    shared.pools().iter().for_each(|pool| pool.close());
    shared.timer.clear();
    ended.tell();
}

impl Settings {
    fn check(&self) -> Result<(), BuildError> {
        let fail = |setting, value: u128, expected| {
            let value = u64::try_from(value).unwrap_or(u64::MAX);
            Err(BuildError::Setting { setting, value, expected })
        };
        let capacity = self.shard_capacity.unwrap_or(MAX_SHARD_CAPACITY);
        let range = tollgate_wakequeue::MIN_CAPACITY..=tollgate_wakequeue::MAX_CAPACITY;
        if !capacity.is_power_of_two() || !range.contains(&capacity) {
            return fail(
                "shard_capacity",
                capacity as u128,
                "must be a power of two from 2 to 2^24",
            );
        }
        if self.max_workers == Some(0) {
            return fail("max_workers", 0, "must be from 1 to 65535");
        }
        if self.concurrency == Some(0) {
            return fail("concurrency", 0, "must be from 1 to 65535");
        }
        if self.patience.cpu_intensive < Duration::from_millis(1) {
            let micros = self.patience.cpu_intensive.as_micros();
            return fail("cpu_intensive_after (us)", micros, "must be 1000 or more");
        }
        self.hooks.check()
    }
}
