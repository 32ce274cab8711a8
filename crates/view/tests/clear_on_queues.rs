//! A large buffer is cleared in parallel by the work queues that the view has.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate_hugepage::{ClearPlan, Executor, Heat, clear_parallel};
use tollgate_workqueue::{Queue, Runtime, Scope};

/// Threads of a queue.
struct OnQueue<'q> {
    queue: &'q Queue,
    width: NonZeroUsize,
    joined: AtomicUsize,
}

impl Executor for OnQueue<'_> {
    fn width(&self) -> NonZeroUsize {
        self.width
    }

    fn join(&self, workers: NonZeroUsize, work: &(dyn Fn() + Sync)) {
        self.queue.scope(|scope| {
            for _ in 1..workers.get() {
                scope.spawn(|| {
                    self.joined.fetch_add(1, Ordering::Relaxed);
                    work();
                });
            }
            work();
        });
    }
}

#[test]
fn a_large_buffer_is_cleared_by_the_workers_of_a_queue() {
    let runtime = Runtime::builder().build().unwrap();
    let queue = runtime.queue("clear").scope(Scope::Cache).build().unwrap();
    let width = NonZeroUsize::new(4).unwrap();
    let executor = OnQueue { queue: &queue, width, joined: AtomicUsize::new(0) };
    let mut buffer = vec![7_u8; 24 << 20];
    clear_parallel(&ClearPlan::detected(), &mut buffer, Heat::Cold, &executor);
    assert!(buffer.iter().all(|byte| *byte == 0));
    assert_eq!(executor.joined.into_inner(), 3, "each closure was run by somebody");
}
