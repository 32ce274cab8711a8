//! A machine: which CPUs there are, and where each one sits.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::build::{self, Raw};
use crate::{
    CoreId, CpuId, CpuSet, Distance, LlcId, MaskError, NodeId, Pods, Scope, TopologyError, pods,
    synthetic, sysfs,
};

/// The CPUs of a machine and the cores, last-level caches and NUMA nodes they belong to.
///
/// A snapshot: CPUs that go on- or offline later are not seen.
#[derive(Clone, Debug)]
pub struct Topology {
    pub(crate) source: Source,
    pub(crate) cpus: CpuSet,
    pub(crate) online: CpuSet,
    pub(crate) allowed: CpuSet,
    /// By CPU number; `None` where the CPU is offline or absent.
    pub(crate) places: Vec<Option<Place>>,
    pub(crate) cores: Vec<CpuSet>,
    pub(crate) llcs: Vec<CpuSet>,
    pub(crate) nodes: BTreeMap<NodeId, CpuSet>,
    /// Relative memory latency from the first node to the second; a pair that is absent counts as
    /// [`DEFAULT_REMOTE`].
    pub(crate) latencies: BTreeMap<(NodeId, NodeId), u8>,
}

/// The latency between two nodes when the firmware states none: that of Linux' `REMOTE_DISTANCE`.
pub(crate) const DEFAULT_REMOTE: u8 = 20;

/// Where one online CPU sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) core: CoreId,
    pub(crate) llc: LlcId,
    pub(crate) node: NodeId,
    pub(crate) kind: CoreKind,
}

/// What kind of core a CPU belongs to, on processors that have more than one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CoreKind {
    /// All cores are alike, or the kernel does not say.
    #[default]
    Uniform,
    /// A fast core of a hybrid processor.
    Performance,
    /// A small core of a hybrid processor.
    Efficiency,
}

