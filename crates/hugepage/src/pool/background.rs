//! Running a cleaner on threads of the caller's.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::cleaner::{Cleaner, CleanerState, Step};
use super::contained;
use super::core::Core;
use super::counters::Count;
use super::handle::{Handle, Pool};
use crate::sync::{AtomicBool, Mutex, Ordering};

/// How long the cleaner waits when there is something to clear but not now: buffers still hot, or
/// the caller busy.
const RETRY: Duration = Duration::from_millis(5);

/// Runs the cleaner on threads of the caller's.
pub trait Background: Send + Sync {
    /// Calls `job.run()` once, not before `delay` has passed, on any thread but never within this
    /// call: a job is handed over by threads that give a buffer back. A job that is dropped instead
    /// is offered again when the next dirty buffer is given back.
    ///
    /// A panic of it goes no further, for it may come in the drop of a buffer: it counts in
    /// [`super::PoolStats::background_panics`].
    fn run_after(&self, delay: Duration, job: Job);
}

/// A piece of background work.
#[must_use = "a job that is dropped does not run"]
pub struct Job(Option<Arc<Task>>);

struct Task {
    /// Weak, so that a sleeping cleaner does not keep its pool.
    pool: Weak<Handle>,
    /// Which of the cleaners that were handed over this is; the last one counts.
    generation: u64,
    /// `None` while a thread runs the cleaner.
    state: Mutex<Option<CleanerState>>,
    executor: Arc<dyn Background>,
    on_its_way: OnItsWay,
}

/// Whether a job was handed over and has not begun. A start that finds one needs no other: the job
/// looks at the lists after it has [arrived](Self::arrives), and so finds what the start was for.
///
/// Both sides are read-modify-writes that acquire and release. Of a start and an arrival the second
/// sees what was done before the first: the job sees the buffer, or the start sees the job gone.
pub(super) struct OnItsWay(AtomicBool);

impl OnItsWay {
    pub(super) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Returns whether the caller is to hand a job over, because none is on its way.
    #[must_use]
    pub(super) fn departs(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// The job begins, or is dropped. Call this before the look at the lists, and before the cleaner
    /// goes to sleep: a start from then on hands another job over.
    pub(super) fn arrives(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}

impl Cleaner {
    /// Hands the cleaner to an executor, which runs it whenever there is something to clear. It
    /// stops when the last clone of the pool is gone, or when another cleaner is handed over.
    pub fn run_on(self, executor: Arc<dyn Background>) {
        let Self { pool, state } = self;
        let starter = &pool.core().starter;
        let generation = starter.next_generation();
        let handle = Arc::downgrade(&pool.handle);
        let state = Mutex::new(Some(state));
        let on_its_way = OnItsWay::new();
        let task = Arc::new(Task { pool: handle, generation, state, executor, on_its_way });
        let again = task.clone();
        starter.install(generation, Arc::new(move || again.clone().run_after(Duration::ZERO)));
        task.run_after(Duration::ZERO);
    }

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

impl Job {
    /// Clears until there is nothing to do or the budget is used up.
    pub fn run(mut self) {
        let task = self.0.take().expect("a job runs once");
        task.on_its_way.arrives();
        let Some(pool) = task.pool() else { return };
        let Some(state) = task.state.lock().take() else { return };
        let mut cleaner = Cleaner { pool, state };
        let delay = cleaner.work();
        let Cleaner { pool, state } = cleaner;
        *task.state.lock() = Some(state);
        match delay {
            Some(delay) => task.run_after(delay),
            None => pool.core().sleep_until_dirty(),
        }
    }
}

/// Dropped without having run: the next giver starts the cleaner again.
impl Drop for Job {
    fn drop(&mut self) {
        let Some(task) = self.0.take() else { return };
        task.on_its_way.arrives();
        if let Some(pool) = task.pool() {
            pool.core().fall_asleep();
        }
    }
}

impl Task {
    /// The pool, unless it is gone or has another cleaner by now.
    fn pool(&self) -> Option<Pool> {
        let pool = Pool { handle: self.pool.upgrade()? };
        pool.core().starter.is_current(self.generation).then_some(pool)
    }

    /// Hands a job over, unless one is on its way.
    fn run_after(self: Arc<Self>, delay: Duration) {
        if !self.on_its_way.departs() {
            return;
        }
        let (executor, pool) = (self.executor.clone(), self.pool.clone());
        let handed_over = contained::call(|| executor.run_after(delay, Job(Some(self))));
        if handed_over.is_none()
            && let Some(handle) = pool.upgrade()
        {
            handle.core.count(Count::BackgroundPanics);
        }
    }
}

impl Core {
    fn fall_asleep(&self) {
        self.classes.iter().for_each(|class| class.waiters.cleaner_asleep());
    }

    /// The cleaner sleeps on every class. What came in meanwhile wakes it again.
    fn sleep_until_dirty(&self) {
        self.fall_asleep();
        if self.has_dirty() && self.classes.iter().any(|class| class.waiters.cleaner_awake()) {
            self.starter.start();
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Job(clear dirty buffers)")
    }
}
