//! (a) The authors' table: time to clear 2 MiB by chunk size and order, on each CPU.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tollgate_hugepage::{Chunk, ClearSpec, Clearer, Order, Store};

use super::arena::{Arena, PAGE, mean, seconds};
use crate::harness::{Better, Options, Report, Row};

pub(super) const CHUNKS: [Chunk; 6] = [
    Chunk::kib::<4>(),
    Chunk::kib::<8>(),
    Chunk::kib::<16>(),
    Chunk::kib::<32>(),
    Chunk::kib::<64>(),
    Chunk::WHOLE,
];

pub(super) fn run(report: &mut Report, options: &Options, arena: &mut Arena) -> Result<()> {
    report.section("(a) clear a cold 2 MiB page with the C library's memset, by chunk and order");
    let all = sched_getaffinity(None).context("sched_getaffinity")?;
    let mut cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
    if options.quick && cpus.len() > 2 {
        cpus = vec![cpus[0], cpus[cpus.len() - 1]];
    }
    for cpu in cpus {
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one).context("sched_setaffinity")?;
        let result = orders(report, options, arena, cpu);
        sched_setaffinity(None, &all).context("sched_setaffinity")?;
        result?;
    }
    Ok(())
}

fn orders(report: &mut Report, options: &Options, arena: &mut Arena, cpu: usize) -> Result<()> {
    let names: Vec<String> = CHUNKS.iter().map(ToString::to_string).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for order in Order::ALL {
        let clearers: Vec<Clearer> = CHUNKS
            .into_iter()
            .map(|chunk| ClearSpec::forward(Store::Plain).order(order).chunk(chunk).check())
            .collect::<Result<_, _>>()?;
        let row = Row::new(&format!("clear, CPU {cpu}, {order}"), "us", Better::Lower).base("4K");
        report.measure(&row, &names, |_, column| {
            arena.cool();
            Ok(mean(options.pick(16, 8), || {
                let page = arena.next();
                // The fault is in the middle, as far from both ends as it gets.
                1e6 * seconds(|| drop(clearers[column].clear_towards(page, PAGE / 2)))
            }))
        })?;
    }
    Ok(())
}
