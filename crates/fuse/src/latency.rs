//! Latencies by operation and class. Each worker has histograms of its own, which it alone writes;
//! a snapshot adds them up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::abi::opcode;

/// Classes of a request that a file system can tell apart: 0, the default, to 8.
pub const CLASSES: usize = 9;

const KINDS: usize = opcode::LIMIT as usize + 1;
/// Latencies below 2^8 ns share the first bucket.
const LEAST_POWER: usize = 8;
/// From 2^36 ns (69 s) on, the last bucket.
const MOST_POWER: usize = 36;
/// Buckets in each power of two: the bounds of one differ by 25 % at most.
const STEPS: usize = 4;
const BUCKETS: usize = 1 + (MOST_POWER - LEAST_POWER) * STEPS + 1;

/// The bucket of a latency.
fn bucket(ns: u64) -> usize {
    let Some(power) = ns.checked_ilog2().map(|power| power as usize) else { return 0 };
    if power < LEAST_POWER {
        return 0;
    }
    // The two bits behind the highest one.
    let step = usize::from((ns >> (power - 2)).to_le_bytes()[0]) % STEPS;
    (1 + (power - LEAST_POWER) * STEPS + step).min(BUCKETS - 1)
}

/// The first latency in nanoseconds that is above the bucket.
fn bound_ns(bucket: usize) -> u64 {
    if bucket == BUCKETS - 1 {
        return u64::MAX;
    }
    let Some(behind) = bucket.checked_sub(1) else { return 1 << LEAST_POWER };
    let (power, step) = (LEAST_POWER + behind / STEPS, (behind % STEPS) as u64);
    (STEPS as u64 + step + 1) << (power - 2)
}

/// One worker's histogram of one operation and class: 928 bytes.
#[derive(Debug)]
struct Cell {
    counts: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
}

impl Cell {
    fn new() -> Box<Self> {
        let zero = || AtomicU64::new(0);
        Box::new(Self { counts: std::array::from_fn(|_| zero()), total_ns: zero() })
    }

    /// For the worker's own thread: no read-modify-write is needed.
    fn record(&self, ns: u64) {
        let add = |counter: &AtomicU64, n| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.counts[bucket(ns)], 1);
        add(&self.total_ns, ns);
    }
}

/// One worker's histograms, each made by the first request that needs it.
#[derive(Debug)]
pub(crate) struct WorkerLatencies {
    cells: Box<[OnceLock<Box<Cell>>]>,
}

impl Default for WorkerLatencies {
    fn default() -> Self {
        Self { cells: (0..KINDS * CLASSES).map(|_| OnceLock::new()).collect() }
    }
}

impl WorkerLatencies {
    /// Counts a request that took `ns`. For the worker's own thread.
    pub(crate) fn record(&self, code: u32, class: u8, ns: u64) {
        let kind = code.min(opcode::LIMIT) as usize;
        let class = usize::from(class).min(CLASSES - 1);
        self.cells[kind * CLASSES + class].get_or_init(Cell::new).record(ns);
    }
}

/// How long the requests of one operation and class took, from when they were received until their
/// handler returned. A handler that replies sends the reply itself, so that the reply is part of
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationLatency {
    /// The kernel's name of the operation.
    pub operation: &'static str,
    /// What [`crate::Request::set_class`] said, else 0.
    pub class: u8,
    /// The latencies.
    pub histogram: Histogram,
}

/// Counts of latencies in buckets whose bounds differ by at most 25 %.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    total_ns: u64,
}

impl Histogram {
    /// How many latencies were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all latencies.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }

    /// The buckets that are not empty, from short to long: the first latency in nanoseconds above
    /// the bucket, and how many are in it. Above the last bucket is `u64::MAX`.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let with_bound = |(bucket, &count): (usize, &u64)| (bound_ns(bucket), count);
        self.counts.iter().enumerate().map(with_bound).filter(|&(_, count)| count > 0)
    }

    fn add(&mut self, cell: &Cell) {
        for (total, one) in self.counts.iter_mut().zip(&cell.counts) {
            *total += one.load(Ordering::Relaxed);
        }
        self.total_ns = self.total_ns.wrapping_add(cell.total_ns.load(Ordering::Relaxed));
    }
}

/// Adds up what workers recorded.
pub(crate) fn sum<'a>(
    workers: &(impl Iterator<Item = &'a WorkerLatencies> + Clone),
) -> Vec<OperationLatency> {
    let mut sums = Vec::new();
    for at in 0..KINDS * CLASSES {
        let cells: Vec<_> = workers.clone().filter_map(|worker| worker.cells[at].get()).collect();
        if cells.is_empty() {
            continue;
        }
        let mut histogram = Histogram { counts: vec![0; BUCKETS], total_ns: 0 };
        cells.iter().for_each(|cell| histogram.add(cell));
        let (code, class) = (at / CLASSES, at % CLASSES);
        let operation = opcode::name(u32::try_from(code).expect("a small number"));
        let class = u8::try_from(class).expect("less than CLASSES");
        sums.push(OperationLatency { operation, class, histogram });
    }
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_latency_is_below_the_bound_of_its_bucket_and_not_below_the_one_before(ns: u64) {
            let at = bucket(ns);
            prop_assert!(ns < bound_ns(at) || at == BUCKETS - 1);
            prop_assert!(at == 0 || ns >= bound_ns(at - 1));
        }
    }

    #[test]
    fn bounds_differ_by_a_quarter_at_most() {
        for at in 1..BUCKETS - 2 {
            let (low, high) = (bound_ns(at), bound_ns(at + 1));
            assert!(low < high && high - low <= low / 4, "{low} {high}");
        }
        assert_eq!(bound_ns(BUCKETS - 2), 1 << MOST_POWER);
    }

    #[test]
    fn workers_add_up_by_operation_and_class() {
        let workers = [WorkerLatencies::default(), WorkerLatencies::default()];
        workers[0].record(opcode::OPEN, 1, 1000);
        workers[1].record(opcode::OPEN, 1, 1001);
        workers[1].record(opcode::OPEN, 0, 5);
        workers[1].record(u32::MAX, 200, 5);
        let sums = sum(&workers.iter());
        let found: Vec<_> = sums.iter().map(|one| (one.class, one.histogram.count())).collect();
        let last = u8::try_from(CLASSES - 1).unwrap();
        assert_eq!(found, [(0, 1), (1, 2), (last, 1)]);
        assert_eq!(sums[1].operation, "OPEN");
        assert_eq!(sums[1].histogram.total(), Duration::from_nanos(2001));
        assert_eq!(sums[1].histogram.buckets().collect::<Vec<_>>(), [(1024, 2)]);
    }
}
