//! Handles: waited for, polled, aborted and dropped, by whoever and whenever.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tollgate_workqueue::{Handle, JoinError, Queue, Runtime, Work, blocking};

use crate::process::kept;
use crate::{Hold, LONG, hold, kinds, two_caches, until};

/// How often it was woken.
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counting() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count(AtomicU32::new(0)));
    (Arc::clone(&count), Waker::from(count))
}

fn poll<T: Send>(handle: &mut Handle<T>, waker: &Waker) -> Poll<Result<T, JoinError>> {
    Pin::new(handle).poll(&mut Context::from_waker(waker))
}

#[test]
fn an_ordered_item_gives_up_waiting_for_the_next_one() {
    kept("waits::an_ordered_item_gives_up_waiting_for_the_next_one", || {
        let runtime = Runtime::builder().build().unwrap();
        for kind in 0..2 {
            let queue = runtime.queue("q");
            let queue = if kind == 0 { queue.ordered() } else { queue.max_active(1) };
            let queue = queue.build().unwrap();
            let (own, ran) = (queue.clone(), Arc::new(AtomicU32::new(0)));
            let count = Arc::clone(&ran);
            let outer = queue.spawn(move || {
                let next = || {
                    let count = Arc::clone(&count);
                    own.spawn(move || count.fetch_add(1, Ordering::SeqCst)).unwrap()
                };
                // It cannot run before this one ends. Dropped, it runs all the same.
                drop(next().wait_timeout(Duration::from_millis(5)).unwrap_err());
                let given_up = next().wait_timeout(Duration::ZERO).unwrap_err().abort_on_drop();
                drop(given_up);
                next()
            });
            let last = outer.unwrap().wait().unwrap();
            assert_eq!(last.wait().unwrap(), 1, "one before it, and one was aborted");
            queue.drain().unwrap();
            assert_eq!((ran.load(Ordering::SeqCst), queue.in_flight()), (2, 0));
        }
    });
}

#[test]
fn an_item_that_gave_up_with_a_time_limit_may_wait_without() {
    kept("waits::an_item_that_gave_up_with_a_time_limit_may_wait_without", || {
        let runtime = Runtime::builder().max_workers(1).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let own = queue.clone();
        let outer = queue.spawn(move || {
            let inner = own.spawn(|| thread::current().id()).unwrap();
            // The only worker is this one.
            let inner = inner.wait_timeout(Duration::from_millis(5)).unwrap_err();
            (inner.wait().unwrap(), thread::current().id())
        });
        let (inner, outer) = outer.unwrap().wait().unwrap();
        assert_eq!(inner, outer);
    });
}

#[test]
fn only_the_latest_waker_is_woken_and_none_is_kept() {
    kept("waits::only_the_latest_waker_is_woken_and_none_is_kept", || {
        let runtime = Runtime::builder().build().unwrap();
        for queue in kinds(&runtime) {
            let open = hold(&queue, Hold::Undeclared);
            let (gate, closed) = mpsc::channel::<()>();
            let mut handle = queue.spawn(move || _ = closed.recv()).unwrap();
            let mut dropped = queue.spawn(|| ()).unwrap();
            let ((early, early_waker), (late, late_waker)) = (counting(), counting());
            assert!(poll(&mut handle, &early_waker).is_pending());
            for _ in 0..3 {
                assert!(poll(&mut handle, &late_waker).is_pending());
            }
            let (gone, gone_waker) = counting();
            assert!(poll(&mut dropped, &gone_waker).is_pending());
            drop((dropped, gone_waker));
            drop((open, gate));
            until("the waking", || late.0.load(Ordering::SeqCst) == 1);
            assert!(matches!(poll(&mut handle, &late_waker), Poll::Ready(Ok(()))));
            queue.flush().unwrap();
            assert_eq!(early.0.load(Ordering::SeqCst), 0);
            drop((early_waker, late_waker, handle));
            let left = || [&early, &late, &gone].map(Arc::strong_count);
            until("wakers to be dropped", || left() == [1, 1, 1]);
        }
    });
}

