//! The report that a benchmark fills: from its columns to the printed table.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result};

use super::interleaved::Interleaved;
use super::must::Must;
use super::options::Options;
use super::results::{Column, Counts, Results, Row};
use super::{export, interrupt, svg, table};

/// A benchmark's results while they are gathered.
#[derive(Debug)]
pub struct Report {
    results: Results,
    musts: Vec<Must>,
    options: Options,
}

impl Report {
    /// An empty report of the benchmark `bench`.
    #[must_use]
    pub fn new(bench: &str, options: &Options, columns: &[Column]) -> Report {
        let results = Results::new(bench, columns);
        Report { results, musts: Vec::new(), options: options.clone() }
    }

    /// Starts a group of rows with a title over it.
    pub fn section(&mut self, title: &str) {
        self.results.section(title);
    }

    /// Adds a line of text under the table: what the reader must know to read it.
    pub fn note(&mut self, text: impl Into<String>) {
        self.results.notes.push(text.into());
    }

    /// Adds a check that is judged when the report is finished. A must on a row that `--only`
    /// leaves out is left out as well.
    pub fn must(&mut self, must: Must) {
        if self.options.selects(must.row()) {
            self.musts.push(must);
        }
    }

    /// Whether this row is to be measured: `--only` selects it, and nobody pressed Ctrl-C.
    pub fn wants(&self, row: &Row) -> bool {
        self.options.selects(&row.name) && !interrupt::requested()
    }

    /// Measures one row. `columns` are names of the report's columns; `sample(round, column)` gets
    /// an index into `columns` and returns the figure in the row's unit.
    ///
    /// # Errors
    /// The first error of `sample`, with the row's and column's name.
    pub fn measure(
        &mut self,
        row: &Row,
        columns: &[&str],
        mut sample: impl FnMut(usize, usize) -> Result<f64>,
    ) -> Result<()> {
        self.measure_many(std::slice::from_ref(row), columns, |round, column| {
            Ok(vec![sample(round, column)?])
        })
    }

    /// Measures several rows with the same calls: `sample` returns one value per row, in order.
    ///
    /// # Errors
    /// The first error of `sample`, with the row's and column's name.
    ///
    /// # Panics
    /// If `sample` returns another number of values than there are rows.
    pub fn measure_many(
        &mut self,
        rows: &[Row],
        columns: &[&str],
        mut sample: impl FnMut(usize, usize) -> Result<Vec<f64>>,
    ) -> Result<()> {
        if !rows.iter().any(|row| self.wants(row)) {
            return Ok(());
        }
        let title = rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(", ");
        let warm_up = usize::from(rows.iter().any(|row| row.warm_up));
        let times = rows.iter().map(|row| row.times).max().unwrap_or(1);
        let rounds = self.options.rounds() * times + warm_up;
        let mut taken =
            Interleaved::run_many(rounds, columns.len(), rows.len(), |round, column| {
                progress(&format!("{title}: round {}/{rounds}, {}", round + 1, columns[column]));
                sample(round, column).with_context(|| format!("{title}: {}", columns[column]))
            })?;
        for (row, figures) in rows.iter().zip(&mut taken) {
            for (column, samples) in columns.iter().zip(figures) {
                self.add(
                    row,
                    column,
                    samples.values()[warm_up.min(samples.values().len())..].to_vec(),
                );
            }
            self.show_progress(row);
        }
        Ok(())
    }

    /// Adds samples that were measured otherwise, one value per round.
    ///
    /// # Panics
    /// If the report has no such column: columns are declared when it is made.
    pub fn add(&mut self, row: &Row, column: &str, samples: Vec<f64>) {
        if self.options.selects(&row.name) && !samples.is_empty() {
            self.results.add(row, column, samples);
        }
    }

    /// Adds what one round of `row` in `column` caused, by name (requests by operation).
    ///
    /// # Panics
    /// If the report has no such column.
    pub fn add_counts(&mut self, row: &Row, column: &str, counts: Counts) {
        if self.options.selects(&row.name) {
            self.results.add_counts(row, column, counts);
        }
    }

    /// Prints the table and the musts, and writes the files that the options ask for.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn finish(self) -> Result<()> {
        progress("");
        let results = &self.results;
        let verdicts: Vec<_> = self.musts.iter().map(|must| must.judge(results)).collect();
        let text = table::render(results, &verdicts);
        // A closed pipe (`| head`) is no reason to lose the files below.
        let _ = std::io::stdout().write_all(text.as_bytes());
        for (path, content) in [
            (&self.options.json, export::json(results, &verdicts)?),
            (&self.options.csv, export::csv(results)),
            (&self.options.svg, svg::render(results)),
        ] {
            if let Some(path) = path {
                std::fs::write(path, content)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        Ok(())
    }

    fn show_progress(&self, row: &Row) {
        let Some(line) = self.results.line(&row.name) else { return };
        let cells: Vec<String> = (self.results.columns.iter().zip(&line.cells))
            .filter_map(|(column, cell)| {
                let median = cell.as_ref()?.summary()?.median;
                Some(format!("{} {}", column.name, table::figure(median)))
            })
            .collect();
        progress("");
        eprintln!("{}: {} {}", row.name, cells.join(", "), row.unit);
    }
}

/// Shows what is being measured, on one line that the next call overwrites; only on a terminal.
fn progress(text: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{text}");
        let _ = stderr.flush();
    }
}
