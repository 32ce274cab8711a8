//! A machine: which CPUs there are, and where each one sits.

use std::collections::{BTreeMap, BTreeSet};

use crate::cpuset::CpuSet;
use crate::error::MaskError;
use crate::ids::{CoreId, CpuId, Distance, LlcId, NodeId};
use crate::source::{CoreKind, Source};

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
    /// By [`LlcId`]; `None` where the source states no size.
    pub(crate) llc_bytes: Vec<Option<usize>>,
    pub(crate) nodes: BTreeMap<NodeId, CpuSet>,
    pub(crate) memory_nodes: BTreeSet<NodeId>,
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

impl Topology {
    /// The same machine with only the CPUs of `mask` allowed, each of which is allowed now.
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

    /// The size of a last-level cache in bytes; `None` where sysfs states none, or no cache has
    /// this number. In a virtual machine this is what the hypervisor claims, which can be a cache
    /// that many other machines share.
    #[must_use]
    pub fn llc_bytes(&self, llc: LlcId) -> Option<usize> {
        self.llc_bytes.get(llc.index()).copied().flatten()
    }

    /// The NUMA nodes to allocate memory from: those that are online, have memory and, for
    /// [`Topology::current`], are in the memory mask of the calling thread. A node without CPUs can
    /// be among them, and a node with CPUs can be missing. Never empty: node 0 where no source
    /// lists nodes.
    #[must_use]
    pub fn memory_nodes(&self) -> &BTreeSet<NodeId> {
        &self.memory_nodes
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

    /// How far apart two nodes are; [`Distance::NODE`] for a node and itself.
    #[must_use]
    pub fn node_distance(&self, from: NodeId, to: NodeId) -> Distance {
        if from == to {
            return Distance::NODE;
        }
        Distance::remote(self.latencies.get(&(from, to)).copied().unwrap_or(DEFAULT_REMOTE))
    }

    pub(crate) fn place(&self, cpu: CpuId) -> Option<&Place> {
        self.places.get(cpu.index())?.as_ref()
    }
}
