//! Who drops what, when: handles, items, queues and runtimes in any order, aborts against runs.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use tollgate_workqueue::{JoinError, Queue, Queued, Runtime, SubmitError, WhenFull};

use crate::process::kept;
use crate::{Hold, LONG, hold, kinds, until};

/// Counts how often it is dropped.
struct Dropped(Arc<AtomicU32>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn aborts_race_with_runs_and_each_closure_is_dropped_once() {
    kept("drops::aborts_race_with_runs_and_each_closure_is_dropped_once", || {
        let runtime = Runtime::builder().build().unwrap();
        for queue in kinds(&runtime) {
            let (runs, drops) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            let mut aborted = 0;
            for round in 0..200_u32 {
                let handles: Vec<_> = (0..20)
                    .map(|_| {
                        let (runs, owned) = (Arc::clone(&runs), Dropped(Arc::clone(&drops)));
                        let body = move || {
                            let _owned = owned;
                            runs.fetch_add(1, Ordering::SeqCst);
                        };
                        queue.spawn(body).unwrap()
                    })
                    .collect();
                if round % 2 == 0 {
                    thread::yield_now();
                }
                for handle in handles {
                    let stopped = handle.abort();
                    aborted += u32::from(stopped);
                    let cancelled = matches!(handle.wait(), Err(JoinError::Cancelled));
                    assert_eq!(cancelled, stopped);
                }
                if round % 7 == 0 {
                    queue.flush().unwrap();
                }
            }
            queue.drain().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst) + aborted, 4000);
            assert_eq!(drops.load(Ordering::SeqCst), 4000);
            assert_eq!(queue.in_flight(), 0);
        }
    });
}

#[test]
fn whatever_is_dropped_first_the_rest_says_so() {
    kept("drops::whatever_is_dropped_first_the_rest_says_so", || {
        for first in 0..24 {
            let runtime = Runtime::builder().build().unwrap();
            let queue = runtime.queue("q").build().unwrap();
            let drops = Arc::new(AtomicU32::new(0));
            let (owned, delayed) = (Dropped(Arc::clone(&drops)), Dropped(Arc::clone(&drops)));
            let item = queue.item(move || {
                let _owned = &delayed;
            });
            item.queue_delayed(LONG).unwrap();
            let handle = queue.spawn(move || owned).unwrap();
            let mut parts: Vec<Box<dyn FnOnce()>> = vec![
                Box::new(move || drop(runtime)),
                Box::new(move || drop(queue)),
                Box::new(move || drop(item)),
                Box::new(move || drop(handle)),
            ];
            // Each of the 24 orders.
            let mut left = first;
            for count in [4, 3, 2, 1] {
                parts.remove(left % count)();
                left /= count;
            }
            until("everything to be dropped", || drops.load(Ordering::SeqCst) == 2);
        }
    });
}

#[test]
fn what_outlives_the_runtime_is_refused_and_keeps_its_results() {
    kept("drops::what_outlives_the_runtime_is_refused_and_keeps_its_results", || {
        let runtime = Runtime::builder().build().unwrap();
        let queues = kinds(&runtime);
        let handles: Vec<_> = queues.iter().map(|queue| queue.spawn(|| 7).unwrap()).collect();
        let items: Vec<_> = queues.iter().map(|queue| queue.item(|| ())).collect();
        for item in &items {
            item.queue_delayed(LONG).unwrap();
        }
        drop(runtime);
        for handle in handles {
            assert_eq!(handle.wait().unwrap(), 7);
        }
        for (queue, item) in queues.iter().zip(items) {
            assert!(matches!(queue.spawn(|| ()), Err(SubmitError::ShutDown(_))));
            assert!(!item.is_pending(), "its time never comes");
            assert!(matches!(item.queue(), Err(SubmitError::ShutDown(_))));
            assert!(matches!(item.queue_delayed(LONG), Err(SubmitError::ShutDown(_))));
            assert_eq!(item.flush(), Ok(false));
            assert_eq!(item.cancel_sync(), Ok(false));
            assert_eq!(queue.join(|| 1, || 2), (1, 2));
            queue.flush().unwrap();
            queue.drain().unwrap();
            assert!(queue.set("max_active=3").is_ok() || queue.name() == "ordered");
        }
    });
}

