//! Affinity scopes against each other, and the table of the published measurements.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use tollgate_topology::{Scope, Source, Topology};
use tollgate_workqueue::{Attributes, Queue, Runtime};

use super::crypto::{self, Outcome, Plan};
use super::ours::Ours;
use super::spawn;
use crate::harness::{Better, Column, Options, Report, Row};

/// Blocks that an issuer keeps going, in the rows of scopes.
const SHALLOW: usize = 8;
/// The same in the published table, as its authors had it.
const DEEP: usize = 64;
/// The limit of the gated half of that table.
const GATE: u32 = 8;

/// Columns of the scopes, from the widest.
const SCOPES: [(&str, Scope, bool); 7] = [
    ("system", Scope::System, false),
    ("numa", Scope::Numa, false),
    ("cache", Scope::Cache, false),
    ("cache strict", Scope::Cache, true),
    ("cache_shard", Scope::CacheShard, false),
    ("smt", Scope::Smt, false),
    ("cpu", Scope::Cpu, false),
];

/// Columns of the published table: scope, strict, localize.
const CONFIGURATIONS: [(&str, Scope, bool, bool); 5] = [
    ("SYSTEM", Scope::System, false, false),
    ("CACHE", Scope::Cache, false, false),
    ("CACHE+STRICT", Scope::Cache, true, false),
    ("SYSTEM+LOCAL", Scope::System, false, true),
    ("CACHE+LOCAL", Scope::Cache, false, true),
];

/// The columns that this module fills.
pub(super) fn columns() -> Vec<Column> {
    let scopes = SCOPES.iter().map(|column| column.0);
    let configurations = CONFIGURATIONS.iter().map(|column| column.0);
    let against = |base: &'static str| {
        move |name: &str| if name == base { Column::new(name) } else { Column::against(name, base) }
    };
    scopes.map(against("system")).chain(configurations.map(against("SYSTEM"))).collect()
}

/// Measures scopes against each other, on this machine and on pretend LLCs.
pub(super) fn measure(report: &mut Report, options: &Options) -> Result<()> {
    let machine = Topology::current()?;
    for topology in topologies(&machine, options) {
        scope_rows(report, options, &topology)?;
    }
    for limit in [None, Some(GATE)] {
        published_table(report, options, &machine, limit)?;
    }
    Ok(())
}

/// This machine, and its CPUs in 2, 4 and 8 pretend LLCs.
fn topologies(machine: &Topology, options: &Options) -> Vec<Topology> {
    let counts: &[usize] = if options.quick { &[2] } else { &[2, 4, 8] };
    let pretend = counts.iter().filter_map(|count| machine.pretend_llcs(*count).ok());
    std::iter::once(machine.clone()).chain(pretend).collect()
}

fn scope_rows(report: &mut Report, options: &Options, topology: &Topology) -> Result<()> {
    let label = label(topology);
    report.section(&format!("scopes against each other, {label}"));
    let (cpus, run) = (topology.allowed().len(), run_time(options));
    let tasks = options.pick(200_000, 40_000);
    let rows = [
        Row::new(&format!("encryption, {label}"), "MiB/s", Better::Higher),
        Row::new(&format!("spawn from outside, 2 producers, {label}"), "ns/task", Better::Lower),
    ];
    let names = SCOPES.map(|column| column.0);
    report.measure_many(&rows, &names, |_, column| {
        let (_, scope, strict) = SCOPES[column];
        let attributes = attributes(scope, strict, false);
        let (_runtime, queue) = start(topology, attributes)?;
        let plan = Plan { issuers: cpus, depth: SHALLOW, time: run };
        let encryption = crypto::run(&queue, cpus, plan)?;
        let spawn = spawn::ns_per_task(&Ours::of(queue), 2, tasks)?;
        Ok(vec![encryption.mib_per_s, spawn])
    })
}

/// The published shape: issuers at three levels, five configurations; without and with a limit.
fn published_table(
    report: &mut Report,
    options: &Options,
    machine: &Topology,
    limit: Option<u32>,
) -> Result<()> {
    let topology = several_llcs(machine);
    let cpus = topology.allowed().len();
    let gate = limit.map_or("no limit".to_owned(), |limit| format!("max_active {limit}"));
    let title = format!("encryption as published, depth {DEEP}, {gate}, {}", label(&topology));
    report.section(&title);
    let names = CONFIGURATIONS.map(|column| column.0);
    let mut tables = Vec::new();
    for (level, issuers) in [("HIGH", 2 * cpus), ("MED", cpus), ("LOW", cpus.div_ceil(2))] {
        let who = if issuers == 1 { "1 issuer".to_owned() } else { format!("{issuers} issuers") };
        let name = format!("encryption {level}, {who}, {gate}");
        let rows = [
            Row::new(&name, "MiB/s", Better::Higher),
            Row::new(&format!("{name}, CPU"), "% of all CPUs", Better::Lower),
        ];
        let mut outcomes: [Vec<Outcome>; CONFIGURATIONS.len()] = Default::default();
        report.measure_many(&rows, &names, |_, column| {
            let (_, scope, strict, localize) = CONFIGURATIONS[column];
            let own = attributes(scope, strict, localize);
            let own = Attributes { max_active: limit, ..own };
            let (_runtime, queue) = start(&topology, own)?;
            let plan = Plan { issuers, depth: DEEP, time: run_time(options) };
            let outcome = crypto::run(&queue, cpus, plan)?;
            outcomes[column].push(outcome);
            Ok(vec![outcome.mib_per_s, outcome.cpu_percent])
        })?;
        tables.push((format!("{level}: {who}"), outcomes));
    }
    if tables.iter().all(|(_, outcomes): &Level| outcomes.iter().all(|runs| !runs.is_empty())) {
        report.note(format!(
            "E{}: mean MiB/s ±sd (change against SYSTEM in %), CPU %\n{}",
            &title[1..],
            table(&tables)
        ));
    }
    Ok(())
}

