//! What a limit and what order cost: the same empty items through queues of different kinds.

use std::time::Instant;

use anyhow::Result;
use tollgate_workqueue::{Queue, Runtime};

use super::ours::Ours;
use super::pool::{Pool, ns};
use super::spawn;
use super::wait::{Count, mark_done};
use crate::harness::{Better, Column, Must, Options, Report, Row};

const UNLIMITED: &str = "unlimited";
const LIMITED: &str = "max_active 8";
const ORDERED: &str = "ordered";
const KINDS: [&str; 3] = [UNLIMITED, LIMITED, ORDERED];

/// Chains that items of the last row form.
const CHAINS: usize = 16;

/// The columns that this module fills.
pub(super) fn columns() -> Vec<Column> {
    vec![
        Column::new(UNLIMITED),
        Column::against(LIMITED, UNLIMITED),
        Column::against(ORDERED, UNLIMITED),
    ]
}

/// Measures each kind of queue against an unlimited one.
pub(super) fn measure(report: &mut Report, options: &Options) -> Result<()> {
    report.section("limits and order: empty items of a queue of each kind");
    let tasks = options.pick(400_000, 100_000);
    let mut names = Vec::new();
    for producers in [1, 4] {
        let s = if producers == 1 { "" } else { "s" };
        let name = format!("limits, {producers} producer{s} outside");
        let row = Row::new(&name, "ns/item", Better::Lower).warm_up();
        report.measure(&row, &KINDS, |_, kind| {
            let (_runtime, queue) = queue(KINDS[kind])?;
            spawn::ns_per_task(&Ours::of(queue), producers, tasks)
        })?;
        names.push(name);
    }
    let name = format!("limits, {CHAINS} chains of items");
    let row = Row::new(&name, "ns/item", Better::Lower).warm_up();
    report.measure(&row, &KINDS, |_, kind| {
        let (_runtime, queue) = queue(KINDS[kind])?;
        chains_ns(&queue, tasks / CHAINS)
    })?;
    names.push(name);
    for name in &names {
        for column in [LIMITED, ORDERED] {
            report.must(Must::at_most((name, column), 2.0).against(UNLIMITED).aim(1.3));
        }
    }
    Ok(())
}

fn queue(kind: &str) -> Result<(Runtime, Queue)> {
    let runtime = Runtime::builder().build()?;
    let builder = runtime.queue("bench");
    let builder = match kind {
        LIMITED => builder.max_active(8),
        ORDERED => builder.ordered(),
        _ => builder,
    };
    let queue = builder.build()?;
    Ok((runtime, queue))
}

/// Nanoseconds per item when every item queues the next one of its chain.
fn chains_ns(queue: &Queue, items: usize) -> Result<f64> {
    let ours = std::sync::Arc::new(Ours::of(queue.clone()));
    let count = Count::start();
    let start = Instant::now();
    for _ in 0..CHAINS {
        follow(&std::sync::Arc::clone(&ours), items);
    }
    count.wait(CHAINS as u64)?;
    Ok(ns(start) / (CHAINS * items) as f64)
}

fn follow(ours: &std::sync::Arc<Ours>, left: usize) {
    if left == 0 {
        return mark_done();
    }
    let next = std::sync::Arc::clone(ours);
    ours.spawn(move || follow(&next, left - 1));
}
