//! The table for people.

use std::fmt::Write;

use super::machine::Disturbance;
use super::must::Verdict;
use super::results::{Better, Line, Results};

/// Width of a number; a longer one pushes the rest of its line.
const NUMBER: usize = 9;

/// CPUs that others may take on average before the report warns of its own figures.
const TOLERATED_CPUS: f64 = 0.1;

/// Renders the whole report as text: head, table, notes, musts.
pub(super) fn render(results: &Results, verdicts: &[Verdict]) -> String {
    let mut out = head(results);
    let width = results.columns.iter().map(|column| column.name.chars().count()).max();
    for line in &results.lines {
        if let Some(title) = &line.section {
            let _ = writeln!(out, "\n== {title}");
        }
        block(&mut out, results, line, width.unwrap_or(0));
    }
    requests(&mut out, results);
    if let Some(taken) = results.quiet.disturbance() {
        let _ = writeln!(out, "\n{}", meanwhile(&taken, results.machine.cpus));
    }
    for note in &results.notes {
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

/// What else ran, and what that means for the figures.
fn meanwhile(taken: &Disturbance, cpus: usize) -> String {
    let (others, stolen) = (taken.others_cpus, taken.stolen_cpus);
    let warning = if others + stolen > TOLERATED_CPUS {
        "\nThat is too much: ratios and musts of this run are no verdict. Measure again on an idle \
         machine."
    } else {
        ""
    };
    format!(
        "measured in {:.0} s, during which other processes (the kernel's threads too) used {others:.2} \
         of {cpus} CPUs, and the hypervisor took {stolen:.2}.{warning}",
        taken.elapsed_s
    )
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

fn head(results: &Results) -> String {
    let machine = &results.machine;
    format!(
        "{}, commit {}; {}, {} CPUs, Linux {}\n\
         ratios are to the base column, taken pair by pair in each round\n",
        results.bench, results.commit, machine.cpu, machine.cpus, machine.kernel
    )
}

/// A row: its title with the heads of the numbers, then a line per column.
fn block(out: &mut String, results: &Results, line: &Line, width: usize) {
    let better = if line.row.better == Better::Higher { "more" } else { "less" };
    let title = format!("{}, {} ({better} is better)", line.row.name, line.row.unit);
    let indent = width + 2;
    let heads = ["median", "min", "max", "sd"].map(|head| format!("{head:>NUMBER$}")).join(" ");
    let _ = writeln!(out, "\n{title}\n{:indent$}{heads}   ratio", "");
    for (index, column) in results.columns.iter().enumerate() {
        let Some(s) = line.summary(index) else { continue };
        let numbers = [s.median, s.min, s.max, s.sd].map(|n| format!("{:>NUMBER$}", figure(n)));
        let ratio = ratio(results, line, index);
        let text = format!("  {:<width$}{} {ratio}", column.name, numbers.join(" "));
        let _ = writeln!(out, "{}", text.trim_end());
    }
}

/// Requests of one round, the most frequent first, for each cell that counted them.
fn requests(out: &mut String, results: &Results) {
    let mut title = "\n== requests to the server in one round\n";
    for line in &results.lines {
        for (column, counts) in results.columns.iter().zip(&line.counts) {
            let Some(counts) = counts else { continue };
            let mut sorted: Vec<_> = counts.iter().filter(|(_, count)| **count > 0).collect();
            sorted.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let shown: Vec<_> = sorted.iter().map(|(name, n)| format!("{name} {n}")).collect();
            let shown = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
            let _ = writeln!(out, "{title}{}, {}: {shown}", line.row.name, column.name);
            title = "";
        }
    }
}

/// `0.970 of native [0.960 .. 0.980]`, or nothing for a base.
fn ratio(results: &Results, line: &Line, index: usize) -> String {
    let ratio = results.ratio(line, index).and_then(|ratio| ratio.summary());
    let base = results.base(line, &results.columns[index]);
    match (ratio, base) {
        (Some(r), Some(base)) => {
            format!("{:>7.3} of {base} [{:.3} .. {:.3}]", r.median, r.min, r.max)
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::must::Must;
    use super::super::results::{Column, Row};
    use super::*;

    #[test]
    fn columns_line_up_and_ratios_show() {
        let columns = [Column::new("native"), Column::against("ours", "native")];
        let mut report = Results::new("test", &columns);
        report.section("group");
        let row = Row::new("read", "MiB/s", Better::Higher);
        report.add(&row, "native", vec![1000.0, 2000.0, 3000.0]);
        report.add(&row, "ours", vec![900.0, 1000.0, 2700.0]);
        report.add(&Row::new("only native", "us", Better::Lower), "native", vec![0.5]);
        report.add_counts(&row, "ours", [("OPEN".to_owned(), 2), ("READ".to_owned(), 9)].into());
        let verdicts = [Must::at_least(("read", "ours"), 0.95).against("native").judge(&report)];
        let text = render(&report, &verdicts);
        assert!(text.contains("== group\n\nread, MiB/s (more is better)"), "{text}");
        assert!(text.contains("0.900 of native [0.500 .. 0.900]"), "{text}");
        assert!(text.contains("MISSED 0.900"), "{text}");
        assert!(text.contains("read, ours: READ 9, OPEN 2"), "{text}");
        let end = |start: &str, number: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start));
            line.and_then(|line| line.find(number)).map(|at| at + number.len())
        };
        assert_eq!(end("native", " 2000"), end("ours", " 1000"), "{text}");
        assert_eq!(end("native", " 2000"), end("median", "median"), "{text}");
    }

    #[test]
    fn a_busy_machine_is_warned_of() {
        let idle = Disturbance { others_cpus: 0.04, stolen_cpus: 0.0, elapsed_s: 1.0 };
        let busy = Disturbance { others_cpus: 0.05, stolen_cpus: 0.07, elapsed_s: 1.0 };
        assert!(!meanwhile(&idle, 2).contains("too much"));
        assert!(
            meanwhile(&busy, 2).contains("0.05 of 2 CPUs")
                && meanwhile(&busy, 2).contains("too much")
        );
    }

    #[test]
    fn figures_keep_their_digits() {
        let shown = [12345.6, 123.45, 1.234, 0.0123, 0.0, 0.000_123].map(figure);
        assert_eq!(shown, ["12346", "123.5", "1.23", "0.012", "0.000", "1.23e-4"]);
    }
}
