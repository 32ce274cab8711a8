//! `workqueue`: the workqueue runtime beside rayon, tokio and affinitypool.
//!
//! Every sample makes a pool of its own with one worker per CPU, so that no other pool's threads run,
//! and drops it afterwards; neither is timed.

mod blocking;
mod idle;
mod load;
mod pairs;
mod peers;
mod pool;
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
    let mut report = Report::new("workqueue", options, &columns);
    versus::measure(&mut report, options)?;
    shard_rows(&mut report, options)?;
    report.finish()
}

/// Workers of each pool: one per CPU that may be used.
fn workers() -> Result<usize> {
    Ok(std::thread::available_parallelism()?.get())
}

const SHARDED: &str = "sharded";
const UNSHARDED: &str = "unsharded";

/// The wake queue alone, without the runtime above it.
fn shard_rows(report: &mut Report, options: &Options) -> Result<()> {
    report.section("the wake queue alone: as many producers as workers, items that do nothing");
    let items = options.pick(1_000_000, 200_000);
    for threads in shards::steps(workers()?) {
        let name = format!("wake queue, {threads} producers, {threads} workers");
        let row = Row::new(&name, "ns/item", Better::Lower).warm_up();
        report.measure(&row, &[UNSHARDED, SHARDED], |_, column| {
            shards::ns_per_item(threads, column == 1, items)
        })?;
    }
    Ok(())
}
