//! How long this CPU pauses. PAUSE takes 5 ns on some virtual machines, 15 to 25 on AMD Zen and 40
//! to 60 on Intel since Skylake, so a wait that counts pauses instead of time is up to ten times as
//! long on one machine as on another.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::sync::spin_loop;

/// About a microsecond where PAUSE takes 30 ns, and where there is no clock to measure it by.
const UNMEASURED: u32 = 32;
/// From pauses of half a microsecond, longer than any CPU's, to those of 1 ns, which are none.
const SENSIBLE: std::ops::RangeInclusive<u32> = 2..=1000;

/// How many pauses take a microsecond here. Measured once, when it is first asked for, which takes
/// some microseconds.
#[inline]
pub(crate) fn per_microsecond() -> u32 {
    // Not the models': it is no part of any protocol. Threads that measure at the same time find
    // the same, or nearly.
    static MEASURED: AtomicU32 = AtomicU32::new(0);
    match MEASURED.load(Ordering::Relaxed) {
        0 => {
            let measured = measure();
            MEASURED.store(measured, Ordering::Relaxed);
            measured
        }
        measured => measured,
    }
}

#[cold]
fn measure() -> u32 {
    const PAUSES: u32 = 32;
    const SAMPLES: u32 = 5;
    if cfg!(any(loom, miri)) {
        return UNMEASURED;
    }
    let sample = |_| {
        let start = Instant::now();
        (0..PAUSES).for_each(|_| spin_loop());
        start.elapsed().as_nanos()
    };
    // The least: what else the machine does makes samples longer, and none shorter.
    let least = (0..SAMPLES).map(sample).min().unwrap_or_default();
    from_sample(PAUSES, least)
}

/// How many pauses take a microsecond, where `pauses` took `took_ns`.
fn from_sample(pauses: u32, took_ns: u128) -> u32 {
    let count = (u128::from(pauses) * 1000).checked_div(took_ns);
    let count = count.and_then(|count| u32::try_from(count).ok()).unwrap_or(u32::MAX);
    count.clamp(*SENSIBLE.start(), *SENSIBLE.end())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_microsecond_has_as_many_pauses_as_fit() {
        // Zen 4; Skylake and later; a guest whose PAUSE is short.
        assert_eq!(from_sample(32, 480), 66);
        assert_eq!(from_sample(32, 1_600), 20);
        assert_eq!(from_sample(32, 160), 200);
    }

    #[test]
    fn a_clock_that_stands_or_jumps_gives_a_count_that_can_be_used() {
        assert_eq!(from_sample(32, 0), 1000);
        assert_eq!(from_sample(32, u128::from(u64::MAX)), 2);
    }

    #[test]
    fn what_was_measured_stays() {
        let first = per_microsecond();
        assert!(SENSIBLE.contains(&first), "{first}");
        assert_eq!(per_microsecond(), first);
    }
}
