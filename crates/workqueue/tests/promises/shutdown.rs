//! Runtimes that end: inside each other, inside their own items, and under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};
use tollgate_workqueue::{Queue, Runtime, WhenFull};

use crate::process::kept;
use crate::{Hold, LONG, hold, kinds, until};

#[test]
fn a_runtime_lives_and_ends_inside_an_item_of_another() {
    kept("shutdown::a_runtime_lives_and_ends_inside_an_item_of_another", || {
        let outer = Runtime::builder().build().unwrap();
        let queue = outer.queue("outer").build().unwrap();
        for _ in 0..200 {
            let item = || {
                let inner = Runtime::builder().build().unwrap();
                let queue = inner.queue("inner").build().unwrap();
                let runs = Arc::new(AtomicU32::new(0));
                for _ in 0..100 {
                    let runs = Arc::clone(&runs);
                    let body = move || {
                        runs.fetch_add(1, Ordering::SeqCst);
                    };
                    queue.post(body).unwrap();
                }
                drop(inner);
                runs.load(Ordering::SeqCst)
            };
            assert_eq!(queue.spawn(item).unwrap().wait().unwrap(), 100);
        }
    });
}

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
fn a_runtime_ends_from_an_item_that_a_rescuer_runs() {
    kept("shutdown::a_runtime_ends_from_an_item_that_a_rescuer_runs", || {
        let runtime = Arc::new(Runtime::builder().max_workers(1).build().unwrap());
        let other = runtime.queue("other").build().unwrap();
        let rescued = runtime.queue("rescued").rescuer().build().unwrap();
        let open = hold(&other, Hold::Undeclared);
        let done = Arc::new(AtomicU32::new(0));
        let (ends, tell) = (Arc::clone(&runtime), Arc::clone(&done));
        let body = move || {
            assert_eq!(thread::current().name(), Some("workqueue-rescue"));
            thread::spawn(move || {
                thread::sleep(std::time::Duration::from_millis(50));
                drop(open);
            });
            ends.shutdown();
            tell.store(1, Ordering::SeqCst);
        };
        rescued.post(body).unwrap();
        until("the shutdown", || done.load(Ordering::SeqCst) == 1);
        assert!(rescued.post(|| ()).is_err());
    });
}

#[test]
fn a_runtime_ends_from_an_item_that_runs_inline() {
    kept("shutdown::a_runtime_ends_from_an_item_that_runs_inline", || {
        let runtime =
            Arc::new(Runtime::builder().shard_capacity(4).max_workers(1).build().unwrap());
        let inline = runtime.queue("inline").when_full(WhenFull::RunInline).build().unwrap();
        let filler = runtime.queue("filler").when_full(WhenFull::Refuse).build().unwrap();
        let mut open = Some(hold(&filler, Hold::Undeclared));
        for cpu in &runtime.topology().allowed().clone() {
            while filler.post_on(cpu, || ()).is_ok() {}
        }
        let (ends, here) = (Arc::clone(&runtime), thread::current().id());
        let open = open.take();
        let body = move || {
            assert_eq!(thread::current().id(), here);
            drop(open);
            ends.shutdown();
        };
        inline.post(body).unwrap();
        assert!(inline.post(|| ()).is_err());
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

/// No worker can be had: who ends the runtime runs what is queued.
#[test]
fn a_runtime_that_can_start_no_worker_ends_with_what_was_queued() {
    kept("shutdown::a_runtime_that_can_start_no_worker_ends_with_what_was_queued", || {
        const STACK: usize = 1 << 40;
        let most = Rlimit { current: Some(STACK as u64), maximum: Some(STACK as u64) };
        setrlimit(Resource::As, most).unwrap();
        for drops in [false, true] {
            let runtime = Runtime::builder().stack_size(STACK).build().unwrap();
            let mut queues = kinds(&runtime);
            queues.push(runtime.queue("strict").strict(true).build().unwrap());
            let runs = Arc::new(AtomicU32::new(0));
            let mut handles = Vec::new();
            for queue in &queues {
                for n in 0..20 {
                    let runs = Arc::clone(&runs);
                    let body = move || {
                        runs.fetch_add(1, Ordering::SeqCst);
                        assert!(n > 0, "one of them panics");
                    };
                    queue.post(body).unwrap();
                }
                handles.push(queue.spawn(|| 7).unwrap());
            }
            let failures: u64 = runtime.dump().pools.iter().map(|pool| pool.start_failures).sum();
            assert!(failures > 0, "no worker was refused");
            // Who waits for a queue meanwhile does not keep the end from coming.
            let flushes = queues[0].clone();
            let waits = thread::spawn(move || flushes.flush().unwrap());
            if drops {
                drop(runtime);
            } else {
                runtime.shutdown();
            }
            assert_eq!(runs.load(Ordering::SeqCst), 100);
            for handle in handles {
                assert_eq!(handle.wait().unwrap(), 7);
            }
            waits.join().unwrap();
        }
    });
}

/// Calls `end`, which closes a queue and waits until it is empty, while threads use the queue again
/// and again. They give up after a long time; `end` must not take that long.
fn ends_beside(again: impl Fn() + Sync, end: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && start.elapsed() < LONG {
                    again();
                }
            });
        }
        thread::sleep(Duration::from_millis(50));
        end();
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(start.elapsed() < LONG, "it waited for those that were refused");
}

fn fork_a_tree(queue: &Queue, depth: u32) -> u32 {
    if depth == 0 {
        return 1;
    }
    let branch = || fork_a_tree(queue, depth - 1);
    let (left, right) = queue.join(branch, branch);
    left + right
}

#[test]
fn a_drain_ends_beside_threads_that_go_on_forking() {
    kept("shutdown::a_drain_ends_beside_threads_that_go_on_forking", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        ends_beside(|| assert_eq!(fork_a_tree(&queue, 10), 1024), || queue.drain().unwrap());
    });
}

#[test]
fn a_drain_ends_beside_threads_that_go_on_posting() {
    kept("shutdown::a_drain_ends_beside_threads_that_go_on_posting", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        ends_beside(|| drop(queue.post(|| ())), || queue.drain().unwrap());
    });
}

#[test]
fn a_shutdown_ends_beside_threads_that_go_on_posting() {
    kept("shutdown::a_shutdown_ends_beside_threads_that_go_on_posting", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        ends_beside(|| drop(queue.post(|| ())), || runtime.shutdown());
    });
}

#[test]
fn a_shutdown_that_gives_up_ends_beside_threads_that_go_on_forking() {
    kept("shutdown::a_shutdown_that_gives_up_ends_beside_threads_that_go_on_forking", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let again = || assert_eq!(fork_a_tree(&queue, 10), 1024);
        ends_beside(again, || assert!(runtime.shutdown_timeout(LONG / 2)));
    });
}
