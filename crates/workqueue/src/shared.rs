//! What the runtime, its queues and its workers share: the registry of queues and pools, and
//! settings.

mod rescuers;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollgate_haltpoll::KeepAwake;
use tollgate_topology::{CpuSet, Topology};
use tollgate_wakequeue::sync::{AtomicBool, AtomicUsize, Ordering, fence};
use tollgate_wakequeue::{Claim, Config, WorkerId};

use crate::alarm::Alarm;
use crate::attributes::Attributes;
use crate::core::{Identity, QueueCore};
use crate::cpus::Cpus;
use crate::error::{AttributeError, BuildError};
use crate::forked;
use crate::hooks::Hooks;
use crate::in_flight::own_counter_slots;
use crate::maxima::{MAX_MAX_ACTIVE, MAX_NAME_LEN, MAX_POOLS, MAX_QUEUES, MIN_NICE};
use crate::pool::{Pool, PoolKey, PoolParts, SharedClaim};
use crate::runtime_id::RuntimeId;
use crate::sharding::{Plan, PlanError, ShardingKey, node_index, node_limits};
use crate::starts::Starts;
use crate::timer::Timer;
use crate::watchdog::{Patience, Watchdog};

/// What the shards of a pool hold together by default. Miri takes seconds to make as many slots.
const POOL_CAPACITY: usize = if cfg!(miri) { 128 } else { 65_536 };
const MIN_SHARD_CAPACITY: usize = if cfg!(miri) { 64 } else { 512 };
pub(crate) const MAX_SHARD_CAPACITY: usize = 8192;

/// Starts the thread of a worker. The code of workers is above the registry that asks for them.
pub(crate) type StartWorker =
    fn(Arc<Shared>, Arc<Pool>, WorkerId, SharedClaim) -> io::Result<JoinHandle<()>>;

/// A queue that is asked for.
#[derive(Clone, Debug)]
pub(crate) struct NewQueue {
    pub(crate) identity: Identity,
    pub(crate) attributes: Attributes,
    pub(crate) rescuer: bool,
}

/// What the runtime, its queues and its workers share.
///
/// Lock legend: (c) constant while the runtime exists; (a) changed by atomic operations alone; (i)
/// has a lock of its own inside.
pub(crate) struct Shared {
    /// As it was when the runtime was built. (c)
    pub(crate) topology: Topology,
    /// As it is now. (i)
    pub(crate) cpus: Cpus,
    /// (c)
    pub(crate) settings: Settings,
    /// (a)
    pub(crate) alarm: Alarm,
    /// (i)
    pub(crate) timer: Timer,
    /// (i)
    pub(crate) watchdog: Watchdog,
    /// (c)
    start_worker: StartWorker,
    /// Queues, pools, and the time that workers search. (i)
    registry: StdMutex<Registry>,
    /// (c)
    node_of: Arc<[u16]>,
    /// (c)
    nodes: usize,
    /// (a)
    shut_down: AtomicBool,
    /// Queues with a rescuer. (a)
    rescuers: AtomicUsize,
    /// (c)
    pub(crate) id: RuntimeId,
    /// (c)
    pub(crate) started: Instant,
    /// Numbers of counter slots that no worker has. More workers than counter slots is no error:
    /// the others count in shared cells. (i)
    counter_slots: StdMutex<Vec<usize>>,
    /// The nice level of the thread that built the runtime: that of the housekeeper, and of workers
    /// that did not choose. (c)
    base_nice: i32,
    /// Workers for the housekeeper to start. (i)
    pub(crate) starts: Starts<(Arc<Pool>, Claim)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) concurrency: Option<u16>,
    pub(crate) sharded: bool,
    pub(crate) spin: Duration,
    pub(crate) shard_capacity: Option<usize>,
    pub(crate) max_workers: Option<u16>,
    pub(crate) retire_after: Option<Duration>,
    pub(crate) patience: Patience,
    pub(crate) hooks: Hooks,
    pub(crate) keep_awake: Option<Arc<KeepAwake>>,
}

