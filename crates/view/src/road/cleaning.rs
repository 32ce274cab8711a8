//! Clearing buffers on the queue `io`, soon after they were given back and while no request
//! computes: what lay in them does not wait for the next owner to be gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_hugepage::Pool;
use tollgate_hugepage::pool::{Background, CleanerOptions, Job};
use tollgate_workqueue::{Queue, Work};

/// The cleaner looks again when buffers are still in the cache, or requests compute; not more often.
const AGAIN: Duration = Duration::from_millis(100);

/// The cleaner's next job, and the item that runs it.
pub(super) struct Cleaning {
    job: Mutex<Option<Job>>,
    work: OnceLock<Work>,
}

/// What the pool has of it: nothing that would keep the queue.
struct OnQueue(Weak<Cleaning>);

impl Cleaning {
    /// Clears the buffers of `pool` on `queue` while `computing` is 0.
    pub(super) fn start(queue: &Queue, pool: &Pool, computing: &Arc<AtomicU64>) -> Arc<Cleaning> {
        let cleaning = Arc::new(Cleaning { job: Mutex::new(None), work: OnceLock::new() });
        let weak = Arc::downgrade(&cleaning);
        let executor = Arc::new(OnQueue(Weak::clone(&weak)));
        let _ = cleaning.work.set(queue.item(move || {
            let job = weak.upgrade().and_then(|cleaning| cleaning.job.lock().take());
            if let Some(job) = job {
                job.run();
            }
        }));
        let computing = Arc::clone(computing);
        let idle = Box::new(move || computing.load(Ordering::Relaxed) == 0);
        pool.cleaner(CleanerOptions { idle, ..CleanerOptions::default() }).run_on(executor);
        cleaning
    }
}

impl Background for OnQueue {
    fn run_after(&self, delay: Duration, job: Job) {
        // A job that is dropped is offered again with the next buffer, or the pool ends.
        let Some(cleaning) = self.0.upgrade() else { return };
        let before = cleaning.job.lock().replace(job);
        drop(before);
        let queued = cleaning.work.get().map(|work| work.queue_delayed(delay.max(AGAIN)));
        if !matches!(queued, Some(Ok(_))) {
            let refused = cleaning.job.lock().take();
            drop(refused);
        }
    }
}
