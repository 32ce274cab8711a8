//! The pods of a scope.

use std::collections::BTreeSet;
use std::ops::Index;

use crate::cpuset::CpuSet;
use crate::ids::{CoreId, CpuId, Distance, LlcId, NodeId, PodId};
use crate::scope::Scope;
use crate::topology::Topology;

/// The most cores in a pod of [`Scope::CacheShard`].
pub const MAX_SHARD_CORES: usize = 8;

/// The allowed CPUs of a machine, each in exactly one pod.
#[derive(Clone, Debug)]
pub struct Pods {
    scope: Scope,
    pods: Vec<Pod>,
    /// By CPU number.
    pod_of: Vec<Option<PodId>>,
}

/// CPUs that work together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its number among the pods of its scope.
    pub id: PodId,
    /// Its CPUs, all allowed. Never empty.
    pub cpus: CpuSet,
    /// Their last-level cache, when they have one in common.
    pub llc: Option<LlcId>,
    /// Their NUMA node, when they have one in common.
    pub node: Option<NodeId>,
}

impl Pods {
    /// The scope that made these pods.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// How many pods there are; at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always an allowed CPU")]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// The pods, by number.
    pub fn iter(&self) -> std::slice::Iter<'_, Pod> {
        self.pods.iter()
    }

    /// The pod with this number.
    #[must_use]
    pub fn get(&self, pod: PodId) -> Option<&Pod> {
        self.pods.get(pod.index())
    }

    /// The pod of an allowed CPU.
    #[must_use]
    pub fn pod_of(&self, cpu: CpuId) -> Option<PodId> {
        self.pod_of.get(cpu.index()).copied().flatten()
    }

    /// Every pod in the order in which a worker of `pod` looks for work: its own, then those of
    /// the same LLC, of the same node, of other nodes by distance. Among equals it starts with the
    /// next higher number and wraps, so that hungry pods do not all look at pod 0 first.
    /// `topology` is the one the pods were made from.
    #[must_use]
    pub fn by_distance(&self, pod: PodId, topology: &Topology) -> Vec<PodId> {
        let Some(from) = self.get(pod) else {
            return Vec::new();
        };
        let mut ids: Vec<PodId> = self.iter().map(|pod| pod.id).collect();
        ids.rotate_left(pod.index());
        // Stable, so equals keep the rotated order.
        ids.sort_by_cached_key(|to| distance(topology, from, &self[*to]));
        ids
    }
}

impl Index<PodId> for Pods {
    type Output = Pod;

    fn index(&self, pod: PodId) -> &Pod {
        &self.pods[pod.index()]
    }
}

impl<'a> IntoIterator for &'a Pods {
    type Item = &'a Pod;
    type IntoIter = std::slice::Iter<'a, Pod>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Topology {
    /// The allowed CPUs, cut into the pods of a scope.
    #[must_use]
    pub fn pods(&self, scope: Scope) -> Pods {
        partition(self, scope)
    }
}

fn partition(topology: &Topology, scope: Scope) -> Pods {
    let mut sets = cut(topology, scope);
    sets.retain(|cpus| !cpus.is_empty());
    sets.sort_by_cached_key(CpuSet::lowest);
    let pods: Vec<Pod> =
        sets.into_iter().enumerate().map(|(index, cpus)| pod(topology, index, cpus)).collect();
    let mut pod_of = vec![None; topology.places.len()];
    for pod in &pods {
        for cpu in &pod.cpus {
            pod_of[cpu.index()] = Some(pod.id);
        }
    }
    Pods { scope, pods, pod_of }
}

fn cut(topology: &Topology, scope: Scope) -> Vec<CpuSet> {
    let usable = |cpus: &CpuSet| cpus.intersection(&topology.allowed);
    match scope {
        Scope::Cpu => topology.allowed.iter().map(|cpu| CpuSet::from_iter([cpu])).collect(),
        Scope::Smt => topology.cores.iter().map(usable).collect(),
        Scope::CacheShard => topology.llcs.iter().flat_map(|llc| shards(topology, llc)).collect(),
        Scope::Cache => topology.llcs.iter().map(usable).collect(),
        Scope::Numa => topology.nodes.values().map(usable).collect(),
        Scope::System => vec![topology.allowed.clone()],
    }
}

/// Cuts one LLC between cores into as few shards as have at most [`MAX_SHARD_CORES`] cores, the
/// larger ones first. Cores with no allowed CPU do not count.
fn shards(topology: &Topology, llc: &CpuSet) -> Vec<CpuSet> {
    let cores: Vec<CpuSet> = cores_within(topology, &llc.intersection(&topology.allowed));
    let count = cores.len().div_ceil(MAX_SHARD_CORES);
    even_runs(&cores, count).map(|run| run.iter().flat_map(CpuSet::iter).collect()).collect()
}

/// The cores that have CPUs in `cpus`, each cut down to those CPUs, by lowest CPU of the core.
pub(crate) fn cores_within(topology: &Topology, cpus: &CpuSet) -> Vec<CpuSet> {
    let cores: BTreeSet<CoreId> = cpus.iter().filter_map(|cpu| topology.core_of(cpu)).collect();
    cores.iter().map(|core| topology.cores[core.index()].intersection(cpus)).collect()
}

/// `items` in `count` runs whose lengths differ by at most one, the longer ones first.
pub(crate) fn even_runs<T>(items: &[T], count: usize) -> impl Iterator<Item = &[T]> {
    let (length, longer) = (items.len() / count.max(1), items.len() % count.max(1));
    let mut rest = items;
    (0..count).map(move |run| {
        let (head, tail) = rest.split_at(length + usize::from(run < longer));
        rest = tail;
        head
    })
}

fn pod(topology: &Topology, index: usize, cpus: CpuSet) -> Pod {
    let llc = common(cpus.iter().map(|cpu| topology.llc_of(cpu)));
    let node = common(cpus.iter().map(|cpu| topology.node_of(cpu)));
    Pod { id: PodId::from_index(index), cpus, llc, node }
}

fn common<T: PartialEq>(mut values: impl Iterator<Item = Option<T>>) -> Option<T> {
    let first = values.next()??;
    values.all(|value| value.as_ref() == Some(&first)).then_some(first)
}

/// Parts nest, so any CPU of a pod is as far from another pod as the next. A pod is nearest to
/// itself (`None`).
fn distance(topology: &Topology, from: &Pod, to: &Pod) -> Option<Distance> {
    let (a, b) = (from.cpus.lowest()?, to.cpus.lowest()?);
    (from.id != to.id).then(|| topology.distance(a, b))
}
