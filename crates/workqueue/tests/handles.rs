//! Handles: waiting that helps, waiting for a time, and stopping what has not begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_workqueue::{JoinError, Queue, Runtime, blocking};

const LONG: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 20 });

/// One worker, which is held until the sender is dropped.
fn held() -> (Runtime, Queue, mpsc::Sender<()>) {
    let runtime = Runtime::builder().max_workers(1).build().unwrap();
    let queue = runtime.queue("q").build().unwrap();
    let (open, closed) = mpsc::channel::<()>();
    let (started, starts) = mpsc::channel();
    let body = move || {
        started.send(()).unwrap();
        let _ = closed.recv();
    };
    queue.post(body).unwrap();
    starts.recv_timeout(LONG).unwrap();
    (runtime, queue, open)
}

#[test]
fn what_has_not_begun_is_aborted_and_dropped_at_once() {
    let (_runtime, queue, open) = held();
    let captured = Arc::new(());
    let inside = Arc::clone(&captured);
    let handle = queue.spawn(move || drop(inside)).unwrap();
    assert!(handle.abort());
    assert!(!handle.abort(), "once");
    assert_eq!(Arc::strong_count(&captured), 1, "the closure is gone");
    assert!(matches!(handle.wait(), Err(JoinError::Cancelled)));
    drop(open);
    queue.flush().unwrap();
    assert_eq!(queue.in_flight(), 0);
    let done = queue.spawn(|| 5).unwrap();
    while !done.is_finished() {
        thread::yield_now();
    }
    assert!(!done.abort());
    assert_eq!(done.wait().unwrap(), 5, "what was through stays through");
}

/// The job of an item arrives while somebody is still busy dropping the closure: it is counted out
/// all the same, and a flush does not wait for it for ever.
#[test]
fn a_job_that_arrives_during_an_abort_is_counted_out() {
    struct Slow(mpsc::Sender<()>, mpsc::Receiver<()>);
    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
            self.1.recv_timeout(LONG).unwrap();
        }
    }
    let (_runtime, queue, open) = held();
    let (dropping, drops) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let slow = Slow(dropping, goes_on);
    let handle = queue.spawn(move || drop(slow)).unwrap();
    thread::scope(|scope| {
        let aborting = scope.spawn(|| assert!(handle.abort()));
        drops.recv_timeout(LONG).unwrap();
        drop(open);
        let start = Instant::now();
        while queue.in_flight() > 0 && start.elapsed() < LONG {
            thread::sleep(Duration::from_millis(1));
        }
        go_on.send(()).unwrap();
        aborting.join().unwrap();
    });
    assert_eq!(queue.in_flight(), 0);
    queue.flush().unwrap();
}

#[test]
fn a_handle_aborts_when_dropped_only_if_told_so() {
    let (_runtime, queue, open) = held();
    let runs = Arc::new(AtomicU32::new(0));
    let count = || {
        let runs = Arc::clone(&runs);
        move || {
            runs.fetch_add(1, Ordering::SeqCst);
        }
    };
    drop(queue.spawn(count()).unwrap());
    drop(queue.spawn(count()).unwrap().abort_on_drop());
    drop(open);
    queue.flush().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn an_aborted_item_wakes_a_thread_and_a_future() {
    struct Flag(AtomicBool);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (_runtime, queue, _open) = held();
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let mut awaited = Box::pin(queue.spawn(|| ()).unwrap());
    let waker = Arc::clone(&flag).into();
    let mut context = std::task::Context::from_waker(&waker);
    assert!(std::future::Future::poll(awaited.as_mut(), &mut context).is_pending());
    assert!(awaited.abort());
    assert!(flag.0.load(Ordering::SeqCst));
}

#[test]
fn waiting_for_a_time_gives_the_handle_back() {
    let (_runtime, queue, open) = held();
    let start = Instant::now();
    let handle = queue.spawn(|| 7).unwrap();
    let handle = handle.wait_timeout(Duration::from_millis(20)).unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(20));
    let handle = handle.wait_timeout(Duration::ZERO).unwrap_err();
    drop(open);
    assert_eq!(handle.wait_timeout(Duration::MAX).unwrap().unwrap(), 7);
}

