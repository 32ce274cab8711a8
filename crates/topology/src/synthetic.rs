//! Made-up machines, from a string.

use std::collections::BTreeMap;
use std::num::IntErrorKind;

use crate::cpuset::{CpuSet, MAX_CPUS};
use crate::error::TopologyError;
use crate::ids::{CpuId, NodeId};
use crate::source::{CoreKind, Raw, RawCpu, Source};

/// The parts, from the widest to the narrowest.
const LEVELS: [&str; 4] = ["numa", "l3", "core", "pu"];

pub(crate) fn parse(text: &str) -> Result<Raw, TopologyError> {
    let Counts { nodes, llcs, cores, small, threads } = counts(text)?;
    let per_llc = cores.checked_mul(threads).and_then(|cpus| cpus.checked_add(small));
    let total = [llcs, nodes].iter().try_fold(per_llc, |all, &count| Some(all?.checked_mul(count)));
    let total = total.flatten().filter(|total| *total <= MAX_CPUS);
    let total = total.ok_or_else(|| TopologyError::TooLarge { text: text.to_owned() })?;
    // Both are known to be in range: they are factors of `total`.
    let fast = cores * threads;
    let per_llc = fast + small;
    let online = (0..total).map(|cpu| {
        let (llc, place) = (cpu / per_llc, cpu % per_llc);
        // Fast cores come first, then small ones of a thread each.
        let core = if place < fast { place / threads } else { cores + place - fast };
        RawCpu {
            id: CpuId(cpu),
            core_key: llc * (cores + small) + core,
            llc_key: llc,
            llc_bytes: None,
            node: NodeId(llc / llcs),
            kind: match (small, place < fast) {
                (0, _) => CoreKind::Uniform,
                (_, true) => CoreKind::Performance,
                (_, false) => CoreKind::Efficiency,
            },
        }
    });
    Ok(Raw {
        source: Source::Synthetic(text.trim().to_owned()),
        cpus: CpuSet::first(total),
        online: online.collect(),
        latencies: BTreeMap::new(),
        memory_nodes: (0..nodes).map(NodeId).collect(),
    })
}

struct Counts {
    nodes: u32,
    llcs: u32,
    cores: u32,
    /// Small cores of a hybrid processor, beside `cores` fast ones.
    small: u32,
    threads: u32,
}

/// The count of each of [`LEVELS`]; 1 where the string is silent.
fn counts(text: &str) -> Result<Counts, TopologyError> {
    let mut counts = [1; LEVELS.len()];
    let (mut next, mut small) = (0, 0);
    for part in text.split_whitespace() {
        let wrong = |why| wrong(text, part, why);
        let (fast, more) = match part.split_once('+') {
            Some((fast, small)) if part.starts_with("core:") => (fast, Some(small)),
            _ => (part, None),
        };
        let (level, count) = level(fast, next).map_err(wrong)?;
        if let Some(more) = more {
            small = number(more).map_err(wrong)?;
        }
        counts[level] = count;
        next = level + 1;
    }
    if next == 0 {
        return Err(wrong(text, "", "names no part"));
    }
    let [nodes, llcs, cores, threads] = counts;
    Ok(Counts { nodes, llcs, cores, small, threads })
}

fn number(count: &str) -> Result<u32, &'static str> {
    // `parse` alone would take "+2".
    let digits = count.bytes().all(|byte| byte.is_ascii_digit());
    match if digits { count } else { "" }.parse() {
        Ok(count @ 1..) => Ok(count),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => {
            Err("has a count that is too large")
        }
        Ok(0) | Err(_) => Err("has a count that is not a number from 1"),
    }
}

fn level(part: &str, next: usize) -> Result<(usize, u32), &'static str> {
    let (name, count) = part.split_once(':').ok_or("has no count after a colon")?;
    let level =
        LEVELS.iter().position(|level| *level == name).ok_or("is none of numa, l3, core and pu")?;
    if level < next {
        return Err("is repeated or out of the order numa, l3, core, pu");
    }
    Ok((level, number(count)?))
}

fn wrong(text: &str, part: &str, why: &'static str) -> TopologyError {
    TopologyError::Synthetic { text: text.to_owned(), part: part.to_owned(), why }
}
