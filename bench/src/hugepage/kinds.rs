//! (b) Kinds of store on hot and cold buffers, on one and on all threads; what reading back costs;
//! what a clear does to everybody else's cache.

use std::num::NonZeroUsize;
use std::sync::Barrier;
use std::thread;

use anyhow::Result;
use tollgate_hugepage::{ClearPlan, Clearer, Heat, Situation};

use super::arena::{Arena, PAGE, gb_per_s, read, seconds, typical, write};
use super::engines::{Engine, LIBC, PLAN, TARGET_LAST, cold, engines, names};
use crate::harness::{Better, Must, Options, Report, Row};

/// The target of what is read back, far from both ends.
const TARGET: usize = PAGE / 2;
/// The working set of the pollution probe, in bytes: fits the second-level cache.
const PROBE_BYTES: usize = 256 << 10;

pub(super) fn run(
    report: &mut Report,
    options: &Options,
    arena: &mut Arena,
    plan: &ClearPlan,
) -> Result<()> {
    report.section("(b) clear 2 MiB by kind of store");
    let count = options.pick(24, 12);
    one_thread(report, arena, plan, count)?;
    all_threads(report, arena, plan, count)?;
    read_back(report, arena, plan, count)?;
    pollution(report, arena, plan, count)?;
    let row = "clear cold, 1 thread";
    report.must(Must::at_least((row, PLAN), 2.3).against(LIBC).aim(2.8));
    report.must(Must::at_least((row, PLAN), 5.0).against(TARGET_LAST).aim(6.7));
    let past_caches = ["nt-avx512", "nt-avx2"];
    report.must(
        Must::at_least(("clear hot, 1 thread", PLAN), 2.0).against_best_of(&past_caches).aim(2.4),
    );
    Ok(())
}

fn rate(name: &str) -> Row {
    Row::new(name, "GB/s", Better::Higher).base(LIBC)
}

fn one_thread(
    report: &mut Report,
    arena: &mut Arena,
    plan: &ClearPlan,
    count: usize,
) -> Result<()> {
    let list = engines(cold(plan));
    // Most faults hit the first byte of a page; the order that ends there has the longest way down.
    for (name, target) in [("clear cold, 1 thread", 0), ("clear cold, target midway", TARGET)] {
        report.measure(&rate(name), &names(&list), |_, column| {
            arena.cool();
            Ok(gb_per_s(typical(count, || {
                let page = arena.next();
                seconds(|| clear(&list[column].clearer, page, target))
            })))
        })?;
    }
    let list = engines(plan.clearer(Situation::hot(PAGE)));
    report.measure(&rate("clear hot, 1 thread"), &names(&list), |_, column| {
        let page = arena.next();
        Ok(gb_per_s(typical(count, || {
            write(page);
            seconds(|| clear(&list[column].clearer, page, 0))
        })))
    })
}

fn all_threads(
    report: &mut Report,
    arena: &mut Arena,
    plan: &ClearPlan,
    count: usize,
) -> Result<()> {
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    for heat in [Heat::Cold, Heat::Hot] {
        let situation = Situation { heat, ..Situation::cold(PAGE) }.threads(threads);
        let list = engines(plan.clearer(situation));
        let word = if heat == Heat::Hot { "hot" } else { "cold" };
        let row = rate(&format!("clear {word}, {threads} threads"));
        report.measure(&row, &names(&list), |round, column| {
            arena.cool();
            Ok(crowd(&list[column].clearer, arena, threads, (round, count), heat))
        })?;
    }
    Ok(())
}

/// Gigabytes per second of all threads together; each has buffers of its own.
fn crowd(
    clearer: &Clearer,
    arena: &mut Arena,
    threads: NonZeroUsize,
    (round, count): (usize, usize),
    heat: Heat,
) -> f64 {
    let share = (arena.bytes() / PAGE / threads).max(1) * PAGE;
    let gate = Barrier::new(threads.get());
    let work = |part: &mut [u8]| {
        let pages = part.len() / PAGE;
        typical(count.min(pages), {
            let mut next = round * count;
            let (gate, part) = (&gate, part);
            move || {
                next += 1;
                let start = next % pages * PAGE;
                let page = &mut part[start..start + PAGE];
                if heat == Heat::Hot {
                    write(page);
                }
                gate.wait();
                seconds(|| clear(clearer, page, 0))
            }
        })
    };
    thread::scope(|scope| {
        let parts = arena.all().chunks_exact_mut(share).take(threads.get());
        let handles: Vec<_> = parts.map(|part| scope.spawn(|| work(part))).collect();
        handles.into_iter().filter_map(|handle| handle.join().ok()).map(gb_per_s).sum()
    })
}

fn read_back(report: &mut Report, arena: &mut Arena, plan: &ClearPlan, count: usize) -> Result<()> {
    let list = engines(plan.clearer(Situation::cold(PAGE).target(TARGET)));
    for (name, bytes) in [("4 KiB", 4096), ("256 KiB", 256 << 10)] {
        let row = Row::new(&format!("then read {name} at the target"), "ns", Better::Lower);
        report.measure(&row.base(LIBC), &names(&list), |_, column| {
            Ok(typical(count, || {
                let page = arena.next();
                clear(&list[column].clearer, page, TARGET);
                // The order of the kernel ends at the page of the target, so reading starts there.
                let part = &page[TARGET..TARGET + bytes];
                1e9 * seconds(|| read(part))
            }))
        })?;
    }
    Ok(())
}

/// Time per access to a working set of 256 KiB that was in the cache before the clear.
fn pollution(report: &mut Report, arena: &mut Arena, plan: &ClearPlan, count: usize) -> Result<()> {
    let chain = Chain::new();
    let list: Vec<Engine> = engines(cold(plan));
    let row = Row::new("access to 256 KiB after a clear", "ns", Better::Lower).base(LIBC);
    report.measure(&row, &names(&list), |_, column| {
        Ok(typical(count, || {
            chain.walk();
            chain.walk();
            clear(&list[column].clearer, arena.next(), 0);
            1e9 * seconds(|| chain.walk()) / chain.next.len() as f64
        }))
    })
}

fn clear(clearer: &Clearer, page: &mut [u8], target: usize) {
    // Either target lies inside every page, so this cannot be refused.
    let _ = clearer.clear_towards(page, target);
}

/// One entry for each cache line of the probe, each naming the next in a fixed random order.
struct Chain {
    next: Vec<Link>,
}

#[repr(align(64))]
struct Link(usize);

impl Chain {
    fn new() -> Self {
        let lines = PROBE_BYTES / size_of::<Link>();
        let mut order: Vec<usize> = (0..lines).collect();
        // Sattolo's shuffle makes one cycle; the generator is a fixed xorshift.
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        for last in (1..lines).rev() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            order.swap(last, usize::try_from(random % last as u64).expect("less than `last`"));
        }
        Self { next: order.into_iter().map(Link).collect() }
    }

    fn walk(&self) {
        let end = self.next.iter().fold(0, |at, _| self.next[at].0);
        std::hint::black_box(end);
    }
}
