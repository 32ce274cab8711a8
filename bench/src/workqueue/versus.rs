//! The rows that compare with peers, and what they must reach.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};

use super::ours::Ours;
use super::peers::{Affinity, Rayon, Tokio};
use super::pool::{Trips, workers};
use super::{blocking, idle, load, pairs, spawn, tree, trips};
use crate::harness::{Better, Must, Options, Report, Row};

/// The runtime of this project.
pub(super) const OURS: &str = "tollgate";

/// All contestants.
const CONTESTANTS: [&str; 4] = [OURS, "rayon", "tokio", "affinitypool"];

/// Whom it is compared with.
pub(super) const PEERS: [&str; 3] = ["rayon", "tokio", "affinitypool"];

/// Calls `$body` with a fresh pool of the contestant `$name`, as an `Arc` of its type.
macro_rules! with_pool {
    ($name:expr, $pool:ident => $body:expr) => {{
        let workers = workers()?;
        match $name {
            OURS => {
                let $pool = Arc::new(Ours::new()?);
                $body
            }
            "rayon" => {
                let $pool = Arc::new(Rayon::new(workers)?);
                $body
            }
            "tokio" => {
                let $pool = Arc::new(Tokio::new(workers)?);
                $body
            }
            "affinitypool" => {
                let $pool = Arc::new(Affinity::new(workers));
                $body
            }
            other => bail!("there is no contestant {other:?}"),
        }
    }};
}

/// Measures `$row` (or several `$rows` at once) with a fresh pool of every contestant per round.
macro_rules! contest {
    ($report:expr, many $rows:expr, $pool:ident => $body:expr) => {
        $report.measure_many($rows, &CONTESTANTS, |_, contestant| {
            with_pool!(CONTESTANTS[contestant], $pool => $body)
        })
    };
    ($report:expr, $row:expr, $pool:ident => $body:expr) => {
        $report.measure($row, &CONTESTANTS, |_, contestant| {
            with_pool!(CONTESTANTS[contestant], $pool => $body)
        })
    };
}

/// Measures every row.
pub(super) fn measure(report: &mut Report, options: &Options) -> Result<()> {
    spawn_rows(report, options)?;
    trip_rows(report, options)?;
    pair_rows(report, options)?;
    tree_rows(report, options)?;
    blocking_row(report, options)?;
    load_rows(report, options)?;
    idle_row(report, options)
}

fn spawn_name(producers: usize) -> String {
    let s = if producers == 1 { "" } else { "s" };
    format!("spawn from outside, {producers} producer{s}")
}

fn spawn_rows(report: &mut Report, options: &Options) -> Result<()> {
    report.section("spawn from outside: from the first submission until the last task is done");
    let tasks = options.pick(400_000, 100_000);
    for producers in [1, 2, 4, 8] {
        let row = Row::new(&spawn_name(producers), "ns/task", Better::Lower).warm_up();
        contest!(report, &row, pool => spawn::ns_per_task(&*pool, producers, tasks))?;
    }
    let (one, eight) = (spawn_name(1), spawn_name(8));
    report.must(Must::at_most((&one, OURS), 1.0).against_best_of(&PEERS).aim(0.5));
    report.must(Must::at_most((&eight, OURS), 2.0).against_cell((&one, OURS)).aim(1.2));
    Ok(())
}

fn trip_rows(report: &mut Report, options: &Options) -> Result<()> {
    report.section("round trip, median and p99: the caller waits in the pool's own way");
    let hot = Trips { count: options.pick(20_000, 5_000), idle: Duration::ZERO };
    let short = Trips { count: options.pick(1_000, 300), idle: Duration::from_micros(200) };
    let long = Trips { count: options.pick(300, 80), idle: Duration::from_millis(1) };
    for (name, plan) in [("hot", hot), ("after 200 us idle", short), ("after 1 ms idle", long)] {
        let name = format!("round trip {name}");
        let rows = [name.clone(), format!("{name}, p99")]
            .map(|name| Row::new(&name, "us", Better::Lower).warm_up());
        contest!(report, many &rows, pool => Ok(trips::own_wait_us(&*pool, plan)))?;
    }
    report.must(Must::at_most(("round trip hot", OURS), 1.0).against_best_of(&PEERS).aim(0.6));
    let hot_p99 = Must::at_most(("round trip hot, p99", OURS), 1.5);
    report.must(hot_p99.against("affinitypool").aim(1.0));
    report
        .must(Must::at_most(("round trip after 200 us idle", OURS), 0.8).against("tokio").aim(0.5));
    report.section("round trip, median: the caller spins on a flag that the job sets");
    // Only hot: a caller that spins while its worker wakes up often holds the CPU that the worker
    // was put on, and then this measures the scheduler.
    let row = Row::new("spinning round trip hot", "us", Better::Lower).warm_up();
    contest!(report, &row, pool => Ok(trips::spinning_us(&*pool, hot)))?;
    Ok(())
}