#[derive(Default)]
struct Registry {
    pools: HashMap<PoolKey, Arc<Pool>>,
    /// In the order in which they were made.
    pool_list: Vec<Arc<Pool>>,
    live: HashMap<String, Arc<QueueCore>>,
    /// Dropped by their users. Used again once nothing of theirs is in flight.
    retired: Vec<Arc<QueueCore>>,
    /// Every queue that was ever made; never one less. See `QueueRef`.
    all: Vec<Arc<QueueCore>>,
    /// How long workers search, if that was changed.
    spin: Option<Duration>,
}

impl Registry {
    /// Has the workers of pools end that no queue uses any more. What is left there is run first.
    /// The pool itself stays: whoever queued an item there may still be looking at it.
    fn rest_unused_pools(&self) {
        let used: HashSet<*const Pool> =
            self.live.values().map(|queue| std::ptr::from_ref(queue.pool())).collect();
        for pool in &self.pool_list {
            pool.queue.set_resting(!used.contains(&Arc::as_ptr(pool)));
        }
    }
}

impl Shared {
    pub(crate) fn new(
        topology: Topology,
        cpus: Cpus,
        settings: Settings,
        start_worker: StartWorker,
    ) -> Arc<Self> {
        let (nodes, node_of) = node_index(&topology);
        // The lowest number is handed out first.
        let counter_slots = (0..own_counter_slots(counting_threads(&topology))).rev().collect();
        Arc::new(Self {
            topology,
            cpus,
            settings,
            alarm: Alarm::new(),
            timer: Timer::default(),
            watchdog: Watchdog::default(),
            start_worker,
            registry: StdMutex::default(),
            node_of: node_of.into(),
            nodes,
            shut_down: AtomicBool::new(false),
            rescuers: AtomicUsize::new(0),
            id: RuntimeId::new(),
            started: Instant::now(),
            counter_slots: StdMutex::new(counter_slots),
            base_nice: crate::sys::nice(),
            starts: Starts::new(),
        })
    }

