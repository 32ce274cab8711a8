//! The `hugepage` benchmark: clearing, getting, using and copying 2 MiB buffers.
//!
//! Before a sample of cold buffers, memory of twice the last-level cache is read, so that no cache
//! holds any of them. A sample is the mean (a) or the median (b to f) over several buffers; the
//! table has its median and spread over the rounds.

mod arena;
mod bandwidth;
mod chunks;
mod copies;
mod engines;
mod getting;
mod kinds;
mod secrets;
mod using;

use anyhow::{Context, Result};
use tollgate_hugepage::tune::{TuneOptions, explain};

use crate::harness::{Column, Options, Report};
use arena::Arena;
use engines::{PLAN, ways_to_clear, ways_to_copy};

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
    bandwidth::run(&mut report, options, &mut arena)?;
    chunks::run(&mut report, options, &mut arena)?;
    kinds::run(&mut report, options, &mut arena, &plan)?;
    getting::run(&mut report, options, &mut arena, &plan)?;
    using::run(&mut report, options, &mut arena, &plan)?;
    copies::run(&mut report, options, &mut arena, &plan)?;
    secrets::run(&mut report, options, &mut arena, &plan)?;
    report.finish()
}

fn all_columns() -> Vec<Column> {
    let mut names: Vec<String> = vec![PLAN.into()];
    names.extend(ways_to_clear().into_iter().map(|(name, _)| name));
    names.extend(ways_to_copy().into_iter().map(|(name, _)| name));
    names.extend(chunks::CHUNKS.iter().map(ToString::to_string));
    names.extend(
        getting::WAYS
            .iter()
            .chain(&secrets::WAYS)
            .chain(&using::MORE)
            .chain(&bandwidth::WAYS)
            .map(|w| (*w).to_owned()),
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
