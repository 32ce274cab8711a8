//! The thread that writes the log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::file::{Away, Failed, RotatedFile};
use super::origin::Origin;
use super::repeats::{Fate, Repeats};
use super::shared::{Shared, lock};
use super::slot::timestamp;
use crate::escape::shown;

/// Events that go into the file with one write.
const BATCH: usize = 256;
/// After so long it looks again whether FILE is still the file that it writes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// After a rotation that failed it is tried again so much later.
const ROTATE_AGAIN: Duration = Duration::from_secs(60);
/// Batches between two looks at what else is due, however fast records come.
const MAX_BATCHES: usize = 64;
/// How long the writer looks for more before it sleeps until it is woken.
const LINGER: Duration = Duration::from_millis(2);

/// Takes filled slots and writes them.
pub(super) struct Writer {
    shared: Arc<Shared>,
    file: RotatedFile,
    origin: Origin,
    repeats: Repeats,
    lines: Vec<u8>,
    drops_told: u64,
    failures_told: u64,
    /// When it was last seen that FILE is the file that is written.
    looked: Instant,
    /// What was seen then.
    away: Option<Away>,
    /// No rotation before, as one has failed.
    rotate_at: Option<Instant>,
    /// The file lacks the line that it begins with.
    lacks_head: bool,
}

impl Writer {
    /// Begins the log of a run.
    ///
    /// # Errors
    /// When the first line cannot be written.
    pub(super) fn new(
        shared: Arc<Shared>,
        mut file: RotatedFile,
        origin: Origin,
    ) -> io::Result<Self> {
        file.append(&origin.line("start", json!({}))).map_err(|failed| failed.error)?;
        let (repeats, lines) = (Repeats::default(), Vec::new());
        let (drops_told, failures_told, looked) = (0, 0, Instant::now());
        Ok(Self {
            shared,
            file,
            origin,
            repeats,
            lines,
            drops_told,
            failures_told,
            looked,
            away: None,
            rotate_at: None,
            lacks_head: false,
        })
    }

    /// Writes until it is told to stop, and then what is left.
    pub(super) fn run(mut self) {
        loop {
            // Read before the queue is emptied: what was recorded before the stop is written.
            let stop = self.shared.stop.load(Ordering::SeqCst);
            self.look_at_file(stop);
            let mut batches = 0;
            while self.write_batch() && (stop || batches < MAX_BATCHES) {
                batches += 1;
            }
            self.write_repeats(stop);
            self.tell_lost();
            self.tell_reloads();
            if stop {
                self.tell_end();
                break;
            }
            if self.shared.filled.is_empty() {
                self.wait();
            }
        }
        if let Err(error) = self.file.sync() {
            self.note(&error);
        }
    }

    /// Sleeps until there is something to do. `asleep` is set before the queue is looked at again,
    /// and who records looks at `asleep` after it pushed, so one of the two sees the other.
    fn wait(&self) {
        std::thread::park_timeout(LINGER);
        if !self.shared.filled.is_empty() {
            return;
        }
        self.shared.asleep.store(true, Ordering::SeqCst);
        let idle = || self.shared.filled.is_empty() && !self.shared.stop.load(Ordering::SeqCst);
        while idle() && self.shared.asleep.load(Ordering::SeqCst) {
            if let Some(due) = self.repeats.next_due() {
                let now = Instant::now();
                if now >= due {
                    break;
                }
                std::thread::park_timeout(due - now);
            } else if self.shared.writer.get().is_some() {
                std::thread::park();
            } else {
                // Until the handle is set, no wake-up can arrive.
                std::thread::park_timeout(LINGER);
            }
        }
        self.shared.asleep.store(false, Ordering::SeqCst);
    }

    /// Writes up to [`BATCH`] events; false when there were none.
    fn write_batch(&mut self) -> bool {
        self.lines.clear();
        let (mut events, mut repeated) = (0, 0);
        let shared = Arc::clone(&self.shared);
        let mut busiest = lock(&shared.busiest);
        while events < BATCH
            && let Some(slot) = self.shared.filled.pop()
        {
            busiest.0.count(&slot.shown_path());
            busiest.1.count(&slot.caller());
            let counted =
                slot.is_refusal() && self.repeats.take(&slot, Instant::now()) == Fate::Counted;
            if counted {
                repeated += 1;
            } else if let Err(error) = slot.write_line(&self.origin.run, &mut self.lines) {
                self.note(&error.into());
            }
            let returned = self.shared.free.push(slot);
            debug_assert!(returned.is_ok(), "`free` has room for every slot there is");
            events += 1;
        }
        drop(busiest);
        shared.repeated.fetch_add(repeated, Ordering::Relaxed);
        let records = events as u64 - repeated;
        if records > 0 {
            let appended = self.append_lines();
            let written = appended.as_ref().map_or_else(|failed| failed.appended, |()| records);
            shared.written.fetch_add(written, Ordering::Relaxed);
            shared.failed.fetch_add(records.saturating_sub(written), Ordering::Relaxed);
            self.note_failed(appended);
        }
        events > 0
    }

