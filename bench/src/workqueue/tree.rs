//! A fork-join tree: every inner node has two children and is done when both are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};

use tollgate_workqueue::Queue;

use super::ours::Ours;
use super::peers::{Rayon, Tokio};
use super::pool::{Pool, ns};
use super::wait::{Count, mark_done, until_released};

struct Node<P> {
    /// Children that are not done.
    open: AtomicU8,
    /// `None` at the root.
    parent: Option<Arc<Node<P>>>,
    pool: Handle<P>,
}

/// A reference to the pool that a part of the tree has for itself, so that the workers do not all
/// write one reference count.
type Handle<P> = Arc<Arc<P>>;

/// Levels of such a part.
const PART_LEVELS: u32 = 4;

/// Nanoseconds per task of a binary tree of `depth` levels in which each node is a spawned job.
pub(super) fn by_spawn<P: Pool>(pool: &Arc<P>, depth: u32) -> Result<f64> {
    let held = Arc::strong_count(pool);
    let count = Count::start();
    let start = Instant::now();
    let handle = Arc::new(Arc::clone(pool));
    pool.spawn(move || grow(&handle, None, depth - 1));
    count.wait(1)?;
    let per_task_ns = ns(start) / nodes(depth);
    until_released(pool, held);
    Ok(per_task_ns)
}

fn grow<P: Pool>(pool: &Handle<P>, parent: Option<Arc<Node<P>>>, depth: u32) {
    if depth == 0 {
        return done(parent);
    }
    let new_part = depth.is_multiple_of(PART_LEVELS);
    let pool = if new_part { Arc::new(Arc::clone(&**pool)) } else { Arc::clone(pool) };
    let node = Arc::new(Node { open: AtomicU8::new(2), parent, pool });
    for _ in 0..2 {
        let child = Arc::clone(&node);
        let run = move || grow(&Arc::clone(&child).pool, Some(child), depth - 1);
        node.pool.spawn(run);
    }
}

fn done<P>(mut node: Option<Arc<Node<P>>>) {
    while let Some(open) = node {
        if open.open.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        node = open.parent.clone();
    }
    mark_done();
}

/// Nanoseconds per node with `Queue::join`, from inside an item.
pub(super) fn by_queue_join(ours: &Ours, depth: u32) -> Result<f64> {
    fn join(queue: &Queue, depth: u32) -> u32 {
        if depth == 0 {
            return 1;
        }
        let (left, right) = queue.join(|| join(queue, depth - 1), || join(queue, depth - 1));
        left + right + 1
    }
    let queue = ours.queue().clone();
    let start = Instant::now();
    let total = ours.queue().spawn(move || join(&queue, depth - 1))?.wait()?;
    let per_node_ns = ns(start) / nodes(depth);
    anyhow::ensure!(f64::from(total).to_bits() == nodes(depth).to_bits(), "nodes are missing");
    Ok(per_node_ns)
}

/// Nanoseconds per node with `rayon::join`.
pub(super) fn by_join(rayon: &Rayon, depth: u32) -> f64 {
    fn join(depth: u32) -> u32 {
        if depth == 0 {
            return 1;
        }
        let (left, right) = rayon::join(|| join(depth - 1), || join(depth - 1));
        left + right + 1
    }
    let start = Instant::now();
    std::hint::black_box(rayon.0.install(|| join(depth - 1)));
    ns(start) / nodes(depth)
}

/// Nanoseconds per node with tokio tasks that await their children.
pub(super) fn by_await(tokio: &Tokio, depth: u32) -> Result<f64> {
    fn node(depth: u32) -> std::pin::Pin<Box<dyn Future<Output = u32> + Send>> {
        Box::pin(async move {
            if depth == 0 {
                return 1;
            }
            let (left, right) = (tokio::spawn(node(depth - 1)), tokio::spawn(node(depth - 1)));
            left.await.unwrap_or(0) + right.await.unwrap_or(0) + 1
        })
    }
    let start = Instant::now();
    let total = tokio.0.block_on(async { tokio::spawn(node(depth - 1)).await });
    anyhow::ensure!(
        f64::from(total.context("a node panicked")?).to_bits() == nodes(depth).to_bits(),
        "nodes are missing"
    );
    Ok(ns(start) / nodes(depth))
}

fn nodes(depth: u32) -> f64 {
    f64::from((1u32 << depth) - 1)
}
