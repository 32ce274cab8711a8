//! Spawning from outside: threads that are no workers submit jobs that do nothing.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::Result;

use super::pool::{Pool, ns};
use super::wait::{Count, mark_done};

/// Nanoseconds per task, from the first submission until the last task is done.
pub(super) fn ns_per_task(pool: &impl Pool, producers: usize, tasks: usize) -> Result<f64> {
    let each = tasks / producers;
    let count = Count::start();
    let barrier = Barrier::new(producers + 1);
    let start = std::thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                barrier.wait();
                pool.spawn_many(each, mark_done);
            });
        }
        let start = Instant::now();
        barrier.wait();
        start
    });
    count.wait((each * producers) as u64)?;
    Ok(ns(start) / (each * producers) as f64)
}
