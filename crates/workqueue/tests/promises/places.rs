//! Odd places to call from: hooks, destructors of threads, copies of the process.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_workqueue::{CpuId, Queue, Runtime, WaitError, WhenFull};

use crate::process::{in_a_copy, kept};
use crate::{Hold, LONG, hold, until};

/// What a hook needs and cannot be given before the runtime is there.
type Later<T> = Arc<OnceLock<T>>;

#[test]
fn a_hook_for_panics_is_inside_the_item() {
    kept("places::a_hook_for_panics_is_inside_the_item", || {
        let queue: Later<Queue> = Arc::default();
        let (inner, (tell, told)) = (Arc::clone(&queue), mpsc::channel());
        let runtime = Runtime::builder()
            .on_panic(move |_, _| {
                let queue = inner.get().unwrap();
                tell.send((queue.flush(), queue.drain())).unwrap();
                queue.post(|| ()).unwrap();
            })
            .build()
            .unwrap();
        queue.set(runtime.queue("q").build().unwrap()).unwrap();
        let queue = queue.get().unwrap();
        queue.post(|| panic!("on purpose")).unwrap();
        queue.item(|| panic!("on purpose")).queue().unwrap();
        for _ in 0..2 {
            let (flush, drain) = told.recv_timeout(LONG).unwrap();
            assert!(matches!(flush, Err(WaitError::InsideQueue { .. })), "{flush:?}");
            assert!(matches!(drain, Err(WaitError::InsideQueue { .. })), "{drain:?}");
        }
        queue.flush().unwrap();
    });
}

#[test]
fn a_hook_for_panics_may_end_the_runtime() {
    kept("places::a_hook_for_panics_may_end_the_runtime", || {
        let runtime: Later<Weak<Runtime>> = Arc::default();
        let ended = Arc::new(AtomicBool::new(false));
        let (inner, tell) = (Arc::clone(&runtime), Arc::clone(&ended));
        let built = Runtime::builder().on_panic(move |_, _| {
            inner.get().unwrap().upgrade().unwrap().shutdown();
            tell.store(true, Ordering::SeqCst);
        });
        let built = Arc::new(built.build().unwrap());
        runtime.set(Arc::downgrade(&built)).unwrap();
        let queue = built.queue("q").build().unwrap();
        queue.post(|| panic!("on purpose")).unwrap();
        until("the shutdown", || ended.load(Ordering::SeqCst));
        assert!(queue.post(|| ()).is_err());
    });
}

#[test]
fn hooks_of_threads_may_queue_look_and_end_the_runtime() {
    kept("places::hooks_of_threads_may_queue_look_and_end_the_runtime", || {
        for ends in [false, true] {
            let runtime: Later<(Weak<Runtime>, Queue)> = Arc::default();
            let runs = Arc::new(AtomicU32::new(0));
            let called = Arc::new(AtomicU32::new(0));
            let (inner, count, calls) =
                (Arc::clone(&runtime), Arc::clone(&runs), Arc::clone(&called));
            let hook = move || {
                let Some((runtime, queue)) = inner.get() else { return };
                let count = Arc::clone(&count);
                let _ = queue.post(move || {
                    count.fetch_add(1, Ordering::SeqCst);
                });
                if let Some(runtime) = runtime.upgrade() {
                    let _ = (runtime.dump(), runtime.monitor());
                    if ends {
                        runtime.shutdown();
                    }
                }
                calls.fetch_add(1, Ordering::SeqCst);
            };
            let built = Runtime::builder().on_thread_start(hook.clone()).on_thread_stop(hook);
            let built = Arc::new(built.max_workers(1).build().unwrap());
            let queue = built.queue("q").build().unwrap();
            runtime.set((Arc::downgrade(&built), queue.clone())).unwrap();
            let count = Arc::clone(&runs);
            queue
                .post(move || {
                    count.fetch_add(100, Ordering::SeqCst);
                })
                .unwrap();
            until("the item", || runs.load(Ordering::SeqCst) >= 100);
            built.shutdown();
            until("both hooks", || called.load(Ordering::SeqCst) >= 2);
            assert!(queue.post(|| ()).is_err());
        }
    });
}

#[test]
fn everybody_who_ends_a_runtime_waits_for_its_items() {
    kept("places::everybody_who_ends_a_runtime_waits_for_its_items", || {
        for _ in 0..20 {
            let runtime = Runtime::builder().build().unwrap();
            let queue = runtime.queue("q").build().unwrap();
            let done = Arc::new(AtomicBool::new(false));
            let tell = Arc::clone(&done);
            let body = move || {
                thread::sleep(Duration::from_millis(5));
                tell.store(true, Ordering::SeqCst);
            };
            queue.post(body).unwrap();
            let barrier = Barrier::new(4);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        barrier.wait();
                        runtime.shutdown();
                        assert!(done.load(Ordering::SeqCst), "returned before the item ended");
                    });
                }
            });
        }
    });
}

