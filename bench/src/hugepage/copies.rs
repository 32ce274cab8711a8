//! (e) Copying 2 MiB from a cold and from a hot source to a cold destination.

use anyhow::Result;
use tollgate_hugepage::{ClearPlan, Copier, Heat};

use super::arena::{Arena, PAGE, gb_per_s, seconds, typical, write};
use super::engines::{LIBC, PLAN, ways_to_copy};
use crate::harness::{Better, Must, Options, Report, Row};

pub(super) fn run(
    report: &mut Report,
    options: &Options,
    arena: &mut Arena,
    plan: &ClearPlan,
) -> Result<()> {
    report.section("(e) copy 2 MiB to a cold destination");
    for source in [Heat::Cold, Heat::Hot] {
        let mut list: Vec<(String, Copier)> = vec![(PLAN.into(), *plan.copier(source))];
        for (name, spec) in ways_to_copy() {
            list.extend(spec.check().ok().map(|copier| (name, copier)));
        }
        let names: Vec<&str> = list.iter().map(|(name, _)| name.as_str()).collect();
        let word = if source == Heat::Hot { "hot" } else { "cold" };
        let row = Row::new(&format!("copy, {word} source"), "GB/s", Better::Higher).base(LIBC);
        report.measure(&row, &names, |_, column| {
            arena.cool();
            Ok(gb_per_s(typical(options.pick(32, 12), || {
                let (from, to) = arena.next_many(2).split_at_mut(PAGE);
                if source == Heat::Hot {
                    write(from);
                }
                // Equal lengths cannot be refused.
                seconds(|| drop(list[column].1.copy(to, from)))
            })))
        })?;
    }
    report.must(Must::at_least(("copy, cold source", PLAN), 1.3).against(LIBC).aim(1.7));
    Ok(())
}
