//! What was refused, in a few lines: when `run` ends, and for `status`.

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
    let recorded_only = report.by_path.iter().filter(|one| one.audit_only).count();
    let verb = match recorded_only {
        0 => "was refused",
        all if all == report.by_path.len() => "would have been refused",
        _ => "was refused, or would have been,",
    };
    format!("{verb} {}:", times(report.total))
}

fn line(one: &Refusals) -> String {
    format!("  {}", with_count(one))
}

/// The refusals of one operation at one path, and how often.
pub(crate) fn with_count(one: &Refusals) -> String {
    format!("{}, {}", in_words(one), times(one.count))
}

/// What was refused, or would have been, and by what.
pub(crate) fn in_words(one: &Refusals) -> String {
    let path = if one.path.is_empty() { "DIR itself".to_owned() } else { escaped(&one.path) };
    let hidden = if one.errno == "ENOENT" { ", hidden" } else { "" };
    let why = match (&one.rule, &*one.errno) {
        (Some(rule), _) => format!("{hidden} by rule `{}`", escaped(rule)),
        (None, "EXDEV" | "EPERM") => ", as it would open more".to_owned(),
        (None, "EBUSY") => ", as something is mounted there".to_owned(),
        (None, _) => format!("{hidden} by the default"),
    };
    let audited = if one.audit_only { ", recorded only" } else { "" };
    format!("{} {path}: {}{why}{audited}", escaped(&one.operation), escaped(&one.errno))
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusals(path: &str, rule: Option<&str>, errno: &str, count: u64) -> Refusals {
        Refusals {
            operation: "open".into(),
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
    fn a_move_that_would_open_more_is_said_to_be_one() {
        let moved = |errno| {
            let operation = if errno == "EPERM" { "link" } else { "rename" }.into();
            with_count(&Refusals { operation, ..refusals("conf", None, errno, 1) })
        };
        assert_eq!(moved("EXDEV"), "rename conf: EXDEV, as it would open more, once");
        assert_eq!(moved("EPERM"), "link conf: EPERM, as it would open more, once");
        assert_eq!(moved("EBUSY"), "rename conf: EBUSY, as something is mounted there, once");
    }

    #[test]
    fn what_was_refused_is_told_from_what_would_have_been() {
        let head_of = |audit_only: &[bool]| {
            let one = |audit_only| Refusals { audit_only, ..refusals("a", None, "EACCES", 2) };
            let by_path: Vec<_> = audit_only.iter().copied().map(one).collect();
            let total = 2 * by_path.len() as u64;
            head(&TallyReport { total, by_path, others: Vec::new(), recent: Vec::new() })
        };
        assert_eq!(head_of(&[false]), "was refused 2 times:");
        assert_eq!(head_of(&[true]), "would have been refused 2 times:");
        assert_eq!(head_of(&[true, false]), "was refused, or would have been, 4 times:");
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
