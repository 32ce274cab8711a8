//! What was refused, in a few lines, when `run` ends.

use crate::escape::escaped;

use super::tally::{Refusals, TallyReport};

/// Lines about single paths.
const LINES: usize = 8;

/// The lines, each without its end; none when nothing was refused.
pub(crate) fn lines(report: &TallyReport) -> Vec<String> {
    if report.total == 0 {
        return Vec::new();
    }
    let mut lines = vec![head(report)];
    lines.extend(report.by_path.iter().take(LINES).map(line));
    let rest = report.by_path.iter().skip(LINES).map(|one| one.count).sum::<u64>()
        + report.others.iter().map(|(_, count)| count).sum::<u64>();
    if rest > 0 {
        lines.push(format!("  and {} at other paths", times(rest)));
    }
    lines
}

fn head(report: &TallyReport) -> String {
    let only_audited = report.by_path.iter().all(|one| one.audit_only);
    let verb = if only_audited { "would have been refused" } else { "was refused" };
    format!("{verb} {}:", times(report.total))
}

fn line(one: &Refusals) -> String {
    let path = if one.path.is_empty() { "DIR itself".to_owned() } else { escaped(&one.path) };
    let rule = match &one.rule {
        Some(rule) => format!("rule `{}`", escaped(rule)),
        None if matches!(&*one.errno, "EXDEV" | "EPERM") => "it would open more".to_owned(),
        None => "the default".to_owned(),
    };
    let hidden = if one.errno == "ENOENT" { ", hidden" } else { "" };
    let audited = if one.audit_only { ", recorded only" } else { "" };
    let times = times(one.count);
    format!("  {} {path}: {}{hidden} by {rule}{audited}, {times}", one.operation, one.errno)
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusals(path: &str, rule: Option<&str>, errno: &str, count: u64) -> Refusals {
        Refusals {
            operation: "open",
            path: path.to_owned(),
            rule: rule.map(str::to_owned),
            errno: errno.to_owned(),
            audit_only: false,
            count,
        }
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        assert!(lines(&TallyReport::default()).is_empty());
    }

    #[test]
    fn rules_paths_and_counts_are_named_and_names_are_escaped() {
        let report = TallyReport {
            total: 60,
            by_path: vec![
                refusals(".env", Some("secrets"), "ENOENT", 41),
                refusals("a\x1b[2J", None, "EACCES", 1),
            ],
            others: vec![(None, 18)],
            recent: Vec::new(),
        };
        assert_eq!(
            lines(&report),
            [
                "was refused 60 times:",
                "  open .env: ENOENT, hidden by rule `secrets`, 41 times",
                "  open a\\x1b[2J: EACCES by the default, once",
                "  and 18 times at other paths",
            ]
        );
    }
}
