//! Results for programs: JSON with summaries and samples, CSV with every sample.

use std::fmt::Write;

use anyhow::{Context, Result};
use serde::Serialize;

use super::machine::{Disturbance, Machine};
use super::must::Verdict;
use super::results::{Better, Counts, Line, Results};
use super::samples::Samples;

#[derive(Serialize)]
struct Document<'a> {
    bench: &'a str,
    commit: &'a str,
    machine: &'a Machine,
    disturbance: Option<Disturbance>,
    rows: Vec<Cell<'a>>,
    musts: &'a [Verdict],
    notes: &'a [String],
}

/// One row and column. `ratio` is the median of the ratios to `base`, pair by pair.
#[derive(Serialize)]
struct Cell<'a> {
    row: &'a str,
    column: &'a str,
    unit: &'a str,
    better: &'static str,
    median: f64,
    min: f64,
    max: f64,
    sd: f64,
    rounds: usize,
    base: Option<&'a str>,
    ratio: Option<f64>,
    ratio_min: Option<f64>,
    ratio_max: Option<f64>,
    samples: &'a [f64],
    /// Requests of one round by operation, where they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'a Counts>,
}

/// The report as JSON.
pub(super) fn json(results: &Results, verdicts: &[Verdict]) -> Result<String> {
    let rows = results.lines.iter().flat_map(|line| {
        (0..results.columns.len()).filter_map(move |column| cell(results, line, column))
    });
    let document = Document {
        bench: &results.bench,
        commit: &results.commit,
        machine: &results.machine,
        disturbance: results.quiet.disturbance(),
        rows: rows.collect(),
        musts: verdicts,
        notes: &results.notes,
    };
    let mut text = serde_json::to_string_pretty(&document).context("cannot write JSON")?;
    text.push('\n');
    Ok(text)
}

/// Every sample on a line of its own.
pub(super) fn csv(results: &Results) -> String {
    let mut out = "row,column,unit,round,value\n".to_owned();
    for line in &results.lines {
        for (column, cell) in results.columns.iter().zip(&line.cells) {
            for (round, value) in cell.iter().flat_map(Samples::values).enumerate() {
                let fields = [&line.row.name, &column.name, &line.row.unit].map(|f| quoted(f));
                let _ = writeln!(out, "{},{round},{value}", fields.join(","));
            }
        }
    }
    out
}

fn cell<'a>(results: &'a Results, line: &'a Line, column: usize) -> Option<Cell<'a>> {
    let samples = line.cells[column].as_ref()?;
    let summary = samples.summary()?;
    let ratio = results.ratio(line, column).and_then(|ratio| ratio.summary());
    Some(Cell {
        row: &line.row.name,
        column: &results.columns[column].name,
        unit: &line.row.unit,
        better: if line.row.better == Better::Higher { "higher" } else { "lower" },
        median: summary.median,
        min: summary.min,
        max: summary.max,
        sd: summary.sd,
        rounds: summary.rounds,
        base: results.base(line, &results.columns[column]),
        ratio: ratio.map(|ratio| ratio.median),
        ratio_min: ratio.map(|ratio| ratio.min),
        ratio_max: ratio.map(|ratio| ratio.max),
        samples: samples.values(),
        requests: line.counts[column].as_ref(),
    })
}

/// A CSV field, in quotes when it must be.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::{Column, Row};
    use super::*;

    fn report() -> Results {
        let columns = [Column::new("native"), Column::against("ours", "native")];
        let mut report = Results::new("test", &columns);
        let row = Row::new("stat, cached", "us", Better::Lower);
        report.add(&row, "native", vec![1.0, 2.0, 4.0]);
        report.add(&row, "ours", vec![2.0, 2.0, 12.0]);
        report.add_counts(&row, "ours", [("GETATTR".to_owned(), 3)].into());
        report
    }

    #[test]
    fn json_has_the_agreed_fields() {
        let text = json(&report(), &[]).expect("plain data");
        let value: serde_json::Value = serde_json::from_str(&text).expect("own output");
        assert_eq!(value["bench"], "test");
        assert!(value["machine"]["kernel"].is_string() && value["machine"]["cpus"].is_u64());
        let ours = &value["rows"][1];
        assert_eq!((&ours["row"], &ours["column"]), (&"stat, cached".into(), &"ours".into()));
        assert_eq!((&ours["base"], &ours["ratio"]), (&"native".into(), &2.0.into()));
        assert_eq!((&ours["median"], &ours["rounds"]), (&2.0.into(), &3.into()));
        assert_eq!(ours["requests"]["GETATTR"], 3);
        assert!(value["rows"][0].get("requests").is_none());
        assert!(value["rows"][0]["base"].is_null() && value["rows"][0]["ratio"].is_null());
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        let text = csv(&report());
        assert_eq!(text.lines().count(), 7);
        assert_eq!(text.lines().nth(6), Some("\"stat, cached\",ours,us,2,12"));
        assert_eq!(quoted("a \"b\""), "\"a \"\"b\"\"\"");
    }
}
