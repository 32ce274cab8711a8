//! CPU work of a known length, and the CPU time that this process has used.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Rounds per microsecond, measured once. A count, not a clock, so that a worker that is off its
/// CPU has not worked.
static ROUNDS_PER_US: OnceLock<f64> = OnceLock::new();

/// Tries of the calibration; the fastest counts.
const TRIES: usize = 5;
/// Rounds of one try: some milliseconds.
const TRY_ROUNDS: u32 = 1_000_000;

/// Work that takes `us` microseconds on a CPU of its own.
pub(super) fn compute(us: f64) {
    let rounds = us * ROUNDS_PER_US.get_or_init(calibrate);
    let mut state = 1u64;
    // Counted in floating point, which holds whole numbers to 2^53, to need no conversion.
    let mut done = 0.0;
    while done < rounds {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        done += 1.0;
    }
}

/// Calibrates ahead of the first use.
pub(super) fn prepare() {
    ROUNDS_PER_US.get_or_init(calibrate);
}

fn calibrate() -> f64 {
    let once = || {
        let start = Instant::now();
        let mut state = 1u64;
        let mut done = 0.0;
        while done < f64::from(TRY_ROUNDS) {
            state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            done += 1.0;
        }
        f64::from(TRY_ROUNDS) / (start.elapsed().as_secs_f64() * 1e6)
    };
    (0..TRIES).map(|_| once()).fold(1.0, f64::max)
}

/// CPU time of all threads of this process, ended ones included.
pub(super) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    // The clock counts up from 0 at the start of the process.
    let (seconds, ns) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), ns.unwrap_or(0))
}
