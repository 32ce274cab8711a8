//! `dump`: how queues, pools and CPUs belong together.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tollgate_wakequeue::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use tollgate_wakequeue::{PodIndex, ShardId};

use crate::core::{LIMITED, QueueCore};
use crate::forked;
use crate::pool::Pool;
use crate::queue_ref::QueueRef;
use crate::shared::Shared;
use crate::{Attributes, CpuId, CpuSet, WhenFull};

/// Scopes, pods, pools, queues and their attributes at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dump {
    /// The scope of queues that did not choose.
    pub default_scope: String,
    /// By scope name: the CPUs of each pod, as lists such as `0-3,8`.
    pub scopes: BTreeMap<String, Vec<String>>,
    /// The pools made so far.
    pub pools: Vec<PoolDump>,
    /// The queues, by name.
    pub queues: Vec<QueueDump>,
}

/// Workers shared by queues of equal attributes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolDump {
    /// Its number.
    pub number: usize,
    /// Its affinity scope.
    pub affinity_scope: String,
    /// Whether workers stay in their pod.
    pub affinity_strict: bool,
    /// Whether workers move to the issuing CPU.
    pub localize: bool,
    /// The CPUs it may use.
    pub cpumask: String,
    /// The nice level of its workers.
    pub nice: i32,
    /// Its pods.
    pub pods: Vec<PodDump>,
    /// By CPU number: the pod that items issued there go to.
    pub cpu_to_pod: BTreeMap<u32, usize>,
    /// Threads that could not be started.
    pub start_failures: u64,
    /// Sleeping workers that were woken for an item.
    pub wakes: u64,
    /// Workers that were started.
    pub started_workers: u64,
    /// Items (or tokens) that workers took from their own shard.
    pub taken_at_home: u64,
    /// Items (or tokens) that workers took from another shard of their pod.
    pub taken_in_pod: u64,
    /// Items (or tokens) that workers took from another pod, because that was busy.
    pub taken_outside: u64,
    /// Items that a worker found by searching, without having slept.
    pub found_searching: u64,
    /// Times a worker went to sleep.
    pub sleeps: u64,
}

/// A pod of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PodDump {
    /// Its CPUs.
    pub cpus: String,
    /// Its FIFOs.
    pub shards: Vec<ShardDump>,
    /// Workers awake.
    pub awake: u16,
    /// Of these, looking for work.
    pub searching: u16,
    /// Workers asleep.
    pub asleep: u16,
    /// Workers that wait in a declared blocking section, or hold the CPU for too long to count.
    pub not_counted: usize,
}

/// A FIFO of a pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShardDump {
    /// Its CPUs.
    pub cpus: String,
    /// Items waiting.
    pub waiting: usize,
    /// The most items.
    pub capacity: usize,
}

/// A queue and its attributes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueueDump {
    /// Its name.
    pub name: String,
    /// The scope, or `default (cache)` when it did not choose.
    pub affinity_scope: String,
    /// Whether workers stay in their pod.
    pub affinity_strict: bool,
    /// Whether workers move to the issuing CPU.
    pub localize: bool,
    /// The CPUs it may use, or `default (0-3)`.
    pub cpumask: String,
    /// The nice level of its workers.
    pub nice: i32,
    /// The limit, if there is one.
    pub max_active: Option<u32>,
    /// One item at a time, in order.
    pub ordered: bool,
    /// Pools of its own.
    pub high_priority: bool,
    /// A worker in reserve.
    pub rescuer: bool,
    /// What happens when it is full.
    pub when_full: WhenFull,
    /// Closed to new items.
    pub drained: bool,
    /// Which pool serves it.
    pub pool: usize,
    /// By NUMA node: items that run or are about to, and items that wait for the limit.
    #[serde(default)]
    pub nodes: Vec<NodeActive>,
}

/// What a queue does on a NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeActive {
    /// Items that run or are about to.
    pub active: u32,
    /// Items that wait for the limit.
    pub waiting: u32,
}

