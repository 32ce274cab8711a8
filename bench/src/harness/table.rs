//! The table for people.

use std::fmt::Write;

use super::must::Verdict;
use super::report::{Better, Line, Report};

/// Renders the whole report as text: head, table, notes, musts.
pub(super) fn render(report: &Report, verdicts: &[Verdict]) -> String {
    let mut out = head(report);
    let cells = body(report);
    let widths = widths(&cells);
    for (line, row) in std::iter::once(None).chain(report.lines.iter().map(Some)).zip(&cells) {
        if let Some(title) = line.and_then(|line| line.section.as_ref()) {
            let _ = writeln!(out, "\n-- {title}");
        }
        let _ = writeln!(out, "{}", aligned(row, &widths));
    }
    for note in &report.notes {
        let _ = writeln!(out, "\n{note}");
    }
    if !verdicts.is_empty() {
        let _ = writeln!(out, "\nmusts (a miss is reported, not an error):");
    }
    for verdict in verdicts {
        let _ = writeln!(out, "  {}", verdict.line());
    }
    out
}

/// A figure with three or four significant digits.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v >= 0.01 || v == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

fn head(report: &Report) -> String {
    let machine = &report.machine;
    format!(
        "{}, commit {}; {}, {} CPUs, Linux {}\n\
         median [min .. max] sd; ratio to the base column, pair by pair (x median [min .. max])\n\n",
        report.bench, report.commit, machine.cpu, machine.cpus, machine.kernel
    )
}

/// One row of cells per line, the names of the columns first.
fn body(report: &Report) -> Vec<Vec<String>> {
    let mut top = vec!["row".to_owned()];
    for column in &report.columns {
        let over = column.base.as_ref().map(|base| format!(" (x {base})")).unwrap_or_default();
        top.push(format!("{}{over}", column.name));
    }
    let lines = report.lines.iter().map(|line| {
        let arrow = if line.row.better == Better::Higher { "more" } else { "less" };
        let name = format!("{} [{}, {arrow} is better]", line.row.name, line.row.unit);
        let cells = (0..report.columns.len()).map(|column| cell(report, line, column));
        std::iter::once(name).chain(cells).collect()
    });
    std::iter::once(top).chain(lines).collect()
}

fn cell(report: &Report, line: &Line, column: usize) -> String {
    let Some(summary) = line.summary(column) else {
        return "-".to_owned();
    };
    let [median, min, max, sd] = [summary.median, summary.min, summary.max, summary.sd].map(figure);
    let mut text = format!("{median} [{min} .. {max}] {sd}");
    if let Some(ratio) = report.ratio(line, column).and_then(|ratio| ratio.summary()) {
        let [median, min, max] = [ratio.median, ratio.min, ratio.max].map(|r| format!("{r:.2}"));
        let _ = write!(text, "  x{median} [{min} .. {max}]");
    }
    text
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    (0..columns).map(|column| width(column).unwrap_or(0)).collect()
}

fn aligned(row: &[String], widths: &[usize]) -> String {
    let mut out = String::new();
    for (cell, width) in row.iter().zip(widths) {
        let _ = write!(out, "{cell:<width$}   ");
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::super::report::{Column, Row};
    use super::super::{Must, Options};
    use super::*;

    #[test]
    fn columns_line_up_and_ratios_show() {
        let columns = [Column::new("native"), Column::against("ours", "native")];
        let mut report = Report::new("test", &Options::default(), &columns);
        report.section("group");
        let row = Row::new("read", "MiB/s", Better::Higher);
        report.add(&row, "native", vec![1000.0, 2000.0, 3000.0]);
        report.add(&row, "ours", vec![900.0, 1000.0, 2700.0]);
        report.add(&Row::new("only native", "us", Better::Lower), "native", vec![0.5]);
        let verdicts = [Must::at_least(("read", "ours"), 0.95).against("native").judge(&report)];
        let text = render(&report, &verdicts);
        assert!(text.contains("-- group\nread [MiB/s, more is better]"), "{text}");
        assert!(text.contains("x0.90 [0.50 .. 0.90]"), "{text}");
        assert!(text.contains("MISSED 0.900"), "{text}");
        let starts: Vec<_> = text
            .lines()
            .filter_map(|line| line.find("1000 [900").or(line.find("ours (x native)")))
            .collect();
        assert!(starts.len() == 2 && starts[0] == starts[1], "{text}");
    }

    #[test]
    fn figures_keep_their_digits() {
        let shown = [12345.6, 123.45, 1.234, 0.0123, 0.0, 0.000_123].map(figure);
        assert_eq!(shown, ["12346", "123.5", "1.23", "0.012", "0.000", "1.23e-4"]);
    }
}
