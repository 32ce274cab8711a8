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
mod spawn;
mod tree;
mod trips;
mod versus;
mod wait;
mod work;

use anyhow::Result;

use crate::harness::{Column, Options, Report};

/// Runs the benchmark.
///
/// # Errors
/// When a pool cannot be made, loses a task, or a file of the options cannot be written.
pub(crate) fn run(options: &Options) -> Result<()> {
    work::prepare();
    let columns = versus::COLUMNS.map(|name| match name {
        versus::OURS => Column::new(name),
        peer => Column::against(peer, versus::OURS),
    });
    let mut report = Report::new("workqueue", options, &columns);
    versus::measure(&mut report, options)?;
    report.finish()
}

/// Workers of each pool: one per CPU that may be used.
fn workers() -> Result<usize> {
    Ok(std::thread::available_parallelism()?.get())
}
