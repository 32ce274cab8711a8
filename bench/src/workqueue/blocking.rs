//! Mixed load: most jobs compute, some block. A pool that is told of the blocking can let another
//! worker run meanwhile.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::pool::Pool;
use super::wait::{Count, mark_done};
use super::work::compute;

/// CPU work of each job.
const COMPUTE_US: f64 = 50.0;
/// One job in so many blocks as well.
const BLOCKING_EVERY: usize = 4;
/// For how long.
const BLOCK: Duration = Duration::from_millis(1);

/// Jobs per second.
pub(super) fn jobs_per_s<P: Pool>(pool: &Arc<P>, jobs: usize) -> Result<f64> {
    let count = Count::start();
    let start = Instant::now();
    for job in 0..jobs {
        pool.spawn(move || {
            if job % BLOCKING_EVERY == 0 {
                P::blocking(|| thread::sleep(BLOCK));
            }
            compute(COMPUTE_US);
            mark_done();
        });
    }
    count.wait(jobs as u64)?;
    Ok(jobs as f64 / start.elapsed().as_secs_f64())
}
