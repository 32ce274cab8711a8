//! `workqueue`: the workqueue runtime beside rayon, tokio and affinitypool.
//!
//! Every sample makes a pool of its own with one worker per CPU, so that no other pool's threads
//! run, and drops it afterwards; neither is timed. What was chosen so that each peer is used well:
//!
//! | row | rayon | tokio | affinitypool |
//! |---|---|---|---|
//! | spawn | `spawn` | `spawn`, handle dropped | a window of 4096 futures, because a dropped one cancels its task |
//! | round trip | `install` | one `block_on` around all trips | a caller that spins before it parks, longer when that is better |
//! | blocking section | none | `block_in_place` | none |
//! | message pairs, own way | - | two tasks and a channel each way | - |
//! | fork-join tree, own way (ours: `Queue::join`) | `join` | tasks that await their children | - |
//!
//! Rows named "own way" use what a library has for the purpose; the row before each gives all the
//! same code. Latencies are measured from when a job was due, not from when it was submitted.

mod blocking;
mod contended;
mod crypto;
mod idle;
mod limits;
mod load;
mod ours;
mod pairs;
mod peers;
mod pool;
mod scopes;
mod shards;
mod spawn;
mod tree;
mod trips;
mod versus;
mod wait;
mod work;

use anyhow::Result;

use crate::harness::{Better, Column, Options, Report, Row};

/// Runs the benchmark.
///
/// # Errors
/// When a pool cannot be made, loses a task, or a file of the options cannot be written.
pub(crate) fn run(options: &Options) -> Result<()> {
    work::prepare();
    let mut columns = vec![Column::new(versus::OURS)];
    columns.extend(versus::PEERS.map(|peer| Column::against(peer, versus::OURS)));
    columns.extend([Column::new(UNSHARDED), Column::against(SHARDED, UNSHARDED)]);
    columns.extend(scopes::columns());
    columns.extend(limits::columns());
    columns.extend(contended::columns());
    let mut report = Report::new("workqueue", options, &columns);
    versus::measure(&mut report, options)?;
    limits::measure(&mut report, options)?;
    contended::measure(&mut report, options)?;
    scopes::measure(&mut report, options)?;
    shard_rows(&mut report, options)?;
    report.finish()
}

const SHARDED: &str = "sharded";
const UNSHARDED: &str = "unsharded";

/// A FIFO per CPU against one for all: in the runtime, and in the wake queue alone.
fn shard_rows(report: &mut Report, options: &Options) -> Result<()> {
    report.section("a FIFO per CPU (sharded) against one for all, as threads grow");
    let tasks = options.pick(400_000, 100_000);
    for threads in shards::steps(pool::workers()?) {
        let s = if threads == 1 { "" } else { "s" };
        let name = format!("spawn, scope cpu, {threads} producer{s}");
        let row = Row::new(&name, "ns/task", Better::Lower).warm_up();
        report.measure(&row, &[UNSHARDED, SHARDED], |_, column| {
            scopes::spawn_ns(column == 1, usize::from(threads), tasks)
        })?;
        let name = format!("wake queue, {threads} producer{s}, {threads} worker{s}");
        let row = Row::new(&name, "ns/item", Better::Lower).warm_up();
        report.measure(&row, &[UNSHARDED, SHARDED], |_, column| {
            shards::ns_per_item(threads, column == 1, 2 * tasks as u64)
        })?;
    }
    Ok(())
}
