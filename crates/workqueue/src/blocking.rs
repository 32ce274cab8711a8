//! Declared waits inside items.

use std::time::Instant;

use tollgate_wakequeue::sync::Ordering;

use crate::context::{self, WorkerContext};

/// Declares that this thread is about to wait for something other than the CPU. Inside an item, the
/// pool may wake or start another worker meanwhile, up to its maximum; elsewhere it just runs
/// `body`. Closures that this thread has forked, and that nobody has begun, are offered once more.
///
/// ```
/// # let path = "Cargo.toml";
/// let text = tollgate_workqueue::blocking(|| std::fs::read_to_string(path));
/// # drop(text);
/// ```
pub fn blocking<R>(body: impl FnOnce() -> R) -> R {
    context::before_wait();
    context::with_worker(|worker| {
        // A copy of the process has no other workers, and whoever held their locks is not there.
        let worker = worker.filter(|worker| !worker.is_copy());
        let _section = worker.map(Section::enter);
        body()
    })
}

/// Ends the blocking section when dropped, also by a panic.
struct Section<'w> {
    worker: &'w WorkerContext,
    since: Instant,
}

impl<'w> Section<'w> {
    fn enter(worker: &'w WorkerContext) -> Self {
        let depth = worker.blocking_depth.get();
        worker.blocking_depth.set(depth + 1);
        if depth == 0 {
            let pool = &worker.pool;
            pool.worker_slot(worker.id).blocking.store(true, Ordering::Relaxed);
            if pool.queue.discount(worker.id, worker.home, |claim| pool.grow(claim)) {
                context::current_queue(|queue| {
                    queue.stats.concurrency_wakes.fetch_add(1, Ordering::Relaxed);
                });
            }
        }
        Self { worker, since: Instant::now() }
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        let worker = self.worker;
        let depth = worker.blocking_depth.get() - 1;
        worker.blocking_depth.set(depth);
        if depth == 0 {
            let worker_slot = worker.pool.worker_slot(worker.id);
            worker_slot.blocking.store(false, Ordering::Relaxed);
            worker_slot.cpu_intensive.store(false, Ordering::Relaxed);
            worker.cpu_accounts.leave_out(self.since.elapsed());
            worker.pool.queue.recount(worker.id, worker.home);
        }
    }
}
