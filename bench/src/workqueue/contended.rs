//! Sixteen threads that sleep and are woken at once: the price of the words and locks that the
//! workers of one pod share. The machine is a pretended one of 16 CPUs, as one cache or as 16
//! caches, so that nothing differs but who shares what; its workers run on all CPUs that there are.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use tollgate_topology::{CpuId, Topology};
use tollgate_workqueue::{Queue, Runtime, Scope, blocking};

use super::pool::{ns, workers};
use crate::harness::{Better, Column, Must, Options, Report, Row};

const ONE_POD: &str = "one pod of all";
const PODS: &str = "a pod each";
const THREADS: u32 = 16;

/// The columns that this module fills.
pub(super) fn columns() -> Vec<Column> {
    vec![Column::new(ONE_POD), Column::against(PODS, ONE_POD)]
}

/// Measures both.
pub(super) fn measure(report: &mut Report, options: &Options) -> Result<()> {
    report.section("16 threads at once: state per pod against state that all share");
    let trips = options.pick(2_000, 500);
    let row = Row::new("round trips, 16 threads", "us/trip", Better::Lower).warm_up();
    report.measure(&row, &[ONE_POD, PODS], |_, column| {
        let (_runtime, queue) = queue(THREADS, column == 1)?;
        trips_us(&queue, trips)
    })?;
    let sections = options.pick(100_000, 25_000);
    // Each section leaves the count of awake workers and comes back to it, as parking and claiming
    // do, without the system calls that drown the price of the words in a round trip.
    let name = "leave and rejoin a pod, 16 items";
    let row = Row::new(name, "ns/section", Better::Lower).warm_up();
    report.measure(&row, &[ONE_POD, PODS], |_, column| {
        let (_runtime, queue) = queue(THREADS, column == 1)?;
        sections_ns(&queue, THREADS, sections)
    })?;
    report.must(Must::at_most((name, PODS), 0.5).against(ONE_POD).aim(0.25));
    // More threads than CPUs take turns, and then hardly contend. These do all the time, but there
    // are fewer of them.
    let cpus = u32::try_from(workers()?)?;
    let row = Row::new("leave and rejoin a pod, an item on each CPU", "ns/section", Better::Lower);
    report.measure(&row.warm_up(), &[ONE_POD, PODS], |_, column| {
        let (_runtime, queue) = queue(cpus, column == 1)?;
        sections_ns(&queue, cpus, 10 * sections)
    })
}

/// Of a machine of so many CPUs, all in one pod or each in one of its own.
fn queue(cpus: u32, pods: bool) -> Result<(Runtime, Queue)> {
    let machine = if pods { format!("l3:{cpus} core:1") } else { format!("l3:1 core:{cpus}") };
    let runtime = Runtime::builder()
        .topology(Topology::from_synthetic(&machine)?)
        // Every worker parks after its item, and every item claims one.
        .spin(Duration::ZERO)
        .max_workers(64)
        .build()?;
    let queue = runtime.queue("bench").scope(Scope::Cache).strict(true).build()?;
    Ok((runtime, queue))
}

/// Microseconds per item when each of the threads has one item at a time run, each on another CPU.
fn trips_us(queue: &Queue, trips: usize) -> Result<f64> {
    let start = Instant::now();
    thread::scope(|scope| {
        let caller = |cpu| {
            scope.spawn(move || -> Result<()> {
                for _ in 0..trips {
                    queue.spawn_on(CpuId(cpu), || ())?.wait()?;
                }
                Ok(())
            })
        };
        let callers: Vec<_> = (0..THREADS).map(caller).collect();
        let join = |caller: thread::ScopedJoinHandle<'_, Result<()>>| {
            caller.join().map_err(|_| anyhow::anyhow!("a caller panicked"))?
        };
        callers.into_iter().try_for_each(join)
    })?;
    Ok(ns(start) / 1e3 / (trips * THREADS as usize) as f64)
}

/// Nanoseconds per empty blocking section, of so many items that do nothing else.
fn sections_ns(queue: &Queue, threads: u32, sections: usize) -> Result<f64> {
    let together = std::sync::Arc::new(Barrier::new(threads as usize));
    let item = |cpu| {
        let together = std::sync::Arc::clone(&together);
        queue.spawn_on(CpuId(cpu), move || {
            blocking(|| together.wait());
            let start = Instant::now();
            for _ in 0..sections {
                blocking(|| std::hint::black_box(()));
            }
            ns(start)
        })
    };
    let items = (0..threads).map(item).collect::<Result<Vec<_>, _>>()?;
    let mut total = 0.0;
    for item in items {
        total += item.wait()?;
    }
    Ok(total / f64::from(threads) / sections as f64)
}