#[test]
fn an_item_may_own_the_last_handle_of_its_queue_or_runtime() {
    kept("drops::an_item_may_own_the_last_handle_of_its_queue_or_runtime", || {
        for round in 0..60 {
            let runtime = Runtime::builder().build().unwrap();
            let (tell, told) = mpsc::channel::<()>();
            let queue = kinds(&runtime).swap_remove(round % 4);
            let (inner, aborts) = (queue.clone(), round % 3 == 2);
            let handle = match round % 3 {
                0 => queue.spawn(move || drop((inner, tell))).unwrap(),
                1 => queue.spawn(move || drop((inner, runtime, tell))).unwrap(),
                _ => {
                    let open = hold(&queue, Hold::Undeclared);
                    let last = queue.spawn(move || drop((inner, runtime, tell))).unwrap();
                    thread::spawn(move || {
                        thread::sleep(Duration::from_millis(2));
                        drop(open);
                    });
                    last
                }
            };
            drop(queue);
            if aborts {
                handle.abort();
            }
            let result = handle.wait();
            assert!(result.is_ok() || matches!(result, Err(JoinError::Cancelled)));
            assert!(told.recv().is_err(), "the closure is dropped");
        }
    });
}

/// A value whose destructor panics.
struct Grumpy;

impl Drop for Grumpy {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("a destructor, on purpose");
        }
    }
}

struct GrumpyWaker;

impl Wake for GrumpyWaker {
    fn wake(self: Arc<Self>) {
        panic!("a waker, on purpose");
    }
}

#[test]
fn destructors_and_wakers_that_panic_stop_nobody() {
    kept("drops::destructors_and_wakers_that_panic_stop_nobody", || {
        let runtime = Runtime::builder().max_workers(1).build().unwrap();
        for queue in kinds(&runtime) {
            let open = hold(&queue, Hold::Declared);
            let grumpy = Grumpy;
            queue.post(move || drop(std::hint::black_box(grumpy))).unwrap();
            drop(queue.spawn(|| Grumpy).unwrap());
            drop(queue.spawn(|| panic_any(Grumpy)).unwrap());
            queue.post(|| panic_any(Grumpy)).unwrap();
            let item = queue.item(|| panic_any(Grumpy));
            assert_eq!(item.queue(), Ok(Queued::Now));
            let mut awaited = pin!(queue.spawn(|| 5).unwrap());
            let waker = Waker::from(Arc::new(GrumpyWaker));
            assert!(awaited.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let grumpy = Grumpy;
            let aborted = queue.spawn(move || drop(std::hint::black_box(grumpy))).unwrap();
            assert!(aborted.abort());
            assert!(aborted.wait().is_err());
            drop(open);
            queue.flush().unwrap();
            assert_eq!(queue.spawn(|| 6).unwrap().wait().unwrap(), 6);
            assert_eq!(item.panics().0, 1);
            queue.drain().unwrap();
            assert_eq!(queue.in_flight(), 0);
        }
    });
}

#[test]
fn workers_that_end_at_once_lose_nothing() {
    kept("drops::workers_that_end_at_once_lose_nothing", || {
        let runtime = Runtime::builder()
            .retire_after(Duration::from_micros(50))
            .spin(Duration::ZERO)
            .max_workers(8)
            .build()
            .unwrap();
        for queue in kinds(&runtime) {
            let runs = Arc::new(AtomicU32::new(0));
            for round in 0..300 {
                for _ in 0..1 + round % 5 {
                    let runs = Arc::clone(&runs);
                    let body = move || {
                        tollgate_workqueue::blocking(|| thread::sleep(Duration::from_micros(20)));
                        runs.fetch_add(1, Ordering::SeqCst);
                    };
                    queue.post(body).unwrap();
                }
                thread::sleep(Duration::from_micros(70 * (round % 4)));
            }
            queue.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), 900);
        }
    });
}

/// Posts a closure that panics when it is dropped without having been run. It fits into a job
/// where it is not `large`.
fn post_grumpy(queue: &Queue, large: bool) -> Result<(), SubmitError> {
    let (grumpy, ballast) = (Grumpy, [0_u64; 16]);
    if large {
        queue.post(move || drop(std::hint::black_box((grumpy, ballast))))
    } else {
        queue.post(move || drop(std::hint::black_box(grumpy)))
    }
}

/// Posts what is refused, and whose destructor panics: that is the caller's, and nobody else's.
fn refused(queue: &Queue) {
    let before = queue.in_flight();
    for large in [false, true] {
        let outcome = catch_unwind(AssertUnwindSafe(|| post_grumpy(queue, large)));
        assert!(outcome.is_err(), "the destructor's panic comes out where it was posted");
        assert_eq!(queue.in_flight(), before, "what was refused is not in flight");
    }
}

