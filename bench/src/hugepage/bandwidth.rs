//! (0) What this machine's memory can do, whatever clears it: plain passes over all of the arena,
//! which is larger than the cache. No engine can be faster on cold buffers than the faster of the
//! two ways to write; how far that is above memset differs from machine to machine.

use std::num::NonZeroUsize;
use std::thread;

use anyhow::Result;
use tollgate_hugepage::{ClearSpec, Clearer, Store};

use super::arena::{Arena, PAGE, read, seconds};
use crate::harness::{Better, Options, Report, Row};

/// A pass that reads, one of the C library's memset, one of the widest stores past the cache.
pub(super) const WAYS: [&str; 3] = ["read all once", "memset all", "past the cache"];

pub(super) fn run(report: &mut Report, options: &Options, arena: &mut Arena) -> Result<()> {
    report.section("(0) plain bandwidth of memory");
    let past_cache = [Store::NtAvx512, Store::NtAvx2, Store::Stnp, Store::Plain];
    let past_cache =
        past_cache.into_iter().find_map(|store| ClearSpec::forward(store).check().ok());
    let memset = ClearSpec::forward(Store::Plain).check()?;
    let clearers = [None, Some(memset), past_cache];
    let all = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut counts = vec![NonZeroUsize::MIN, all];
    counts.dedup();
    for threads in counts {
        let plural = if threads.get() == 1 { "" } else { "s" };
        let name = format!("whole arena, {threads} thread{plural}");
        let row = Row::new(&name, "GB/s", Better::Higher).base(WAYS[1]);
        report.measure(&row, &WAYS, |_, column| {
            let passes =
                (0..options.pick(5, 2)).map(|_| pass(arena, clearers[column].as_ref(), threads));
            Ok(passes.fold(0.0, f64::max))
        })?;
    }
    Ok(())
}

/// Gigabytes per second of one pass by all threads together.
fn pass(arena: &mut Arena, clearer: Option<&Clearer>, threads: NonZeroUsize) -> f64 {
    arena.cool();
    let bytes = arena.bytes();
    let share = (bytes / PAGE / threads).max(1) * PAGE;
    let taken = seconds(|| {
        thread::scope(|scope| {
            for part in arena.all().chunks_mut(share) {
                scope.spawn(move || match clearer {
                    Some(clearer) => clearer.clear(part),
                    None => read(part),
                });
            }
        });
    });
    #[expect(clippy::cast_precision_loss, reason = "memory sizes are below 2^52")]
    let bytes = bytes as f64;
    bytes / taken / 1e9
}
