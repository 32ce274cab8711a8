//! What every source of a topology delivers: sysfs, a synthetic string, another topology, or only a
//! set of CPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use crate::cpuset::CpuSet;
use crate::ids::{CpuId, NodeId};

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

/// A machine as a source describes it, not yet checked.
pub(crate) struct Raw {
    pub(crate) source: Source,
    /// Every CPU, online or not.
    pub(crate) cpus: CpuSet,
    /// The online ones, each once, in rising order.
    pub(crate) online: Vec<RawCpu>,
    pub(crate) latencies: BTreeMap<(NodeId, NodeId), u8>,
    /// The nodes to allocate memory from. May name nodes without CPUs.
    pub(crate) memory_nodes: BTreeSet<NodeId>,
}

/// One online CPU. Equal keys mean the same core or cache; their values mean nothing else.
pub(crate) struct RawCpu {
    pub(crate) id: CpuId,
    pub(crate) core_key: u32,
    pub(crate) llc_key: u32,
    /// Size of that cache, where the source states it.
    pub(crate) llc_bytes: Option<usize>,
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
            llc_bytes: None,
            node: NodeId(0),
            kind: CoreKind::Uniform,
        });
        Self {
            source,
            cpus: cpus.clone(),
            online: online.collect(),
            latencies: BTreeMap::new(),
            memory_nodes: BTreeSet::from([NodeId(0)]),
        }
    }
}
