//! The runtime: pools, queues and the keeper, and the settings they share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tollgate_topology::{Scope, Topology};
use tollgate_wakequeue::Config;
use tollgate_wakequeue::sync::{AtomicBool, Ordering};

use crate::attributes::{MAX_MAX_ACTIVE, MIN_NICE};
use crate::context::RuntimeId;
use crate::core::{Close, QueueCore};
use crate::keeper::Keeper;
use crate::placement::{PlacementKey, Plan, PlanError, node_index, node_limits};
use crate::pool::{Pool, PoolKey};
use crate::queue::QueueBuilder;
use crate::rescuer::Rescuer;
use crate::tally::own_seats;
use crate::{AttributeError, Attributes, BuildError};

/// The most queues of a runtime.
pub const MAX_QUEUES: usize = 4096;
/// The most pools: different combinations of scope, strict, localize, cpumask and nice.
pub const MAX_POOLS: usize = 256;
/// What the shards of a pool hold together by default.
const POOL_CAPACITY: usize = 65_536;
const MIN_SHARD_CAPACITY: usize = 512;
const MAX_SHARD_CAPACITY: usize = 8192;
/// The longest name of a queue, in bytes.
pub const MAX_NAME_LEN: usize = 64;

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
    keeper: StdMutex<Option<JoinHandle<()>>>,
}

/// What the runtime, its queues and its workers share.
pub(crate) struct Shared {
    pub(crate) topology: Topology,
    pub(crate) settings: Settings,
    pub(crate) keeper: Keeper,
    registry: StdMutex<Registry>,
    node_of: Arc<[u16]>,
    cpus_by_node: Vec<usize>,
    shut_down: AtomicBool,
    pub(crate) id: RuntimeId,
    pub(crate) started: Instant,
    /// Numbers of seats that no worker has. More workers than seats is no error: the others count in
    /// shared cells.
    seats: StdMutex<Vec<usize>>,
    /// The nice level of the thread that built the runtime: that of workers that did not choose.
    pub(crate) base_nice: i32,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) default_scope: Scope,
    pub(crate) sharded: bool,
    pub(crate) spin: Duration,
    pub(crate) shard_capacity: Option<usize>,
    pub(crate) max_workers: Option<u16>,
    pub(crate) retire_after: Option<Duration>,
    pub(crate) cpu_intensive_after: Duration,
    pub(crate) mayday_after: Duration,
    pub(crate) watchdog_after: Duration,
}

#[derive(Default)]
struct Registry {
    pools: HashMap<PoolKey, Arc<Pool>>,
    /// In the order in which they were made.
    pool_list: Vec<Arc<Pool>>,
    live: HashMap<String, Arc<QueueCore>>,
    /// Dropped by their users. Used again once nothing of theirs is in flight.
    retired: Vec<Arc<QueueCore>>,
}

/// A runtime to be.
#[derive(Clone, Debug)]
#[must_use = "call build()"]
pub struct Builder {
    settings: Settings,
    topology: Option<Topology>,
}

