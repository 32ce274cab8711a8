//! (c) Getting 2 MiB of zeroes ready for use, and writing the first 4 KiB of them.

use anyhow::{Context, Result};
use bytes::BytesMut;
use tollgate_hugepage::pool::{CleanerOptions, Step};
use tollgate_hugepage::{Backing, Buffer, ClearPlan, Heat, Pool, Prefault, Region, TouchAt};

use super::arena::{Arena, PAGE, seconds, write};
use crate::harness::{Better, Must, Options, Report, Row};

const THP_FIRST: &str = "THP, first byte";
const INLINE: &str = "pool, inline";
const PRE_CLEARED: &str = "pool, pre-cleared";

const TO_FILL: &str = "pool, to fill";
const FEW_BYTES: &str = "pool, few bytes";
const MALLOC: &str = "calloc and free";

pub(super) const WAYS: [&str; 12] = [
    "base pages",
    THP_FIRST,
    "THP, last byte",
    "hugetlb, first byte",
    "hugetlb, last byte",
    INLINE,
    PRE_CLEARED,
    FEW_BYTES,
    TO_FILL,
    "Vec reused",
    "BytesMut reused",
    MALLOC,
];

/// Hugetlb has to be reserved before, and other programs may need it: as many as one sample holds.
const LEAST_HUGETLB_PAGES: usize = 1;

pub(super) fn run(
    report: &mut Report,
    options: &Options,
    arena: &mut Arena,
    plan: &ClearPlan,
) -> Result<()> {
    report.section("(c) get 2 MiB of zeroes and write the first 4 KiB");
    let row = Row::new("get 2 MiB", "us", Better::Lower).base(THP_FIRST).warm_up();
    if !report.wants(&row) {
        return Ok(());
    }
    let reserved = tollgate_hugepage::Machine::current().reserved(PAGE);
    let hugetlb = reserved.is_ok_and(|pool| pool.available() >= LEAST_HUGETLB_PAGES);
    if !hugetlb {
        report.note("No hugetlb pages are free: `sysctl vm.nr_hugepages=16` adds their columns.");
    }
    let here = |way: &&str| *way != MALLOC && (hugetlb || !way.starts_with("hugetlb"));
    let ways: Vec<&str> = WAYS.into_iter().filter(here).collect();
    let mut recycling = Recycling::new(arena.bytes() / PAGE, plan, options.pick(32, 16))?;
    report.measure(&row, &ways, |_, column| {
        arena.cool();
        let count = options.pick(16, 6);
        let seconds = match ways[column] {
            "base pages" => fresh(count, Backing::Base, TouchAt::First),
            THP_FIRST => fresh(count, Backing::Thp, TouchAt::First),
            "THP, last byte" => fresh(count, Backing::Thp, TouchAt::Last),
            "hugetlb, first byte" => fresh(count, HUGETLB, TouchAt::First),
            "hugetlb, last byte" => fresh(count, HUGETLB, TouchAt::Last),
            INLINE => recycling.take(false),
            PRE_CLEARED => recycling.take(true),
            FEW_BYTES => recycling.first_bytes(false),
            TO_FILL => recycling.first_bytes(true),
            "Vec reused" => recycling.vec(),
            _ => recycling.bytes_mut(),
        };
        Ok(1e6 * seconds?)
    })?;
    report.must(
        Must::at_most(("get 2 MiB", PRE_CLEARED), 1.0 / 20.0).against(THP_FIRST).aim(1.0 / 300.0),
    );
    report.must(Must::at_most(("get 2 MiB", INLINE), 1.0 / 5.0).against(THP_FIRST).aim(1.0 / 7.0));
    taking_turns(report, options, plan)
}

/// Bytes that the owners of [`taking_turns`] use.
const SMALL: usize = 4096;

/// What a take and a give-back cost beside the clearing: 4 KiB, on one thread and on all.
fn taking_turns(report: &mut Report, options: &Options, plan: &ClearPlan) -> Result<()> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = Pool::builder().class(SMALL, 64 * all).plan(plan.clone()).build()?;
    let columns = [MALLOC, FEW_BYTES, TO_FILL];
    for threads in [1, all] {
        let row = Row::new(&format!("4 KiB in turn, {threads} threads"), "ns", Better::Lower);
        report.measure(&row.base(MALLOC).warm_up(), &columns, |_, column| {
            let turns = options.pick(200_000, 50_000);
            let work = || match columns[column] {
                MALLOC => (0..turns).for_each(|_| {
                    let mut bytes = vec![0u8; SMALL];
                    write(&mut bytes);
                    drop(std::hint::black_box(bytes));
                }),
                FEW_BYTES => (0..turns).for_each(|_| {
                    write(&mut pool.take(SMALL).expect("64 for each thread"));
                }),
                _ => (0..turns).for_each(|_| {
                    let buffer = pool.take_filled(&[0x5A; SMALL]).expect("64 for each thread");
                    drop(std::hint::black_box(buffer));
                }),
            };
            let seconds = seconds(|| {
                std::thread::scope(|scope| {
                    (1..threads).for_each(|_| _ = scope.spawn(work));
                    work();
                });
            });
            Ok(1e9 * seconds / turns as f64)
        })?;
    }
    Ok(())
}

