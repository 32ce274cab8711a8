//! Made-up machines: from a string, and from the CPUs of a real one.

use std::collections::BTreeMap;

use crate::build::{Raw, RawCpu};
use crate::pods::{cores_within, even_runs};
use crate::topology::CoreKind;
use crate::{CpuId, CpuSet, LlcId, MAX_CPUS, NodeId, Source, Topology, TopologyError};

/// The parts, from the widest to the narrowest.
const LEVELS: [&str; 4] = ["numa", "l3", "core", "pu"];

pub(crate) fn parse(text: &str) -> Result<Raw, TopologyError> {
    let [nodes, llcs, cores, threads] = counts(text)?;
    let total = [llcs, cores, threads]
        .iter()
        .try_fold(nodes, |all, count| all.checked_mul(*count).filter(|total| *total <= MAX_CPUS));
    let total = total.filter(|total| *total <= MAX_CPUS);
    let total = total.ok_or_else(|| TopologyError::TooLarge { text: text.to_owned() })?;
    let online = (0..total).map(|cpu| RawCpu {
        id: CpuId(cpu),
        core_key: cpu / threads,
        llc_key: cpu / (threads * cores),
        node: NodeId(cpu / (threads * cores * llcs)),
        kind: CoreKind::Uniform,
    });
    Ok(Raw {
        source: Source::Synthetic(text.trim().to_owned()),
        cpus: CpuSet::first(total),
        online: online.collect(),
        latencies: BTreeMap::new(),
    })
}

/// The count of each of [`LEVELS`]; 1 where the string is silent.
fn counts(text: &str) -> Result<[u32; LEVELS.len()], TopologyError> {
    let mut counts = [1; LEVELS.len()];
    let mut next = 0;
    for part in text.split_whitespace() {
        let (level, count) = level(part, next).map_err(|why| wrong(text, part, why))?;
        counts[level] = count;
        next = level + 1;
    }
    if next == 0 { Err(wrong(text, "", "names no part")) } else { Ok(counts) }
}

fn level(part: &str, next: usize) -> Result<(usize, u32), &'static str> {
    let (name, count) = part.split_once(':').ok_or("has no count after a colon")?;
    let level =
        LEVELS.iter().position(|level| *level == name).ok_or("is none of numa, l3, core and pu")?;
    if level < next {
        return Err("is repeated or out of the order numa, l3, core, pu");
    }
    match count.parse() {
        Ok(0) | Err(_) => Err("has a count that is not a number from 1"),
        Ok(count) => Ok((level, count)),
    }
}

fn wrong(text: &str, part: &str, why: &'static str) -> TopologyError {
    TopologyError::Synthetic { text: text.to_owned(), part: part.to_owned(), why }
}

/// The allowed CPUs of `machine` in `count` pretend LLCs.
pub(crate) fn pretend(machine: &Topology, count: usize) -> Result<Raw, TopologyError> {
    let cpus = machine.allowed().len();
    if count == 0 || count > cpus {
        return Err(TopologyError::PretendLlcs { asked: count, cpus });
    }
    let units = units(machine, count);
    let runs: Vec<CpuSet> =
        even_runs(&units, count).map(|run| run.iter().flat_map(CpuSet::iter).collect()).collect();
    let keep_nodes = runs.iter().all(|run| machine.nodes().any(|(_, node)| run.is_subset(node)));
    let mut online = Vec::new();
    for (llc, run) in runs.iter().enumerate() {
        for id in run {
            online.push(RawCpu {
                id,
                core_key: machine.core_of(id).map_or(id.0, |core| core.0),
                llc_key: LlcId::from_index(llc).0,
                node: machine.node_of(id).filter(|_| keep_nodes).unwrap_or(NodeId(0)),
                kind: machine.kind_of(id).unwrap_or_default(),
            });
        }
    }
    online.sort_by_key(|cpu| cpu.id);
    Ok(Raw {
        source: Source::Pretend(count),
        cpus: machine.cpus().clone(),
        online,
        latencies: if keep_nodes { machine.latencies.clone() } else { BTreeMap::new() },
    })
}

/// What a run may not be cut inside of: cores, or single CPUs when there are too few cores. In
/// order of node and LLC, so that runs keep these together.
fn units(machine: &Topology, count: usize) -> Vec<CpuSet> {
    let mut units = cores_within(machine, machine.allowed());
    if units.len() < count {
        units = machine.allowed().iter().map(|cpu| CpuSet::from_iter([cpu])).collect();
    }
    units.sort_by_key(|unit| {
        let cpu = unit.lowest();
        (cpu.and_then(|cpu| machine.node_of(cpu)), cpu.and_then(|cpu| machine.llc_of(cpu)), cpu)
    });
    units
}
