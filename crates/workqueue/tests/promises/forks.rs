//! Forked closures belong to the item that forked them, whoever runs them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use tollgate_workqueue::{Queue, Runtime, SubmitError, WaitError, Work, blocking};

use crate::process::kept;
use crate::{LONG, kinds};

/// Runs `body` as a forked closure of this thread that was stolen for sure.
fn stolen<R: Send>(queue: &Queue, body: impl FnOnce() -> R + Send) -> R {
    let (begun, begins) = mpsc::channel();
    let forker = thread::current().id();
    let other = move || {
        begun.send(()).unwrap();
        assert_ne!(thread::current().id(), forker);
        body()
    };
    queue.join(|| blocking(|| begins.recv_timeout(LONG).unwrap()), other).1
}

/// As [`stolen`], by a closure of a scope.
fn stolen_from_a_scope<R: Send>(queue: &Queue, body: impl FnOnce() -> R + Send) -> R {
    let (begun, begins) = mpsc::channel();
    let mut result = None;
    queue.scope(|scope| {
        scope.spawn(|| {
            begun.send(()).unwrap();
            result = Some(body());
        });
        blocking(|| begins.recv_timeout(LONG).unwrap());
    });
    result.unwrap()
}

#[test]
fn waiting_for_the_forking_item_is_refused_wherever_the_closure_runs() {
    kept("forks::waiting_for_the_forking_item_is_refused_wherever_the_closure_runs", || {
        let runtime = Runtime::builder().build().unwrap();
        let helpers = runtime.queue("helpers").build().unwrap();
        for queue in kinds(&runtime) {
            let (other, own) = (helpers.clone(), queue.clone());
            let outer = queue.spawn(move || {
                let refused = |result| matches!(result, Err(WaitError::InsideQueue { .. }));
                assert!(stolen(&other, || refused(own.flush())));
                assert!(stolen(&other, || refused(own.drain())));
                assert!(stolen_from_a_scope(&other, || refused(own.flush())));
                // However far away.
                assert!(stolen(&other, || stolen_from_a_scope(&other, || {
                    stolen(&other, || refused(own.flush()))
                })));
                // What it did not fork may be waited for.
                stolen(&other, || own.clone()).name()
            });
            assert_eq!(outer.unwrap().wait().unwrap(), queue.name());
            queue.flush().unwrap();
        }
    });
}

#[test]
fn an_item_is_not_cancelled_by_what_it_forked() {
    kept("forks::an_item_is_not_cancelled_by_what_it_forked", || {
        let runtime = Runtime::builder().build().unwrap();
        let helpers = runtime.queue("helpers").build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let itself: Arc<OnceLock<Work>> = Arc::default();
        let (me, tries) = (Arc::clone(&itself), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&tries);
        let item = queue.item(move || {
            let me = me.get().unwrap();
            let inside = |result| matches!(result, Err(WaitError::InsideItem { .. }));
            assert!(stolen(&helpers, || inside(me.cancel_sync())));
            assert!(stolen_from_a_scope(&helpers, || inside(me.flush())));
            assert!(stolen(&helpers, || inside(me.disable_sync())));
            count.fetch_add(1, Ordering::SeqCst);
        });
        itself.set(item.clone()).ok().unwrap();
        for round in 1..=20 {
            item.queue().unwrap();
            item.flush().unwrap();
            assert_eq!((tries.load(Ordering::SeqCst), item.panics()), (round, (0, None)));
        }
    });
}

#[test]
fn a_runtime_ends_from_a_closure_that_another_one_runs() {
    kept("forks::a_runtime_ends_from_a_closure_that_another_one_runs", || {
        for round in 0..10 {
            let helpers = Runtime::builder().build().unwrap();
            let others = helpers.queue("helpers").build().unwrap();
            let runtime = Arc::new(Runtime::builder().build().unwrap());
            let queue = runtime.queue("q").build().unwrap();
            let (ending, dropped) = (Arc::clone(&runtime), round % 2 == 0);
            let outer = queue.spawn(move || {
                stolen(&others, move || if dropped { drop(ending) } else { ending.shutdown() });
            });
            if dropped {
                drop(runtime);
            }
            outer.unwrap().wait().unwrap();
            assert!(dropped || matches!(queue.post(|| ()), Err(SubmitError::ShutDown(_))));
        }
    });
}

