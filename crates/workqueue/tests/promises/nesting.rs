//! Anything inside itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate_workqueue::{Queue, Runtime};

use crate::process::kept;

#[test]
fn spawns_wait_for_spawns_a_hundred_deep() {
    fn down(queue: &Queue, left: u32) -> u32 {
        if left == 0 {
            return 0;
        }
        let below = queue.clone();
        1 + queue.spawn(move || down(&below, left - 1)).unwrap().wait().unwrap()
    }
    kept("nesting::spawns_wait_for_spawns_a_hundred_deep", || {
        let runtime = Runtime::builder().max_workers(32).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        assert_eq!(down(&queue, 100), 100);
        let few = Runtime::builder().max_workers(1).build().unwrap();
        let queue = few.queue("q").build().unwrap();
        assert_eq!(down(&queue, 100), 100);
    });
}

#[test]
fn posts_post_posts_through_a_full_shard() {
    fn tree(queue: &Queue, left: u32, runs: &Arc<AtomicU32>) {
        runs.fetch_add(1, Ordering::SeqCst);
        if left > 0 {
            for _ in 0..2 {
                let (below, runs) = (queue.clone(), Arc::clone(runs));
                // A refusal says that nothing was queued: then it is done here.
                let body = move || tree(&below, left - 1, &runs);
                if let Err(error) = queue.post(body.clone()) {
                    assert!(matches!(error, tollgate_workqueue::SubmitError::Full { .. }));
                    body();
                }
            }
        }
    }
    kept("nesting::posts_post_posts_through_a_full_shard", || {
        let runtime = Runtime::builder().shard_capacity(4).max_workers(2).build().unwrap();
        let plain = runtime.queue("plain").build().unwrap();
        let limited = runtime.queue("limited").max_active(1).backlog(4).build().unwrap();
        for queue in [plain, limited] {
            let runs = Arc::new(AtomicU32::new(0));
            let (root, count) = (queue.clone(), Arc::clone(&runs));
            queue.post(move || tree(&root, 10, &count)).unwrap();
            queue.flush().unwrap();
            queue.drain().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), (1 << 11) - 1);
        }
    });
}

#[test]
fn queues_wait_for_each_other_in_a_chain() {
    kept("nesting::queues_wait_for_each_other_in_a_chain", || {
        let runtime = Runtime::builder().build().unwrap();
        let queues: Vec<_> = (0..40)
            .map(|number| {
                let queue = runtime.queue(&format!("q{number}"));
                if number % 2 == 0 { queue.ordered() } else { queue }.build().unwrap()
            })
            .collect();
        let mut next: Option<Queue> = None;
        for queue in &queues {
            let below = next.replace(queue.clone());
            let body = move || below.map_or(Ok(()), |queue| queue.flush());
            assert_eq!(queue.spawn(body).unwrap().wait().unwrap(), Ok(()));
        }
    });
}