const HUGETLB: Backing = Backing::Hugetlb { page_bytes: PAGE };

/// A new mapping, faulted in whole; unmapping is not counted.
fn fresh(count: usize, backing: Backing, touch: TouchAt) -> Result<f64> {
    let mut total = 0.0;
    for _ in 0..count {
        let mut made = None;
        total += seconds(|| {
            let lazy = Region::options(PAGE).exactly(backing).prefault(Prefault::Lazy);
            made = Some(lazy.map().map(|mut region| {
                first_touch(region.as_mut_slice(), backing, touch);
                write(&mut region.as_mut_slice()[..4096]);
                region
            }));
        });
        made.context("measured")?.context("no memory")?;
    }
    Ok(total / count as f64)
}

fn first_touch(bytes: &mut [u8], backing: Backing, touch: TouchAt) {
    if backing == Backing::Base {
        bytes.iter_mut().step_by(4096).for_each(|byte| *std::hint::black_box(byte) = 0);
    } else {
        let at = if touch == TouchAt::First { 0 } else { PAGE - 1 };
        *std::hint::black_box(&mut bytes[at]) = 0;
    }
}

/// Buffers that had an owner before.
struct Recycling {
    pool: Pool,
    vecs: Vec<Vec<u8>>,
    many: Vec<BytesMut>,
    /// Buffers taken per sample.
    count: usize,
}

impl Recycling {
    fn new(buffers: usize, plan: &ClearPlan, count: usize) -> Result<Self> {
        let pool = Pool::builder().class(PAGE, buffers).plan(plan.clone()).build()?;
        let vecs = (0..count).map(|_| vec![1; PAGE]).collect();
        let many = (0..count).map(|_| BytesMut::from(&vec![1; PAGE][..])).collect();
        Ok(Self { pool, vecs, many, count })
    }

    /// Seconds per take from a pool whose buffers are all dirty, or all cleared by the cleaner.
    fn take(&mut self, pre_cleared: bool) -> Result<f64> {
        self.dirty_all()?;
        if pre_cleared {
            let options =
                CleanerOptions { bytes_per_second: usize::MAX, ..CleanerOptions::default() };
            let mut cleaner = self.pool.cleaner(options);
            while let Step::Cleared(_) | Step::Hot = cleaner.step() {}
        }
        let mut held = Vec::with_capacity(self.count);
        let mut total = 0.0;
        for _ in 0..self.count {
            let mut taken = None;
            total += seconds(|| {
                taken = Some(self.pool.take(PAGE).map(|mut buffer| {
                    write(&mut buffer[..4096]);
                    buffer
                }));
            });
            held.push(taken.context("measured")??);
        }
        held.into_iter().for_each(|buffer| buffer.give_back_as(Heat::Cold));
        Ok(total / self.count as f64)
    }

    /// Seconds per take of 4 KiB from a pool whose buffers of 2 MiB are all dirty: the bytes in
    /// sight are cleared, or none, because the owner fills them.
    fn first_bytes(&mut self, to_fill: bool) -> Result<f64> {
        self.dirty_all()?;
        let mut held = Vec::with_capacity(self.count);
        let mut total = 0.0;
        for _ in 0..self.count {
            let mut taken = None;
            total += seconds(|| {
                taken = Some(if to_fill {
                    self.pool.take_filled(&[0x5A; SMALL])
                } else {
                    self.pool.take(SMALL).map(|mut buffer| {
                        write(&mut buffer);
                        buffer
                    })
                });
            });
            held.push(taken.context("measured")??);
        }
        drop(held);
        Ok(total / self.count as f64)
    }

    /// Every buffer gets an owner who writes all of it. They come back so that the one written
    /// longest ago is taken first.
    fn dirty_all(&mut self) -> Result<()> {
        let mut held: Vec<Buffer<_>> = Vec::new();
        while let Ok(buffer) = self.pool.take(PAGE) {
            held.push(buffer);
        }
        held.iter_mut().for_each(|buffer| write(buffer));
        while let Some(buffer) = held.pop() {
            buffer.give_back_as(Heat::Cold);
        }
        Ok(())
    }

    fn vec(&mut self) -> Result<f64> {
        let total: f64 = self.vecs.iter_mut().map(|vec| seconds(|| reuse(vec))).sum();
        Ok(total / self.count as f64)
    }

    fn bytes_mut(&mut self) -> Result<f64> {
        let reuse = |bytes: &mut BytesMut| {
            bytes.clear();
            bytes.resize(PAGE, 0);
            write(&mut bytes[..4096]);
        };
        let total: f64 = self.many.iter_mut().map(|bytes| seconds(|| reuse(bytes))).sum();
        Ok(total / self.count as f64)
    }
}

fn reuse(vec: &mut Vec<u8>) {
    vec.clear();
    vec.resize(PAGE, 0);
    write(&mut vec[..4096]);
}
