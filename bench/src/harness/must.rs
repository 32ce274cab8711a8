//! What a figure must reach.

use serde::Serialize;

use super::results::{Better, Results};
use super::samples::Samples;

/// A row and a column.
type CellName = (String, String);

/// A figure that must be reached. It is reported as `met` or `MISSED`, and never fails the run.
///
/// The figure is the value of one cell, or its ratio to another one. Ratios within a row are taken
/// pair by pair in each round; ratios between rows, which are measured at different times, from the
/// medians.
#[derive(Debug, Clone)]
pub struct Must {
    cell: CellName,
    against: Against,
    bound: Bound,
    aim: Option<f64>,
}

#[derive(Debug, Clone)]
enum Against {
    Nothing,
    Cell(CellName),
    BestOf(Vec<CellName>),
}

/// Which side of the limit is the good one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "bound", content = "limit")]
pub(super) enum Bound {
    /// The figure must be this or more.
    AtLeast(f64),
    /// The figure must be this or less.
    AtMost(f64),
}

/// How a must came out.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Verdict {
    pub row: String,
    pub column: String,
    /// `row / column` of the base; just the column when it is in the same row.
    pub base: Option<String>,
    #[serde(flatten)]
    pub bound: Bound,
    pub aim: Option<f64>,
    /// What was measured; `None` if one of the cells was not.
    pub value: Option<f64>,
    pub met: Option<bool>,
    pub aim_met: Option<bool>,
}

impl Must {
    /// The value of `(row, column)`, or its ratio to what [`Must::against`] names, is `limit` or
    /// more.
    pub fn at_least(cell: (&str, &str), limit: f64) -> Must {
        Must::new(cell, Bound::AtLeast(limit))
    }

    /// The value of `(row, column)`, or its ratio to what [`Must::against`] names, is `limit` or
    /// less.
    pub fn at_most(cell: (&str, &str), limit: f64) -> Must {
        Must::new(cell, Bound::AtMost(limit))
    }

    fn new(cell: (&str, &str), bound: Bound) -> Must {
        Must { cell: owned(cell), against: Against::Nothing, bound, aim: None }
    }

    /// Divides by another column of the same row.
    pub fn against(self, column: &str) -> Must {
        let row = self.cell.0.clone();
        self.against_cell((&row, column))
    }

    /// Divides by a cell of any row.
    pub fn against_cell(mut self, cell: (&str, &str)) -> Must {
        self.against = Against::Cell(owned(cell));
        self
    }

    /// Divides by the best of several columns of the same row, "best" as the row declares.
    pub fn against_best_of(mut self, columns: &[&str]) -> Must {
        let cells = columns.iter().map(|column| owned((&self.cell.0, column))).collect();
        self.against = Against::BestOf(cells);
        self
    }

    /// What is hoped for beyond the must.
    pub fn aim(mut self, aim: f64) -> Must {
        self.aim = Some(aim);
        self
    }

    /// The row that is judged.
    pub(super) fn row(&self) -> &str {
        &self.cell.0
    }

    /// Judges with what `results` holds.
    pub(super) fn judge(&self, results: &Results) -> Verdict {
        let base = self.base(results);
        let value = match (&self.against, &base) {
            (Against::Nothing, _) => median(results.samples(&self.cell.0, &self.cell.1)),
            (_, Some(base)) => self.ratio(results, base),
            (_, None) => None,
        };
        let reaches = |limit| value.map(|value| self.bound.allows(value, limit));
        Verdict {
            row: self.cell.0.clone(),
            column: self.cell.1.clone(),
            base: base.map(|cell| self.base_label(cell)),
            bound: self.bound,
            aim: self.aim,
            value,
            met: reaches(self.bound.limit()),
            aim_met: self.aim.and_then(reaches),
        }
    }

    fn base(&self, results: &Results) -> Option<CellName> {
        match &self.against {
            Against::Nothing => None,
            Against::Cell(cell) => Some(cell.clone()),
            Against::BestOf(cells) => best_of(results, cells),
        }
    }

    fn base_label(&self, (row, column): CellName) -> String {
        if row == self.cell.0 { column } else { format!("{row} / {column}") }
    }

