//! Samples of one cell and their summary.

/// The samples of one row and column, one per round, in the order of the rounds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples(Vec<f64>);

/// Median, extremes and standard deviation of a list of samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Standard deviation of the sample (n - 1); 0 for one value.
    pub sd: f64,
    /// How many values.
    pub rounds: usize,
}

impl Samples {
    /// Adds the sample of the next round.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// All samples in the order of the rounds.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// The summary; `None` if nothing was measured.
    pub fn summary(&self) -> Option<Summary> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (rounds, middle) = (sorted.len(), sorted.len() / 2);
        let median = if rounds % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Summary { median, min, max, sd: deviation(&sorted), rounds })
    }

    /// This over `base`, round by round. Rounds that only one of the two has are left out.
    pub fn ratio(&self, base: &Samples) -> Samples {
        Samples(self.0.iter().zip(&base.0).map(|(value, base)| value / base).collect())
    }
}

impl From<Vec<f64>> for Samples {
    fn from(values: Vec<f64>) -> Self {
        Samples(values)
    }
}

fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_odd_even_and_none() {
        assert_eq!(Samples::default().summary(), None);
        let odd = Samples::from(vec![3.0, 1.0, 2.0]).summary().expect("three values");
        assert_eq!((odd.median, odd.min, odd.max, odd.sd, odd.rounds), (2.0, 1.0, 3.0, 1.0, 3));
        let even = Samples::from(vec![4.0, 1.0, 2.0, 3.0]).summary().expect("four values");
        assert_eq!(even.median.to_bits(), 2.5f64.to_bits());
    }

    #[test]
    fn ratio_is_taken_pair_by_pair() {
        let ours = Samples::from(vec![2.0, 9.0, 8.0]);
        let base = Samples::from(vec![1.0, 3.0, 2.0]);
        assert_eq!(ours.ratio(&base).values(), [2.0, 3.0, 4.0]);
        // The ratio of the medians would be 4: pairing is what keeps a slow minute out of it.
        assert_eq!(ours.ratio(&base).summary().map(|s| s.median), Some(3.0));
    }
}