#[test]
fn a_runtime_that_its_item_ends_is_waited_for_outside() {
    kept("places::a_runtime_that_its_item_ends_is_waited_for_outside", || {
        let runtime = Arc::new(Runtime::builder().build().unwrap());
        let queue = runtime.queue("q").build().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let (ends, tell, (told, tells)) =
            (Arc::clone(&runtime), Arc::clone(&done), mpsc::channel());
        let body = move || {
            ends.shutdown();
            told.send(()).unwrap();
            thread::sleep(Duration::from_millis(20));
            tell.store(true, Ordering::SeqCst);
        };
        queue.post(body).unwrap();
        tells.recv_timeout(LONG).unwrap();
        runtime.shutdown();
        assert!(done.load(Ordering::SeqCst));
    });
}

/// Uses a queue when its thread ends.
struct AtEnd(Queue, mpsc::Sender<u32>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let (a, b) = self.0.join(|| 1, || 2);
        let three = self.0.spawn(|| 3).unwrap().wait().unwrap();
        let mut four = 0;
        self.0.scope(|scope| scope.spawn(|| four = 4));
        self.1.send(a + b + three + four).unwrap();
    }
}

#[test]
fn a_thread_that_ends_may_use_a_queue() {
    thread_local!(static LAST: RefCell<Option<AtEnd>> = const { RefCell::new(None) });
    kept("places::a_thread_that_ends_may_use_a_queue", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        for forks_before in [false, true] {
            let (tell, told) = mpsc::channel();
            let at_end = AtEnd(queue.clone(), tell);
            let queue = queue.clone();
            let body = move || {
                if forks_before {
                    queue.join(|| (), || ());
                }
                LAST.set(Some(at_end));
                if !forks_before {
                    queue.join(|| (), || ());
                }
            };
            thread::spawn(body).join().unwrap();
            assert_eq!(told.recv_timeout(LONG).unwrap(), 10);
        }
    });
}

#[test]
fn producers_that_wait_for_room_come_back_when_the_runtime_ends() {
    kept("places::producers_that_wait_for_room_come_back_when_the_runtime_ends", || {
        for kind in 0..3 {
            let runtime = Runtime::builder().shard_capacity(4).max_workers(1).build().unwrap();
            let builder = runtime.queue("q").backlog(4);
            let builder = match kind {
                0 => builder,
                1 => builder.ordered(),
                _ => builder.max_active(1),
            };
            let queue = builder.build().unwrap();
            let open = hold(&queue, Hold::Undeclared);
            let (accepted, runs) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
            thread::scope(|scope| {
                let producer = || {
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
                };
                (0..3).for_each(|_| drop(scope.spawn(producer)));
                until("a full queue", || accepted.load(Ordering::SeqCst) >= 4);
                thread::sleep(Duration::from_millis(20));
                scope.spawn(|| runtime.shutdown());
                thread::sleep(Duration::from_millis(20));
                drop(open);
            });
            assert_eq!(runs.load(Ordering::SeqCst), accepted.load(Ordering::SeqCst));
        }
    });
}

/// Counts how often it is dropped.
struct Counts(Arc<AtomicU32>);

impl Drop for Counts {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A copy of the process has no workers: whatever would wait for one, or queue for one, says so.
#[test]
fn nothing_hangs_in_a_copy_of_the_process() {
    kept("places::nothing_hangs_in_a_copy_of_the_process", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let open = hold(&queue, Hold::Declared);
        let (waits, free) = (queue.item(|| ()), queue.item(|| ()));
        waits.queue_delayed(Duration::from_secs(3600)).unwrap();
        let over = queue.spawn(|| 5).unwrap();
        until("an item to end", || over.is_finished());
        let limited = runtime.queue("limited").max_active(1).build().unwrap();
        let held = hold(&limited, Hold::Declared);
        let dropped = Arc::new(AtomicU32::new(0));
        let [handle, doomed] = [(); 2].map(|()| {
            let counts = Counts(Arc::clone(&dropped));
            limited.spawn(move || drop(std::hint::black_box(counts))).unwrap()
        });
        let doomed = Mutex::new(Some(doomed.abort_on_drop()));
        let here = runtime.topology().allowed().lowest().unwrap();
        let status = in_a_copy(|| {
            let attempts: [(&str, &dyn Fn()); 27] = [
                ("queue_delayed", &|| drop(free.queue_delayed(Duration::ZERO))),
                ("modify_delay", &|| drop(waits.modify_delay(Duration::ZERO))),
                ("queue", &|| drop(free.queue())),
                ("queue of what is pending", &|| drop(waits.queue())),
                ("queue_on", &|| drop(waits.queue_on(here))),
                ("queue_on nowhere", &|| drop(waits.queue_on(CpuId(4095)))),
                ("queue_delayed of what is pending", &|| drop(waits.queue_delayed(LONG))),
                ("post_on nowhere", &|| drop(queue.post_on(CpuId(4095), || ()))),
                ("queue_delayed_on", &|| drop(waits.queue_delayed_on(here, LONG))),
                ("flush of an item", &|| drop(waits.flush())),
                ("cancel_sync", &|| drop(waits.cancel_sync())),
                ("drain", &|| drop(queue.drain())),
                ("cancel", &|| _ = waits.cancel()),
                ("disable", &|| drop(waits.disable())),
                ("enable", &|| drop(waits.enable())),
                ("is_pending", &|| _ = waits.is_pending()),
                ("is_running", &|| _ = waits.is_running()),
                ("panics", &|| drop(waits.panics())),
                ("abort", &|| _ = handle.abort()),
                ("is_finished", &|| _ = handle.is_finished()),
                ("in_flight", &|| _ = queue.in_flight()),
                ("attributes", &|| drop(queue.attributes())),
                ("reopen", &|| queue.reopen()),
                ("measure_latency", &|| queue.measure_latency(true)),
                ("trace_items", &|| queue.trace_items(true)),
                ("shutdown", &|| runtime.shutdown()),
                ("shutdown_timeout", &|| assert!(runtime.shutdown_timeout(LONG))),
            ];
            let silent = |(name, attempt): &(&str, &dyn Fn())| {
                let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt));
                if caught.is_ok() {
                    eprintln!("{name}: no panic in the child");
                }
                caught.is_ok()
            };
            let wrong = attempts.iter().filter(|attempt| silent(attempt)).count();
            assert_eq!((over.is_finished(), queue.name()), (true, "q".into()));
            assert!(format!("{waits:?}").contains("pending: true"));
            drop(doomed.lock().unwrap().take());
            assert_eq!(dropped.load(Ordering::SeqCst), 0, "a handle aborts nothing");
            i32::try_from(wrong).unwrap()
        });
        assert_eq!(status, 0, "the child's wait status");
        drop((open, held));
    });
}