impl Runtime {
    /// Starts to describe a runtime. Its defaults are good ones.
    pub fn builder() -> Builder {
        Builder {
            settings: Settings {
                default_scope: Scope::Cache,
                sharded: true,
                spin: Duration::from_micros(50),
                shard_capacity: None,
                max_workers: None,
                retire_after: Some(Duration::from_secs(300)),
                cpu_intensive_after: Duration::from_millis(10),
                mayday_after: Duration::from_millis(10),
                watchdog_after: Duration::from_secs(30),
            },
            topology: None,
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

    /// Sets how long workers search for work before they sleep. Zero on battery, or where CPUs are
    /// shared with others.
    pub fn set_spin(&self, spin: Duration) {
        for pool in self.shared.pools() {
            pool.queue.set_spin(spin);
        }
    }

    /// Refuses new items, forgets delayed ones, runs what is queued and ends the workers. Items
    /// that queue further items are refused too. Called from inside an item, it does not wait for
    /// the items that are running.
    pub fn shutdown(&self) {
        let shared = &self.shared;
        shared.shut_down.store(true, Ordering::SeqCst);
        shared.keeper.clear_delayed();
        let queues = shared.all_queues();
        for queue in &queues {
            queue.close(Close::Shut);
        }
        if !crate::context::is_worker() {
            queues.iter().for_each(|queue| queue.tally.flush());
        }
        for queue in &queues {
            let rescuer = queue.rescuer.lock().take();
            if let Some(rescuer) = rescuer {
                rescuer.stop();
            }
        }
        shared.pools().iter().for_each(|pool| pool.close());
        shared.keeper.stop();
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            // The keeper's thread runs no user code and does not panic by itself.
            drop(keeper.join());
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shutdown();
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

    /// The scope of queues that do not choose.
    pub fn default_scope(mut self, scope: Scope) -> Self {
        self.settings.default_scope = scope;
        self
    }

    /// False puts one FIFO where there would be several, for comparison.
    pub fn sharded(mut self, sharded: bool) -> Self {
        self.settings.sharded = sharded;
        self
    }

    /// How long a worker searches before it sleeps: 50 us by default. Zero on battery, or where
    /// CPUs are shared with others.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.settings.spin = spin;
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
    /// default. CPU times are brought up to date as often while there is work.
    pub fn cpu_intensive_after(mut self, time: Duration) -> Self {
        self.settings.cpu_intensive_after = time;
        self
    }

    /// How long a pool may stand still before rescuers are called: 10 ms by default.
    pub fn mayday_after(mut self, time: Duration) -> Self {
        self.settings.mayday_after = time;
        self
    }

    /// How long a pool may stand still before that is reported: 30 s by default.
    pub fn watchdog_after(mut self, time: Duration) -> Self {
        self.settings.watchdog_after = time;
        self
    }

    /// Starts the runtime. Workers are started when there is work.
    ///
    /// # Errors
    /// A setting is out of range; the machine could not be understood; no thread could be started.
    pub fn build(self) -> Result<Runtime, BuildError> {
        self.settings.check()?;
        let topology = match self.topology {
            Some(topology) => topology,
            None => Topology::current()?,
        };
        let (cpus_by_node, node_of) = node_index(&topology);
        // The lowest number is handed out first.
        let seats = (0..own_seats(counting_threads(&topology))).rev().collect();
        let shared = Arc::new(Shared {
            topology,
            settings: self.settings,
            keeper: Keeper::new(),
            registry: StdMutex::default(),
            node_of: node_of.into(),
            cpus_by_node,
            shut_down: AtomicBool::new(false),
            id: RuntimeId::new(),
            started: Instant::now(),
            seats: StdMutex::new(seats),
            base_nice: crate::sys::nice(),
        });
        let keeper = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("workqueue-keeper".to_owned())
                .spawn(move || shared.keeper.serve(&shared))
                .map_err(BuildError::Thread)?
        };
        Ok(Runtime { shared, keeper: StdMutex::new(Some(keeper)) })
    }
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
        if self.cpu_intensive_after < Duration::from_millis(1) {
            let micros = self.cpu_intensive_after.as_micros();
            return fail("cpu_intensive_after (us)", micros, "must be 1000 or more");
        }
        Ok(())
    }
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pools(&self) -> Vec<Arc<Pool>> {
        self.registry().pool_list.clone()
    }

    pub(crate) fn live_queue(&self, name: &str) -> Option<Arc<QueueCore>> {
        self.registry().live.get(name).cloned()
    }

    /// The queues that users hold, by name.
    pub(crate) fn live_queues(&self) -> Vec<Arc<QueueCore>> {
        let mut queues: Vec<_> = self.registry().live.values().cloned().collect();
        queues.sort_by_key(|queue| queue.name());
        queues
    }

    fn all_queues(&self) -> Vec<Arc<QueueCore>> {
        let registry = self.registry();
        registry.live.values().chain(&registry.retired).cloned().collect()
    }

    /// A seat of its own for a worker, while there are any.
    pub(crate) fn take_seat(&self) -> Option<usize> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// The worker that had this seat counts no more.
    pub(crate) fn give_seat(&self, number: usize) {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::SeqCst)
    }

