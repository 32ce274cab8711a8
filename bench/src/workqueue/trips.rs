//! Round trips: one job, from submission to the result in the caller's hands.

use std::sync::atomic::{AtomicU64, Ordering};

use super::pool::{Pool, Trips, percentile};

/// Microseconds of a trip whose caller waits in the pool's own way: median and 99th percentile.
pub(super) fn own_wait_us(pool: &impl Pool, plan: Trips) -> Vec<f64> {
    let mut times = pool.round_trips(plan);
    [0.5, 0.99].map(|share| percentile(&mut times, share) / 1e3).to_vec()
}

/// Median microseconds of a trip whose caller spins on a flag that the job sets: what the pool
/// itself takes to get a job going.
pub(super) fn spinning_us(pool: &impl Pool, plan: Trips) -> f64 {
    static DONE: AtomicU64 = AtomicU64::new(0);
    let mut times = plan.time(|| {
        let before = DONE.load(Ordering::Relaxed);
        let wait = || {
            while DONE.load(Ordering::Acquire) == before {
                std::hint::spin_loop();
            }
        };
        pool.spawn_while(
            || {
                DONE.fetch_add(1, Ordering::Release);
            },
            wait,
        );
    });
    percentile(&mut times, 0.5) / 1e3
}
