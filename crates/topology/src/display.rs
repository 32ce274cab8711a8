//! A topology as a tree for people.

use std::collections::BTreeSet;
use std::fmt;

use crate::cpuset::CpuSet;
use crate::ids::CpuId;
use crate::source::CoreKind;
use crate::topology::Topology;

/// A line for the machine, then one for each node, LLC and core that is online.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        headline(self, f)?;
        for (node, cpus) in self.nodes() {
            writeln!(f, "node {node}  {}", label(self, cpus))?;
            let llcs = parts(&self.llcs, cpus, |cpu| Some(self.llc_of(cpu)?.index()));
            for (at, (llc, cpus)) in llcs.iter().enumerate() {
                let (branch, bar) = branch(at + 1 == llcs.len());
                writeln!(f, "{branch} llc {llc}  {}", label(self, cpus))?;
                write_cores(self, f, cpus, bar)?;
            }
        }
        Ok(())
    }
}

fn headline(topology: &Topology, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "{} of {} online allowed ({}); {}, {}, {}; {}",
        topology.allowed.len(),
        count(topology.online.len(), "CPU"),
        topology.allowed,
        count(topology.nodes.len(), "node"),
        count(topology.llcs.len(), "LLC"),
        count(topology.cores.len(), "core"),
        topology.source,
    )?;
    let offline = topology.cpus.difference(&topology.online);
    if !offline.is_empty() {
        write!(f, "; offline: {offline}")?;
    }
    writeln!(f)
}

fn write_cores(
    topology: &Topology,
    f: &mut fmt::Formatter<'_>,
    llc: &CpuSet,
    bar: &str,
) -> fmt::Result {
    let cores = parts(&topology.cores, llc, |cpu| Some(topology.core_of(cpu)?.index()));
    for (at, (core, cpus)) in cores.iter().enumerate() {
        let (branch, _) = branch(at + 1 == cores.len());
        let kind = match cpus.lowest().and_then(|cpu| topology.kind_of(cpu)) {
            Some(CoreKind::Performance) => "  performance",
            Some(CoreKind::Efficiency) => "  efficiency",
            Some(CoreKind::Uniform) | None => "",
        };
        writeln!(f, "{bar} {branch} core {core}  {}{kind}", label(topology, cpus))?;
    }
    Ok(())
}

/// The parts that lie within `whole`, with their numbers; `of` says which one a CPU is in. Parts
/// nest.
fn parts<'a>(
    parts: &'a [CpuSet],
    whole: &CpuSet,
    of: impl Fn(CpuId) -> Option<usize>,
) -> Vec<(usize, &'a CpuSet)> {
    let numbers: BTreeSet<usize> = whole.iter().filter_map(of).collect();
    numbers.into_iter().filter_map(|number| Some((number, parts.get(number)?))).collect()
}

fn branch(last: bool) -> (&'static str, &'static str) {
    if last { ("└─", "  ") } else { ("├─", "│ ") }
}

fn label(topology: &Topology, cpus: &CpuSet) -> String {
    let word = if cpus.len() == 1 { "cpu" } else { "cpus" };
    let usable = cpus.intersection(&topology.allowed);
    if usable == *cpus {
        format!("{word} {cpus}")
    } else if usable.is_empty() {
        format!("{word} {cpus} (not allowed)")
    } else {
        format!("{word} {cpus} (allowed: {usable})")
    }
}

fn count(number: usize, word: &str) -> String {
    if number == 1 { format!("1 {word}") } else { format!("{number} {word}s") }
}
