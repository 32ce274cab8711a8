//! What can be wrong with a description of a machine, or with a set of its CPUs.

use std::io;
use std::path::PathBuf;

use crate::cpuset::{CpuListError, CpuSet, MAX_CPUS};
use crate::ids::CpuId;

/// A topology that could not be had.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A file of sysfs could not be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of sysfs does not hold a CPU list.
    #[error("{path}: {source}", path = path.display())]
    List {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: CpuListError,
    },
    /// A file of sysfs does not hold the number it should.
    #[error("{path} holds {found:?}; right would be {right}", path = path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What it should hold.
        right: &'static str,
    },
    /// A CPU list of sysfs leaves out the CPU it belongs to.
    #[error("{path} holds `{found}`, which leaves out CPU {cpu} itself", path = path.display())]
    NotInOwnList {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: CpuSet,
        /// The CPU.
        cpu: CpuId,
    },
    /// No CPU would be left to work on.
    #[error("none of the allowed CPUs ({allowed}) is online ({online})")]
    NothingAllowed {
        /// The CPUs that are allowed.
        allowed: CpuSet,
        /// The CPUs that are online.
        online: CpuSet,
    },
    /// The affinity mask of the thread could not be had.
    #[error("cannot read the CPU affinity of this thread: {0}")]
    Affinity(io::Error),
    /// A part of a synthetic string is wrong.
    #[error(
        "synthetic topology {text:?}: {part:?} {why}; \
         right would be a string such as \"numa:2 l3:4 core:8 pu:2\""
    )]
    Synthetic {
        /// The whole string.
        text: String,
        /// The part that is wrong.
        part: String,
        /// In what way.
        why: &'static str,
    },
    /// A synthetic string asks for too many CPUs.
    #[error(
        "synthetic topology {text:?} has more than {MAX_CPUS} CPUs, which is the most there can be"
    )]
    TooLarge {
        /// The whole string.
        text: String,
    },
    /// The allowed CPUs cannot be split into so many pretend LLCs.
    #[error(
        "cannot split {cpus} allowed CPUs into {asked} pretend LLCs; right would be 1 to {cpus}"
    )]
    PretendLlcs {
        /// How many were asked for.
        asked: usize,
        /// How many CPUs there are.
        cpus: usize,
    },
}

/// A set of CPUs that cannot be used on a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// No CPU at all.
    #[error("the CPU mask is empty; right would be some of the allowed CPUs {allowed}")]
    Empty {
        /// What may be used.
        allowed: CpuSet,
    },
    /// CPUs that the machine does not have.
    #[error("CPU mask {mask}: there is no CPU {absent}; right would be some of {allowed}")]
    Absent {
        /// The mask.
        mask: CpuSet,
        /// The CPUs in it that do not exist.
        absent: CpuSet,
        /// What may be used.
        allowed: CpuSet,
    },
    /// CPUs that are offline.
    #[error("CPU mask {mask}: CPU {offline} is offline; right would be some of {allowed}")]
    Offline {
        /// The mask.
        mask: CpuSet,
        /// The CPUs in it that are offline.
        offline: CpuSet,
        /// What may be used.
        allowed: CpuSet,
    },
    /// CPUs that cpuset or affinity forbid to this process.
    #[error(
        "CPU mask {mask}: CPU {forbidden} is not allowed to this process; \
         right would be some of {allowed}"
    )]
    NotAllowed {
        /// The mask.
        mask: CpuSet,
        /// The CPUs in it that are forbidden.
        forbidden: CpuSet,
        /// What may be used.
        allowed: CpuSet,
    },
}