    /// The scope of a queue with these attributes.
    pub(crate) fn scope_of(&self, attributes: &Attributes) -> Scope {
        attributes.affinity_scope.unwrap_or(self.settings.default_scope)
    }

    pub(crate) fn add_queue(
        self: &Arc<Self>,
        builder: &QueueBuilder<'_>,
    ) -> Result<Arc<QueueCore>, BuildError> {
        let identity = &builder.identity;
        check_name(&identity.name)?;
        if identity.capacity == 0 || identity.capacity > 1 << 24 {
            return Err(BuildError::Setting {
                setting: "backlog",
                value: identity.capacity as u64,
                expected: "must be from 1 to 2^24",
            });
        }
        let mut attributes = builder.attributes.clone();
        check_kind(identity.ordered, identity.high_priority, &identity.name, &mut attributes)?;
        attributes.check(&self.topology)?;
        let mut registry = self.registry();
        if self.is_shut_down() {
            return Err(BuildError::ShutDown);
        }
        if registry.live.contains_key(&identity.name) {
            return Err(BuildError::NameTaken(identity.name.clone()));
        }
        if registry.live.len() >= MAX_QUEUES {
            return Err(BuildError::TooManyQueues);
        }
        let pool = self.pool_for(&mut registry, &attributes)?;
        let core = self.take_core(&mut registry, builder, &pool);
        if builder.rescuer {
            *core.rescuer.lock() = Some(Rescuer::start(&core).map_err(BuildError::Thread)?);
        }
        self.limit(&core, &attributes, &pool);
        *core.attributes.lock() = attributes;
        registry.live.insert(identity.name.clone(), Arc::clone(&core));
        Ok(core)
    }

    /// A retired queue of which nothing is left, made as good as new; or a new one.
    fn take_core(
        &self,
        registry: &mut Registry,
        builder: &QueueBuilder<'_>,
        pool: &Arc<Pool>,
    ) -> Arc<QueueCore> {
        let identity = builder.identity.clone();
        let quiet = |queue: &Arc<QueueCore>| queue.tally.totals().0 == 0;
        let Some(index) = registry.retired.iter().position(quiet) else {
            let threads = counting_threads(&self.topology);
            let nodes = self.cpus_by_node.len();
            let core =
                QueueCore::new(self.id, threads, nodes, Arc::clone(&self.node_of), pool, identity);
            core.open(true);
            return Arc::new(core);
        };
        let core = registry.retired.swap_remove(index);
        core.set_capacity(identity.capacity);
        *core.identity.lock() = identity;
        core.stats.reset();
        core.set_pool(pool);
        core.open(true);
        core
    }

    /// The last user of a queue is gone.
    pub(crate) fn retire(&self, core: &Arc<QueueCore>) {
        let rescuer = core.rescuer.lock().take();
        let mut registry = self.registry();
        let name = core.name();
        if registry.live.get(&name).is_some_and(|live| Arc::ptr_eq(live, core)) {
            registry.live.remove(&name);
            registry.retired.push(Arc::clone(core));
        }
        drop(registry);
        if let Some(rescuer) = rescuer {
            rescuer.stop();
        }
    }

    /// Changes the attributes of a queue, or nothing.
    pub(crate) fn apply(
        self: &Arc<Self>,
        core: &Arc<QueueCore>,
        change: impl FnOnce(&mut Attributes) -> Result<(), AttributeError>,
    ) -> Result<(), AttributeError> {
        // Held over the whole change, so that two changes do not mix.
        let _changing = core.changing.lock();
        let mut attributes = core.attributes.lock().clone();
        change(&mut attributes)?;
        let identity = core.identity.lock().clone();
        check_kind(identity.ordered, identity.high_priority, &identity.name, &mut attributes)?;
        attributes.check(&self.topology)?;
        let pool = self.pool_for(&mut self.registry(), &attributes)?;
        core.set_pool(&pool);
        self.limit(core, &attributes, &pool);
        *core.attributes.lock() = attributes;
        Ok(())
    }

