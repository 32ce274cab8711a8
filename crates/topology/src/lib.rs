//! The places of a machine: CPUs, SMT cores, last-level caches (LLC) and NUMA nodes; how far apart
//! two CPUs are; and the *pods* into which an affinity [`Scope`] cuts the CPUs that may be used.
//!
//! A [`Topology`] is plain data. It comes from sysfs ([`Topology::current`], or
//! [`Topology::from_sysfs`] under any root) or from a synthetic string:
//!
//! ```
//! use tollgate_topology::{CpuId, Distance, Scope, Topology};
//!
//! let machine = Topology::from_synthetic("numa:2 l3:2 core:4 pu:2")?;
//! assert_eq!(machine.cpus().len(), 32);
//!
//! let pods = machine.pods(Scope::Cache);
//! assert_eq!(pods.len(), 4);
//! let pod = pods.pod_of(CpuId(9)).unwrap();
//! assert_eq!(pods[pod].cpus.to_string(), "8-15");
//!
//! assert_eq!(machine.distance(CpuId(0), CpuId(1)), Distance::SMT);
//! assert!(machine.distance(CpuId(0), CpuId(8)) < machine.distance(CpuId(0), CpuId(16)));
//! # Ok::<(), tollgate_topology::TopologyError>(())
//! ```
//!
//! Cores nest in LLCs and LLCs in nodes, always: an LLC that the hardware spreads over several
//! nodes (sub-NUMA clustering) is counted once per node.

mod build;
mod cpuset;
mod display;
mod error;
mod ids;
mod pods;
mod pretend;
mod scope;
mod source;
mod synthetic;
mod sysfs;
mod topology;

pub use cpuset::{CpuListError, CpuSet, MAX_CPUS};
pub use error::{MaskError, TopologyError};
pub use ids::{CoreId, CpuId, Distance, IndexError, LlcId, NodeId, PodId};
pub use pods::{MAX_SHARD_CORES, Pod, Pods};
pub use scope::{Scope, UnknownScope};
pub use source::{CoreKind, Source};
pub use topology::Topology;
