//! The `hugepage` benchmark: clearing, getting, using and copying 2 MiB buffers.
//!
//! Before a sample of cold buffers, memory of twice the last-level cache is read, so that no cache
//! holds any of them. A sample is the mean (a) or the median (b to f) over several buffers; the
//! table has its median and spread over the rounds.

mod arena;
mod chunks;
mod copies;
mod getting;
mod kinds;
mod secrets;
mod using;

use anyhow::{Context, Result};
use tollgate_hugepage::tune::{TuneOptions, explain};
use tollgate_hugepage::{Chunk, ClearPlan, ClearSpec, Clearer, CopySpec, Order, Store};

use crate::harness::{Column, Options, Report};
use arena::Arena;

/// The engine that the plan of this machine has for the row at hand.
const PLAN: &str = "chosen plan";
/// The C library's memset or memcpy.
const LIBC: &str = "libc";

/// Runs the benchmark.
///
/// # Errors
/// If memory cannot be had or a file cannot be written.
pub(crate) fn run(options: &Options) -> Result<()> {
    let tuning = explain(&TuneOptions::uncached()).context("tuning failed")?;
    eprint!("{tuning}");
    let plan = tuning.plan;
    let mut arena = Arena::new(plan.llc_bytes())?;
    let mut report = Report::new("hugepage", options, &all_columns());
    report.note(format!(
        "Working set {} MiB on {}. The plan, measured at the start of the run:\n{}",
        arena.bytes() >> 20,
        arena.backing(),
        plan.to_string().trim_end(),
    ));
    chunks::run(&mut report, options, &mut arena)?;
    kinds::run(&mut report, options, &mut arena, &plan)?;
    getting::run(&mut report, options, &mut arena, &plan)?;
    using::run(&mut report, options, &mut arena, &plan)?;
    copies::run(&mut report, options, &mut arena, &plan)?;
    secrets::run(&mut report, options, &mut arena, &plan)?;
    report.finish()
}

/// A contestant and the name of its column.
struct Engine {
    name: String,
    clearer: Clearer,
}

/// The ways to clear that this processor has, the chosen one first.
fn engines(chosen: &Clearer) -> Vec<Engine> {
    let mut engines = vec![Engine { name: PLAN.into(), clearer: *chosen }];
    for (name, spec) in ways_to_clear() {
        if let Ok(clearer) = spec.check() {
            engines.push(Engine { name, clearer });
        }
    }
    engines
}

fn ways_to_clear() -> Vec<(String, ClearSpec)> {
    let kinds = Store::ALL.into_iter().filter(|store| *store != Store::Hybrid);
    let mut ways: Vec<_> =
        kinds.map(|store| (store_name(store), ClearSpec::forward(store))).collect();
    let four_kib = ClearSpec::forward(Store::Plain).chunk(Chunk::kib::<4>());
    let hybrid = ClearSpec::forward(Store::Hybrid);
    ways.extend([
        ("hybrid 64K".to_owned(), hybrid),
        ("hybrid 256K".to_owned(), hybrid.window(256 << 10)),
        ("4K reverse".to_owned(), four_kib.order(Order::Reverse)),
        (TARGET_LAST.to_owned(), four_kib.order(Order::TargetLast)),
        ("neighbourhood-last".to_owned(), four_kib.order(Order::NeighbourhoodLast)),
        ("descending".to_owned(), ClearSpec::forward(Store::Avx2).order(Order::Descending)),
    ]);
    ways
}

/// 4 KiB chunks that end at the target: what the kernel did when the discussion began.
const TARGET_LAST: &str = "4K target-last";

fn ways_to_copy() -> Vec<(String, CopySpec)> {
    let kinds = Store::ALL.into_iter().filter(|s| !matches!(s, Store::Hybrid | Store::Clzero));
    let mut ways: Vec<_> =
        kinds.map(|store| (store_name(store), CopySpec::forward(store))).collect();
    let reverse = ClearSpec::forward(Store::Plain).chunk(Chunk::kib::<4>()).order(Order::Reverse);
    ways.push(("4K reverse".into(), CopySpec { clear: reverse, prefetch_bytes: 0 }));
    for store in [Store::NtAvx2, Store::NtAvx512] {
        ways.push((format!("{store} prefetch"), CopySpec::forward(store).prefetch(2048)));
    }
    ways
}

fn store_name(store: Store) -> String {
    if store == Store::Plain { LIBC.into() } else { store.to_string() }
}

fn all_columns() -> Vec<Column> {
    let mut names: Vec<String> = vec![PLAN.into()];
    names.extend(ways_to_clear().into_iter().map(|(name, _)| name));
    names.extend(ways_to_copy().into_iter().map(|(name, _)| name));
    names.extend(chunks::CHUNKS.iter().map(ToString::to_string));
    names.extend(
        getting::WAYS.iter().chain(&secrets::WAYS).chain(&using::MORE).map(|w| (*w).to_owned()),
    );
    let mut columns: Vec<Column> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if seen.insert(name.clone()) {
            columns.push(Column::new(&name));
        }
    }
    columns
}

/// The names of `engines`, as the report wants them.
fn names(engines: &[Engine]) -> Vec<&str> {
    engines.iter().map(|engine| engine.name.as_str()).collect()
}

/// The rows of a plan differ by the situation; most of the benchmark is about cold buffers.
fn cold(plan: &ClearPlan) -> &Clearer {
    plan.clearer(tollgate_hugepage::Situation::cold(arena::PAGE))
}
