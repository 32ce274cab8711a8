//! What every benchmark takes on its command line.

use std::path::PathBuf;

/// Rounds of a full run when `--rounds` is left out.
const FULL_ROUNDS: usize = 7;
/// Rounds of a `--quick` run when `--rounds` is left out.
const QUICK_ROUNDS: usize = 3;

/// Options that all benchmarks share.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// End within a minute: fewer rounds and smaller work
    #[arg(long)]
    pub quick: bool,
    /// Rounds per row; each round measures every column once [default: 7, with --quick 3]
    #[arg(long, value_name = "N", value_parser = parse_rounds)]
    rounds: Option<usize>,
    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a bar plot as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write every single sample as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Measure only rows whose name contains this text (may be given more than once)
    #[arg(long, value_name = "ROW_SUBSTRING")]
    pub only: Vec<String>,
}

impl Options {
    /// How many rounds to measure.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { QUICK_ROUNDS } else { FULL_ROUNDS })
    }

    /// `full`, or `quick` in a `--quick` run: for sizes of files, counts of operations, and the
    /// like.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Whether `--only` lets this row be measured.
    pub fn selects(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| row.contains(part.as_str()))
    }
}

fn parse_rounds(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rounds @ 1..=1000) => Ok(rounds),
        _ => Err("a number of rounds from 1 to 1000 is wanted".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_selects_by_substring() {
        let mut options = Options::default();
        assert!(options.selects("read 4 KiB"));
        options.only = vec!["write".to_owned(), "find".to_owned()];
        assert!(!options.selects("read 4 KiB"));
        assert!(options.selects("randwrite 4 KiB"));
    }

    #[test]
    fn rounds_are_bounded() {
        assert_eq!(parse_rounds("5"), Ok(5));
        assert!(parse_rounds("0").is_err());
        assert!(parse_rounds("1001").is_err());
        assert!(parse_rounds("many").is_err());
    }
}
