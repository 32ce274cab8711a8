//! Latency under load: jobs arrive at random times, whether or not earlier ones are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::pool::{Pool, percentile};
use super::wait::{Count, mark_done};
use super::work::compute;

/// CPU work of each job.
const SERVICE_US: f64 = 100.0;

/// The shares that are reported.
pub(super) const SHARES: [f64; 3] = [0.5, 0.99, 0.999];

/// Microseconds from when a job was due until it was done, at each of [`SHARES`]. Arrivals are a
/// Poisson process that asks for `load` (0 to 1) of `workers` CPUs; the same seed gives the same
/// arrivals. A late submission counts against the pool: the submitter sleeps until a job is due, so
/// it is late only when the workers hold its CPU.
pub(super) fn latencies_us(
    pool: &impl Pool,
    workers: usize,
    load: f64,
    run: Duration,
    seed: u64,
) -> Result<Vec<f64>> {
    let due = arrivals(SERVICE_US / (load * workers as f64), run, seed);
    let latency_ns: Arc<[AtomicU64]> = due.iter().map(|_| AtomicU64::new(0)).collect();
    let count = Count::start();
    let start = Instant::now();
    for (index, due) in due.iter().enumerate() {
        let due = start + *due;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let latency_ns = Arc::clone(&latency_ns);
        pool.spawn(move || {
            compute(SERVICE_US);
            let ns = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
            latency_ns[index].store(ns, Ordering::Relaxed);
            mark_done();
        });
    }
    count.wait(due.len() as u64)?;
    let mut us: Vec<f64> =
        latency_ns.iter().map(|ns| ns.load(Ordering::Relaxed) as f64 / 1e3).collect();
    Ok(SHARES.iter().map(|share| percentile(&mut us, *share)).collect())
}

/// When jobs are due: exponentially distributed gaps with the given mean.
fn arrivals(mean_us: f64, run: Duration, seed: u64) -> Vec<Duration> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut due = Duration::ZERO;
    let mut all = Vec::new();
    while due < run {
        due += Duration::from_secs_f64(-random.unit().ln() * mean_us / 1e6);
        all.push(due);
    }
    all
}

/// Vigna's xorshift64*.
struct Random(u64);

impl Random {
    /// Above 0, up to 1.
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11;
        (bits + 1) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_mean_that_was_asked_for() {
        let run = Duration::from_secs(10);
        let due = arrivals(100.0, run, 3);
        assert!(due.is_sorted() && due == arrivals(100.0, run, 3));
        let mean_us = run.as_secs_f64() * 1e6 / due.len() as f64;
        assert!((95.0..105.0).contains(&mean_us), "{mean_us}");
        assert_ne!(due, arrivals(100.0, run, 4));
    }
}
