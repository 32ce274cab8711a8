//! Refusals by rule and path, for the summary of `run` and for `status`; with or without a log.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tollgate_view::{Event, Outcome};

use super::slot::{errno_name, timestamp};

/// Most kinds of refusals that are told apart; what comes beyond is counted by its rule alone.
const MAX_KINDS: usize = 512;
/// Most rules whose refusals are counted apart when the kinds are full.
const MAX_RULES: usize = 64;
/// Most recent refusals that are kept.
const RECENT: usize = 8;
/// Bytes kept of a path, and of a program's.
const MAX_PATH: usize = 256;

/// Refusals of one operation at one path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Refusals {
    pub(crate) operation: Cow<'static, str>,
    pub(crate) path: String,
    /// `null` for the default, and for a move that would weaken a decision.
    pub(crate) rule: Option<String>,
    pub(crate) errno: String,
    /// Allowed after all, as the rule is only recorded.
    pub(crate) audit_only: bool,
    pub(crate) count: u64,
}

/// One of the last refusals.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Recent {
    pub(crate) time: String,
    #[serde(flatten)]
    pub(crate) what: Refusals,
    pub(crate) exe: Option<String>,
    pub(crate) pid: u32,
}

/// What was refused so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TallyReport {
    /// All of them.
    pub(crate) total: u64,
    /// Most frequent first.
    pub(crate) by_path: Vec<Refusals>,
    /// Those that are in none of `by_path`, by rule.
    pub(crate) others: Vec<(Option<String>, u64)>,
    /// The last ones, oldest first.
    pub(crate) recent: Vec<Recent>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Kind {
    operation: &'static str,
    path: Box<[u8]>,
    rule: Option<Box<str>>,
    errno: rustix::io::Errno,
    audit_only: bool,
}

/// When, what, the program and the thread.
type Last = (SystemTime, Kind, Option<Box<[u8]>>, u32);

/// Counts refusals. Taken for each of them, and by `status`.
#[derive(Default)]
pub(crate) struct Tally {
    total: u64,
    kinds: HashMap<Kind, u64>,
    others: HashMap<Option<Box<str>>, u64>,
    recent: VecDeque<Last>,
}

impl Tally {
    /// Counts `event` if it is a refusal.
    pub(crate) fn count(&mut self, event: &Event<'_>) {
        let (errno, audit_only) = match event.outcome {
            Outcome::Refused(errno) => (errno, false),
            Outcome::WouldRefuse(errno) => (errno, true),
            _ => return,
        };
        self.total += 1;
        let kind = Kind {
            operation: event.operation,
            path: cut(event.path),
            rule: event.rule.map(Into::into),
            errno,
            audit_only,
        };
        self.remember(kind.clone(), event);
        if let Some(count) = self.kinds.get_mut(&kind) {
            *count += 1;
        } else if self.kinds.len() < MAX_KINDS {
            self.kinds.insert(kind, 1);
        } else {
            let full = self.others.len() >= MAX_RULES;
            let rule = kind.rule.filter(|_| !full);
            *self.others.entry(rule).or_default() += 1;
        }
    }

    fn remember(&mut self, kind: Kind, event: &Event<'_>) {
        if self.recent.back().is_some_and(|(_, last, ..)| *last == kind) {
            self.recent.pop_back();
        } else if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        let exe = event.exe.map(cut);
        self.recent.push_back((SystemTime::now(), kind, exe, event.pid));
    }

    /// What was counted, at most `most` paths.
    pub(crate) fn report(&self, most: usize) -> TallyReport {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by(|(a, counted_a), (b, counted_b)| {
            counted_b.cmp(counted_a).then_with(|| a.path.cmp(&b.path))
        });
        let mut others = self.others.clone();
        for (kind, count) in kinds.iter().skip(most) {
            *others.entry(kind.rule.clone()).or_default() += **count;
        }
        let mut others: Vec<_> =
            others.into_iter().map(|(rule, count)| (rule.map(String::from), count)).collect();
        others.sort();
        let recent = self.recent.iter().map(|(time, kind, exe, pid)| Recent {
            time: timestamp(*time),
            what: refusals(kind, 1),
            exe: exe.as_deref().map(text),
            pid: *pid,
        });
        TallyReport {
            total: self.total,
            by_path: kinds.iter().take(most).map(|(kind, count)| refusals(kind, **count)).collect(),
            others,
            recent: recent.collect(),
        }
    }
}

fn refusals(kind: &Kind, count: u64) -> Refusals {
    Refusals {
        operation: kind.operation.into(),
        path: text(&kind.path),
        rule: kind.rule.as_deref().map(str::to_owned),
        errno: errno_name(kind.errno).into_owned(),
        audit_only: kind.audit_only,
        count,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The last bytes of a path, which say more than the first.
fn cut(path: &[u8]) -> Box<[u8]> {
    path[path.len().saturating_sub(MAX_PATH)..].into()
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use tollgate_view::Detail;

    use super::*;

    fn count(tally: &mut Tally, path: &str, outcome: Outcome) {
        tally.count(&Event {
            operation: "open",
            outcome,
            uid: 0,
            gid: 0,
            pid: 7,
            exe: None,
            inode: 0,
            path: path.as_bytes(),
            rule: Some("keys"),
            detail: Detail::None,
        });
    }

    #[test]
    fn refusals_are_counted_by_path_and_nothing_else_is() {
        let mut tally = Tally::default();
        count(&mut tally, "a", Outcome::Passthrough);
        for path in ["b", "a", "b"] {
            count(&mut tally, path, Outcome::Refused(Errno::ACCESS));
        }
        let report = tally.report(10);
        assert_eq!((report.total, report.by_path.len()), (3, 2));
        assert_eq!((report.by_path[0].path.as_str(), report.by_path[0].count), ("b", 2));
        assert_eq!(report.recent.len(), 3);
    }

    #[test]
    fn what_does_not_fit_is_counted_by_rule() {
        let mut tally = Tally::default();
        for number in 0..2000 {
            count(&mut tally, &number.to_string(), Outcome::Refused(Errno::ACCESS));
        }
        let report = tally.report(3);
        let shown: u64 = report.by_path.iter().map(|one| one.count).sum();
        let others: u64 = report.others.iter().map(|(_, count)| count).sum();
        assert_eq!((report.total, shown + others, shown), (2000, 2000, 3));
    }
}
