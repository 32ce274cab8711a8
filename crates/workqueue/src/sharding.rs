//! From a machine and a queue's attributes to shards, pods and limits: pure.
//!
//! What a worker then does with them (whom to wake, whom to take from) is
//! [`tollgate_wakequeue::placement`], as pure as this.

use tollgate_topology::{CoreKind, CpuId, CpuSet, MaskError, NodeId, PodId, Scope, Topology};
use tollgate_wakequeue::{ConfigError, Layout, PodIndex, ShardId, ShardPlan};

/// The CPUs that share a FIFO: one, or the SMT siblings of one core. What a worker queues itself
/// then stays in its core's cache, and the cost of an operation does not grow with the CPUs of the
/// last-level cache.
pub const MAX_SHARD_CPUS: usize = 1;

/// Each node may have at least this many items of a queue active, or `max_active` if less.
pub const MIN_NODE_ACTIVE: u32 = 8;

/// What decides where the items of a queue run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardingKey {
    /// CPUs that work together.
    pub scope: Scope,
    /// Whether workers stay in their pod.
    pub strict: bool,
    /// The CPUs to use.
    pub cpumask: CpuSet,
}

/// The shards of a pool.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Who sees whom.
    pub layout: Layout,
    /// By shard.
    pub shards: Vec<Shard>,
    /// By pod.
    pub pods: Vec<CpuSet>,
    /// By CPU number: the shard that its items go to. CPUs outside the mask go to the nearest.
    shard_of: Vec<ShardId>,
}

/// A shard's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its CPUs: [`MAX_SHARD_CPUS`] or one core, of one pod and one cache.
    pub cpus: CpuSet,
    /// Its pod.
    pub pod: PodId,
    /// Where its workers may run: the pod when strict, else the whole mask.
    pub allowed: CpuSet,
}

/// A plan that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The mask is not usable on this machine.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// The machine is too large for one queue.
    #[error(transparent)]
    Layout(#[from] ConfigError),
}

impl Plan {
    /// Cuts the mask into pods by scope, and pods into shards along caches; or, not `sharded`,
    /// leaves each pod with one FIFO, for comparison. No more than `concurrency` workers are
    /// awake at once, but at least one per pod: pods then have fewer shards, spread evenly.
    ///
    /// # Errors
    /// The mask is empty or not allowed; more shards than a queue can have.
    pub fn new(
        topology: &Topology,
        key: &ShardingKey,
        sharded: bool,
        concurrency: usize,
    ) -> Result<Self, PlanError> {
        let machine = topology.restricted(&key.cpumask)?;
        let pods = machine.pods(key.scope);
        let mut shards = Vec::new();
        let awake = |pod: &CpuSet| share_of(concurrency, pod.len(), key.cpumask.len());
        for pod in &pods {
            let cut = if sharded { cut(&machine, &pod.cpus) } else { vec![pod.cpus.clone()] };
            for cpus in spread(cut, awake(&pod.cpus)) {
                let allowed = if key.strict { pod.cpus.clone() } else { key.cpumask.clone() };
                shards.push(Shard { cpus, pod: pod.id, allowed });
            }
        }
        let plans = (0..shards.len()).map(|index| {
            let mut plan = shard_plan(&machine, key, &shards, index);
            let pod = &pods.iter().find(|pod| pod.id == shards[index].pod);
            let most = pod.map_or(1, |pod| awake(&pod.cpus));
            plan.workers = plan.workers.min(u16::try_from(most).unwrap_or(u16::MAX));
            plan
        });
        let layout = Layout::new(plans.collect())?;
        let layout = if key.scope == Scope::System { layout.without_order() } else { layout };
        let shard_of = topology.cpus().iter().last().map_or(0, |cpu| cpu.index() + 1);
        let shard_of =
            (0..shard_of).map(|cpu| nearest(topology, &shards, CpuId::from_index(cpu))).collect();
        let pods = pods.iter().map(|pod| pod.cpus.clone()).collect();
        Ok(Self { layout, shards, pods, shard_of })
    }

    /// The shard for items issued on this CPU.
    #[must_use]
    #[inline]
    pub fn shard_of(&self, cpu: CpuId) -> ShardId {
        self.shard_of.get(cpu.index()).copied().unwrap_or(ShardId(0))
    }
}

