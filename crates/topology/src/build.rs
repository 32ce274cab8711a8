//! Making a [`Topology`]: from what a source delivers to parts that nest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::path::Path;

use crate::cpuset::CpuSet;
use crate::error::TopologyError;
use crate::ids::{CoreId, CpuId, LlcId, NodeId};
use crate::source::{Raw, Source};
use crate::topology::{Place, Topology};
use crate::{pretend, synthetic, sysfs};

impl Topology {
    /// The machine this runs on, with the CPUs that the calling thread may use.
    ///
    /// The affinity mask that the kernel reports is already cut down to the cpuset of the control
    /// group, so a container that was given 2 of 64 CPUs gets those two. Where sysfs cannot be
    /// read (some sandboxes), the result is flat - one node, one LLC, no SMT - and
    /// [`Topology::source`] says why.
    ///
    /// # Errors
    /// When the affinity mask cannot be read, or allows no CPU that is online.
    pub fn current() -> Result<Self, TopologyError> {
        let allowed = sysfs::affinity()?;
        match Self::from_sysfs(Path::new("/sys"), Some(allowed.clone())) {
            Ok(topology) => Ok(topology.within_memory_mask(sysfs::memory_mask())),
            Err(why @ TopologyError::NothingAllowed { .. }) => Err(why),
            Err(why) => Self::flat(allowed, why.to_string()),
        }
    }

    /// Reads the sysfs tree under `root` (normally `/sys`). `allowed` is the set of CPUs that may
    /// be used; `None` allows all that are online. Allowed CPUs that are offline are left out.
    ///
    /// # Errors
    /// When a file that must exist cannot be read, a file holds something else than its kind, or
    /// no allowed CPU is online.
    pub fn from_sysfs(root: &Path, allowed: Option<CpuSet>) -> Result<Self, TopologyError> {
        build(sysfs::read(root)?, allowed)
    }

    /// A made-up machine, from counts of each part within the one before it:
    /// `numa:2 l3:4 core:8 pu:2` is two nodes of four L3 caches of eight cores of two threads.
    /// `core:8+4 pu:2` is eight fast cores of two threads and four small ones of one thread each.
    /// A part that is left out counts as 1; the order is always `numa l3 core pu`. CPUs are
    /// numbered in that order, so the threads of a core are neighbours. All are online and allowed.
    ///
    /// # Errors
    /// When the string names an unknown part, has no or a wrong count, repeats or reorders parts,
    /// or has more than [`crate::MAX_CPUS`] CPUs.
    pub fn from_synthetic(text: &str) -> Result<Self, TopologyError> {
        build(synthetic::parse(text)?, None)
    }

    /// Only a set of CPUs: one node, one LLC, every CPU a core of its own.
    ///
    /// # Errors
    /// When the set is empty.
    pub fn flat(cpus: CpuSet, why: String) -> Result<Self, TopologyError> {
        build(Raw::flat(&cpus, Source::Flat(why)), Some(cpus))
    }

    /// The allowed CPUs of this machine, split evenly into `count` pretend LLCs, so that scopes
    /// can be compared on a machine that has one. SMT siblings and real LLCs stay together as far
    /// as `count` permits; CPUs that are not allowed count as offline; nodes are kept when every
    /// pretend LLC fits in one, and merged otherwise. No size is known of a pretend LLC.
    ///
    /// # Errors
    /// When `count` is 0 or above the number of allowed CPUs.
    pub fn pretend_llcs(&self, count: usize) -> Result<Self, TopologyError> {
        let raw = pretend::pretend(self, count)?;
        build(raw, Some(self.allowed.clone()))
    }
}

impl Topology {
    /// Leaves out the memory nodes that the cpuset of this thread forbids. A mask that leaves
    /// nothing contradicts the list of nodes, so it is not believed.
    fn within_memory_mask(mut self, mask: Option<BTreeSet<NodeId>>) -> Self {
        if let Some(mask) = mask {
            let within: BTreeSet<NodeId> = self.memory_nodes.intersection(&mask).copied().collect();
            if !within.is_empty() {
                self.memory_nodes = within;
            }
        }
        self
    }
}

/// Numbers the parts and checks that something is left to work on.
///
/// An LLC is the pair (cache, node) and a core the pair (core, LLC), so parts nest by construction,
/// whatever the source says: caches over several nodes are real (sub-NUMA clustering), and virtual
/// machines can report anything.
fn build(raw: Raw, allowed: Option<CpuSet>) -> Result<Topology, TopologyError> {
    let online: CpuSet = raw.online.iter().map(|cpu| cpu.id).collect();
    let allowed = allowed.unwrap_or_else(|| online.clone());
    let usable = allowed.intersection(&online);
    if usable.is_empty() {
        return Err(TopologyError::NothingAllowed { allowed, online });
    }
    let (mut cores, mut llcs) = (Numbering::default(), Numbering::default());
    let mut nodes: BTreeMap<NodeId, CpuSet> = BTreeMap::new();
    let (mut places, mut llc_bytes) = (Vec::new(), Vec::new());
    for cpu in &raw.online {
        let llc = LlcId::from_index(llcs.add((cpu.llc_key, cpu.node), cpu.id));
        if llc.index() == llc_bytes.len() {
            llc_bytes.push(cpu.llc_bytes);
        }
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
        llc_bytes,
        nodes,
        memory_nodes: raw.memory_nodes,
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
