//! What a runtime with nothing to do costs.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::pool::Pool;
use super::wait::{Count, mark_done};
use super::work::cpu_time;

/// How long the workers may take to come to rest.
const SETTLE: Duration = Duration::from_millis(200);
/// Jobs before that, so that every worker has been awake.
const JOBS: usize = 1000;

/// CPU time of the process while the pool is idle, in percent of one CPU.
pub(super) fn cpu_percent(pool: &impl Pool, window: Duration) -> Result<f64> {
    let count = Count::start();
    pool.spawn_many(JOBS, mark_done);
    count.wait(JOBS as u64)?;
    thread::sleep(SETTLE);
    let (start, used) = (Instant::now(), cpu_time());
    thread::sleep(window);
    let used = cpu_time() - used;
    Ok(100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64())
}