/// The part of `concurrency` that a pod has by its CPUs, rounded up.
fn share_of(concurrency: usize, pod: usize, all: usize) -> usize {
    if concurrency >= all { pod } else { (concurrency * pod).div_ceil(all.max(1)).max(1) }
}

/// At most `count` of the parts, spread evenly.
fn spread(parts: Vec<CpuSet>, count: usize) -> Vec<CpuSet> {
    let len = parts.len();
    let keep = |index: usize| count >= len || index * count / len != (index + 1) * count / len;
    (0..len).zip(parts).filter(|(index, _)| keep(*index)).map(|(_, part)| part).collect()
}

/// Cuts a pod along caches, and what is larger than a shard into even parts that keep SMT
/// siblings together.
fn cut(machine: &Topology, pod: &CpuSet) -> Vec<CpuSet> {
    let mut cut = Vec::new();
    for llc in machine.llcs() {
        let here = llc.intersection(pod);
        let cores: Vec<CpuSet> = (machine.cores().iter())
            .map(|core| core.intersection(&here))
            .filter(|core| !core.is_empty())
            .collect();
        let parts = here.len().div_ceil(MAX_SHARD_CPUS).min(cores.len());
        for part in 0..parts {
            let bounds = cores.len() * part / parts..cores.len() * (part + 1) / parts;
            cut.push(cores[bounds].iter().fold(CpuSet::new(), |set, core| set.union(core)));
        }
    }
    cut
}

fn shard_plan(machine: &Topology, key: &ShardingKey, shards: &[Shard], index: usize) -> ShardPlan {
    let me = &shards[index];
    let visible = |&other: &usize| !key.strict || shards[other].pod == me.pod;
    let mut near: Vec<usize> = (0..shards.len()).filter(visible).collect();
    // Equals start after this shard and wrap, so that not all hungry ones look at the first.
    near.sort_by_key(|&other| {
        let them = &shards[other];
        let turn = (other + shards.len() - index) % shards.len();
        let (apart, turn) = if key.scope == Scope::System {
            // Reversed bits scatter neighbours in number, which are neighbours on the chip.
            (0, turn.reverse_bits())
        } else {
            let other_kind = kind(machine, &me.cpus) != kind(machine, &them.cpus);
            (2 * u16::from(apart(machine, &me.cpus, &them.cpus)) + u16::from(other_kind), turn)
        };
        (other != index, them.pod != me.pod, apart, turn)
    });
    ShardPlan {
        workers: u16::try_from(me.cpus.len()).unwrap_or(u16::MAX),
        pod: PodIndex(u16::try_from(me.pod.0).expect("there are at most MAX_CPUS pods")),
        near: near.into_iter().map(shard_id).collect(),
    }
}

/// A shard has a number below `MAX_SHARDS`; `Layout::new` has the last word on how many there are.
fn shard_id(index: usize) -> ShardId {
    ShardId(u16::try_from(index).unwrap_or(u16::MAX))
}

/// Of equally near CPUs, those of the same kind come first: what was issued on a fast core is run
/// on one.
fn kind(machine: &Topology, cpus: &CpuSet) -> Option<CoreKind> {
    cpus.lowest().and_then(|cpu| machine.kind_of(cpu))
}

/// The CPUs of a shard share a cache, so any one of them stands for all.
fn apart(machine: &Topology, a: &CpuSet, b: &CpuSet) -> u8 {
    match (a.lowest(), b.lowest()) {
        (Some(a), Some(b)) => machine.distance(a, b).as_u8(),
        _ => u8::MAX,
    }
}

fn nearest(topology: &Topology, shards: &[Shard], cpu: CpuId) -> ShardId {
    let apart = |shard: &Shard| {
        shard.cpus.lowest().map_or(u8::MAX, |lowest| topology.distance(cpu, lowest).as_u8())
    };
    let best = shards.iter().enumerate().min_by_key(|(_, shard)| {
        let other_kind = kind(topology, &shard.cpus) != topology.kind_of(cpu);
        (!shard.cpus.contains(cpu), apart(shard), other_kind)
    });
    shard_id(best.map_or(0, |(index, _)| index))
}