impl Dump {
    pub(crate) fn of(shared: &Shared) -> Self {
        forked::check(shared.id.generation());
        let machine = shared.cpus.machine();
        let pods = |scope| {
            let pods = machine.pods(scope);
            pods.iter().map(|pod| pod.cpus.to_string()).collect()
        };
        Self {
            default_scope: shared.cpus.default_scope().to_string(),
            scopes: crate::Scope::ALL.iter().map(|&s| (s.to_string(), pods(s))).collect(),
            pools: shared.pools().iter().map(|pool| dump_pool(pool, shared)).collect(),
            queues: shared.live_queues().iter().map(|queue| dump_queue(queue, shared)).collect(),
        }
    }
}

fn dump_pool(pool: &Pool, shared: &Shared) -> PoolDump {
    let sharding = &pool.key.sharding;
    let shard = |index: usize| {
        let id = ShardId(u16::try_from(index).unwrap_or(0));
        ShardDump {
            cpus: pool.plan.shards[index].cpus.to_string(),
            waiting: pool.queue.len(id),
            capacity: pool.queue.capacity(),
        }
    };
    let pod = |(index, cpus): (u16, &CpuSet)| {
        let shards = pool.plan.layout.shards_of(PodIndex(index));
        let load = pool.queue.load(PodIndex(index));
        PodDump {
            cpus: cpus.to_string(),
            shards: shards.iter().map(|id| shard(id.index())).collect(),
            awake: load.awake,
            searching: load.searchers,
            asleep: load.parked,
            not_counted: pool.queue.discounted(PodIndex(index)),
        }
    };
    let pod_of = |cpu| pool.plan.shards[pool.plan.shard_of(cpu).index()].pod.index();
    let counters = pool.queue.counters();
    PoolDump {
        number: pool.number,
        affinity_scope: sharding.scope.to_string(),
        affinity_strict: sharding.strict,
        localize: pool.key.localize,
        cpumask: sharding.cpumask.to_string(),
        nice: pool.key.nice,
        pods: (0..).zip(&pool.plan.pods).map(pod).collect(),
        cpu_to_pod: shared.topology.cpus().iter().map(|cpu| (cpu.0, pod_of(cpu))).collect(),
        start_failures: pool.start_failures.load(Ordering::Relaxed),
        wakes: counters.wakes,
        started_workers: counters.grown,
        taken_at_home: counters.own,
        taken_in_pod: counters.in_pod,
        taken_outside: counters.outside,
        found_searching: counters.spun,
        sleeps: counters.parks,
    }
}

fn dump_queue(queue: &QueueCore, shared: &Shared) -> QueueDump {
    let identity = queue.identity.lock().clone();
    let attributes: Attributes = queue.attributes.lock().clone();
    let rescuer = queue.rescuer.lock().is_some();
    let or_default = |chosen: Option<String>, default: String| {
        chosen.unwrap_or_else(|| format!("default ({default})"))
    };
    let scope = attributes.affinity_scope.map(|scope| scope.to_string());
    let mask = attributes.cpumask.as_ref().map(ToString::to_string);
    QueueDump {
        affinity_scope: or_default(scope, shared.cpus.default_scope().to_string()),
        cpumask: or_default(mask, shared.cpus.mask(None).to_string()),
        affinity_strict: attributes.affinity_strict,
        localize: attributes.localize,
        nice: attributes.nice,
        max_active: if identity.ordered { Some(1) } else { attributes.max_active },
        ordered: identity.ordered,
        high_priority: identity.high_priority,
        rescuer,
        when_full: identity.when_full,
        drained: queue.is_drained(),
        pool: queue.pool().number,
        nodes: nodes(queue, shared),
        name: identity.name,
    }
}

/// By node. Items of a queue without a limit are counted by what the workers show, and where they
/// run elsewhere, by the limit all the same.
fn nodes(queue: &QueueCore, shared: &Shared) -> Vec<NodeActive> {
    let counts = queue.active().into_iter();
    let mut nodes: Vec<_> =
        counts.map(|(active, waiting)| NodeActive { active, waiting }).collect();
    let waiting = queue.sequence.waiting();
    if let Some(first) = nodes.first_mut() {
        first.waiting += u32::try_from(waiting).unwrap_or(u32::MAX);
    }
    if queue.mode() & LIMITED != 0 {
        // It counts what began before it was set, too.
        return nodes;
    }
    let me = QueueRef::of(queue).address().as_ptr();
    let mut count = |turn: &AtomicU64, queue: &AtomicPtr<()>, node: &AtomicU32| {
        let runs = turn.load(Ordering::Acquire) & 1 == 1;
        if runs && queue.load(Ordering::Relaxed) == me {
            // No node is shown for an item that its limit counts.
            if let Some(node) = nodes.get_mut(node.load(Ordering::Relaxed) as usize) {
                node.active += 1;
            }
        }
    };
    for worker_slot in shared.pools().iter().flat_map(|pool| &pool.worker_slots) {
        count(&worker_slot.turn, &worker_slot.queue, &worker_slot.node);
        for nested in worker_slot.nested.all() {
            count(&nested.turn, &nested.queue, &nested.node);
        }
    }
    nodes
}