    /// The counts of refusals that repeated; at the end all of them.
    fn write_repeats(&mut self, end: bool) {
        self.lines.clear();
        let run = self.origin.run.clone();
        let mut counts = Vec::new();
        let made = self.repeats.write_due(Instant::now(), end, &run, &mut self.lines, &mut counts);
        if let Err(error) = made {
            self.note(&error.into());
        }
        if counts.is_empty() {
            return;
        }
        let appended = self.append_lines();
        if let Err(failed) = &appended {
            let kept = usize::try_from(failed.appended).unwrap_or(usize::MAX);
            let lost = counts.iter().skip(kept).sum();
            self.shared.repeated.fetch_sub(lost, Ordering::Relaxed);
            self.shared.failed.fetch_add(lost, Ordering::Relaxed);
        }
        self.note_failed(appended);
    }

    /// Appends what is in `lines`; a new file begins with what run it belongs to. One that cannot be
    /// rotated is written on.
    fn append_lines(&mut self) -> Result<(), Failed> {
        let may_rotate = self.rotate_at.is_none_or(|at| Instant::now() >= at);
        if self.file.is_full() && may_rotate {
            match self.file.rotate() {
                Ok(()) => (self.rotate_at, self.lacks_head) = (None, true),
                Err(error) => self.note_unrotated(&error),
            }
        }
        if self.lacks_head {
            self.continue_file()?;
        }
        self.file.append(&self.lines)
    }

    fn note_unrotated(&mut self, error: &io::Error) {
        let what = format!("it cannot be rotated: {error}; it is written on");
        if self.rotate_at.is_none() {
            tracing::warn!("audit log `{}`: {what}", shown(self.file.path()));
        }
        self.rotate_at = Some(Instant::now() + ROTATE_AGAIN);
        *lock(&self.shared.last_error) = Some(what);
    }

    /// The first line of a further file.
    fn continue_file(&mut self) -> io::Result<()> {
        self.lacks_head = true;
        let head = self.origin.line("continued", json!({}));
        self.file.append(&head).map_err(|failed| failed.error)?;
        self.lacks_head = false;
        Ok(())
    }

    /// Begins a new FILE where others have moved or removed it, and looks for that about each second.
    fn look_at_file(&mut self, at_the_end: bool) {
        if !at_the_end && self.looked.elapsed() < LOOK_AGAIN {
            return;
        }
        self.looked = Instant::now();
        let away = self.file.away();
        let was_said = std::mem::replace(&mut self.away, away) == away;
        let Some(away) = away else { return };
        let what = match away {
            Away::Moved => "was moved, or another file put in its place",
            Away::Removed => "was removed, with the records in it",
            Away::DirectoryMoved => "is in a directory that was moved, and is written on there",
            Away::DirectoryRemoved => "was removed, with its directory",
        };
        let begun = (away != Away::DirectoryMoved)
            .then(|| self.file.begin_again().and_then(|()| self.continue_file()));
        let outcome = match &begun {
            None => String::new(),
            Some(Ok(())) => "; it was begun again".to_owned(),
            Some(Err(error)) => format!("; it cannot be begun again: {error}"),
        };
        if was_said && !matches!(begun, Some(Ok(()))) {
            return;
        }
        let what = format!("it {what}{outcome}");
        tracing::warn!("audit log `{}`: {what}", shown(self.file.path()));
        *lock(&self.shared.last_error) = Some(what);
    }

    /// A line about the whole run; whether it is in the file.
    fn tell(&mut self, event: &str, more: Value) -> bool {
        self.lines = self.origin.line(event, more);
        let appended = self.append_lines();
        let is_told = appended.is_ok();
        self.note_failed(appended);
        is_told
    }

    /// Those that cannot be written are told later.
    fn tell_reloads(&mut self) {
        let reloads = std::mem::take(&mut *lock(&self.shared.reloads));
        let mut left = reloads.into_iter();
        while let Some(digest) = left.next() {
            self.origin.policy_sha256.clone_from(&digest);
            if !self.tell("reload", json!({})) {
                let mut waiting = lock(&self.shared.reloads);
                let since = std::mem::take(&mut *waiting);
                *waiting = std::iter::once(digest).chain(left).chain(since).collect();
                return;
            }
        }
    }

    fn tell_end(&mut self) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = json!({
            "written": count(&self.shared.written),
            "repeated": count(&self.shared.repeated),
            "dropped": count(&self.shared.dropped),
            "failed": count(&self.shared.failed),
        });
        self.tell("stop", counts);
    }

    /// Records in the log what is not in it; tries again later when that fails.
    fn tell_lost(&mut self) {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        self.drops_told = self.tell_total("dropped", dropped, self.drops_told);
        let failed = self.shared.failed.load(Ordering::Relaxed);
        self.failures_told = self.tell_total("failed", failed, self.failures_told);
    }

    /// Returns how much of `total` is told then.
    fn tell_total(&mut self, event: &str, total: u64, told: u64) -> u64 {
        if total == told {
            return total;
        }
        let line = json!({
            "time": timestamp(SystemTime::now()),
            "event": event,
            "run": self.origin.run,
            "count": total - told,
            "total": total,
        });
        self.lines = format!("{line}\n").into_bytes();
        let appended = self.append_lines();
        let is_told = appended.is_ok();
        self.note_failed(appended);
        if is_told { total } else { told }
    }

    fn note_failed(&self, appended: Result<(), Failed>) {
        if let Err(failed) = appended {
            self.note(&failed.error);
        }
    }

    fn note(&self, error: &io::Error) {
        let mut last = lock(&self.shared.last_error);
        if last.is_none() {
            tracing::error!("the audit log cannot be written: {error}");
        }
        *last = Some(error.to_string());
    }
}