/// How a queue's `max_active` is divided over the nodes: in proportion to the CPUs that it may use
/// there, rounded up, each at least `min(max_active, 8)`. The sum may therefore exceed `max_active`
/// on machines of many nodes, as in the kernel's unbound workqueues (`wq_adjust_max_active`).
#[must_use]
pub fn node_limits(max_active: u32, cpus_by_node: &[usize]) -> Vec<u32> {
    let total = cpus_by_node.iter().fold(0_usize, |all, &cpus| all.saturating_add(cpus));
    let least = max_active.min(MIN_NODE_ACTIVE);
    let share = |cpus: usize| {
        let share = (u128::from(max_active) * cpus as u128).div_ceil(total.max(1) as u128);
        u32::try_from(share).unwrap_or(u32::MAX)
    };
    cpus_by_node.iter().map(|&cpus| share(cpus).clamp(least, max_active)).collect()
}

/// How many nodes there are, and by CPU number, the index of its node among them.
pub(crate) fn node_index(topology: &Topology) -> (usize, Vec<u16>) {
    let ids: Vec<NodeId> = topology.nodes().map(|(id, _)| id).collect();
    let last = topology.cpus().iter().last().map_or(0, |cpu| cpu.index() + 1);
    let index_of = |cpu| {
        let node = topology.node_of(CpuId::from_index(cpu));
        let index = ids.iter().position(|&id| Some(id) == node).unwrap_or(0);
        u16::try_from(index).unwrap_or(0)
    };
    (ids.len(), (0..last).map(index_of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(machine: &str, scope: Scope, strict: bool) -> Plan {
        let topology = Topology::from_synthetic(machine).unwrap();
        let cpumask = topology.allowed().clone();
        Plan::new(&topology, &ShardingKey { scope, strict, cpumask }, true, usize::MAX).unwrap()
    }

    #[test]
    fn a_large_cache_is_cut_and_smt_siblings_stay_together() {
        let plan = plan("l3:1 core:9 pu:2", Scope::Cache, false);
        assert_eq!(plan.pods.len(), 1);
        let cpus: Vec<_> = plan.shards.iter().map(|s| s.cpus.to_string()).collect();
        assert_eq!(cpus.len(), 9, "{cpus:?}");
        assert_eq!(cpus[1], "2-3", "siblings share one FIFO");
    }

    #[test]
    fn fewer_workers_are_awake_than_cpus_when_a_quota_says_so() {
        let topology = Topology::from_synthetic("l3:4 core:16").unwrap();
        let cpumask = topology.allowed().clone();
        let workers = |scope, strict, sharded, concurrency| {
            let key = ShardingKey { scope, strict, cpumask: cpumask.clone() };
            let plan = Plan::new(&topology, &key, sharded, concurrency).unwrap();
            let shards = plan.layout.shards().iter();
            (plan.pods.len(), shards.map(|shard| u32::from(shard.workers)).sum::<u32>())
        };
        assert_eq!(workers(Scope::System, false, true, usize::MAX), (1, 64));
        assert_eq!(workers(Scope::System, false, true, 6), (1, 6));
        assert_eq!(workers(Scope::System, false, false, 6), (1, 6));
        assert_eq!(workers(Scope::Cache, true, true, 8), (4, 8));
        assert_eq!(workers(Scope::Cache, true, true, 1), (4, 4), "each pod has one");
    }

    /// Whom an item of a small core wakes, where a new worker for it starts, and where a hungry
    /// worker looks: all follow this order.
    #[test]
    fn of_equally_near_cores_those_of_the_issuers_kind_come_first() {
        let plan = plan("l3:2 core:2+3 pu:2", Scope::Cache, false);
        let first = |shard: &ShardId| plan.shards[shard.index()].cpus.lowest().unwrap().0;
        let near = |cpu| -> Vec<u32> {
            plan.layout.near(plan.shard_of(CpuId(cpu))).iter().map(first).collect()
        };
        // CPUs 0-3 are two fast cores and 4-6 three small ones of one cache, 7-13 those of the other.
        assert_eq!(near(0)[..5], [0, 2, 4, 5, 6]);
        assert_eq!(near(5)[..5], [5, 6, 4, 0, 2]);
        assert_eq!(near(9)[..5], [9, 7, 11, 12, 13]);
        let other_cache = |cpu: &u32| *cpu >= 7;
        assert_eq!(near(0)[5..].iter().filter(|cpu| other_cache(cpu)).count(), 5);
        assert_eq!(near(0)[5..7].iter().filter(|&&cpu| cpu == 7 || cpu == 9).count(), 2);
    }

    #[test]
    fn a_cpu_outside_the_mask_issues_to_the_nearest_of_its_kind() {
        let topology = Topology::from_synthetic("core:2+2").unwrap();
        let key =
            ShardingKey { scope: Scope::Cache, strict: false, cpumask: "0,3".parse().unwrap() };
        let plan = Plan::new(&topology, &key, true, usize::MAX).unwrap();
        assert_eq!(plan.shard_of(CpuId(1)), plan.shard_of(CpuId(0)));
        assert_eq!(plan.shard_of(CpuId(2)), plan.shard_of(CpuId(3)));
    }

    #[test]
    fn strict_pods_do_not_see_each_other() {
        let strict = plan("numa:2 l3:2 core:4", Scope::Cache, true);
        assert_eq!(strict.layout.pods(), 4);
        assert!(strict.layout.others(PodIndex(1)).is_empty());
        assert!(strict.shards.iter().all(|s| s.allowed == strict.pods[s.pod.index()]));
        let soft = plan("numa:2 l3:2 core:4", Scope::Cache, false);
        assert_eq!(soft.layout.pods(), 4);
        assert_eq!(soft.layout.others(PodIndex(1)), [0, 2, 3].map(PodIndex));
        let near: Vec<_> = soft.layout.near(ShardId(9)).iter().map(|s| s.0).collect();
        let order = [9, 10, 11, 8, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(near, order, "own, its cache, the other cache of the node, far ones");
    }

    #[test]
    fn the_system_scope_is_one_pod_without_order() {
        let system = plan("numa:2 l3:2 core:4", Scope::System, false);
        assert_eq!(system.layout.pods(), 1);
        let near: Vec<_> = system.layout.near(ShardId(0)).iter().map(|s| s.0).collect();
        assert_eq!(near[0], 0);
        let neighbours = near.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(neighbours < 4, "{near:?}");
    }

    #[test]
    fn cpus_outside_the_mask_go_to_the_nearest_shard() {
        let topology = Topology::from_synthetic("l3:2 core:2").unwrap();
        let cpumask = "0,2".parse().unwrap();
        let key = ShardingKey { scope: Scope::Cache, strict: false, cpumask };
        let plan = Plan::new(&topology, &key, true, usize::MAX).unwrap();
        assert_eq!(plan.shard_of(CpuId(3)), plan.shard_of(CpuId(2)));
        assert_ne!(plan.shard_of(CpuId(3)), plan.shard_of(CpuId(1)));
    }

    #[test]
    fn limits_follow_the_cpus_of_the_nodes() {
        assert_eq!(node_limits(64, &[4, 4]), [32, 32]);
        assert_eq!(node_limits(64, &[12, 4]), [48, 16]);
        assert_eq!(node_limits(16, &[12, 4]), [12, 8], "at least eight each");
        assert_eq!(node_limits(3, &[2, 2]), [3, 3], "or max_active, if less");
        assert_eq!(node_limits(1, &[2]), [1]);
        assert_eq!(node_limits(100, &[1, 2]), [34, 67], "rounded up");
        assert_eq!(node_limits(32, &[4, 0]), [32, 8], "a node without CPUs of the queue");
    }

    proptest! {
        #[test]
        fn every_cpu_is_in_exactly_one_shard_of_its_pod(
            numa in 1_usize..3, l3 in 1_usize..4, core in 1_usize..20, pu in 1_usize..3,
            scope in 0..6_usize, strict: bool,
        ) {
            let machine = format!("numa:{numa} l3:{l3} core:{core} pu:{pu}");
            let plan = plan(&machine, Scope::ALL[scope], strict);
            for cpu in 0..numa * l3 * core * pu {
                let cpu = CpuId::from_index(cpu);
                let homes: Vec<_> =
                    plan.shards.iter().filter(|s| s.cpus.contains(cpu)).collect();
                prop_assert_eq!(homes.len(), 1);
                prop_assert!(homes[0].cpus.is_subset(&plan.pods[homes[0].pod.index()]));
                prop_assert!(homes[0].cpus.len() <= MAX_SHARD_CPUS + 1);
                prop_assert!(plan.shards[plan.shard_of(cpu).index()].cpus.contains(cpu));
            }
        }
    }
}