#[test]
fn what_is_refused_may_panic_when_it_is_dropped() {
    kept("drops::what_is_refused_may_panic_when_it_is_dropped", || {
        let runtime = Runtime::builder().build().unwrap();
        let queues = kinds(&runtime);
        for queue in &queues {
            queue.drain().unwrap();
            refused(queue);
            queue.drain().unwrap();
            queue.flush().unwrap();
        }
        drop(runtime);
        for queue in &queues {
            refused(queue);
            queue.flush().unwrap();
        }
    });
}

#[test]
fn what_finds_no_room_may_panic_when_it_is_dropped() {
    kept("drops::what_finds_no_room_may_panic_when_it_is_dropped", || {
        let runtime = Runtime::builder().shard_capacity(4).max_workers(1).build().unwrap();
        let full = |name| runtime.queue(name).when_full(WhenFull::Refuse);
        let queues = [
            full("plain").build().unwrap(),
            full("ordered").ordered().backlog(4).build().unwrap(),
            full("limited").max_active(1).backlog(4).build().unwrap(),
        ];
        for queue in &queues {
            let open = hold(queue, Hold::Declared);
            for cpu in &runtime.topology().allowed().clone() {
                while queue.post_on(cpu, || ()).is_ok() {}
            }
            refused(queue);
            drop(open);
            queue.flush().unwrap();
            assert_eq!(queue.in_flight(), 0);
        }
    });
}

#[test]
fn what_is_refused_may_wait_for_the_queue_when_it_is_dropped() {
    struct Flushes(Queue);
    impl Drop for Flushes {
        fn drop(&mut self) {
            self.0.flush().unwrap();
        }
    }

    kept("drops::what_is_refused_may_wait_for_the_queue_when_it_is_dropped", || {
        let runtime = Runtime::builder().build().unwrap();
        for queue in kinds(&runtime) {
            queue.drain().unwrap();
            let flushes = Flushes(queue.clone());
            let posted = queue.post(move || drop(std::hint::black_box(flushes)));
            assert!(matches!(posted, Err(SubmitError::Drained(_))));
        }
    });
}

/// A panic's payload whose destructor panics with another one, for ever.
struct Endless;

impl Drop for Endless {
    fn drop(&mut self) {
        panic_any(Self);
    }
}

#[test]
fn a_hook_may_panic_with_what_panics_when_it_is_dropped() {
    kept("drops::a_hook_may_panic_with_what_panics_when_it_is_dropped", || {
        let runtime = Runtime::builder()
            .max_workers(1)
            .on_panic(|_, _| panic_any(Endless))
            .on_thread_start(|| panic_any(Endless))
            .on_thread_stop(|| panic_any(Endless))
            .build()
            .unwrap();
        for queue in kinds(&runtime) {
            queue.post(|| panic!("on purpose")).unwrap();
            queue.post(|| panic_any(Endless)).unwrap();
            let item = queue.item(|| panic_any(Endless));
            item.queue().unwrap();
            queue.flush().unwrap();
            assert_eq!(item.panics().0, 1);
            let scope = || {
                queue.scope(|scope| {
                    for _ in 0..3 {
                        scope.spawn(|| panic_any(Endless));
                    }
                });
            };
            Box::leak(catch_unwind(AssertUnwindSafe(scope)).unwrap_err());
            queue.drain().unwrap();
            assert_eq!(queue.in_flight(), 0);
        }
    });
}

/// What it panicked with is the item's once, whoever drops it.
#[test]
fn a_payload_that_panics_when_it_is_dropped_is_one_panic() {
    kept("drops::a_payload_that_panics_when_it_is_dropped_is_one_panic", || {
        let told = Arc::new(AtomicU32::new(0));
        let tell = Arc::clone(&told);
        let runtime =
            Runtime::builder().on_panic(move |_, _| _ = tell.fetch_add(1, Ordering::SeqCst));
        let runtime = runtime.build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let panics = || {
            queue.flush().unwrap();
            (runtime.monitor().queues[0].panics, told.load(Ordering::SeqCst))
        };
        drop(queue.spawn(|| panic_any(Endless)).unwrap());
        assert_eq!(panics(), (1, 0), "a handle that was dropped");
        drop(queue.spawn(|| panic_any(Endless)).unwrap().wait());
        assert_eq!(panics(), (2, 0), "a result that was dropped");
        queue.post(|| panic_any(Endless)).unwrap();
        assert_eq!(panics(), (3, 1), "nobody else learns of it");
        let Err(JoinError::Panicked(panic)) = queue.spawn(|| panic_any(Endless)).unwrap().wait()
        else {
            unreachable!("it panicked")
        };
        assert!(Box::leak(panic.into_payload()).is::<Endless>());
    });
}

