//! What every contestant can do, each in the way its own documentation recommends.

use std::time::{Duration, Instant};

use anyhow::Result;

/// A pool of workers.
pub(super) trait Pool: Send + Sync + 'static {
    /// Runs `job` on some worker, now or later; callable from any thread, workers included.
    fn spawn(&self, job: impl FnOnce() + Send + 'static);

    /// Runs `job` `count` times, submitted one after the other by this thread, which is no worker.
    /// Returns when all are submitted; a pool that cannot let go of a task waits for it as well.
    fn spawn_many(&self, count: usize, job: fn()) {
        for _ in 0..count {
            self.spawn(job);
        }
    }

    /// Submits `job`, calls `wait`, and only then lets go of the task.
    fn spawn_while(&self, job: impl FnOnce() + Send + 'static, wait: impl FnOnce()) {
        self.spawn(job);
        wait();
    }

    /// Submits an empty job and waits for its result, as often as the plan says. Returns the time
    /// of each trip in nanoseconds.
    fn round_trips(&self, plan: Trips) -> Vec<f64>;

    /// Runs `section`, which blocks, inside a job; declared to the pool where that is possible.
    fn blocking(section: impl FnOnce());
}

/// A series of round trips.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trips {
    /// How many.
    pub count: usize,
    /// How long the caller keeps itself busy, away from the pool, before each.
    pub idle: Duration,
}

impl Trips {
    /// Times `trip` as planned.
    pub(super) fn time(self, mut trip: impl FnMut()) -> Vec<f64> {
        let mut times = Vec::with_capacity(self.count);
        for _ in 0..self.count {
            self.pause();
            let start = Instant::now();
            trip();
            times.push(ns(start));
        }
        times
    }

    /// The idle time before a trip. The caller spins, so that only the workers go cold.
    pub(super) fn pause(self) {
        let start = Instant::now();
        while start.elapsed() < self.idle {
            std::hint::spin_loop();
        }
    }
}

/// Workers of each pool: one per CPU that may be used.
pub(super) fn workers() -> Result<usize> {
    Ok(std::thread::available_parallelism()?.get())
}

/// Nanoseconds since `start`.
pub(super) fn ns(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e9
}

/// The `share` (0 to 1) of `values` that is below the returned one; sorts them.
pub(super) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let below = values.iter().enumerate().take_while(|(index, _)| {
        // The count of values up to here does not reach the share yet.
        ((index + 1) as f64) < share * values.len() as f64
    });
    let index = below.count();
    values.get(index).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let ranks = [0.0, 0.5, 0.99, 0.999, 1.0].map(|share| percentile(&mut values, share));
        assert_eq!(ranks, [1.0, 50.0, 99.0, 100.0, 100.0]);
        assert!(percentile(&mut [], 0.5).is_nan());
    }
}
