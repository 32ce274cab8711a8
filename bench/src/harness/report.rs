//! Rows and columns of one benchmark, from declaration to the printed table.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result};

use super::interleaved::Interleaved;
use super::machine::{Machine, Quiet, commit};
use super::must::Must;
use super::options::Options;
use super::samples::{Samples, Summary};
use super::{export, interrupt, svg, table};

/// Which direction of a figure is the good one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Rates.
    Higher,
    /// Times, memory.
    Lower,
}

/// A thing that is measured: what the figure is, and its unit.
#[derive(Debug, Clone)]
pub struct Row {
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) better: Better,
    pub(super) warm_up: bool,
    pub(super) times: usize,
    pub(super) base: Option<String>,
}

impl Row {
    /// A row. `name` is unique in the report.
    pub fn new(name: &str, unit: &str, better: Better) -> Row {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        Row { name, unit, better, warm_up: false, times: 1, base: None }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Measures one round more, first, and throws it away.
    pub fn warm_up(mut self) -> Row {
        self.warm_up = true;
        self
    }

    /// Measures `times` as many rounds as other rows: for short samples of what falls into one mode or
    /// another from sample to sample (which CPU a server is woken on).
    pub fn rounds_times(mut self, times: usize) -> Row {
        self.times = times;
        self
    }

    /// Takes ratios of this row to `column`, whatever the columns declare.
    pub fn base(mut self, column: &str) -> Row {
        self.base = Some(column.to_owned());
        self
    }
}

/// A contestant, and the column that its ratios are taken to.
#[derive(Debug, Clone)]
pub struct Column {
    pub(super) name: String,
    pub(super) base: Option<String>,
}

impl Column {
    /// A column without ratios, usually a base itself.
    pub fn new(name: &str) -> Column {
        Column { name: name.to_owned(), base: None }
    }

    /// A column whose ratios are taken to `base`.
    pub fn against(name: &str, base: &str) -> Column {
        Column { name: name.to_owned(), base: Some(base.to_owned()) }
    }
}

/// One row with all that was measured of it.
#[derive(Debug)]
pub(super) struct Line {
    /// Title of the group that starts with this row.
    pub(super) section: Option<String>,
    pub(super) row: Row,
    /// One per column of the report, in its order; `None` where the row does not apply.
    pub(super) cells: Vec<Option<Samples>>,
}

impl Line {
    /// The summary of one column's samples.
    pub(super) fn summary(&self, column: usize) -> Option<Summary> {
        self.cells[column].as_ref().and_then(Samples::summary)
    }
}

/// A benchmark's results while they are gathered.
#[derive(Debug)]
pub struct Report {
    pub(super) bench: String,
    pub(super) commit: String,
    pub(super) machine: Machine,
    pub(super) columns: Vec<Column>,
    pub(super) lines: Vec<Line>,
    pub(super) notes: Vec<String>,
    pub(super) quiet: Quiet,
    musts: Vec<Must>,
    options: Options,
    next_section: Option<String>,
}

impl Report {
    /// An empty report of the benchmark `bench`.
    pub fn new(bench: &str, options: &Options, columns: &[Column]) -> Report {
        Report {
            bench: bench.to_owned(),
            commit: commit(),
            machine: Machine::detect(),
            columns: columns.to_vec(),
            lines: Vec::new(),
            notes: Vec::new(),
            quiet: Quiet::start(),
            musts: Vec::new(),
            options: options.clone(),
            next_section: None,
        }
    }

    /// Starts a group of rows with a title over it.
    pub fn section(&mut self, title: &str) {
        self.next_section = Some(title.to_owned());
    }

    /// Adds a line of text under the table: what the reader must know to read it.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Adds a check that is judged when the report is finished. A must on a row that `--only` leaves out
    /// is left out as well.
    pub fn must(&mut self, must: Must) {
        if self.options.selects(must.row()) {
            self.musts.push(must);
        }
    }

    /// Whether this row is to be measured: `--only` selects it, and nobody pressed Ctrl-C.
    pub fn wants(&self, row: &Row) -> bool {
        self.options.selects(&row.name) && !interrupt::requested()
    }

    /// Measures one row. `columns` are names of the report's columns; `sample(round, column)` gets an index
    /// into `columns` and returns the figure in the row's unit.
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
        if !self.options.selects(&row.name) || samples.is_empty() {
            return;
        }
        let known = self.columns.iter().position(|known| known.name == column);
        let index = known.unwrap_or_else(|| panic!("the report has no column {column:?}"));
        self.line_of(row).cells[index] = Some(samples.into());
    }

    /// Prints the table and the musts, and writes the files that the options ask for.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn finish(self) -> Result<()> {
        progress("");
        let verdicts: Vec<_> = self.musts.iter().map(|must| must.judge(&self)).collect();
        let text = table::render(&self, &verdicts);
        // A closed pipe (`| head`) is no reason to lose the files below.
        let _ = std::io::stdout().write_all(text.as_bytes());
        for (path, content) in [
            (&self.options.json, export::json(&self, &verdicts)?),
            (&self.options.csv, export::csv(&self)),
            (&self.options.svg, svg::render(&self)),
        ] {
            if let Some(path) = path {
                std::fs::write(path, content)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// The samples of a cell.
    pub(super) fn samples(&self, row: &str, column: &str) -> Option<&Samples> {
        let index = self.columns.iter().position(|known| known.name == column)?;
        self.lines.iter().find(|line| line.row.name == row)?.cells[index].as_ref()
    }

    /// Which direction is good in this row.
    pub(super) fn better(&self, row: &str) -> Option<Better> {
        Some(self.lines.iter().find(|line| line.row.name == row)?.row.better)
    }

    /// The column that `column`'s ratios in `line` are taken to.
    pub(super) fn base<'a>(&'a self, line: &'a Line, column: &'a Column) -> Option<&'a str> {
        let base = line.row.base.as_deref().or(column.base.as_deref())?;
        (base != column.name).then_some(base)
    }

    /// Ratios of a cell to its base, round by round.
    pub(super) fn ratio(&self, line: &Line, column: usize) -> Option<Samples> {
        let base = self.base(line, &self.columns[column])?;
        let base = self.samples(&line.row.name, base)?;
        Some(line.cells[column].as_ref()?.ratio(base))
    }

    fn line_of(&mut self, row: &Row) -> &mut Line {
        let found = self.lines.iter().position(|line| line.row.name == row.name);
        let index = found.unwrap_or_else(|| {
            let section = self.next_section.take();
            let cells = vec![None; self.columns.len()];
            self.lines.push(Line { section, row: row.clone(), cells });
            self.lines.len() - 1
        });
        &mut self.lines[index]
    }

    fn show_progress(&self, row: &Row) {
        let Some(line) = self.lines.iter().find(|line| line.row.name == row.name) else { return };
        let cells: Vec<String> = (self.columns.iter().zip(&line.cells))
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