impl PoolDump {
    /// The CPUs whose items go to each pod: `0-3 -> 0, 4-7 -> 1`.
    fn ways(&self) -> BTreeMap<usize, CpuSet> {
        let mut ways = BTreeMap::<usize, CpuSet>::new();
        for (&cpu, &pod) in &self.cpu_to_pod {
            ways.entry(pod).or_default().insert(CpuId(cpu));
        }
        ways
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "scopes: the pods that each cuts the CPUs into (default {})",
            self.default_scope
        )?;
        for (scope, pods) in &self.scopes {
            writeln!(f, "  {scope:<12} {}", pods.join(" | "))?;
        }
        writeln!(f, "pools: workers shared by queues of equal attributes")?;
        for pool in &self.pools {
            write!(f, "{pool}")?;
        }
        writeln!(f, "queues")?;
        let width = self.queues.iter().map(|queue| queue.name.len()).max().unwrap_or(0).max(12);
        for queue in &self.queues {
            writeln!(f, "  {:<width$} {queue}", queue.name)?;
        }
        writeln!(f, "cpu -> pool.pod: where an item goes that is issued there")?;
        for queue in &self.queues {
            let Some(pool) = self.pools.iter().find(|pool| pool.number == queue.pool) else {
                continue;
            };
            let ways: Vec<_> = (pool.ways().iter())
                .map(|(pod, cpus)| format!("{cpus} -> {}.{pod}", pool.number))
                .collect();
            writeln!(f, "  {:<width$} {}", queue.name, ways.join(", "))?;
        }
        Ok(())
    }
}

/// The pool on a line, then a line per pod.
impl fmt::Display for PoolDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  pool {}  affinity_scope={} affinity_strict={} localize={} nice={} cpumask={}",
            self.number,
            self.affinity_scope,
            self.affinity_strict,
            self.localize,
            self.nice,
            self.cpumask
        )?;
        writeln!(
            f,
            "    workers started {} (failed {}), woken {}, slept {}; items taken at home {}, in the pod {}, outside {}, found searching {}",
            self.started_workers,
            self.start_failures,
            self.wakes,
            self.sleeps,
            self.taken_at_home,
            self.taken_in_pod,
            self.taken_outside,
            self.found_searching
        )?;
        for (number, pod) in self.pods.iter().enumerate() {
            let shards: Vec<_> = pod.shards.iter().map(|shard| shard.cpus.as_str()).collect();
            let waiting: usize = pod.shards.iter().map(|shard| shard.waiting).sum();
            let capacity: usize = pod.shards.iter().map(|shard| shard.capacity).sum();
            writeln!(
                f,
                "    pod {}.{number}  cpus {}  shards {}  waiting {waiting} of {capacity}  \
                 awake {} (searching {}), asleep {}, not counted {}",
                self.number,
                pod.cpus,
                shards.join(" | "),
                pod.awake,
                pod.searching,
                pod.asleep,
                pod.not_counted
            )?;
        }
        Ok(())
    }
}

/// Its attributes and kind, without the name.
impl fmt::Display for QueueDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.max_active.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
        write!(
            f,
            "pool={} affinity_scope={} affinity_strict={} localize={} cpumask={} nice={} max_active={limit}",
            self.pool,
            self.affinity_scope,
            self.affinity_strict,
            self.localize,
            self.cpumask,
            self.nice
        )?;
        for (is_so, kind) in [
            (self.ordered, "ordered"),
            (self.high_priority, "high_priority"),
            (self.rescuer, "rescuer"),
            (self.drained, "drained"),
        ] {
            if is_so {
                write!(f, " {kind}")?;
            }
        }
        Ok(())
    }
}
