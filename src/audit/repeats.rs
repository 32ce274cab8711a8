//! Refusals that repeat are counted, not written again and again, so that a flood of them does not
//! push the other records out of the files that are kept.
//!
//! The first of its kind is written. Those that follow within a window - same caller, operation,
//! access, path, second path, rule and error - are counted; at the end of the window one record says how many there
//! were. Windows begin at a second and double up to a minute while the repetition lasts.
//!
//! A caller that is refused at ever new paths has [`BURST`] records, and [`PER_SECOND`] more each
//! second. Beyond that its refusals are counted together, without their paths.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use super::slot::Slot;

/// The first and the longest window.
const FIRST_WINDOW: Duration = Duration::from_secs(1);
const LONGEST_WINDOW: Duration = Duration::from_secs(60);
/// Records of refusals at different paths that a caller can cause at once, and each second.
const BURST: f64 = 256.0;
const PER_SECOND: f64 = 10.0;
/// Most kinds of refusals that are told apart at a time, about 6 MiB; half of them with paths.
const MAX_KINDS: usize = 2048;
/// Most callers that have a budget of their own; those that come later share one.
const MAX_CALLERS: usize = 256;

/// A caller: user and program.
type Who = (u32, Box<[u8]>);

/// Refusals that are counted together.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Kind {
    who: Who,
    operation: &'static str,
    outcome: &'static str,
    errno: i32,
    rule: Box<[u8]>,
    /// `None` for all paths that are not counted on their own.
    path: Option<Box<[u8]>>,
    /// The access that was asked for, or a second path.
    asked: Option<Box<[u8]>>,
}

struct Held {
    /// The last one.
    slot: Slot,
    /// Since the last record.
    count: u64,
    first: SystemTime,
    window: Duration,
    due: Instant,
}

/// What becomes of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Written,
    Counted,
}

/// Counts the refusals of the last windows.
#[derive(Default)]
pub(super) struct Repeats {
    kinds: HashMap<Kind, Held>,
    /// Records that a caller may still cause, and when that was reckoned.
    budgets: HashMap<Who, (f64, Option<Instant>)>,
}

impl Repeats {
    /// Takes a refusal at `now`.
    pub(super) fn take(&mut self, slot: &Slot, now: Instant) -> Fate {
        let mut kind = Kind {
            who: slot.who(),
            operation: slot.operation(),
            outcome: slot.outcome_word(),
            errno: slot.errno(),
            rule: slot.rule().into(),
            path: Some(slot.path().into()),
            asked: slot.asked(),
        };
        if self.count(&kind, slot) {
            return Fate::Counted;
        }
        if self.kinds.len() < MAX_KINDS / 2 && self.may_cause(&kind.who, now) {
            self.hold(kind, slot, 0, now);
            return Fate::Written;
        }
        (kind.path, kind.asked) = (None, None);
        if !self.count(&kind, slot) && self.kinds.len() >= MAX_KINDS {
            // More callers and rules than anybody has: those that come now are counted as one.
            kind.who = (u32::MAX, Box::default());
            kind.rule = Box::default();
            if self.count(&kind, slot) {
                return Fate::Counted;
            }
        } else if self.kinds.contains_key(&kind) {
            return Fate::Counted;
        }
        self.hold(kind, slot, 1, now);
        Fate::Counted
    }

