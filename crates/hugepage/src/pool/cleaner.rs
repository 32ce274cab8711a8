//! Clearing dirty buffers in the background, within a budget.

use std::fmt;
use std::time::{Duration, Instant};

use super::buffer;
use super::contained;
use super::core::Core;
use super::counters::Count;
use super::handle::Pool;
use super::lists::List;
use super::slot::Slot;
use crate::plan::{Heat, Situation};

/// Seconds' worth of budget that may be saved up, as one part in this many.
const BURST_SHARE: usize = 10;

/// What the cleaner may do.
pub struct CleanerOptions {
    /// Most bytes cleared per second, on average; a tenth of it, or one buffer, at once. 0
    /// is taken for 1.
    pub bytes_per_second: usize,
    /// Whether now is a time to clear. Asked before each buffer; always, unless set. One that
    /// panics counts as `false` and in [`super::PoolStats::idle_panics`].
    pub idle: Box<dyn Fn() -> bool + Send>,
}

impl Default for CleanerOptions {
    /// One gigabyte per second, always.
    fn default() -> Self {
        Self { bytes_per_second: 1_000_000_000, idle: Box::new(|| true) }
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Cleared a buffer, of which so many bytes were dirty.
    Cleared(usize),
    /// There is nothing dirty.
    Nothing,
    /// What is dirty is in the cache and its pool in use: to clear it now would cost more, and it
    /// is the next to be taken.
    Hot,
    /// The caller said that it is not idle.
    Busy,
    /// The budget is used up for this long.
    Budget(Duration),
}

/// Clears dirty buffers one at a time, when called. Drive it with [`step`](Self::step) from a
/// thread of your own, or hand it to an executor with [`run_on`](Self::run_on).
///
/// It clears by the plan's row for cold buffers, which does not push anything else out of the
/// cache. A buffer that is likely in the cache still is left alone, until a step finds that nothing
/// was given back since the step before. It goes through all dirty buffers in turn, so one that is
/// in use all the time does not keep it from the others.
pub struct Cleaner {
    pub(super) pool: Pool,
    pub(super) state: CleanerState,
}

/// A cleaner without its pool.
pub(super) struct CleanerState {
    options: CleanerOptions,
    /// Bytes that may be cleared at `refilled`.
    budget_bytes: usize,
    refilled: Instant,
    /// Bytes given back to the pool up to the step before; `None` before the first.
    seen_turnover: Option<u64>,
}

impl Pool {
    /// A cleaner that clears dirty buffers in the background. See [`Cleaner`].
    #[must_use]
    pub fn cleaner(&self, options: CleanerOptions) -> Cleaner {
        let budget_bytes = burst(self.core(), &options);
        let refilled = Instant::now();
        let state = CleanerState { options, budget_bytes, refilled, seen_turnover: None };
        Cleaner { pool: self.clone(), state }
    }
}

impl Cleaner {
    /// Clears one buffer, or returns why not.
    pub fn step(&mut self) -> Step {
        let core = self.pool.core();
        let turnover = core.turnover_bytes();
        let quiet = self.state.seen_turnover.replace(turnover) == Some(turnover);
        if !core.has_dirty() {
            return Step::Nothing;
        }
        if !self.state.is_idle(core) {
            return Step::Busy;
        }
        if let Some(wait) = self.state.refill(core) {
            return Step::Budget(wait);
        }
        let Some(mut slot) = core.pop_to_clean(quiet) else { return Step::Hot };
        let clearer = core.plan.clearer(Situation::cold(slot.dirty));
        let bytes = buffer::clear(&mut slot, core, clearer, Count::Background);
        self.state.budget_bytes = self.state.budget_bytes.saturating_sub(bytes);
        core.put_down(slot);
        Step::Cleared(bytes)
    }
}

impl CleanerState {
    fn is_idle(&self, core: &Core) -> bool {
        contained::call(|| (self.options.idle)()).unwrap_or_else(|| {
            core.count(Count::IdlePanics);
            false
        })
    }

    /// Adds what the time since the last refill is worth. `Some` is how long to wait until the
    /// largest buffer that is dirty may be cleared.
    fn refill(&mut self, core: &Core) -> Option<Duration> {
        let now = Instant::now();
        let nanoseconds = (now - self.refilled).as_nanos();
        let rate = self.options.bytes_per_second;
        // More than fits is more than the burst, which caps it.
        let earned =
            usize::try_from(rate as u128 * nanoseconds / 1_000_000_000).unwrap_or(usize::MAX);
        if earned > 0 {
            self.refilled = now;
            let most = burst(core, &self.options);
            self.budget_bytes = self.budget_bytes.saturating_add(earned).min(most);
        }
        let missing = core.largest_dirty()?.saturating_sub(self.budget_bytes);
        #[expect(clippy::cast_precision_loss, reason = "a waiting time need not be exact")]
        let seconds = missing as f64 / rate.max(1) as f64;
        (missing > 0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

fn burst(core: &Core, options: &CleanerOptions) -> usize {
    let largest = core.classes.last().map_or(0, |class| class.buffer_bytes);
    (options.bytes_per_second / BURST_SHARE).max(largest)
}

impl Core {
    pub(super) fn has_dirty(&self) -> bool {
        self.largest_dirty().is_some()
    }

    fn largest_dirty(&self) -> Option<usize> {
        let has = |class: &&super::core::Class| {
            class.shelves.iter().any(|shelf| !shelf.lists.is_empty(List::Dirty))
        };
        self.classes.iter().rev().find(has).map(|class| class.buffer_bytes)
    }

    /// A dirty buffer of any class and shelf, the home shelf first; a hot one only if `hot_too`.
    fn pop_to_clean(&self, hot_too: bool) -> Option<Slot> {
        (0..self.classes.len()).rev().find_map(|class| {
            let shelves = self.classes[class].shelves.len();
            let home = self.home_shelf(class);
            (0..shelves).find_map(|step| self.pop_cold(class, (home + step) % shelves, hot_too))
        })
    }

    /// A buffer of the aged stack, which is filled up from the fresh one when it is empty. If its
    /// top is hot, so is most of what lies below; and it does not stay so, for nothing new arrives
    /// there.
    fn pop_cold(&self, class: usize, shelf: usize, hot_too: bool) -> Option<Slot> {
        let lists = &self.classes[class].shelves[shelf].lists;
        let index = lists.pop_aged(List::Dirty).or_else(|| {
            lists.turn(List::Dirty);
            lists.pop_aged(List::Dirty)
        })?;
        let slot = self.held(class, shelf, index);
        if hot_too || slot.heat == Heat::Cold {
            return Some(slot);
        }
        // Straight back, without counting as a return of its owner's.
        self.put_down_aged(&slot);
        None
    }
}

impl fmt::Debug for Cleaner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CleanerState { options, budget_bytes, .. } = &self.state;
        write!(out, "Cleaner({} bytes/s, budget {budget_bytes})", options.bytes_per_second)
    }
}
