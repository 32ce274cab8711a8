//! Clearing dirty buffers in the background, within a budget.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::lists::List;
use super::{Buffer, Inner, Pool, state::Dirty};
use crate::plan::{Heat, Situation};
use crate::sync::Ordering;

/// How long the cleaner waits when there is something to clear but not now: buffers still hot, or
/// the caller busy.
const RETRY: Duration = Duration::from_millis(5);
/// Seconds' worth of budget that may be saved up, as one part in this many.
const BURST_SHARE: usize = 10;

/// What the cleaner may do.
pub struct CleanerOptions {
    /// Most bytes cleared per second, on average; a tenth of it, or one buffer, at once.
    pub bytes_per_second: usize,
    /// Whether now is a time to clear. Asked before each buffer; always, unless set.
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
    /// Cleared a buffer of so many bytes.
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
/// was given back since the step before.
pub struct Cleaner {
    pool: Pool,
    options: CleanerOptions,
    /// Bytes that may be cleared at `refilled`.
    budget_bytes: usize,
    refilled: Instant,
    /// Bytes given back to the pool up to the step before.
    seen_turnover: u64,
}

impl Cleaner {
    pub(super) fn new(pool: Pool, options: CleanerOptions) -> Self {
        let budget_bytes = burst(&pool, &options);
        Self { pool, options, budget_bytes, refilled: Instant::now(), seen_turnover: u64::MAX }
    }

    /// Clears one buffer, or returns why not.
    pub fn step(&mut self) -> Step {
        let turnover = self.pool.inner.turnover_bytes();
        let quiet = turnover == self.seen_turnover;
        self.seen_turnover = turnover;
        if !self.pool.inner.has_dirty() {
            return Step::Nothing;
        }
        if !(self.options.idle)() {
            return Step::Busy;
        }
        if let Some(wait) = self.refill() {
            return Step::Budget(wait);
        }
        let Some(dirty) = self.pool.inner.pop_dirty(quiet) else { return Step::Hot };
        let bytes = dirty.len();
        self.budget_bytes = self.budget_bytes.saturating_sub(bytes);
        // On its way to the zeroed list when it is dropped.
        drop(dirty.begin().finish(self.pool.plan().clearer(Situation::cold(bytes))));
        Step::Cleared(bytes)
    }

    /// Hands the cleaner to an executor, which runs it whenever there is something to clear. It
    /// stops when the last clone of the pool is gone, or when another cleaner is handed over.
    pub fn run_on(self, executor: Arc<dyn Background>) {
        let inner = self.pool.inner.clone();
        let Self { options, budget_bytes, refilled, seen_turnover, .. } = self;
        let rest = Rest { options, budget_bytes, refilled, seen_turnover };
        let pool = Arc::downgrade(&inner);
        let job = Job(Arc::new(Task { pool, rest: Mutex::new(Some(rest)), executor }));
        *lock(&inner.cleaner.job) = Some(job.clone());
        job.again(Duration::ZERO);
    }