#[test]
fn an_abort_wakes_whoever_polls_and_an_aborted_future_drops_its_closure() {
    kept("waits::an_abort_wakes_whoever_polls_and_an_aborted_future_drops_its_closure", || {
        let runtime = Runtime::builder().build().unwrap();
        for queue in kinds(&runtime) {
            let open = hold(&queue, Hold::Undeclared);
            // Of an unlimited queue other workers would come.
            let blockers: Vec<_> = (0..64).map(|_| queue.spawn(|| ()).unwrap()).collect();
            let owned = Arc::new(());
            let inner = Arc::clone(&owned);
            let mut handle = queue.spawn(move || drop(inner)).unwrap();
            let (count, waker) = counting();
            if poll(&mut handle, &waker).is_pending() && handle.abort() {
                assert!(!handle.abort(), "once");
                assert_eq!(count.0.load(Ordering::SeqCst), 1);
                assert_eq!(Arc::strong_count(&owned), 1, "dropped at once");
                let ready = poll(&mut handle, &waker);
                assert!(matches!(ready, Poll::Ready(Err(JoinError::Cancelled))));
            }
            drop(open);
            blockers.into_iter().for_each(|handle| handle.wait().unwrap());
            let itself: Arc<OnceLock<Handle<()>>> = Arc::default();
            let (me, (tell, told)) = (Arc::clone(&itself), mpsc::channel());
            let late = queue.spawn(move || {
                blocking(|| until("the handle", || me.get().is_some()));
                tell.send(me.get().map(Handle::abort)).unwrap();
            });
            itself.set(late.unwrap()).unwrap();
            assert_eq!(told.recv_timeout(LONG).unwrap(), Some(false), "it runs");
        }
    });
}

/// The smallest executor: a task is an item, and its waker queues that.
struct Task {
    future: Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>,
    item: OnceLock<Work>,
}

impl Task {
    fn start(queue: &Queue, future: impl Future<Output = ()> + Send + 'static) {
        let task = Arc::new(Self { future: Mutex::new(Box::pin(future)), item: OnceLock::new() });
        let inner = Arc::clone(&task);
        let run = move || {
            let waker = Waker::from(Arc::clone(&inner));
            let _ = inner.future.lock().unwrap().as_mut().poll(&mut Context::from_waker(&waker));
        };
        task.item.set(queue.item(run)).ok().unwrap();
        task.wake();
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.item.get().unwrap().queue().unwrap();
    }
}

#[test]
fn futures_run_as_items_and_await_items() {
    kept("waits::futures_run_as_items_and_await_items", || {
        let runtime = Runtime::builder().build().unwrap();
        let tasks = runtime.queue("tasks").build().unwrap();
        for queue in kinds(&runtime) {
            let (tell, told) = mpsc::channel();
            for task in 0..20_u32 {
                let (queue, tell) = (queue.clone(), tell.clone());
                Task::start(&tasks, async move {
                    let mut sum = 0;
                    for number in 0..50 {
                        sum += queue.spawn(move || number).unwrap().await.unwrap();
                    }
                    let both = pin!(queue.spawn(|| 1).unwrap());
                    tell.send((task, sum + both.await.unwrap())).unwrap();
                });
            }
            let mut sums: Vec<_> = (0..20).map(|_| told.recv_timeout(LONG).unwrap()).collect();
            sums.sort_unstable();
            assert_eq!(sums, Vec::from_iter((0..20).map(|task| (task, 1226))));
        }
    });
}

