//! Nobody who others wait for may block, and what was queued comes to an end.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tollgate_workqueue::{Queued, Runtime, SubmitError, blocking};

use crate::process::kept;
use crate::{LONG, until};

#[test]
fn a_drain_waits_for_the_second_run_too_and_admits_it() {
    kept("progress::a_drain_waits_for_the_second_run_too_and_admits_it", || {
        let runtime = Runtime::builder().build().unwrap();
        for ordered in [false, true] {
            let queue = runtime.queue("q");
            let queue = if ordered { queue.ordered() } else { queue }.build().unwrap();
            for _ in 0..20 {
                let (open, closed) = mpsc::channel::<()>();
                let runs = Arc::new(AtomicU32::new(0));
                let counter = Arc::clone(&runs);
                let item = queue.item(move || {
                    let _ = blocking(|| closed.recv());
                    counter.fetch_add(1, Ordering::SeqCst);
                });
                assert_eq!(item.queue(), Ok(Queued::Now));
                until("the first run", || item.is_running());
                assert_eq!(item.queue(), Ok(Queued::Now));
                let opener = thread::spawn(move || {
                    thread::sleep(Duration::from_millis(5));
                    drop(open);
                });
                queue.drain().unwrap();
                assert_eq!(runs.load(Ordering::SeqCst), 2);
                opener.join().unwrap();
                queue.reopen();
            }
        }
    });
}

#[test]
fn a_drain_does_not_wait_for_delayed_items_and_leaves_them_usable() {
    kept("progress::a_drain_does_not_wait_for_delayed_items_and_leaves_them_usable", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&runs);
        let item = queue.item(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        item.queue_delayed(Duration::from_millis(50)).unwrap();
        queue.drain().unwrap();
        assert!(matches!(item.queue_delayed(LONG), Err(SubmitError::Drained(_))));
        // Its time comes while the queue is closed.
        until("the end of the delay", || !item.is_pending());
        assert_eq!(runs.load(Ordering::SeqCst), 0);
        queue.reopen();
        assert_eq!(item.queue(), Ok(Queued::Now));
        queue.flush().unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn monitors_look_while_queues_come_and_go() {
    kept("progress::monitors_look_while_queues_come_and_go", || {
        let runtime = Runtime::builder().build().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        let _ = (runtime.monitor(), runtime.dump().to_string());
                    }
                });
            }
            for round in 0..1500 {
                let queue = runtime.queue("q");
                let queue = match round % 4 {
                    0 => queue,
                    1 => queue.ordered(),
                    2 => queue.rescuer(),
                    _ => queue.max_active(2),
                };
                let queue = queue.build().unwrap();
                // Some of them are dropped with items queued, which still run.
                (0..8).for_each(|_| queue.post(|| ()).unwrap());
                if round % 3 == 0 {
                    queue.flush().unwrap();
                }
            }
            stop.store(true, Ordering::SeqCst);
        });
    });
}

#[test]
fn threads_that_cannot_be_started_are_an_error_or_a_delay() {
    kept("progress::threads_that_cannot_be_started_are_an_error_or_a_delay", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        queue.spawn(|| ()).unwrap().wait().unwrap();
        drop(queue);
        forbid_new_threads();
        for _ in 0..3 {
            // The pool has a worker; a rescuer cannot be had.
            assert!(runtime.queue("rescued").rescuer().build().is_err());
            let (_, _) = (runtime.monitor(), runtime.dump());
            let queue = runtime.queue("q").build().unwrap();
            queue.spawn(|| ()).unwrap().wait().unwrap();
            let (_, _) = (runtime.monitor(), runtime.monitor());
        }
    });
}

/// From now on this thread cannot start others. The limit does not bind root, so it becomes
/// somebody else where it is root.
fn forbid_new_threads() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nproc).maximum;
    setrlimit(Resource::Nproc, Rlimit { current: Some(0), maximum }).unwrap();
    if rustix::process::geteuid().is_root() {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    }
    assert!(thread::Builder::new().spawn(|| ()).is_err(), "the limit does not bind");
}