#[test]
fn a_delayed_item_may_panic_when_a_runtime_that_ends_forgets_it() {
    kept("drops::a_delayed_item_may_panic_when_a_runtime_that_ends_forgets_it", || {
        for end in 0..3 {
            let (tell, told) = mpsc::channel();
            let runtime = Runtime::builder()
                .on_panic(move |queue, panic| {
                    let message = panic.message().unwrap_or("not text").to_owned();
                    tell.send((queue.to_owned(), message)).unwrap();
                })
                .build()
                .unwrap();
            let queues = kinds(&runtime);
            for queue in &queues {
                let grumpy = Grumpy;
                let item = queue.item(move || _ = std::hint::black_box(&grumpy));
                item.queue_delayed(LONG * 9).unwrap();
            }
            match end {
                0 => runtime.shutdown(),
                1 => assert!(runtime.shutdown_timeout(LONG)),
                _ => {}
            }
            if end < 2 {
                runtime.shutdown();
                assert!(runtime.monitor().queues.iter().all(|queue| queue.panics == 1));
            }
            drop(runtime);
            let mut told: Vec<_> = told.try_iter().collect();
            told.sort();
            let names = ["limited", "ordered", "plain", "rescued"];
            let expected = names.map(|name| (name.into(), "a destructor, on purpose".into()));
            assert_eq!(told, expected);
            for queue in &queues {
                queue.flush().unwrap();
            }
        }
    });
}

#[test]
fn what_a_forgotten_item_owns_may_wait_when_it_is_dropped() {
    struct Waits(Queue, mpsc::Sender<bool>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.1.send(self.0.drain().is_err()).unwrap();
        }
    }

    kept("drops::what_a_forgotten_item_owns_may_wait_when_it_is_dropped", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let (tell, told) = mpsc::channel();
        let waits = Waits(queue.clone(), tell);
        let item = queue.item(move || _ = std::hint::black_box(&waits));
        item.queue_delayed(LONG * 9).unwrap();
        drop(item);
        runtime.shutdown();
        assert!(told.recv().unwrap(), "it would wait for itself");
    });
}

/// The first panic comes out, whatever is dropped meanwhile panics.
#[test]
fn a_fork_brings_out_the_panic_of_its_closure_beside_destructors_that_panic() {
    kept("drops::a_fork_brings_out_the_panic_of_its_closure_beside_destructors_that_panic", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let soon = || thread::sleep(Duration::from_millis(20));
        let said = |fork: &dyn Fn()| {
            let panic = catch_unwind(AssertUnwindSafe(fork)).unwrap_err();
            match panic.downcast_ref::<&str>() {
                Some(text) => *text,
                None => {
                    assert!(catch_unwind(AssertUnwindSafe(|| drop(panic))).is_err());
                    "a payload"
                }
            }
        };
        for _ in 0..5 {
            let scope = said(&|| {
                queue.scope(|scope| {
                    scope.spawn(|| panic_any(Grumpy));
                    soon();
                    panic!("body")
                });
            });
            assert_eq!(scope, "body");
            let scope = said(&|| {
                drop(queue.scope(|scope| {
                    scope.spawn(|| panic!("closure"));
                    Grumpy
                }));
            });
            assert_eq!(scope, "closure");
            let late = || {
                soon();
                panic!("a")
            };
            let join = said(&|| drop(queue.join(late, || Grumpy)));
            assert_eq!(join, "a");
            let join = said(&|| _ = queue.join(late, || panic_any(Grumpy)));
            assert_eq!(join, "a");
            let join = said(&|| drop(queue.join(|| Grumpy, || panic!("b"))));
            assert_eq!(join, "b");
            let each = said(&|| {
                queue.for_each(&[1, 2, 3, 4], 1, |_| {
                    soon();
                    panic_any(Grumpy)
                });
            });
            assert_eq!(each, "a payload");
        }
    });
}

#[test]
fn a_refused_change_of_a_delay_leaves_nothing_pending() {
    kept("drops::a_refused_change_of_a_delay_leaves_nothing_pending", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&runs);
        let item = queue.item(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        item.queue_delayed(Duration::from_millis(50)).unwrap();
        queue.drain().unwrap();
        assert!(matches!(item.modify_delay(LONG), Err(SubmitError::Drained(_))));
        assert!(!item.is_pending());
        queue.reopen();
        thread::sleep(Duration::from_millis(150));
        assert_eq!((runs.load(Ordering::SeqCst), runtime.monitor().delayed), (0, 0));
        item.queue_delayed(Duration::ZERO).unwrap();
        // It may have run already.
        item.flush().unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    });
}
