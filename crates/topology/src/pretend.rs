//! Pretend last-level caches on the CPUs of a real machine.

use std::collections::BTreeMap;

use crate::cpuset::CpuSet;
use crate::error::TopologyError;
use crate::ids::{LlcId, NodeId};
use crate::pods::{cores_within, even_runs};
use crate::source::{Raw, RawCpu, Source};
use crate::topology::Topology;

/// The allowed CPUs of `machine` in `count` pretend LLCs.
pub(crate) fn pretend(machine: &Topology, count: usize) -> Result<Raw, TopologyError> {
    let cpus = machine.allowed().len();
    if count == 0 || count > cpus {
        return Err(TopologyError::PretendLlcs { asked: count, cpus });
    }
    let units = units(machine, count);
    let runs: Vec<CpuSet> =
        even_runs(&units, count).map(|run| run.iter().flat_map(CpuSet::iter).collect()).collect();
    let node_of = |cpu| machine.node_of(cpu);
    let keep_nodes = runs.iter().all(|run| {
        let first = run.lowest().and_then(node_of);
        run.iter().all(|cpu| node_of(cpu) == first)
    });
    let mut online = Vec::new();
    for (llc, run) in runs.iter().enumerate() {
        for id in run {
            let place = machine.place(id).expect("a CPU that is allowed is online");
            online.push(RawCpu {
                id,
                core_key: place.core.0,
                llc_key: LlcId::from_index(llc).0,
                llc_bytes: None,
                node: if keep_nodes { place.node } else { NodeId(0) },
                kind: place.kind,
            });
        }
    }
    online.sort_by_key(|cpu| cpu.id);
    Ok(Raw {
        source: Source::Pretend(count),
        cpus: machine.cpus().clone(),
        online,
        latencies: if keep_nodes { machine.latencies.clone() } else { BTreeMap::new() },
        memory_nodes: machine.memory_nodes().clone(),
    })
}

/// What a run may not be cut inside of: cores, or single CPUs when there are too few cores. In
/// order of node and LLC, so that runs keep these together.
fn units(machine: &Topology, count: usize) -> Vec<CpuSet> {
    let mut units = cores_within(machine, machine.allowed());
    if units.len() < count {
        units = machine.allowed().iter().map(|cpu| CpuSet::from_iter([cpu])).collect();
    }
    units.sort_by_cached_key(|unit| {
        let cpu = unit.lowest();
        (cpu.and_then(|cpu| machine.node_of(cpu)), cpu.and_then(|cpu| machine.llc_of(cpu)), cpu)
    });
    units
}
