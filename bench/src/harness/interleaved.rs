//! Columns measured in turn.

use super::interrupt;
use super::samples::Samples;

/// Measures several columns round by round, each once per round, starting one further each round.
#[derive(Debug)]
pub struct Interleaved;

impl Interleaved {
    /// Calls `sample(round, column)` for every round and every column index below `columns`, and
    /// returns one list of samples per column. Rounds cut short by Ctrl-C are dropped whole, so all
    /// lists have the same length.
    ///
    /// # Errors
    /// The first error of `sample`.
    pub fn run<E>(
        rounds: usize,
        columns: usize,
        mut sample: impl FnMut(usize, usize) -> Result<f64, E>,
    ) -> Result<Vec<Samples>, E> {
        let one = Self::run_many(rounds, columns, 1, |round, column| {
            sample(round, column).map(|value| vec![value])
        })?;
        Ok(one.into_iter().flatten().collect())
    }

    /// As [`Interleaved::run`], with `figures` values from each call, for measurements that yield
    /// several at once (percentiles of one latency run). Returns `[figure][column]`.
    ///
    /// # Errors
    /// The first error of `sample`.
    ///
    /// # Panics
    /// If `sample` returns another number of values than `figures`.
    pub fn run_many<E>(
        rounds: usize,
        columns: usize,
        figures: usize,
        mut sample: impl FnMut(usize, usize) -> Result<Vec<f64>, E>,
    ) -> Result<Vec<Vec<Samples>>, E> {
        let mut all = vec![vec![Samples::default(); columns]; figures];
        for round in 0..rounds {
            let mut taken = vec![Vec::new(); columns];
            for turn in 0..columns {
                if interrupt::requested() {
                    return Ok(all);
                }
                let column = (round + turn) % columns;
                taken[column] = match sample(round, column) {
                    Ok(values) => values,
                    // Ctrl-C also hits the programs that a sample runs.
                    Err(_) if interrupt::requested() => return Ok(all),
                    Err(error) => return Err(error),
                };
                assert_eq!(taken[column].len(), figures, "a sample has one value per figure");
            }
            for (column, values) in taken.into_iter().enumerate() {
                for (figure, value) in values.into_iter().enumerate() {
                    all[figure][column].push(value);
                }
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_starts_at_another_column() {
        let mut order = Vec::new();
        let samples = Interleaved::run(3, 3, |round, column| {
            order.push((round, column));
            Ok::<_, std::convert::Infallible>((10 * round + column) as f64)
        })
        .expect("nothing fails");
        let wanted = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0), (2, 2), (2, 0), (2, 1)];
        assert_eq!(order, wanted);
        assert_eq!(samples[1].values(), [1.0, 11.0, 21.0]);
    }

    #[test]
    fn an_error_ends_the_run() {
        let result = Interleaved::run(3, 2, |round, _| if round == 1 { Err("x") } else { Ok(1.0) });
        assert_eq!(result.err(), Some("x"));
    }
}
