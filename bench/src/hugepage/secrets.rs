//! (f) Wiping secrets with the guarantee that the compiler does not drop it, beside `zeroize`.

use anyhow::Result;
use tollgate_hugepage::{ClearPlan, Situation, wipe, wipe_cold, wipe_with};
use zeroize::Zeroize;

use super::arena::{Arena, PAGE, seconds, typical, write};
use crate::harness::{Better, Must, Options, Report, Row};

const WIPE: &str = "wipe";
const WIPE_TUNED: &str = "wipe, tuned plan";
const ZEROIZE: &str = "zeroize";

pub(super) const WAYS: [&str; 3] = [WIPE, WIPE_TUNED, ZEROIZE];

pub(super) fn run(
    report: &mut Report,
    options: &Options,
    arena: &mut Arena,
    plan: &ClearPlan,
) -> Result<()> {
    report.section("(f) wipe a secret");
    let rows = [
        ("wipe 2 MiB, cold", PAGE, false),
        ("wipe 2 MiB, just written", PAGE, true),
        ("wipe 64 KiB, just written", 64 << 10, true),
        ("wipe 256 bytes, just written", 256, true),
    ];
    for (name, bytes, hot) in rows {
        let situation = if hot { Situation::hot(bytes) } else { Situation::cold(bytes) };
        let tuned = plan.clearer(situation);
        let row = Row::new(name, "GB/s", Better::Higher).base(ZEROIZE);
        report.measure(&row, &WAYS, |_, column| {
            arena.cool();
            let seconds = typical(options.pick(32, 8), || {
                let secret = &mut arena.next()[..bytes];
                if hot {
                    write(secret);
                }
                repeat_of(bytes, || match WAYS[column] {
                    WIPE if hot => wipe(secret),
                    WIPE => wipe_cold(secret),
                    WIPE_TUNED => wipe_with(tuned, secret),
                    _ => secret.zeroize(),
                })
            });
            Ok(bytes as f64 / seconds / 1e9)
        })?;
    }
    for row in ["wipe 2 MiB, cold", "wipe 2 MiB, just written"] {
        report.must(Must::at_least((row, WIPE_TUNED), 8.0).against(ZEROIZE).aim(20.0));
    }
    Ok(())
}

/// Seconds of one call; of a short one the mean of many, which the clock cannot tell apart.
fn repeat_of(bytes: usize, mut work: impl FnMut()) -> f64 {
    let times = if bytes < 4096 { 1000 } else { 1 };
    seconds(|| (0..times).for_each(|_| work())) / f64::from(times)
}
