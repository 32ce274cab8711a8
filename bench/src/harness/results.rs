//! What was measured: rows, columns, samples. Everything that renders or judges a report reads
//! this.

use std::collections::BTreeMap;

use super::machine::{Machine, Quiet, commit};
use super::samples::{Samples, Summary};

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
    #[must_use]
    pub fn new(name: &str, unit: &str, better: Better) -> Row {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        Row { name, unit, better, warm_up: false, times: 1, base: None }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Measures one round more, first, and discards it.
    #[must_use]
    pub fn warm_up(mut self) -> Row {
        self.warm_up = true;
        self
    }

    /// Measures `times` as many rounds as other rows: for short samples whose value depends on the
    /// CPU on which the server happens to wake.
    #[must_use]
    pub fn rounds_times(mut self, times: usize) -> Row {
        self.times = times;
        self
    }

    /// Takes ratios of this row to `column`, whatever the columns declare.
    #[must_use]
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
    #[must_use]
    pub fn new(name: &str) -> Column {
        Column { name: name.to_owned(), base: None }
    }

    /// A column whose ratios are taken to `base`.
    #[must_use]
    pub fn against(name: &str, base: &str) -> Column {
        Column { name: name.to_owned(), base: Some(base.to_owned()) }
    }
}

/// How often each of several things happened, by name.
pub type Counts = BTreeMap<String, u64>;

/// One row with all that was measured of it.
#[derive(Debug)]
pub(super) struct Line {
    /// Title of the group that starts with this row.
    pub(super) section: Option<String>,
    pub(super) row: Row,
    /// One per column of the results, in its order; `None` where the row does not apply.
    pub(super) cells: Vec<Option<Samples>>,
    /// Requests that one round of a column caused, where they were counted.
    pub(super) counts: Vec<Option<Counts>>,
}

impl Line {
    /// The summary of one column's samples.
    pub(super) fn summary(&self, column: usize) -> Option<Summary> {
        self.cells[column].as_ref().and_then(Samples::summary)
    }
}

/// The figures of one benchmark, with what is needed to read them.
#[derive(Debug)]
pub(super) struct Results {
    pub(super) bench: String,
    pub(super) commit: String,
    pub(super) machine: Machine,
    pub(super) columns: Vec<Column>,
    pub(super) lines: Vec<Line>,
    pub(super) notes: Vec<String>,
    pub(super) quiet: Quiet,
    next_section: Option<String>,
}

impl Results {
    /// No figures yet.
    pub(super) fn new(bench: &str, columns: &[Column]) -> Results {
        Results {
            bench: bench.to_owned(),
            commit: commit(),
            machine: Machine::detect(),
            columns: columns.to_vec(),
            lines: Vec::new(),
            notes: Vec::new(),
            quiet: Quiet::start(),
            next_section: None,
        }
    }

    /// Starts a group of rows with a title over it.
    pub(super) fn section(&mut self, title: &str) {
        self.next_section = Some(title.to_owned());
    }

    /// Sets the samples of a cell, one value per round.
    ///
    /// # Panics
    /// If there is no such column: columns are declared at the start.
    pub(super) fn add(&mut self, row: &Row, column: &str, samples: Vec<f64>) {
        let index = self.index(column);
        self.line_of(row).cells[index] = Some(samples.into());
    }

    /// Sets the counts of a cell.
    ///
    /// # Panics
    /// If there is no such column.
    pub(super) fn add_counts(&mut self, row: &Row, column: &str, counts: Counts) {
        let index = self.index(column);
        self.line_of(row).counts[index] = Some(counts);
    }

    /// The samples of a cell.
    pub(super) fn samples(&self, row: &str, column: &str) -> Option<&Samples> {
        let index = self.columns.iter().position(|known| known.name == column)?;
        self.line(row)?.cells[index].as_ref()
    }

    /// The row of this name, if it has samples.
    pub(super) fn line(&self, row: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.row.name == row)
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

    fn index(&self, column: &str) -> usize {
        let known = self.columns.iter().position(|known| known.name == column);
        known.unwrap_or_else(|| panic!("the report has no column {column:?}"))
    }

    fn line_of(&mut self, row: &Row) -> &mut Line {
        let found = self.lines.iter().position(|line| line.row.name == row.name);
        let index = found.unwrap_or_else(|| {
            let section = self.next_section.take();
            let columns = self.columns.len();
            let (cells, counts) = (vec![None; columns], vec![None; columns]);
            self.lines.push(Line { section, row: row.clone(), cells, counts });
            self.lines.len() - 1
        });
        &mut self.lines[index]
    }
}