/// This machine if it has several LLCs, otherwise its CPUs in up to four pretend ones, as many as
/// the machine of the published figures.
fn several_llcs(machine: &Topology) -> Topology {
    if machine.pods(Scope::Cache).len() > 1 {
        return machine.clone();
    }
    let pretend = machine.pretend_llcs(machine.allowed().len().min(4));
    pretend.unwrap_or_else(|_| machine.clone())
}

fn label(topology: &Topology) -> String {
    match topology.source() {
        Source::Pretend(count) => format!("{count} pretend LLCs"),
        _ => match topology.pods(Scope::Cache).len() {
            1 => "this machine, 1 LLC".to_owned(),
            count => format!("this machine, {count} LLCs"),
        },
    }
}

/// Nanoseconds per task from `producers` outside, with a FIFO per CPU or one for all.
pub(super) fn spawn_ns(sharded: bool, producers: usize, tasks: usize) -> Result<f64> {
    let runtime = Runtime::builder().sharded(sharded).default_scope(Scope::Cpu).build()?;
    spawn::ns_per_task(&Ours::of(runtime.queue("bench").build()?), producers, tasks)
}

fn attributes(scope: Scope, strict: bool, localize: bool) -> Attributes {
    Attributes {
        affinity_scope: Some(scope),
        affinity_strict: strict,
        localize,
        ..Attributes::default()
    }
}

/// A runtime on `topology`, to be kept, and a queue of it.
fn start(topology: &Topology, attributes: Attributes) -> Result<(Runtime, Queue)> {
    let runtime = Runtime::builder().topology(topology.clone()).build()?;
    let queue = runtime.queue("bench").build()?;
    queue.change(|own| *own = attributes)?;
    Ok((runtime, queue))
}

fn run_time(options: &Options) -> Duration {
    options.pick(Duration::from_millis(2500), Duration::from_millis(120))
}

/// One level of issuers, and the outcomes of each configuration.
type Level = (String, [Vec<Outcome>; CONFIGURATIONS.len()]);

/// The published table, of what was measured here.
fn table(levels: &[Level]) -> String {
    let mut text = format!("{:14}", "");
    for (name, _) in levels {
        let _ = write!(text, "{name:32}");
    }
    for (at, configuration) in CONFIGURATIONS.iter().enumerate() {
        let _ = write!(text, "\n{:14}", configuration.0);
        for (_, outcomes) in levels {
            let _ = write!(text, "{:32}", table_cell(outcomes, at));
        }
    }
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

fn table_cell(outcomes: &[Vec<Outcome>], at: usize) -> String {
    let bandwidth = |at: usize| outcomes[at].iter().map(|outcome| outcome.mib_per_s);
    let cpu = mean(outcomes[at].iter().map(|outcome| outcome.cpu_percent));
    let (own, base) = (mean(bandwidth(at)), mean(bandwidth(0)));
    let mut cell = format!("{own:.2} ±{:.2}", deviation(bandwidth(at)));
    if at > 0 {
        let _ = write!(cell, " ({:+.2})", 100.0 * (own / base - 1.0));
    }
    let _ = write!(cell, ", {cpu:.2}");
    cell
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count() as f64
}

/// Standard deviation of a sample; 0 of one value.
fn deviation(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let mean = mean(values.clone());
    let others = (values.clone().count() as f64 - 1.0).max(1.0);
    (values.map(|value| (value - mean).powi(2)).sum::<f64>() / others).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_published_form() {
        let runs = |mib: [f64; 2]| {
            mib.map(|mib_per_s| Outcome { mib_per_s, cpu_percent: 99.311 }).to_vec()
        };
        let outcomes = [[99.0, 101.0], [98.0, 98.0], [1.0; 2], [1.0; 2], [1.0; 2]].map(runs);
        let text = table(&[("HIGH: 4 issuers".to_owned(), outcomes)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].trim(), "HIGH: 4 issuers");
        assert_eq!(lines[1], "SYSTEM        100.00 ±1.41, 99.31");
        assert_eq!(lines[2], "CACHE         98.00 ±0.00 (-2.00), 99.31");
        assert_eq!(lines.len(), 6);
    }
}
