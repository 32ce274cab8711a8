//! A bar plot: one group per row, one bar per column, whiskers from minimum to maximum.
//!
//! Rows have different units, so each group has a scale of its own: its longest whisker fills the
//! width.

use std::fmt::Write;

use super::results::{Better, Line, Results};
use super::table::figure;

/// Colours that people with a colour vision deficiency tell apart (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#999999", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const WIDTH: f64 = 900.0;
const LEFT: f64 = 20.0;
const BARS_LEFT: f64 = 190.0;
const BARS_WIDTH: f64 = 430.0;
const BAR_HEIGHT: f64 = 13.0;
const TITLE_HEIGHT: f64 = 22.0;
const GAP: f64 = 10.0;

/// Renders the report as an SVG document.
pub(super) fn render(results: &Results) -> String {
    let mut body = String::new();
    let mut y = 60.0;
    for line in &results.lines {
        if let Some(section) = &line.section {
            y += GAP;
            text(&mut body, LEFT, y + 12.0, "section", section);
            y += TITLE_HEIGHT;
        }
        y = group(&mut body, results, line, y);
    }
    let machine = &results.machine;
    let title = format!("{}, commit {}", results.bench, results.commit);
    let below = format!("{}, {} CPUs, Linux {}", machine.cpu, machine.cpus, machine.kernel);
    let mut head = String::new();
    text(&mut head, LEFT, 24.0, "title", &title);
    text(&mut head, LEFT, 42.0, "small", &below);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\">\n<style>text{{font:11px sans-serif;fill:#222}}\
         .title{{font-size:16px;font-weight:bold}}.section{{font-size:14px;font-weight:bold}}\
         .row{{font-weight:bold}}.small{{fill:#555}}.end{{text-anchor:end}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{head}{body}</svg>\n",
        height = y + GAP,
    )
}

/// Draws one row at `y` and returns where the next one goes.
fn group(out: &mut String, results: &Results, line: &Line, mut y: f64) -> f64 {
    let better = if line.row.better == Better::Higher { "longer" } else { "shorter" };
    let title = format!("{} ({}, {better} is better)", line.row.name, line.row.unit);
    text(out, LEFT, y + 12.0, "row", &title);
    y += TITLE_HEIGHT - 4.0;
    let summaries = (0..line.cells.len()).map(|column| line.summary(column));
    let longest = summaries.clone().flatten().map(|s| s.max).fold(f64::MIN_POSITIVE, f64::max);
    for (index, summary) in summaries.enumerate() {
        let Some(summary) = summary else { continue };
        let scaled = |value: f64| (value.max(0.0) / longest) * BARS_WIDTH;
        text(out, BARS_LEFT - 6.0, y + 10.0, "end", &results.columns[index].name);
        let colour = COLOURS[index % COLOURS.len()];
        let _ = writeln!(
            out,
            "<rect x=\"{BARS_LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{}\" \
             fill=\"{colour}\"/>",
            scaled(summary.median),
            BAR_HEIGHT - 3.0
        );
        whisker(out, BARS_LEFT + scaled(summary.min), BARS_LEFT + scaled(summary.max), y + 5.0);
        let ratio = results.ratio(line, index).and_then(|ratio| ratio.summary());
        let ratio = ratio.map(|ratio| format!("  (x{:.2})", ratio.median)).unwrap_or_default();
        let label = format!("{}{ratio}", figure(summary.median));
        text(out, BARS_LEFT + scaled(summary.max) + 6.0, y + 10.0, "small", &label);
        y += BAR_HEIGHT;
    }
    y + GAP
}

fn whisker(out: &mut String, from: f64, to: f64, y: f64) {
    let (top, bottom) = (y - 3.0, y + 3.0);
    let _ = writeln!(
        out,
        "<path d=\"M{from:.1} {top:.1}V{bottom:.1}M{from:.1} {y:.1}H{to:.1}M{to:.1} {top:.1}\
         V{bottom:.1}\" \
         stroke=\"#222\" fill=\"none\"/>"
    );
}

fn text(out: &mut String, x: f64, y: f64, class: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{content}</text>");
}

#[cfg(test)]
mod tests {
    use super::super::results::{Column, Row};
    use super::*;

    #[test]
    fn one_bar_per_cell_and_text_is_escaped() {
        let columns = [Column::new("native"), Column::against("ours <b>", "native")];
        let mut report = Results::new("test", &columns);
        let row = Row::new("read & write", "us", Better::Lower);
        report.add(&row, "native", vec![1.0, 3.0]);
        report.add(&row, "ours <b>", vec![2.0, 6.0]);
        report.add(&Row::new("one", "us", Better::Lower), "native", vec![0.0]);
        let svg = render(&report);
        assert_eq!(svg.matches("fill=\"#0072b2\"").count(), 1);
        assert_eq!(svg.matches("fill=\"#999999\"").count(), 2);
        assert!(svg.contains("read &amp; write") && svg.contains("ours &lt;b&gt;"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(svg.contains("(x2.00)"));
    }
}