/// A helper is an item of the queue, but what it runs for a thread is not.
#[test]
fn what_a_thread_forked_may_not_queue_while_the_queue_is_drained() {
    kept("forks::what_a_thread_forked_may_not_queue_while_the_queue_is_drained", || {
        let runtime = Runtime::builder().build().unwrap();
        let (queue, other) =
            (runtime.queue("q").build().unwrap(), runtime.queue("other").build().unwrap());
        for by_item in [false, true] {
            let (own, ends) = (queue.clone(), mpsc::channel());
            let refused = move || {
                stolen(&own, || {
                    ends.0.send(()).unwrap();
                    let closed = || matches!(own.post(|| ()), Err(SubmitError::Drained(_)));
                    let outside = || thread::scope(|scope| scope.spawn(closed).join().unwrap());
                    blocking(|| crate::until("the drain", outside));
                    closed()
                })
            };
            thread::scope(|scope| {
                let forker = scope.spawn(|| match by_item {
                    true => other.spawn(refused).unwrap().wait().unwrap(),
                    false => refused(),
                });
                ends.1.recv_timeout(LONG).unwrap();
                queue.drain().unwrap();
                assert!(forker.join().unwrap(), "by an item of another queue: {by_item}");
            });
            queue.reopen();
        }
    });
}

#[test]
fn what_an_item_forked_may_queue_while_its_queue_is_drained() {
    kept("forks::what_an_item_forked_may_queue_while_its_queue_is_drained", || {
        let runtime = Runtime::builder().build().unwrap();
        let helpers = runtime.queue("helpers").build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let ran = Arc::new(AtomicU32::new(0));
        let (begun, begins) = mpsc::channel();
        let (own, count) = (queue.clone(), Arc::clone(&ran));
        let body = move || {
            begun.send(()).unwrap();
            let closed = || matches!(own.post(|| ()), Err(SubmitError::Drained(_)));
            let outside = || thread::scope(|scope| scope.spawn(closed).join().unwrap());
            blocking(|| crate::until("the drain", outside));
            let more = move || {
                count.fetch_add(1, Ordering::SeqCst);
            };
            stolen(&helpers, || own.post(more)).unwrap();
        };
        queue.post(body).unwrap();
        begins.recv_timeout(LONG).unwrap();
        queue.drain().unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_hook_for_panics_may_cancel_the_item_that_panicked() {
    kept("forks::a_hook_for_panics_may_cancel_the_item_that_panicked", || {
        let item: Arc<OnceLock<Work>> = Arc::default();
        let (bad, (tell, told)) = (Arc::clone(&item), mpsc::channel());
        let hook = move |_: &str, _: &tollgate_workqueue::Panic| {
            let bad = bad.get().unwrap();
            let cancelled = (bad.flush(), bad.cancel_sync(), bad.disable(), bad.panics());
            tell.send(cancelled).unwrap();
        };
        let runtime = Runtime::builder().on_panic(hook).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        item.set(queue.item(|| panic!("on purpose"))).ok().unwrap();
        item.get().unwrap().queue().unwrap();
        let (flushed, cancelled, disabled, panics) = told.recv_timeout(LONG).unwrap();
        assert!(matches!(flushed, Err(WaitError::InsideItem { .. })));
        assert!(matches!(cancelled, Err(WaitError::InsideItem { .. })));
        assert_eq!(disabled, Ok(false));
        assert_eq!(panics, (1, Some(String::from("on purpose"))));
        assert_eq!(item.get().unwrap().queue(), Err(SubmitError::Disabled));
    });
}

/// A scope whose thread has no place for forked work any more.
#[test]
fn a_scope_of_a_thread_that_ends_waits_for_what_others_spawn_there() {
    struct AtTheEnd(Queue);
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let (queue, done) = (&self.0, AtomicBool::new(false));
            queue.scope(|scope| {
                let (begun, begins) = mpsc::channel();
                let done = &done;
                let slow = move || {
                    begun.send(()).unwrap();
                    thread::sleep(Duration::from_millis(200));
                    done.store(true, Ordering::SeqCst);
                };
                // Another thread, which does have a place, spawns what somebody else then runs.
                let spawner = move || {
                    queue.scope(|_| {
                        scope.spawn(slow);
                        blocking(|| begins.recv_timeout(LONG).unwrap());
                    });
                };
                thread::scope(|threads| threads.spawn(spawner).join().unwrap());
            });
            assert!(done.load(Ordering::SeqCst), "it borrowed from a scope that is over");
        }
    }
    thread_local!(static LATE: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) });

    kept("forks::a_scope_of_a_thread_that_ends_waits_for_what_others_spawn_there", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let ending = thread::spawn(move || {
            LATE.set(Some(AtTheEnd(queue.clone())));
            // What this thread keeps for its forks ends first.
            assert_eq!(queue.join(|| 1, || 2), (1, 2));
        });
        ending.join().unwrap();
    });
}
