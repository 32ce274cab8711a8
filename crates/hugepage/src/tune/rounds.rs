//! Samples of several engines in turn, round by round, within a time.

use std::time::{Duration, Instant};

use super::tuning::Sample;

/// Rounds after which an engine that is far behind is measured no further, and the fewest there
/// are.
pub(super) const TRIAL_ROUNDS: usize = 3;
/// A kind of store must be faster than one before it in the list by more than one part in this
/// many.
pub(super) const STORE_MARGIN: u64 = 32;
/// So must a chunk size and order, of which there are many: medians of a few cold samples differ by
/// some percent without a cause, and the differences that were reported for them are larger.
pub(super) const CHUNK_MARGIN: u64 = 8;

/// How many rounds there are to be, and until when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    most: usize,
    deadline: Instant,
}

impl Rounds {
    pub(super) fn new(most: usize, budget: Duration) -> Self {
        Self { most, deadline: Instant::now() + budget }
    }

    /// Whether round `number` is to be run: the trial rounds are, however long they take.
    pub(super) fn go_on(&self, number: usize) -> bool {
        number < self.most && (number < TRIAL_ROUNDS || !self.is_over())
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// Calls `sample` for each of `count` engines in every round, starting with another one each time,
/// and gathers the results by engine.
pub(super) fn interleaved(
    rounds: Rounds,
    count: usize,
    sample: &mut dyn FnMut(usize) -> u64,
) -> Vec<Vec<u64>> {
    let mut times = vec![Vec::new(); count];
    for round in (0..).take_while(|round| rounds.go_on(*round)) {
        for each in (0..count).map(|step| (round + step) % count) {
            times[each].push(sample(each));
        }
    }
    times
}

/// As [`interleaved`], but after [`TRIAL_ROUNDS`] only the engines go on whose best sample is
/// within half of the best of all.
pub(super) fn knock_out(
    rounds: Rounds,
    count: usize,
    sample: &mut dyn FnMut(usize) -> u64,
) -> Vec<Vec<u64>> {
    let trial = Rounds { most: rounds.most.min(TRIAL_ROUNDS), ..rounds };
    let mut times = interleaved(trial, count, sample);
    let best_of = |times: &[u64]| times.iter().copied().min().unwrap_or(u64::MAX);
    let best = times.iter().map(|times| best_of(times)).min().expect("a row has engines");
    let limit = best.saturating_add(best / 2);
    let left: Vec<usize> = (0..count).filter(|each| best_of(&times[*each]) <= limit).collect();
    for round in (TRIAL_ROUNDS..).take_while(|round| rounds.go_on(*round)) {
        for step in 0..left.len() {
            let each = left[(round + step) % left.len()];
            times[each].push(sample(each));
        }
    }
    times
}

pub(super) fn timed_ns(work: impl FnOnce()) -> u64 {
    let started = Instant::now();
    work();
    // A sample of 584 years counts as the longest there is.
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The index of the engine with the least median, or rather of the first that is slower by at most
/// one part in `margin`, and a sample of each. The plainest come first, so chance chooses no odd
/// one.
pub(super) fn judge(
    row: &str,
    names: &[String],
    bytes: usize,
    times: Vec<Vec<u64>>,
    margin: u64,
) -> (usize, Vec<Sample>) {
    let mut samples: Vec<Sample> = Vec::new();
    for (name, mut times) in names.iter().zip(times) {
        times.sort_unstable();
        // An engine without a sample cannot win.
        let at = |index: usize| times.get(index).copied().unwrap_or(u64::MAX);
        samples.push(Sample {
            row: row.into(),
            engine: name.clone(),
            bytes,
            median_ns: at(times.len() / 2),
            min_ns: at(0),
            max_ns: at(times.len().saturating_sub(1)),
            chosen: false,
        });
    }
    let least = samples.iter().map(|sample| sample.median_ns).min();
    let least = least.expect("a row has engines");
    let near = least.saturating_add(least / margin);
    let best = samples.iter().position(|sample| sample.median_ns <= near);
    let best = best.expect("the least is near itself");
    samples[best].chosen = true;
    (best, samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plainest_of_about_equal_ones_wins() {
        let names = ["plain", "odd", "odder", "fast"].map(String::from);
        let (best, samples) = judge("row", &names, 1, vec![vec![102], vec![101], vec![100]], 32);
        assert_eq!((best, samples[0].chosen), (0, true));
        let (best, _) = judge("row", &names, 1, vec![vec![110], vec![101], vec![100]], 32);
        assert_eq!(best, 1);
    }

    #[test]
    fn time_ends_the_rounds_but_not_the_trial() {
        let mut calls = 0;
        let over = Rounds::new(100, Duration::ZERO);
        let times = interleaved(over, 2, &mut |_| {
            calls += 1;
            1
        });
        assert_eq!((times[0].len(), calls), (TRIAL_ROUNDS, 2 * TRIAL_ROUNDS));
        let times = knock_out(Rounds::new(5, Duration::from_secs(60)), 2, &mut |each| {
            if each == 0 { 10 } else { 100 }
        });
        assert_eq!((times[0].len(), times[1].len()), (5, TRIAL_ROUNDS));
    }
}