#[test]
fn a_thread_that_ends_may_wait_for_a_handle() {
    struct Waits(Queue);
    impl Drop for Waits {
        fn drop(&mut self) {
            let handle = self.0.spawn(|| 3).unwrap();
            assert_eq!(handle.wait().unwrap(), 3);
            let slow = self.0.spawn(|| thread::sleep(Duration::from_millis(5))).unwrap();
            slow.wait_timeout(LONG).unwrap().unwrap();
            assert!(matches!(self.0.spawn(|| 4).unwrap().abort_on_drop().wait(), Ok(4)));
            self.0.set("nice=1").unwrap();
            self.0.set("nice=0").unwrap();
            self.0.flush().unwrap();
        }
    }
    thread_local!(static LATE: RefCell<Option<Waits>> = const { RefCell::new(None) });

    kept("waits::a_thread_that_ends_may_wait_for_a_handle", || {
        let runtime = Runtime::builder().build().unwrap();
        for queue in kinds(&runtime) {
            let outside = queue.clone();
            thread::spawn(move || LATE.set(Some(Waits(outside)))).join().unwrap();
        }
        // A worker's own thread, too, ends with its runtime.
        let other = Runtime::builder().build().unwrap();
        let queue = runtime.queue("late").build().unwrap();
        let inside = other.queue("q").build().unwrap();
        inside.spawn(move || LATE.set(Some(Waits(queue)))).unwrap().wait().unwrap();
        drop(other);
    });
}

/// Somebody comes back from a wait before the sleeper is up that its item woke: that sleeper is one
/// too many then, and lies down again. The item counted on it, so another pod must learn of it.
#[test]
fn what_an_item_queues_before_it_comes_back_is_run_by_another_pod() {
    kept("waits::what_an_item_queues_before_it_comes_back_is_run_by_another_pod", || {
        let Some(topology) = two_caches() else { return };
        let runtime = Runtime::builder().topology(topology).concurrency(2).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        for _ in 0..100 {
            let own = queue.clone();
            let outer = queue.spawn(move || {
                let (tell, told) = mpsc::channel();
                blocking(|| {
                    own.spawn(|| ()).unwrap().wait_timeout(LONG).unwrap().unwrap();
                    // Most likely its worker sleeps by then.
                    thread::sleep(Duration::from_millis(2));
                    own.post(move || tell.send(()).unwrap()).unwrap();
                });
                // Not declared: this pod has no other worker.
                told.recv_timeout(LONG).unwrap();
            });
            outer.unwrap().wait().unwrap();
        }
    });
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker's own");
    }
}

/// A waker is called by whoever runs the item: here by its waiter, which is inside another item.
#[test]
fn a_waker_that_panics_harms_nobody() {
    kept("waits::a_waker_that_panics_harms_nobody", || {
        let runtime = Runtime::builder().max_workers(1).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let own = queue.clone();
        let outer = queue.spawn(move || {
            let mut inner = own.spawn(|| 7).unwrap();
            assert!(poll(&mut inner, &Waker::from(Arc::new(Panics))).is_pending());
            assert_eq!(inner.wait().unwrap(), 7, "nobody else could run it");
            assert!(own.flush().is_err(), "this is still an item of the queue");
            own.post(|| ()).unwrap();
        });
        outer.unwrap().wait().unwrap();
        // By a worker that has nothing else to do.
        let open = hold(&queue, Hold::Undeclared);
        let mut later = queue.spawn(|| 8).unwrap();
        assert!(poll(&mut later, &Waker::from(Arc::new(Panics))).is_pending());
        drop(open);
        assert_eq!(later.wait().unwrap(), 8);
        // By whoever aborts it.
        let open = hold(&queue, Hold::Undeclared);
        let mut aborted = queue.spawn(|| 9).unwrap();
        assert!(poll(&mut aborted, &Waker::from(Arc::new(Panics))).is_pending());
        assert!(aborted.abort());
        drop(open);
        assert!(matches!(aborted.wait(), Err(JoinError::Cancelled)));
        queue.flush().unwrap();
        assert_eq!(runtime.monitor().queues[0].panics, 0, "no item panicked");
    });
}