fn pair_rows(report: &mut Report, options: &Options) -> Result<()> {
    report.section("message pairs: 40 tasks in 20 pairs, messages both ways");
    let messages = options.pick(20_000, 4_000);
    let row = Row::new("message pairs, each message a spawn", "1/s", Better::Higher).warm_up();
    contest!(report, &row, pool => pairs::by_spawn(&pool, messages))?;
    let own = Row::new("message pairs, own way", "1/s", Better::Higher).warm_up();
    report.measure(&own, &[OURS, "tokio"], |_, column| match column {
        0 => pairs::by_item(&Ours::new()?, messages),
        _ => pairs::by_channel(&Tokio::new(workers()?)?, messages),
    })?;
    let spawned = Must::at_least(("message pairs, each message a spawn", OURS), 1.0);
    report.must(spawned.against_best_of(&PEERS).aim(1.3));
    let own = Must::at_least(("message pairs, own way", OURS), 1.0);
    report.must(own.against("tokio").aim(1.3));
    Ok(())
}

fn tree_rows(report: &mut Report, options: &Options) -> Result<()> {
    report.section("fork-join tree");
    let depth = options.pick(17, 15);
    let row = Row::new("fork-join tree, each node a spawn", "ns/node", Better::Lower).warm_up();
    contest!(report, &row, pool => tree::by_spawn(&pool, depth))?;
    // Short samples, of which one in a few meets a worker that is only just waking up.
    let own =
        Row::new("fork-join tree, own way", "ns/node", Better::Lower).warm_up().rounds_times(3);
    report.measure(&own, &[OURS, "rayon", "tokio"], |_, column| match column {
        0 => tree::by_queue_join(&Ours::new()?, depth + 3),
        1 => Ok(tree::by_join(&Rayon::new(workers()?)?, depth + 3)),
        _ => tree::by_await(&Tokio::new(workers()?)?, depth),
    })?;
    report.must(Must::at_most(("fork-join tree, own way", OURS), 3.0).against("rayon").aim(1.5));
    Ok(())
}

fn blocking_row(report: &mut Report, options: &Options) -> Result<()> {
    report.section("mixed load: jobs of 50 us, every fourth blocks for 1 ms as well");
    let jobs = options.pick(2_000, 500);
    let row = Row::new("mixed blocking load", "jobs/s", Better::Higher).warm_up();
    contest!(report, &row, pool => blocking::jobs_per_s(&pool, jobs))
}

fn load_rows(report: &mut Report, options: &Options) -> Result<()> {
    report.section(
        "latency from when a job is due until it is done; jobs of 100 us, random arrivals",
    );
    let run = options.pick(Duration::from_secs(2), Duration::from_millis(300));
    for percent in [50u8, 90] {
        let rows = load::SHARES.map(|share| {
            let name = format!("latency p{} at {percent} % load", 100.0 * share);
            Row::new(&name, "us", Better::Lower)
        });
        report.measure_many(&rows, &CONTESTANTS, |round, contestant| {
            let load = f64::from(percent) / 100.0;
            with_pool!(CONTESTANTS[contestant], pool => {
                load::latencies_us(&*pool, workers()?, load, run, round as u64)
            })
        })?;
    }
    Ok(())
}

fn idle_row(report: &mut Report, options: &Options) -> Result<()> {
    report.section("CPU time of an idle runtime");
    let window = options.pick(Duration::from_secs(2), Duration::from_millis(300));
    let row = Row::new("idle", "% of a CPU", Better::Lower);
    contest!(report, &row, pool => idle::cpu_percent(&*pool, window))?;
    report.must(Must::at_most(("idle", OURS), 0.1).aim(0.0));
    Ok(())
}