    /// When the next record is due, if one is.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.kinds.values().filter(|held| held.count > 0).map(|held| held.due).min()
    }

    /// Appends the records that are due; with `all`, what was counted so far. `counts` gets for each
    /// of them how many refusals it is about.
    pub(super) fn write_due(
        &mut self,
        now: Instant,
        all: bool,
        run: &str,
        lines: &mut Vec<u8>,
        counts: &mut Vec<u64>,
    ) -> serde_json::Result<()> {
        let mut failed = Ok(());
        self.kinds.retain(|kind, held| {
            if now < held.due && !all {
                return true;
            }
            if held.count == 0 {
                return false;
            }
            let together = kind.path.is_none();
            let line = held.slot.write_repeated(run, held.count, held.first, together, lines);
            if let Err(error) = line {
                failed = Err(error);
            }
            counts.push(held.count);
            held.count = 0;
            held.window = (held.window * 2).min(LONGEST_WINDOW);
            held.due = now + held.window;
            true
        });
        failed
    }

    fn count(&mut self, kind: &Kind, slot: &Slot) -> bool {
        let Some(held) = self.kinds.get_mut(kind) else { return false };
        if held.count == 0 {
            held.first = slot.time();
        }
        held.count += 1;
        held.slot.clone_from(slot);
        true
    }

    fn hold(&mut self, kind: Kind, slot: &Slot, count: u64, now: Instant) {
        let (first, window) = (slot.time(), FIRST_WINDOW);
        let held = Held { slot: slot.clone(), count, first, window, due: now + window };
        self.kinds.insert(kind, held);
    }

    fn may_cause(&mut self, who: &Who, now: Instant) -> bool {
        let known = self.budgets.contains_key(who) || self.budgets.len() < MAX_CALLERS;
        let who = if known { who.clone() } else { (u32::MAX, Box::default()) };
        let (left, since) = self.budgets.entry(who).or_insert((BURST, None));
        let elapsed = since.map_or(Duration::ZERO, |since| now.duration_since(since));
        *left = (*left + PER_SECOND * elapsed.as_secs_f64()).min(BURST);
        *since = Some(now);
        let may = *left >= 1.0;
        if may {
            *left -= 1.0;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use tollgate_view::{Access, Detail, Event, Outcome};

    use super::*;

    fn event(path: &str) -> Event<'_> {
        Event {
            operation: "open",
            outcome: Outcome::Refused(Errno::ACCESS),
            uid: 1,
            gid: 0,
            pid: 1,
            exe: Some(b"/bin/cat"),
            inode: 0,
            path: path.as_bytes(),
            rule: Some("keys"),
            detail: Detail::None,
        }
    }

    fn refusal(path: &str, uid: u32) -> Slot {
        let mut slot = Slot::empty();
        slot.fill(&Event { uid, ..event(path) });
        slot
    }

    #[test]
    fn what_was_asked_for_is_told_apart() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        let asked = |operation, detail| {
            let mut slot = Slot::empty();
            slot.fill(&Event { operation, detail, ..event("docs/a") });
            slot
        };
        let open = |flags| asked("open", Detail::Access(Access::from_flags(flags)));
        let rename = |to: &'static str| asked("rename", Detail::To(to.as_bytes()));
        for slot in [open(libc::O_RDONLY), open(libc::O_WRONLY), rename("out/1"), rename("out/2")] {
            assert_eq!(repeats.take(&slot, now), Fate::Written);
            assert_eq!(repeats.take(&slot, now), Fate::Counted);
        }
        let lines = due(&mut repeats, now, true);
        let mut asked: Vec<_> = lines
            .iter()
            .map(|line| line["access"].as_str().or(line["to"].as_str()).unwrap())
            .collect();
        asked.sort_unstable();
        assert_eq!(asked, ["out/1", "out/2", "read", "write"]);
    }

    fn due(repeats: &mut Repeats, now: Instant, all: bool) -> Vec<serde_json::Value> {
        let mut lines = Vec::new();
        repeats.write_due(now, all, "r", &mut lines, &mut Vec::new()).unwrap();
        let text = String::from_utf8(lines).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn the_first_is_written_and_the_rest_are_counted() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        assert_eq!(repeats.take(&refusal("key", 1), now), Fate::Written);
        for _ in 0..1000 {
            assert_eq!(repeats.take(&refusal("key", 1), now), Fate::Counted);
        }
        assert_eq!(repeats.take(&refusal("key", 2), now), Fate::Written);
        assert!(due(&mut repeats, now, false).is_empty());
        let lines = due(&mut repeats, now + FIRST_WINDOW, false);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["event"], "repeated");
        assert_eq!((&lines[0]["count"], &lines[0]["path"]), (&1000.into(), &"key".into()));
    }

    #[test]
    fn windows_double_while_it_lasts_and_end_when_it_ends() {
        let (mut repeats, mut now) = (Repeats::default(), Instant::now());
        repeats.take(&refusal("key", 1), now);
        let mut records = 0;
        for _ in 0..600 {
            repeats.take(&refusal("key", 1), now);
            now += Duration::from_secs(1);
            records += due(&mut repeats, now, false).len();
        }
        assert!((10..=20).contains(&records), "{records}");
        records += due(&mut repeats, now + LONGEST_WINDOW, false).len();
        assert!(due(&mut repeats, now + 3 * LONGEST_WINDOW, false).is_empty());
        assert!(repeats.kinds.is_empty() && records > 0);
    }

    /// No refusal is lost, whatever the paths: the counts add up.
    #[test]
    fn ever_new_paths_are_counted_together() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        let mut written = 0;
        for number in 0..5000 {
            let slot = refusal(&format!("keys/{number}"), 1);
            written += u64::from(repeats.take(&slot, now) == Fate::Written);
        }
        assert_eq!(written, 256);
        let lines = due(&mut repeats, now, true);
        let counted: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap()).sum();
        assert_eq!(written + counted, 5000);
        assert!(lines.iter().any(|line| line["path"].is_null()), "{lines:?}");
    }

    #[test]
    fn one_callers_flood_leaves_the_others_their_records() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for number in 0..5000 {
            repeats.take(&refusal(&format!("keys/{number}"), 1), now);
        }
        assert_eq!(repeats.take(&refusal("key", 2), now), Fate::Written);
    }

    #[test]
    fn more_callers_than_are_told_apart_are_counted_as_one() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        let mut written = 0;
        for uid in 0..10_000 {
            let slot = refusal(&format!("keys/{uid}"), uid);
            written += u64::from(repeats.take(&slot, now) == Fate::Written);
        }
        assert!(repeats.kinds.len() <= MAX_KINDS + 1);
        let lines = due(&mut repeats, now, true);
        let counted: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap()).sum();
        assert_eq!(written + counted, 10_000);
    }
}