    fn ratio(&self, results: &Results, base: &CellName) -> Option<f64> {
        let samples = results.samples(&self.cell.0, &self.cell.1)?;
        let base_samples = results.samples(&base.0, &base.1)?;
        if base.0 == self.cell.0 {
            return median(Some(&samples.ratio(base_samples)));
        }
        Some(median(Some(samples))? / median(Some(base_samples))?)
    }
}

impl Bound {
    fn limit(self) -> f64 {
        match self {
            Bound::AtLeast(limit) | Bound::AtMost(limit) => limit,
        }
    }

    fn allows(self, value: f64, limit: f64) -> bool {
        match self {
            Bound::AtLeast(_) => value >= limit,
            Bound::AtMost(_) => value <= limit,
        }
    }
}

impl Verdict {
    /// One line for people.
    pub(super) fn line(&self) -> String {
        let word = match self.met {
            Some(true) => "met   ",
            Some(false) => "MISSED",
            None => "not measured",
        };
        let over = self.base.as_ref().map(|base| format!(" / {base}")).unwrap_or_default();
        let sign = if matches!(self.bound, Bound::AtLeast(_)) { ">=" } else { "<=" };
        let figure = self.value.map(|value| format!(" {value:.3}")).unwrap_or_default();
        let aim = match (self.aim, self.aim_met) {
            (Some(aim), Some(true)) => format!(", aim {aim} met"),
            (Some(aim), _) => format!(", aim {aim}"),
            (None, _) => String::new(),
        };
        let (row, column, limit) = (&self.row, &self.column, self.bound.limit());
        format!("{word}{figure}  {row}: {column}{over} {sign} {limit}{aim}")
    }
}

fn best_of(results: &Results, cells: &[CellName]) -> Option<CellName> {
    let measured = cells.iter().filter_map(|cell| {
        let value = median(results.samples(&cell.0, &cell.1))?;
        Some((cell, value))
    });
    let better = results.line(&cells.first()?.0)?.row.better;
    let best = measured.min_by(|a, b| match better {
        Better::Lower => a.1.total_cmp(&b.1),
        Better::Higher => b.1.total_cmp(&a.1),
    })?;
    Some(best.0.clone())
}

fn median(samples: Option<&Samples>) -> Option<f64> {
    samples?.summary().map(|summary| summary.median)
}

fn owned((row, column): (&str, &str)) -> CellName {
    (row.to_owned(), column.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::results::{Column, Row};
    use super::*;

    fn report() -> Results {
        let columns = [Column::new("a"), Column::against("b", "a"), Column::against("c", "a")];
        let mut report = Results::new("test", &columns);
        let time = Row::new("time", "us", Better::Lower);
        let values = [("a", vec![2.0, 4.0]), ("b", vec![1.0, 2.0]), ("c", vec![8.0, 8.0])];
        for (column, samples) in values {
            report.add(&time, column, samples);
        }
        report.add(&Row::new("rate", "1/s", Better::Higher), "a", vec![6.0]);
        report
    }

    #[test]
    fn ratio_value_and_best_of() {
        let report = report();
        let ratio = Must::at_most(("time", "b"), 0.6).against("a").aim(0.4).judge(&report);
        assert_eq!((ratio.value, ratio.met, ratio.aim_met), (Some(0.5), Some(true), Some(false)));
        let value = Must::at_least(("rate", "a"), 7.0).judge(&report);
        assert_eq!((value.value, value.met), (Some(6.0), Some(false)));
        let best = Must::at_most(("time", "b"), 1.0).against_best_of(&["c", "a"]).judge(&report);
        assert_eq!((best.base.as_deref(), best.value), (Some("a"), Some(0.5)));
        let rows = Must::at_most(("time", "a"), 1.0).against_cell(("rate", "a")).judge(&report);
        assert_eq!((rows.base.as_deref(), rows.value), (Some("rate / a"), Some(0.5)));
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        let verdict = Must::at_most(("time", "d"), 0.6).against("a").judge(&report());
        assert_eq!((verdict.value, verdict.met), (None, None));
        assert!(verdict.line().starts_with("not measured"));
    }

    #[test]
    fn a_miss_says_so() {
        let verdict = Must::at_least(("time", "b"), 0.9).against("a").judge(&report());
        assert_eq!(verdict.line(), "MISSED 0.500  time: b / a >= 0.9");
    }
}
