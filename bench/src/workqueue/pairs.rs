//! Message pairs: 40 tasks in 20 pairs, each sending to its partner and being sent to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use anyhow::{Context, Result};
use tollgate_workqueue::{Queue, Work};

use super::ours::Ours;
use super::peers::Tokio;
use super::pool::Pool;
use super::wait::{Count, mark_done, until_released};

/// Pairs of tasks.
pub(super) const PAIRS: usize = 20;

struct Pair<P> {
    pool: Arc<P>,
}

/// Messages per second when a message is a job that spawns the answer, until each pair has
/// exchanged `messages`.
pub(super) fn by_spawn<P: Pool>(pool: &Arc<P>, messages: usize) -> Result<f64> {
    let held = Arc::strong_count(pool);
    let count = Count::start();
    let start = Instant::now();
    for _ in 0..PAIRS {
        // One reference per pair, handed on from message to message: no shared counter is written.
        let pair = Arc::new(Pair { pool: Arc::clone(pool) });
        send(&pair, messages);
    }
    count.wait(PAIRS as u64)?;
    let rate = rate(messages, start);
    until_released(pool, held);
    Ok(rate)
}

fn send<P: Pool>(pair: &Arc<Pair<P>>, left: usize) {
    if left == 0 {
        return mark_done();
    }
    let to = Arc::clone(pair);
    pair.pool.spawn(move || send(&to, left - 1));
}

/// Messages per second of two tokio tasks per pair, with a channel each way.
pub(super) fn by_channel(tokio: &Tokio, messages: usize) -> Result<f64> {
    let start = Instant::now();
    let pairs: Vec<_> = (0..PAIRS).map(|_| tokio.0.spawn(pair_of_tasks(messages / 2))).collect();
    tokio.0.block_on(async {
        for pair in pairs {
            pair.await.context("a task of a pair panicked")?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(rate(messages / 2 * 2, start))
}

async fn pair_of_tasks(turns: usize) {
    let (to_left, mut left) = tokio::sync::mpsc::channel::<usize>(4);
    let (to_right, mut right) = tokio::sync::mpsc::channel::<usize>(4);
    let partner = tokio::spawn(async move {
        while let Some(message) = right.recv().await {
            if to_left.send(message).await.is_err() {
                return;
            }
        }
    });
    for turn in 0..turns {
        if to_right.send(turn).await.is_err() || left.recv().await != Some(turn) {
            return;
        }
    }
    drop(to_right);
    let _ = partner.await;
}

/// Messages per second of two work items per pair, each of which queues the other: nothing is
/// allocated for a message.
pub(super) fn by_item(ours: &Ours, messages: usize) -> Result<f64> {
    let pairs: Vec<_> = (0..PAIRS).map(|_| Items::new(ours.queue(), messages)).collect();
    let count = Count::start();
    let start = Instant::now();
    for pair in &pairs {
        pair.send(0);
    }
    count.wait(PAIRS as u64)?;
    Ok(rate(messages, start))
}

struct Items {
    items: [Work; 2],
    left: AtomicUsize,
}

impl Items {
    fn new(queue: &Queue, messages: usize) -> Arc<Self> {
        Arc::new_cyclic(|pair: &Weak<Self>| {
            let item = |other: usize| {
                let pair = Weak::clone(pair);
                // The pair is gone only when the benchmark is.
                queue.item(move || {
                    if let Some(pair) = pair.upgrade() {
                        pair.send(other);
                    }
                })
            };
            Self { items: [item(1), item(0)], left: AtomicUsize::new(messages) }
        })
    }

    fn send(&self, to: usize) {
        // One message of a pair is on its way at a time, so nobody else counts.
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return mark_done();
        }
        self.left.store(left - 1, Ordering::Relaxed);
        if let Err(refused) = self.items[to].queue() {
            // As in `Ours::spawn`.
            panic!("a message was refused: {refused}");
        }
    }
}

fn rate(messages: usize, start: Instant) -> f64 {
    (PAIRS * messages) as f64 / start.elapsed().as_secs_f64()
}
