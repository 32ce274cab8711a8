//! Made-up machines, from a string.

use std::collections::BTreeMap;

use crate::cpuset::{CpuSet, MAX_CPUS};
use crate::error::TopologyError;
use crate::ids::{CpuId, NodeId};
use crate::source::{CoreKind, Raw, RawCpu, Source};

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
        llc_bytes: None,
        node: NodeId(cpu / (threads * cores * llcs)),
        kind: CoreKind::Uniform,
    });
    Ok(Raw {
        source: Source::Synthetic(text.trim().to_owned()),
        cpus: CpuSet::first(total),
        online: online.collect(),
        latencies: BTreeMap::new(),
        memory_nodes: (0..nodes).map(NodeId).collect(),
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