    /// There is something to watch.
    #[inline]
    pub(crate) fn arm(&self) {
        self.alarm.arm();
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        // In a copy of the process it may be held for ever by a thread that was not copied.
        forked::check(self.id.generation());
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

    /// Sets how long workers search, those of later pools too.
    pub(crate) fn set_spin(&self, spin: Duration) {
        let mut registry = self.registry();
        registry.spin = Some(spin);
        registry.pool_list.iter().for_each(|pool| pool.queue.set_spin(spin));
    }

    /// Every queue, those included that nobody holds any more.
    pub(crate) fn all_queues(&self) -> Vec<Arc<QueueCore>> {
        self.registry().all.clone()
    }

    /// A counter slot of its own for a worker, while there are any.
    pub(crate) fn take_counter_slot(&self) -> Option<usize> {
        self.counter_slots.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// The worker that had this counter slot counts no more.
    pub(crate) fn give_counter_slot(&self, number: usize) {
        self.counter_slots.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }

    /// From now on nothing is added.
    pub(crate) fn shut_down(&self) {
        // Under the lock: a queue that is being added is on the list, or sees this.
        let _registry = self.registry();
        self.shut_down.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::SeqCst)
    }

    pub(crate) fn add_queue(
        self: &Arc<Self>,
        new: &NewQueue,
    ) -> Result<Arc<QueueCore>, BuildError> {
        forked::check(self.id.generation());
        let identity = &new.identity;
        check_name(&identity.name)?;
        if identity.capacity == 0 || identity.capacity > 1 << 24 {
            return Err(BuildError::Setting {
                setting: "backlog",
                value: identity.capacity as u64,
                expected: "must be from 1 to 2^24",
            });
        }
        let mut attributes = new.attributes.clone();
        check_kind(identity.ordered, identity.high_priority, &identity.name, &mut attributes)?;
        attributes.check_ranges()?;
        attributes.check_mask(&self.cpus.machine())?;
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
        let core = self.take_core(&mut registry, &new.identity, &pool)?;
        if new.rescuer
            && let Err(error) = self.add_rescuer(&core)
        {
            // Workers may still point to it, so it stays.
            registry.retired.push(core);
            return Err(BuildError::Thread(error));
        }
        self.limit(&core, &attributes, &registry.pool_list);
        *core.attributes.lock() = attributes;
        registry.live.insert(identity.name.clone(), Arc::clone(&core));
        Ok(core)
    }

    /// A retired queue of which nothing is left, made as good as new; or a new one.
    fn take_core(
        &self,
        registry: &mut Registry,
        identity: &Identity,
        pool: &Arc<Pool>,
    ) -> Result<Arc<QueueCore>, BuildError> {
        // Whoever has taken it out of the registry may be about to change it, and a rescuer holds the
        // queue until its thread ends: only where `all` and `retired` alone hold it is it nobody's.
        // Under the lock nobody takes it out. Whoever has the turn looks for more before it ends, and
        // would run items of the next queue, whose pool may be another one.
        let is_nobodys = |queue: &Arc<QueueCore>| {
            Arc::strong_count(queue) == 2
                && queue.in_flight.totals().0 == 0
                && !queue.sequence.has_turn()
        };
        if let Some(index) = registry.retired.iter().position(is_nobodys) {
            // After all that those did who held it.
            fence(Ordering::Acquire);
            let core = registry.retired.swap_remove(index);
            core.renew(pool, identity.clone());
            return Ok(core);
        }
        if registry.all.len() >= 2 * MAX_QUEUES {
            // The retired ones are all busy.
            return Err(BuildError::TooManyQueues);
        }
        let threads = counting_threads(&self.topology);
        let core = QueueCore::new(self.id, threads, self.nodes, pool, identity.clone());
        let core = Arc::new(core);
        registry.all.push(Arc::clone(&core));
        Ok(core)
    }

    /// Checks attributes against their ranges, the machine, and what the queue was built as. The mask
    /// that the queue has is none to be checked again: a CPU of it may be gone since.
    pub(crate) fn check_attributes(
        &self,
        core: &QueueCore,
        attributes: &mut Attributes,
        mask_before: Option<&CpuSet>,
    ) -> Result<(), AttributeError> {
        let identity = core.identity.lock().clone();
        check_kind(identity.ordered, identity.high_priority, &identity.name, attributes)?;
        attributes.check_ranges()?;
        if attributes.cpumask.as_ref() == mask_before {
            return Ok(());
        }
        attributes.check_mask(&self.cpus.machine())
    }

    /// Gives a queue the pool and the limits of these attributes.
    pub(crate) fn place(
        self: &Arc<Self>,
        core: &QueueCore,
        attributes: &Attributes,
    ) -> Result<(), AttributeError> {
        let pools = {
            let mut registry = self.registry();
            let pool = self.pool_for(&mut registry, attributes)?;
            core.set_pool(&pool);
            registry.rest_unused_pools();
            registry.pool_list.clone()
        };
        self.limit(core, attributes, &pools);
        Ok(())
    }

    /// Applies `max_active`, divided over the nodes by the CPUs that the queue may use.
    fn limit(&self, core: &QueueCore, attributes: &Attributes, pools: &[Arc<Pool>]) {
        let mask = self.cpus.mask(attributes.cpumask.as_ref());
        let limits = attributes.max_active.map(|most| node_limits(most, &self.cpus_by_node(&mask)));
        core.set_limits(limits.as_deref(), pools);
    }

    /// By index of the node: its CPUs that are in the mask.
    fn cpus_by_node(&self, mask: &CpuSet) -> Vec<usize> {
        let mut cpus = vec![0; self.nodes];
        for cpu in mask {
            cpus[usize::from(self.node_of.get(cpu.index()).copied().unwrap_or(0))] += 1;
        }
        cpus
    }

    fn pool_for(
        self: &Arc<Self>,
        registry: &mut Registry,
        attributes: &Attributes,
    ) -> Result<Arc<Pool>, AttributeError> {
        let cpumask = self.cpus.mask(attributes.cpumask.as_ref());
        let sharding = ShardingKey {
            scope: self.cpus.scope(attributes.affinity_scope),
            strict: attributes.affinity_strict,
            cpumask,
        };
        let key = PoolKey { sharding, localize: attributes.localize, nice: attributes.nice };
        if let Some(pool) = registry.pools.get(&key) {
            pool.queue.set_resting(false);
            return Ok(Arc::clone(pool));
        }
        if registry.pool_list.len() >= MAX_POOLS {
            return Err(AttributeError::TooManyPools);
        }
        let number = registry.pool_list.len();
        let pool = self.new_pool(key.clone(), number)?;
        if let Some(spin) = registry.spin {
            pool.queue.set_spin(spin);
        }
        registry.pools.insert(key, Arc::clone(&pool));
        registry.pool_list.push(Arc::clone(&pool));
        Ok(pool)
    }

    fn new_pool(
        self: &Arc<Self>,
        key: PoolKey,
        number: usize,
    ) -> Result<Arc<Pool>, AttributeError> {
        let cpus = key.sharding.cpumask.len();
        let concurrency = self.settings.concurrency.map_or(usize::MAX, usize::from);
        let sharded = self.settings.sharded;
        let plan = Plan::new(&self.cpus.machine(), &key.sharding, sharded, concurrency)
            .map_err(plan_error)?;
        let workers = self.settings.max_workers.unwrap_or_else(|| {
            let pods = if key.sharding.strict { plan.pods.len() } else { 1 };
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
        let (weak, start_worker) = (Arc::downgrade(self), self.start_worker);
        let (keeper, failed) = (Arc::downgrade(self), Arc::downgrade(self));
        let pool = Pool::new(PoolParts {
            key,
            plan,
            config,
            number,
            node_of_cpu: Arc::clone(&self.node_of),
            hooks: self.settings.hooks.clone(),
            start_thread: Box::new(move |pool, id, claim| match weak.upgrade() {
                Some(shared) => start_worker(shared, pool, id, claim),
                None => Err(io::Error::other("the runtime is gone")),
            }),
            start_elsewhere: Box::new(move |pool, claim| match keeper.upgrade() {
                Some(shared) => shared.starts.ask((pool, claim), &shared.alarm),
                None => pool.queue.abandon(claim),
            }),
            base_nice: self.base_nice,
            on_failure: Box::new(move || failed.upgrade().into_iter().for_each(|s| s.arm())),
        });
        pool.map_err(|error| plan_error(PlanError::Layout(error)))
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

/// How many threads are expected to count at once: a worker per CPU, and as many blocked or of
/// another pool.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use tollgate_wakequeue::ItemCell;

    use crate::Runtime;
    use crate::job::{Job, Tag};
    use crate::queue_ref::QueueRef;
    use crate::sequence::Entry;

    #[test]
    fn a_queue_whose_turn_has_not_ended_is_not_used_again() {
        let runtime = Runtime::builder().build().unwrap();
        let build = |name| runtime.queue(name).ordered().build().unwrap();
        let first = build("first");
        // As a worker that has run the last item and looks for another one.
        let me = QueueRef::of(first.core());
        let job = Job::new(me, Tag::none(), || ());
        assert!(matches!(first.core().sequence.push(job, true), Entry::NeedsTurn));
        let mut hand = first.core().sequence.begin_turn();
        assert!(first.core().sequence.next_into(&mut hand, &mut ItemCell::empty()));
        drop(first);
        let second = build("second");
        assert!(QueueRef::of(second.core()) != me, "a turn of the first queue goes on");
        assert!(!me.core().sequence.end_turn());
        assert!(QueueRef::of(build("third").core()) == me, "nothing is left of the first queue");
    }
}