    fn limit(&self, core: &QueueCore, attributes: &Attributes, pool: &Pool) {
        let ordered = core.identity.lock().ordered;
        let rescued = core.rescuer.lock().is_some();
        let ceiling = u32::try_from(pool.desks.len()).unwrap_or(u32::MAX);
        let limits = match attributes.max_active {
            _ if ordered => Some(vec![1; self.cpus_by_node.len()]),
            // A limit that the pool cannot reach needs no gate.
            Some(limit) if limit < ceiling => Some(node_limits(limit, &self.cpus_by_node)),
            _ => None,
        };
        core.set_limits(limits.as_deref(), rescued);
    }

    fn pool_for(
        self: &Arc<Self>,
        registry: &mut Registry,
        attributes: &Attributes,
    ) -> Result<Arc<Pool>, AttributeError> {
        let cpumask = attributes.cpumask.clone().unwrap_or_else(|| self.topology.allowed().clone());
        let placement = PlacementKey {
            scope: self.scope_of(attributes),
            strict: attributes.affinity_strict,
            cpumask,
        };
        let key = PoolKey { placement, localize: attributes.localize, nice: attributes.nice };
        if let Some(pool) = registry.pools.get(&key) {
            return Ok(Arc::clone(pool));
        }
        if registry.pool_list.len() >= MAX_POOLS {
            return Err(AttributeError::TooManyPools);
        }
        let number = registry.pool_list.len();
        let pool = self.new_pool(key.clone(), number)?;
        registry.pools.insert(key, Arc::clone(&pool));
        registry.pool_list.push(Arc::clone(&pool));
        Ok(pool)
    }

    fn new_pool(
        self: &Arc<Self>,
        key: PoolKey,
        number: usize,
    ) -> Result<Arc<Pool>, AttributeError> {
        let plan =
            Plan::new(&self.topology, &key.placement, self.settings.sharded).map_err(plan_error)?;
        let cpus = key.placement.cpumask.len();
        let workers = self.settings.max_workers.unwrap_or_else(|| {
            let pods = if key.placement.strict { plan.pods.len() } else { 1 };
            u16::try_from((4 * cpus / pods).clamp(32, 4096)).unwrap_or(4096)
        });
        let config = Config {
            shard_capacity: self.settings.shard_capacity.unwrap_or_else(|| {
                let share = POOL_CAPACITY / plan.shards.len();
                share.next_power_of_two().clamp(MIN_SHARD_CAPACITY, MAX_SHARD_CAPACITY)
            }),
            max_workers: workers,
            spin: self.settings.spin,
            retire_after: self.settings.retire_after,
            ..Config::default()
        };
        Pool::new(key, plan, config, number, Arc::downgrade(self))
            .map_err(|error| plan_error(PlanError::Layout(error)))
    }
}

fn plan_error(error: PlanError) -> AttributeError {
    match error {
        PlanError::Mask(mask) => mask.into(),
        PlanError::Layout(layout) => AttributeError::Layout(layout),
    }
}

/// What the constructor decided cannot be changed by attributes.
fn check_kind(
    ordered: bool,
    high_priority: bool,
    queue: &str,
    attributes: &mut Attributes,
) -> Result<(), AttributeError> {
    let queue = || queue.to_owned();
    if ordered && attributes.max_active.is_some_and(|limit| limit != 1) {
        return Err(match attributes.max_active {
            Some(limit) if limit == 0 || limit > MAX_MAX_ACTIVE => AttributeError::MaxActive(limit),
            _ => AttributeError::Ordered { queue: queue() },
        });
    }
    if high_priority {
        if attributes.nice != 0 && attributes.nice != MIN_NICE {
            return Err(AttributeError::HighPriority { queue: queue() });
        }
        attributes.nice = MIN_NICE;
    }
    Ok(())
}

/// How many threads are expected to count at once: a worker per CPU, and as many blocked or of another
/// pool.
fn counting_threads(topology: &Topology) -> usize {
    2 * topology.allowed().len()
}

fn check_name(name: &str) -> Result<(), BuildError> {
    let odd = |c: char| c.is_control() || c.is_whitespace() || c == '=';
    if name.is_empty() || name.len() > MAX_NAME_LEN || name.contains(odd) {
        return Err(BuildError::Name(name.to_owned()));
    }
    Ok(())
}