/// Where a topology comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A sysfs tree under this root.
    Sysfs(PathBuf),
    /// A synthetic string.
    Synthetic(String),
    /// The CPUs of a machine, split into so many pretend LLCs.
    Pretend(usize),
    /// Only the affinity mask is known: one node, one LLC, no SMT. The text says why.
    Flat(String),
}

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
            Ok(topology) => Ok(topology),
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
        build::build(sysfs::read(root)?, allowed)
    }

    /// A made-up machine, from counts of each part within the one before it:
    /// `numa:2 l3:4 core:8 pu:2` is two nodes of four L3 caches of eight cores of two threads.
    /// A part that is left out counts as 1; the order is always `numa l3 core pu`. CPUs are
    /// numbered in that order, so the threads of a core are neighbours. All are online and allowed.
    ///
    /// # Errors
    /// When the string names an unknown part, has no or a wrong count, repeats or reorders parts,
    /// or has more than [`crate::MAX_CPUS`] CPUs.
    pub fn from_synthetic(text: &str) -> Result<Self, TopologyError> {
        build::build(synthetic::parse(text)?, None)
    }

    /// Only a set of CPUs: one node, one LLC, every CPU a core of its own.
    ///
    /// # Errors
    /// When the set is empty.
    pub fn flat(cpus: CpuSet, why: String) -> Result<Self, TopologyError> {
        build::build(Raw::flat(&cpus, Source::Flat(why)), Some(cpus))
    }

    /// The allowed CPUs of this machine, split evenly into `count` pretend LLCs, so that scopes
    /// can be compared on a machine that has one. SMT siblings and real LLCs stay together as far
    /// as `count` permits; CPUs that are not allowed count as offline; nodes are kept when every pretend LLC fits in one, and merged otherwise.
    ///
    /// # Errors
    /// When `count` is 0 or above the number of allowed CPUs.
    pub fn pretend_llcs(&self, count: usize) -> Result<Self, TopologyError> {
        let raw = synthetic::pretend(self, count)?;
        build::build(raw, Some(self.allowed.clone()))
    }

    /// The same machine with only those of `mask` allowed that are allowed now.
    ///
    /// # Errors
    /// As [`Topology::check_mask`].
    pub fn restricted(&self, mask: &CpuSet) -> Result<Self, MaskError> {
        self.check_mask(mask)?;
        Ok(Self { allowed: mask.clone(), ..self.clone() })
    }

    /// Checks that work may run on each CPU of `mask`.
    ///
    /// # Errors
    /// When the mask is empty, or has a CPU that does not exist, is offline or is not allowed.
    pub fn check_mask(&self, mask: &CpuSet) -> Result<(), MaskError> {
        let (mask_owned, allowed) = (|| mask.clone(), || self.allowed.clone());
        if mask.is_empty() {
            return Err(MaskError::Empty { allowed: allowed() });
        }
        let absent = mask.difference(&self.cpus);
        if !absent.is_empty() {
            return Err(MaskError::Absent { mask: mask_owned(), absent, allowed: allowed() });
        }
        let offline = mask.difference(&self.online);
        if !offline.is_empty() {
            return Err(MaskError::Offline { mask: mask_owned(), offline, allowed: allowed() });
        }
        let forbidden = mask.difference(&self.allowed);
        if !forbidden.is_empty() {
            return Err(MaskError::NotAllowed {
                mask: mask_owned(),
                forbidden,
                allowed: allowed(),
            });
        }
        Ok(())
    }

    /// Where this topology comes from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Every CPU the machine has, online or not.
    #[must_use]
    pub fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// The CPUs that are online.
    #[must_use]
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// The online CPUs that may be used. Never empty.
    #[must_use]
    pub fn allowed(&self) -> &CpuSet {
        &self.allowed
    }

    /// The core of an online CPU.
    #[must_use]
    pub fn core_of(&self, cpu: CpuId) -> Option<CoreId> {
        Some(self.place(cpu)?.core)
    }

    /// The last-level cache of an online CPU.
    #[must_use]
    pub fn llc_of(&self, cpu: CpuId) -> Option<LlcId> {
        Some(self.place(cpu)?.llc)
    }

    /// The NUMA node of an online CPU.
    #[must_use]
    pub fn node_of(&self, cpu: CpuId) -> Option<NodeId> {
        Some(self.place(cpu)?.node)
    }

    /// What kind of core an online CPU belongs to.
    #[must_use]
    pub fn kind_of(&self, cpu: CpuId) -> Option<CoreKind> {
        Some(self.place(cpu)?.kind)
    }

    /// The online CPUs of each core, by [`CoreId`].
    #[must_use]
    pub fn cores(&self) -> &[CpuSet] {
        &self.cores
    }

    /// The online CPUs of each last-level cache, by [`LlcId`].
    #[must_use]
    pub fn llcs(&self) -> &[CpuSet] {
        &self.llcs
    }

    /// The NUMA nodes that have online CPUs, and those CPUs.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &CpuSet)> {
        self.nodes.iter().map(|(node, cpus)| (*node, cpus))
    }

    /// The online CPUs of the same core, the CPU itself among them. `None` when it is offline.
    #[must_use]
    pub fn siblings(&self, cpu: CpuId) -> Option<&CpuSet> {
        self.cores.get(self.core_of(cpu)?.index())
    }

    /// How far apart two CPUs are. Symmetric wherever the firmware's table of nodes is;
    /// [`Distance::FARTHEST`] when either is not online.
    #[must_use]
    pub fn distance(&self, from: CpuId, to: CpuId) -> Distance {
        let (Some(a), Some(b)) = (self.place(from), self.place(to)) else {
            return Distance::FARTHEST;
        };
        if from == to {
            Distance::SAME
        } else if a.core == b.core {
            Distance::SMT
        } else if a.llc == b.llc {
            Distance::CACHE
        } else {
            self.node_distance(a.node, b.node)
        }
    }

    /// The allowed CPUs, cut into the pods of a scope.
    #[must_use]
    pub fn pods(&self, scope: Scope) -> Pods {
        pods::partition(self, scope)
    }

    /// How far apart two nodes are; [`Distance::NODE`] for a node and itself.
    #[must_use]
    pub fn node_distance(&self, from: NodeId, to: NodeId) -> Distance {
        if from == to {
            return Distance::NODE;
        }
        Distance::remote(self.latencies.get(&(from, to)).copied().unwrap_or(DEFAULT_REMOTE))
    }

    fn place(&self, cpu: CpuId) -> Option<&Place> {
        self.places.get(cpu.index())?.as_ref()
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysfs(root) => write!(f, "from {}", root.display()),
            Self::Synthetic(text) => write!(f, "synthetic, {text:?}"),
            Self::Pretend(count) => write!(f, "split into {count} pretend LLCs"),
            Self::Flat(why) => write!(f, "flat, because {why}"),
        }
    }
}