#[test]
fn a_wait_inside_an_item_runs_what_nobody_has_begun() {
    let runtime = Runtime::builder().max_workers(1).build().unwrap();
    let queue = runtime.queue("q").build().unwrap();
    let inner = queue.clone();
    let same = queue
        .spawn(move || {
            let here = thread::current().id();
            inner.spawn(move || thread::current().id() == here).unwrap().wait().unwrap()
        })
        .unwrap();
    assert!(same.wait().unwrap());
    let panics = queue.clone();
    let message = queue
        .spawn(move || {
            let inner = panics.spawn(|| -> u32 { panic!("on purpose") }).unwrap();
            inner.wait().unwrap_err().message().map(str::to_owned)
        })
        .unwrap();
    assert_eq!(message.wait().unwrap().as_deref(), Some("on purpose"));
    assert_eq!(runtime.monitor().queues[0].panics, 1);
}

/// While a waiter runs an item, another worker finds its empty job; a flush must wait all the same.
#[test]
#[cfg_attr(miri, ignore = "sleeps")]
fn a_flush_waits_for_an_item_that_its_waiter_runs() {
    let runtime = Runtime::builder().build().unwrap();
    let queue = runtime.queue("q").build().unwrap();
    for _ in 0..30 {
        let ended = Arc::new(AtomicBool::new(false));
        let (begun, begins) = mpsc::channel();
        let (inner, end) = (queue.clone(), Arc::clone(&ended));
        let outer = queue
            .spawn(move || {
                let handle = inner.spawn(move || {
                    begun.send(()).unwrap();
                    blocking(|| thread::sleep(Duration::from_millis(5)));
                    end.store(true, Ordering::SeqCst);
                });
                // The outer item may be forgotten by the flush below; the inner one not.
                handle.unwrap().wait().unwrap();
            })
            .unwrap();
        begins.recv_timeout(LONG).unwrap();
        queue.flush().unwrap();
        assert!(ended.load(Ordering::SeqCst));
        outer.wait().unwrap();
    }
    queue.drain().unwrap();
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn limits_and_order_hold_while_items_wait_for_items() {
    let runtime = Runtime::builder().build().unwrap();
    let plain = runtime.queue("plain").build().unwrap();
    let ordered = runtime.queue("ordered").ordered().build().unwrap();
    let (running, order) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let handles: Vec<_> = (0..20)
        .map(|number| {
            let (running, order) = (Arc::clone(&running), Arc::clone(&order));
            let handle = ordered.spawn(move || {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                assert_eq!(order.fetch_add(1, Ordering::SeqCst), number);
                running.fetch_sub(1, Ordering::SeqCst);
            });
            // Waited for from an item of another queue, which must not run it out of turn.
            plain.spawn(move || handle.unwrap().wait().unwrap()).unwrap()
        })
        .collect();
    handles.into_iter().for_each(|handle| handle.wait().unwrap());
}

#[test]
fn many_waiters_and_workers_race_for_the_same_items() {
    let rounds = if cfg!(miri) { 2 } else { 300 };
    let runtime = Runtime::builder().build().unwrap();
    let queue = runtime.queue("q").build().unwrap();
    for _ in 0..rounds {
        let runs = Arc::new(AtomicU32::new(0));
        let (inner, count) = (queue.clone(), Arc::clone(&runs));
        let outer = queue.spawn(move || {
            let handles: Vec<_> = (0..16)
                .map(|number| {
                    let count = Arc::clone(&count);
                    let handle = inner.spawn(move || count.fetch_add(1, Ordering::SeqCst)).unwrap();
                    if number % 5 == 0 && handle.abort() {
                        return None;
                    }
                    Some(handle)
                })
                .collect();
            let waited = handles.into_iter().flatten().map(|handle| handle.wait().unwrap());
            waited.count()
        });
        let waited = outer.unwrap().wait().unwrap();
        queue.flush().unwrap();
        assert_eq!(runs.load(Ordering::SeqCst) as usize, waited);
        assert_eq!(queue.in_flight(), 0);
    }
}
