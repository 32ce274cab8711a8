//! Runtimes that end: inside each other, inside their own items, and under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use tollgate_workqueue::Runtime;

use crate::process::kept;

#[test]
fn a_runtime_ends_from_inside_its_own_item() {
    kept("shutdown::a_runtime_ends_from_inside_its_own_item", || {
        for _ in 0..20 {
            let runtime = Runtime::builder().build().unwrap();
            let queue = runtime.queue("q").build().unwrap();
            let handle = queue.spawn(move || runtime.shutdown()).unwrap();
            handle.wait().unwrap();
            assert!(queue.post(|| ()).is_err());
        }
    });
}

#[test]
fn a_shutdown_loses_nothing_that_was_accepted() {
    kept("shutdown::a_shutdown_loses_nothing_that_was_accepted", || {
        for round in 0..30 {
            let runtime = Runtime::builder().build().unwrap();
            let queue = runtime.queue("q");
            let queue = match round % 3 {
                0 => queue,
                1 => queue.ordered(),
                _ => queue.max_active(2),
            };
            let queue = queue.build().unwrap();
            let (accepted, runs) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        loop {
                            let runs = Arc::clone(&runs);
                            let body = move || {
                                runs.fetch_add(1, Ordering::SeqCst);
                            };
                            if queue.post(body).is_err() {
                                return;
                            }
                            accepted.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                }
                thread::sleep(std::time::Duration::from_millis(5));
                runtime.shutdown();
            });
            assert_eq!(runs.load(Ordering::SeqCst), accepted.load(Ordering::SeqCst));
        }
    });
}
