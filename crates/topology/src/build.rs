//! From what a source says of each CPU to a [`Topology`] whose parts nest.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use crate::topology::{CoreKind, Place};
use crate::{CoreId, CpuId, CpuSet, LlcId, NodeId, Source, Topology, TopologyError};

/// A machine as a source tells it, not yet checked.
pub(crate) struct Raw {
    pub(crate) source: Source,
    /// Every CPU, online or not.
    pub(crate) cpus: CpuSet,
    /// The online ones, each once, in rising order.
    pub(crate) online: Vec<RawCpu>,
    pub(crate) latencies: BTreeMap<(NodeId, NodeId), u8>,
}

/// One online CPU. Equal keys mean the same core or cache; their values mean nothing else.
pub(crate) struct RawCpu {
    pub(crate) id: CpuId,
    pub(crate) core_key: u32,
    pub(crate) llc_key: u32,
    pub(crate) node: NodeId,
    pub(crate) kind: CoreKind,
}

impl Raw {
    /// One node, one LLC, every CPU a core of its own.
    pub(crate) fn flat(cpus: &CpuSet, source: Source) -> Self {
        let online = cpus.iter().map(|id| RawCpu {
            id,
            core_key: id.0,
            llc_key: 0,
            node: NodeId(0),
            kind: CoreKind::Uniform,
        });
        Self { source, cpus: cpus.clone(), online: online.collect(), latencies: BTreeMap::new() }
    }
}

/// Numbers the parts and checks that something is left to work on.
///
/// An LLC is the pair (cache, node) and a core the pair (core, LLC), so parts nest by construction,
/// whatever the source says: caches over several nodes are real (sub-NUMA clustering), and virtual
/// machines can report anything.
pub(crate) fn build(raw: Raw, allowed: Option<CpuSet>) -> Result<Topology, TopologyError> {
    let online: CpuSet = raw.online.iter().map(|cpu| cpu.id).collect();
    let allowed = allowed.unwrap_or_else(|| online.clone());
    let usable = allowed.intersection(&online);
    if usable.is_empty() {
        return Err(TopologyError::NothingAllowed { allowed, online });
    }
    let (mut cores, mut llcs) = (Numbering::default(), Numbering::default());
    let mut nodes: BTreeMap<NodeId, CpuSet> = BTreeMap::new();
    let mut places = Vec::new();
    for cpu in &raw.online {
        let llc = LlcId::from_index(llcs.add((cpu.llc_key, cpu.node), cpu.id));
        let core = CoreId::from_index(cores.add((cpu.core_key, llc), cpu.id));
        nodes.entry(cpu.node).or_default().insert(cpu.id);
        places.resize(cpu.id.index() + 1, None);
        places[cpu.id.index()] = Some(Place { core, llc, node: cpu.node, kind: cpu.kind });
    }
    Ok(Topology {
        source: raw.source,
        cpus: raw.cpus.union(&online),
        online,
        allowed: usable,
        places,
        cores: cores.sets,
        llcs: llcs.sets,
        nodes,
        latencies: raw.latencies,
    })
}

/// Dense numbers for keys, in order of first sight, and the CPUs of each.
struct Numbering<K> {
    numbers: HashMap<K, usize>,
    sets: Vec<CpuSet>,
}

impl<K> Default for Numbering<K> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), sets: Vec::new() }
    }
}

impl<K: Hash + Eq> Numbering<K> {
    fn add(&mut self, key: K, cpu: CpuId) -> usize {
        let next = self.sets.len();
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.sets.push(CpuSet::new());
        }
        self.sets[number].insert(cpu);
        number
    }
}
