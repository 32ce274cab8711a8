//! (d) Clear a cold buffer, then use it: the total is what an owner waits for.

use anyhow::Result;
use tollgate_hugepage::{ClearPlan, Situation};

use super::arena::{Arena, PAGE, read, seconds, typical, write};
use super::engines::{LIBC, engines, names};
use crate::harness::{Better, Options, Report, Row};

const PRE_CLEARED: &str = "pre-cleared";

/// Columns besides the engines.
pub(super) const MORE: [&str; 1] = [PRE_CLEARED];

/// What the owner does with the buffer.
type Use = fn(&mut [u8]);

pub(super) fn run(
    report: &mut Report,
    options: &Options,
    arena: &mut Arena,
    plan: &ClearPlan,
) -> Result<()> {
    report.section("(d) clear 2 MiB, cold, then use it: total");
    let list = engines(plan.clearer(Situation::cold(PAGE).target(0)));
    let uses: [(&str, Use); 4] = [
        ("clear, write 4 KiB", |page| write(&mut page[..4096])),
        ("clear, write 64 KiB", |page| write(&mut page[..64 << 10])),
        ("clear, write all", write),
        ("clear, read all", |page| read(page)),
    ];
    // Where the processor has no such stores, as the plan does: the first of the list.
    let past_caches = list.iter().position(|engine| engine.name == "nt-avx2").unwrap_or_default();
    for (name, work) in uses {
        let row = Row::new(name, "us", Better::Lower).base(LIBC);
        let mut columns = names(&list);
        columns.push(PRE_CLEARED);
        report.measure(&row, &columns, |_, column| {
            arena.cool();
            // A buffer is cleared ahead past the caches, as the cleaner does, and used when cold.
            let ahead = column == list.len();
            let clearer = &list[if ahead { past_caches } else { column }].clearer;
            let count = options.pick(24, 12);
            if ahead {
                let pages = arena.next_many(count);
                clearer.clear(pages);
                return Ok(1e6
                    * pages
                        .chunks_exact_mut(PAGE)
                        .map(|page| seconds(|| work(page)))
                        .sum::<f64>()
                    / count as f64);
            }
            Ok(typical(count, || {
                let page = arena.next();
                1e6 * seconds(|| {
                    clearer.clear(page);
                    work(page);
                })
            }))
        })?;
    }
    Ok(())
}
