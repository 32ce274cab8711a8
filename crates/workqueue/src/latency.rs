//! Times of items: how long they were queued and how long they ran.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tollgate_wakequeue::sync::{AtomicU64, Ordering};

/// Buckets per doubling: a time is known to an eighth.
const STEPS: usize = 8;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Up to 2^40 ns, 18 minutes; longer times are in the last bucket.
const BUCKETS: usize = (40 - STEP_BITS as usize + 1) * STEPS;

/// A distribution of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Times measured.
    pub count: u64,
    /// Half of them were this short or shorter, in microseconds; known to an eighth, as all here.
    pub p50_us: f64,
    /// Nine tenths of them.
    pub p90_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
    /// The longest of them.
    pub max_us: f64,
}

/// What is to be noted of a queue's items, and what was. 2.5 KiB per distribution, from when it is
/// first asked for.
#[derive(Default)]
pub(crate) struct Observed {
    pub(crate) what: AtomicU64,
    times: OnceLock<Box<Times>>,
}

/// Times are measured.
pub(crate) const LATENCY: u64 = 1;
/// Each item has a span.
pub(crate) const SPANS: u64 = 2;

#[derive(Default)]
pub(crate) struct Times {
    pub(crate) queued: Histogram,
    pub(crate) run: Histogram,
}

pub(crate) struct Histogram(Box<[AtomicU64]>);

impl Observed {
    #[inline]
    pub(crate) fn what(&self) -> u64 {
        self.what.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, what: u64, on: bool) {
        if on {
            self.what.fetch_or(what, Ordering::Relaxed);
        } else {
            self.what.fetch_and(!what, Ordering::Relaxed);
        }
    }

    pub(crate) fn times(&self) -> &Times {
        self.times.get_or_init(Box::default)
    }

    /// Queued, and run: what was measured so far.
    pub(crate) fn latencies(&self) -> Option<(Latency, Latency)> {
        self.times.get().map(|times| (times.queued.summary(), times.run.summary()))
    }

    /// As good as new, for another queue.
    pub(crate) fn reset(&self) {
        self.what.store(0, Ordering::Relaxed);
        if let Some(times) = self.times.get() {
            times.queued.clear();
            times.run.clear();
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Histogram {
    pub(crate) fn note(&self, time: Duration) {
        self.bucket_of(time).fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes one [`note`](Self::note).
    pub(crate) fn take_back(&self, time: Duration) {
        self.bucket_of(time).fetch_sub(1, Ordering::Relaxed);
    }

    fn bucket_of(&self, time: Duration) -> &AtomicU64 {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        &self.0[bucket(ns)]
    }

    fn clear(&self) {
        self.0.iter().for_each(|bucket| bucket.store(0, Ordering::Relaxed));
    }

    fn summary(&self) -> Latency {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let upper_us = |index: usize| {
            #[expect(clippy::cast_precision_loss, reason = "for people to read")]
            let us = upper_ns(index) as f64 / 1e3;
            us
        };
        let at = |per_mille: u64| {
            let mut left = (count * per_mille).div_ceil(1000);
            let found = counts.iter().position(|&count| {
                let here = left <= count;
                left = left.saturating_sub(count);
                here
            });
            if count == 0 { 0.0 } else { found.map_or(0.0, upper_us) }
        };
        let max_us = counts.iter().rposition(|&count| count > 0).map_or(0.0, upper_us);
        Latency { count, p50_us: at(500), p90_us: at(900), p99_us: at(990), max_us }
    }
}

/// Times below [`STEPS`] ns have a bucket each; above, each doubling has [`STEPS`] of them.
fn bucket(ns: u64) -> usize {
    let octave = ns.max(1).ilog2().saturating_sub(STEP_BITS);
    #[expect(clippy::cast_possible_truncation, reason = "at most twice STEPS")]
    let step = (ns >> octave) as usize;
    (octave as usize * STEPS + step).min(BUCKETS - 1)
}

/// The longest time in a bucket.
fn upper_ns(index: usize) -> u64 {
    let octave = (index / STEPS).saturating_sub(1);
    let step = (index - octave * STEPS) as u64;
    ((step + 1) << octave) - 1
}

/// A moment, in one word.
#[derive(Clone, Copy)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn now() -> Self {
        static START: OnceLock<Instant> = OnceLock::new();
        let since = START.get_or_init(Instant::now).elapsed();
        Self(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Duration::from_nanos(Self::now().0.saturating_sub(self.0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_a_bucket_that_holds_it_to_an_eighth() {
        let mut last = 0;
        for ns in (0..5000).chain([1 << 20, (1 << 30) + 12345, (1 << 39) + 1]) {
            let index = bucket(ns);
            assert!(index >= last, "{ns}");
            last = index;
            let upper = upper_ns(index);
            assert!(upper >= ns && upper - ns <= ns / 8, "{ns}: {upper}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let histogram = Histogram::default();
        assert_eq!(histogram.summary(), Latency::default());
        for us in 1..=100 {
            histogram.note(Duration::from_micros(us));
        }
        let summary = histogram.summary();
        assert_eq!(summary.count, 100);
        for (found, exact) in
            [(summary.p50_us, 50.0), (summary.p99_us, 99.0), (summary.max_us, 100.0)]
        {
            assert!(found >= exact && found <= exact * 1.125, "{found} for {exact}");
        }
    }
}
