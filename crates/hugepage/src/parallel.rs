//! Clearing a large region on several threads, which the caller supplies.

use std::num::NonZeroUsize;
use std::slice::ChunksMut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::machine::HUGE_2M;
use crate::plan::{ClearPlan, Heat, Situation};
use crate::sync::Mutex;

/// Runs one piece of work on several threads and waits for all of them.
pub trait Executor {
    /// How many threads it would use.
    fn width(&self) -> NonZeroUsize;

    /// Calls `work` from up to `workers` threads at once and returns when every call has returned.
    /// Fewer calls, even none, are slower but not wrong: the caller of `join` does what is left.
    fn join(&self, workers: NonZeroUsize, work: &(dyn Fn() + Sync));
}

/// Starts threads for each call, of which the calling one is the first.
#[derive(Clone, Copy, Debug)]
pub struct ScopedThreads(pub NonZeroUsize);

impl Executor for ScopedThreads {
    fn width(&self) -> NonZeroUsize {
        self.0
    }

    fn join(&self, workers: NonZeroUsize, work: &(dyn Fn() + Sync)) {
        thread::scope(|scope| {
            for _ in 1..workers.get() {
                // Without a thread this one does it.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
    }
}

/// Bytes that a thread claims at a time: a huge page, so that two threads never share one.
const PIECE_BYTES: usize = HUGE_2M;

/// Clears `buffer` on the threads of `executor`. All of it is zero when this returns, whatever the
/// executor did.
pub fn clear_parallel(plan: &ClearPlan, buffer: &mut [u8], heat: Heat, executor: &dyn Executor) {
    let len = buffer.len();
    let pieces = NonZeroUsize::new(len.div_ceil(PIECE_BYTES)).unwrap_or(NonZeroUsize::MIN);
    let workers = executor.width().min(pieces);
    let situation = Situation { heat, ..Situation::cold(len) }.threads(workers);
    let clearer = plan.clearer(situation);
    let done = AtomicUsize::new(0);
    let queue = Mutex::new(buffer.chunks_mut(PIECE_BYTES));
    let work = || {
        while let Some(piece) = next(&queue) {
            clearer.clear(piece);
            done.fetch_add(piece.len(), Ordering::Relaxed);
        }
    };
    if workers.get() > 1 {
        executor.join(workers, &work);
    }
    work();
    // A worker may have panicked inside an executor that catches panics, with a piece claimed.
    if done.load(Ordering::Relaxed) != len {
        clearer.clear(buffer);
    }
}

fn next<'a>(queue: &Mutex<ChunksMut<'a, u8>>) -> Option<&'a mut [u8]> {
    queue.lock().next()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LEN: usize = if cfg!(miri) { 5000 } else { 9 * PIECE_BYTES + 77 };

    fn check(executor: &dyn Executor) {
        let mut buffer = vec![3; LEN];
        clear_parallel(&ClearPlan::detected(), &mut buffer, Heat::Cold, executor);
        assert!(buffer.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn any_number_of_threads_clears_all() {
        for threads in 1..6 {
            check(&ScopedThreads(NonZeroUsize::new(threads).unwrap()));
        }
    }

    #[test]
    fn an_executor_that_does_nothing_or_panics_leaves_no_byte() {
        struct Lazy;
        impl Executor for Lazy {
            fn width(&self) -> NonZeroUsize {
                NonZeroUsize::new(4).unwrap()
            }
            fn join(&self, _: NonZeroUsize, _: &(dyn Fn() + Sync)) {}
        }
        struct Catching;
        impl Executor for Catching {
            fn width(&self) -> NonZeroUsize {
                NonZeroUsize::new(2).unwrap()
            }
            fn join(&self, _: NonZeroUsize, work: &(dyn Fn() + Sync)) {
                let work = std::panic::AssertUnwindSafe(work);
                let result = std::panic::catch_unwind(move || {
                    work();
                    std::panic::panic_any("after the work");
                });
                assert!(result.is_err());
            }
        }
        check(&Lazy);
        check(&Catching);
    }
}