    /// Adds what the time since the last refill is worth. `Some` is how long to wait until a
    /// buffer of the smallest class may be cleared.
    fn refill(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let nanoseconds = (now - self.refilled).as_nanos();
        let rate = self.options.bytes_per_second;
        let earned =
            usize::try_from(rate as u128 * nanoseconds / 1_000_000_000).unwrap_or(usize::MAX);
        if earned > 0 {
            self.refilled = now;
            let most = burst(&self.pool, &self.options);
            self.budget_bytes = self.budget_bytes.saturating_add(earned).min(most);
        }
        let needed = self.pool.inner.largest_dirty().unwrap_or(0);
        let missing = needed.saturating_sub(self.budget_bytes);
        #[expect(clippy::cast_precision_loss, reason = "a waiting time need not be exact")]
        let seconds = missing as f64 / rate.max(1) as f64;
        (missing > 0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

fn burst(pool: &Pool, options: &CleanerOptions) -> usize {
    let largest = pool.inner.classes.last().map_or(0, |class| class.buffer_bytes);
    (options.bytes_per_second / BURST_SHARE).max(largest)
}

/// Runs the cleaner on threads of the caller's.
pub trait Background: Send + Sync {
    /// Calls `job.run()` once, not before `delay` has passed, on any thread but never within this
    /// call: a job is handed over by threads that give a buffer back.
    fn run_after(&self, delay: Duration, job: Job);
}

/// A piece of background work. Cloning it copies a pointer.
#[derive(Clone)]
pub struct Job(Arc<Task>);

struct Task {
    pool: Weak<Inner>,
    /// `None` while a thread runs the cleaner.
    rest: Mutex<Option<Rest>>,
    executor: Arc<dyn Background>,
}

/// A cleaner without its pool, so that a sleeping one does not keep it alive.
struct Rest {
    options: CleanerOptions,
    budget_bytes: usize,
    refilled: Instant,
    seen_turnover: u64,
}

impl Job {
    /// Clears until there is nothing to do or the budget is used up.
    pub fn run(self) {
        let (Some(inner), Some(rest)) = (self.0.pool.upgrade(), lock(&self.0.rest).take()) else {
            return;
        };
        let Rest { options, budget_bytes, refilled, seen_turnover } = rest;
        let pool = Pool { inner };
        let mut cleaner = Cleaner { pool, options, budget_bytes, refilled, seen_turnover };
        let delay = cleaner.work();
        let Cleaner { pool, options, budget_bytes, refilled, seen_turnover } = cleaner;
        *lock(&self.0.rest) = Some(Rest { options, budget_bytes, refilled, seen_turnover });
        match delay {
            Some(delay) => self.again(delay),
            None => pool.inner.sleep_until_dirty(),
        }
    }

    fn again(self, delay: Duration) {
        let executor = self.0.executor.clone();
        executor.run_after(delay, self);
    }
}

impl Cleaner {
    /// Steps until it must wait. `None` when there is nothing left.
    fn work(&mut self) -> Option<Duration> {
        loop {
            match self.step() {
                Step::Cleared(_) => {}
                Step::Nothing => return None,
                Step::Hot | Step::Busy => return Some(RETRY),
                Step::Budget(wait) => return Some(wait),
            }
        }
    }
}

/// Starts the cleaner when a buffer is given back while it sleeps.
pub(super) struct Starter {
    job: Mutex<Option<Job>>,
}

impl Starter {
    pub(super) fn new() -> Self {
        Self { job: Mutex::new(None) }
    }

    /// Called by a giver that found the cleaner asleep: once per sleep, so not on the hot path.
    #[cold]
    pub(super) fn start(&self) {
        let job = lock(&self.job).clone();
        if let Some(job) = job {
            job.again(Duration::ZERO);
        }
    }
}

impl Inner {
    fn turnover_bytes(&self) -> u64 {
        let shelves = self.classes.iter().flat_map(|class| &class.shelves);
        shelves.map(|shelf| shelf.turnover_bytes.load(Ordering::Relaxed)).sum()
    }

    fn has_dirty(&self) -> bool {
        self.largest_dirty().is_some()
    }

    fn largest_dirty(&self) -> Option<usize> {
        let has = |class: &&super::Class| {
            class.shelves.iter().any(|shelf| !shelf.lists.is_empty(List::Dirty))
        };
        self.classes.iter().rev().find(has).map(|class| class.buffer_bytes)
    }

    /// A dirty buffer of any class and shelf, the home shelf first; a hot one only if `hot_too`.
    fn pop_dirty(self: &Arc<Self>, hot_too: bool) -> Option<Buffer<Dirty>> {
        for (number, class) in self.classes.iter().enumerate().rev() {
            let home = self.home_shelf(number);
            for step in 0..class.shelves.len() {
                let shelf = (home + step) % class.shelves.len();
                let lists = &class.shelves[shelf].lists;
                let Some(index) = lists.pop(List::Dirty) else { continue };
                let place = self.place(number, shelf, index);
                if hot_too || place.heat == Heat::Cold {
                    return Some(Buffer::new(place));
                }
                // Straight back, without counting as a return of its owner's; a waiter may be
                // there.
                lists.push(List::Dirty, index);
                // The cleaner is awake: it is this very caller.
                let _ = class.waiters.arrived();
            }
        }
        None
    }

    /// The cleaner sleeps on every class. What came in meanwhile wakes it again.
    fn sleep_until_dirty(&self) {
        self.classes.iter().for_each(|class| class.waiters.cleaner_asleep());
        if self.has_dirty() && self.classes.iter().any(|class| class.waiters.cleaner_awake()) {
            self.cleaner.start();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing is left half-done in these: each holds one value that is moved in or out.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Cleaner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.options.bytes_per_second;
        write!(out, "Cleaner({rate} bytes/s, budget {})", self.budget_bytes)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Job(clear dirty buffers)")
    }
}
