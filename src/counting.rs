//! How far a walk over a directory is, on a terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long a walk takes before it says how far it is.
const SAID_AFTER: Duration = Duration::from_millis(500);
/// How many entries go by between two looks at the clock.
const STEP: u64 = 256;

/// Counts entries on standard error while a walk takes long; the line goes when this is dropped.
/// Where standard error is no terminal, nothing is written.
#[derive(Debug)]
pub(crate) struct Counting {
    bar: ProgressBar,
    since: Instant,
}

impl Counting {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::hidden();
        if let Ok(style) = ProgressStyle::with_template("looked at {human_pos} entries ({per_sec})")
        {
            bar.set_style(style);
        }
        Self { bar, since: Instant::now() }
    }

    /// `entries` so far.
    pub(crate) fn so_far(&self, entries: u64) {
        if !entries.is_multiple_of(STEP) {
            return;
        }
        let late = self.since.elapsed() > SAID_AFTER;
        if self.bar.is_hidden() && late && std::io::stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(entries);
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