#[test]
fn a_copy_of_a_worker_may_declare_waits_and_fork_closures() {
    kept("places::a_copy_of_a_worker_may_declare_waits_and_fork_closures", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let inner = queue.clone();
        let item = move || {
            for _ in 0..50 {
                // Others hold whatever locks they like at the moment of the copy.
                inner.post(|| tollgate_workqueue::blocking(|| ())).unwrap();
                let status = in_a_copy(|| {
                    let seven = tollgate_workqueue::blocking(|| 7);
                    let (a, b) = inner.join(|| 1, || 2);
                    i32::from(seven + a + b != 10)
                });
                assert_eq!(status, 0);
            }
        };
        queue.spawn(item).unwrap().wait().unwrap();
    });
}

/// Whatever locks others hold at the moment of the copy.
#[test]
fn the_name_of_a_queue_can_be_read_in_a_copy_of_the_process() {
    kept("places::the_name_of_a_queue_can_be_read_in_a_copy_of_the_process", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _ends = Ends(&over);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        (0..50).for_each(|_| assert_eq!(queue.name(), "q"));
                        drop(runtime.dump());
                    }
                });
            }
            let start = Instant::now();
            for _ in 0..200 {
                let status = in_a_copy(|| {
                    let (a, b) = queue.join(|| 1, || 2);
                    let printed = format!("{queue:?}");
                    i32::from(a + b != 3 || queue.name() != "q" || !printed.contains("\"q\""))
                });
                assert_eq!(status, 0, "the child's wait status");
                if start.elapsed() > Duration::from_secs(2) {
                    break;
                }
            }
        });
    });
}

/// Ends what others do until then, also by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A queue that has next to nothing queued is not held up by one that fills the FIFOs they share.
#[test]
fn a_queue_cannot_fill_its_neighbours_shards() {
    kept("places::a_queue_cannot_fill_its_neighbours_shards", || {
        let runtime = Runtime::builder().shard_capacity(64).max_workers(1).build().unwrap();
        let greedy = runtime.queue("greedy").when_full(WhenFull::Refuse).build().unwrap();
        let open = hold(&greedy, Hold::Undeclared);
        for cpu in &runtime.topology().allowed().clone() {
            while greedy.post_on(cpu, || ()).is_ok() {}
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        for when_full in [WhenFull::Refuse, WhenFull::Block, WhenFull::RunInline] {
            for kind in 0..3 {
                let neighbour = runtime.queue("neighbour").when_full(when_full);
                let neighbour = match kind {
                    0 => neighbour,
                    1 => neighbour.max_active(2),
                    _ => neighbour.rescuer(),
                };
                let neighbour = neighbour.build().unwrap();
                for _ in 0..8 {
                    let order = Arc::clone(&order);
                    let body = move || order.lock().unwrap().push(thread::current().id());
                    neighbour.post(body).unwrap();
                }
                assert!(greedy.post(|| ()).is_err(), "it has had its share");
            }
        }
        let inline =
            order.lock().unwrap().iter().filter(|&&id| id == thread::current().id()).count();
        assert_eq!(inline, 0, "there was room elsewhere");
        drop(open);
        until("the neighbours' items", || order.lock().unwrap().len() == 72);
    });
}
