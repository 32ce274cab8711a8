//! The contract of queues, on real workers.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use tollgate_workqueue::{
    AttributeError, BuildError, CpuId, JoinError, Queue, Queued, Runtime, Scope, SubmitError,
    WaitError, WhenFull, blocking,
};

const LONG: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 20 });

/// Miri is thousands of times slower.
const fn fewer(count: usize) -> usize {
    if cfg!(miri) { count.div_ceil(400) } else { count }
}

fn runtime() -> Runtime {
    Runtime::builder().build().unwrap()
}

fn queue(runtime: &Runtime) -> Queue {
    runtime.queue("q").build().unwrap()
}

/// Waits until `done`, for a generous but bounded time.
fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what} did not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Occupies a queue until the returned sender is dropped or used.
fn hold(queue: &Queue) -> mpsc::Sender<()> {
    let (open, closed) = mpsc::channel::<()>();
    let (started, starts) = mpsc::channel();
    queue
        .post(move || {
            started.send(()).unwrap();
            let _ = blocking(|| closed.recv());
        })
        .unwrap();
    starts.recv_timeout(LONG).unwrap();
    open
}

#[test]
fn results_and_panics_come_back() {
    let runtime = runtime();
    let queue = queue(&runtime);
    assert_eq!(queue.spawn(|| 6 * 7).unwrap().wait().unwrap(), 42);
    let large = [7_u64; 64];
    assert_eq!(queue.spawn(move || large.iter().sum::<u64>()).unwrap().wait().unwrap(), 448);
    let panicked = queue.spawn(|| -> u32 { panic!("on purpose") }).unwrap().wait().unwrap_err();
    assert_eq!(panicked.message(), Some("on purpose"));
    let JoinError::Panicked(panic) = panicked else { panic!("{panicked:?}") };
    assert_eq!(panic.into_payload().downcast_ref(), Some(&"on purpose"));
    queue.post(|| panic!("this one too")).unwrap();
    queue.flush().unwrap();
    assert_eq!(queue.spawn(|| 1).unwrap().wait().unwrap(), 1, "the workers live");
    let monitor = runtime.monitor();
    assert_eq!((monitor.queues[0].panics, monitor.queues[0].started), (2, 5));
}

#[test]
fn a_handle_can_be_awaited() {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let runtime = runtime();
    let queue = queue(&runtime);
    for pause_ms in [0, 5] {
        let mut handle = Box::pin(
            queue
                .spawn(move || {
                    thread::sleep(Duration::from_millis(pause_ms));
                    pause_ms
                })
                .unwrap(),
        );
        let waker = Arc::new(Unpark(thread::current())).into();
        let mut context = std::task::Context::from_waker(&waker);
        let result = loop {
            match handle.as_mut().poll(&mut context) {
                std::task::Poll::Ready(result) => break result,
                std::task::Poll::Pending => thread::park(),
            }
        };
        assert_eq!(result.unwrap(), pause_ms);
    }
    use std::future::Future;
}

#[test]
fn every_item_runs_once_under_many_producers() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let runs: Arc<Vec<AtomicU32>> =
        Arc::new((0..fewer(40_000)).map(|_| AtomicU32::new(0)).collect());
    thread::scope(|scope| {
        for producer in 0..4 {
            let (queue, runs) = (&queue, &runs);
            scope.spawn(move || {
                for i in (producer..runs.len()).step_by(4) {
                    let runs = Arc::clone(runs);
                    queue
                        .post(move || {
                            runs[i].fetch_add(1, Ordering::Relaxed);
                        })
                        .unwrap();
                }
            });
        }
    });
    queue.flush().unwrap();
    assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn an_ordered_queue_keeps_order_while_its_attributes_change() {
    let runtime = runtime();
    let queue = runtime.queue("ordered").ordered().backlog(256).build().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let running = Arc::new(AtomicU32::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let (changing, stop_changing) = (queue.clone(), Arc::clone(&stop));
        scope.spawn(move || {
            for round in 0.. {
                if stop_changing.load(Ordering::Relaxed) {
                    return;
                }
                let scope = ["cpu", "cache", "system", "numa"][round % 4];
                changing.set(&format!("affinity_scope={scope}")).unwrap();
                changing.set(&format!("affinity_strict={}", round % 3 == 0)).unwrap();
                thread::yield_now();
            }
        });
        for i in 0..fewer(20_000) {
            let (seen, running) = (Arc::clone(&seen), Arc::clone(&running));
            queue
                .post(move || {
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                    seen.lock().unwrap().push(i);
                    running.fetch_sub(1, Ordering::SeqCst);
                })
                .unwrap();
        }
        queue.flush().unwrap();
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(*seen.lock().unwrap(), (0..fewer(20_000)).collect::<Vec<_>>());
    assert!(matches!(queue.set("max_active=2"), Err(AttributeError::Ordered { .. })));
}

#[test]
fn max_active_is_a_limit_and_can_change() {
    let runtime = Runtime::builder().max_workers(16).build().unwrap();
    let queue = runtime.queue("limited").max_active(2).build().unwrap();
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    // Items stay until so many of them run at once, and a moment longer for one too many.
    let load = |items: usize, together: u32| {
        for _ in 0..items {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            let body = move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                blocking(|| {
                    until("items at once", || most.load(Ordering::SeqCst) >= together);
                    thread::sleep(Duration::from_millis(2));
                });
                now.fetch_sub(1, Ordering::SeqCst);
            };
            queue.post(body).unwrap();
        }
    };
    load(fewer(40).max(8), 2);
    queue.flush().unwrap();
    assert_eq!(most.swap(0, Ordering::SeqCst), 2);
    load(fewer(60).max(20), 5);
    queue.set("max_active=5").unwrap();
    queue.flush().unwrap();
    assert_eq!(most.swap(0, Ordering::SeqCst), 5, "the pool grows while its workers block");
    load(fewer(20).max(12), 6);
    queue.set("max_active=default").unwrap();
    queue.flush().unwrap();
    assert!(most.load(Ordering::SeqCst) > 5);
}

#[test]
fn blocked_workers_are_replaced_up_to_the_maximum() {
    let runtime = Runtime::builder().max_workers(6).build().unwrap();
    let queue = queue(&runtime);
    let together = Arc::new(Barrier::new(6));
    for _ in 0..6 {
        let together = Arc::clone(&together);
        queue
            .post(move || {
                blocking(|| together.wait());
            })
            .unwrap();
    }
    queue.flush().unwrap();
    assert_eq!(runtime.dump().pools[0].started_workers, 6);
}

#[test]
fn a_worker_that_blocks_hands_its_place_over() {
    let runtime = runtime();
    let cpu = runtime.topology().allowed().lowest().unwrap();
    let one_cpu = [cpu].into_iter().collect();
    let queue = runtime.queue("one").cpumask(one_cpu).build().unwrap();
    let (queued, is_queued) = mpsc::channel();
    let (second_ran, second) = mpsc::channel();
    let first = queue
        .spawn(move || {
            // Not declared: the second item has no worker to go to yet.
            is_queued.recv_timeout(LONG).unwrap();
            blocking(|| second.recv_timeout(LONG))
        })
        .unwrap();
    queue.post(move || second_ran.send(()).unwrap()).unwrap();
    queued.send(()).unwrap();
    assert_eq!(first.wait().unwrap(), Ok(()));
    assert_eq!(runtime.monitor().queues[0].cm_wakeups, 1);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no CPU time")]
fn cpu_hogs_stop_counting() {
    let runtime = runtime();
    let cpus = runtime.topology().allowed().len();
    let queue = queue(&runtime);
    let stop = Arc::new(AtomicBool::new(false));
    for _ in 0..cpus {
        let stop = Arc::clone(&stop);
        queue
            .post(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
            .unwrap();
    }
    let beside = queue.spawn(|| ()).unwrap();
    until("an item beside the hogs", || beside.is_finished());
    until("the report", || runtime.monitor().queues[0].cpu_intensive > 0);
    stop.store(true, Ordering::Relaxed);
    queue.flush().unwrap();
    assert!(runtime.monitor().queues[0].cpu_time_ms > 0.0);
}

#[test]
fn items_are_queued_once_and_run_again_when_queued_while_running() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let runs = Arc::new(AtomicU32::new(0));
    let (gate, gated) = mpsc::channel::<()>();
    let counter = Arc::clone(&runs);
    let item = queue.item(move || {
        counter.fetch_add(1, Ordering::SeqCst);
        let _ = blocking(|| gated.recv());
    });
    assert_eq!(item.queue().unwrap(), Queued::Now);
    until("the start", || item.is_running());
    assert_eq!(item.queue().unwrap(), Queued::Now);
    assert_eq!(item.queue().unwrap(), Queued::AlreadyPending);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(runs.load(Ordering::SeqCst), 1, "never twice at once");
    drop(gate);
    // Says whether there was anything left to wait for, which is a race here.
    item.flush().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert!(!item.flush().unwrap(), "nothing to wait for");
}

#[test]
fn cancel_disable_and_enable() {
    let runtime = runtime();
    let ordered = runtime.queue("o").ordered().build().unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&runs);
    let item = ordered.item(move || {
        counter.fetch_add(1, Ordering::SeqCst);
    });
    let open = hold(&ordered);
    item.queue().unwrap();
    assert!(item.cancel());
    assert!(!item.cancel());
    item.queue().unwrap();
    assert!(item.cancel_sync().unwrap());
    assert!(!item.disable().unwrap());
    assert_eq!(item.queue(), Err(SubmitError::Disabled));
    item.enable().unwrap();
    assert_eq!(item.enable(), Err(WaitError::NotDisabled));
    item.queue().unwrap();
    drop(open);
    item.flush().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn delayed_items_wait_move_and_are_flushed_early() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let (ran, runs) = mpsc::channel();
    let item = queue.item(move || ran.send(Instant::now()).unwrap());
    let start = Instant::now();
    item.queue_delayed(Duration::from_millis(30)).unwrap();
    assert_eq!(item.queue().unwrap(), Queued::AlreadyPending);
    assert!(runs.recv_timeout(LONG).unwrap() - start >= Duration::from_millis(30));
    until("the end of the run", || !item.is_running());
    item.queue_delayed(Duration::from_secs(3600)).unwrap();
    assert!(item.modify_delay(Duration::from_millis(1)).unwrap());
    runs.recv_timeout(LONG).unwrap();
    until("the end of the run", || !item.is_running());
    item.queue_delayed(Duration::from_secs(3600)).unwrap();
    assert_eq!(runtime.monitor().delayed, 1);
    assert!(item.flush().unwrap(), "a flush does not wait an hour");
    runs.recv_timeout(LONG).unwrap();
    item.queue_delayed(Duration::from_secs(3600)).unwrap();
    assert!(item.cancel_sync().unwrap());
    assert_eq!(runtime.monitor().delayed, 0);
    assert!(matches!(item.queue_delayed(Duration::MAX), Err(SubmitError::Delay(_))));
    assert!(!item.is_pending());
}

#[test]
fn waiting_for_oneself_is_refused() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let other = runtime.queue("other").build().unwrap();
    let (me, neighbour) = (queue.clone(), other.clone());
    let (flush, drain, fine) =
        queue.spawn(move || (me.flush(), me.drain(), neighbour.flush())).unwrap().wait().unwrap();
    assert!(matches!(flush, Err(WaitError::InsideQueue { operation: "flush", .. })));
    assert!(matches!(drain, Err(WaitError::InsideQueue { operation: "drain", .. })));
    assert_eq!(fine, Ok(()));
    let (tell, told) = mpsc::channel();
    let slot: Arc<Mutex<Option<tollgate_workqueue::Work>>> = Arc::default();
    let me = Arc::clone(&slot);
    let item = queue.item(move || {
        let item = me.lock().unwrap().take().unwrap();
        tell.send((item.cancel_sync(), item.flush())).unwrap();
    });
    *slot.lock().unwrap() = Some(item.clone());
    item.queue().unwrap();
    let (cancel, flush) = told.recv_timeout(LONG).unwrap();
    assert!(matches!(cancel, Err(WaitError::InsideItem { .. })));
    assert!(matches!(flush, Err(WaitError::InsideItem { .. })));
}

#[test]
fn a_drain_admits_only_what_its_own_items_queue() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let runs = Arc::new(AtomicU32::new(0));
    fn chain(queue: &Queue, left: u32, runs: &Arc<AtomicU32>) {
        let (next, count) = (queue.clone(), Arc::clone(runs));
        queue
            .post(move || {
                count.fetch_add(1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(1));
                if left > 0 {
                    chain(&next, left - 1, &count);
                }
            })
            .unwrap();
    }
    chain(&queue, 20, &runs);
    queue.drain().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 21);
    assert_eq!(queue.post(|| ()), Err(SubmitError::Drained("q".into())));
    let item = queue.item(|| ());
    assert!(matches!(item.queue(), Err(SubmitError::Drained(_))));
    assert!(!item.is_pending(), "a refused item is not left pending");
    assert!(matches!(item.queue_delayed(LONG), Err(SubmitError::Drained(_))));
    queue.reopen();
    assert_eq!(item.queue(), Ok(Queued::Now));
    queue.flush().unwrap();
}

#[test]
fn shutdown_runs_what_is_queued_and_refuses_the_rest() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..fewer(1000) {
        let runs = Arc::clone(&runs);
        queue
            .post(move || {
                runs.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
    }
    drop(runtime);
    assert_eq!(runs.load(Ordering::Relaxed), fewer(1000));
    assert_eq!(queue.post(|| ()), Err(SubmitError::ShutDown("q".into())));
    assert!(matches!(queue.spawn(|| ()), Err(SubmitError::ShutDown(_))));
    queue.flush().unwrap();
}

#[test]
fn full_queues_do_as_they_were_told() {
    let runtime = Runtime::builder().shard_capacity(4).max_workers(1).build().unwrap();
    let refusing = runtime.queue("refusing").when_full(WhenFull::Refuse).build().unwrap();
    let inline = runtime.queue("inline").when_full(WhenFull::RunInline).build().unwrap();
    let open = hold(&refusing);
    // The one worker is held; every shard takes four.
    let refused = (0..fewer(1000).max(20)).find_map(|_| refusing.post(|| ()).err());
    assert!(matches!(refused, Some(SubmitError::Full { capacity: 4, .. })), "{refused:?}");
    let here = thread::current().id();
    let (tell, told) = mpsc::channel();
    for _ in 0..fewer(1000).max(30) {
        let tell = tell.clone();
        inline.post(move || tell.send(thread::current().id()).unwrap_or(())).unwrap();
    }
    assert!(told.try_iter().any(|thread| thread == here));
    drop(open);
    let ordered =
        runtime.queue("ordered").ordered().backlog(2).when_full(WhenFull::Refuse).build().unwrap();
    let open = hold(&ordered);
    ordered.post(|| ()).unwrap();
    ordered.post(|| ()).unwrap();
    assert!(matches!(ordered.post(|| ()), Err(SubmitError::Full { capacity: 2, .. })));
    drop(open);
    let blocking_queue = runtime.queue("blocking").build().unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..fewer(10_000) {
        let runs = Arc::clone(&runs);
        blocking_queue
            .post(move || {
                runs.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
    }
    blocking_queue.flush().unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), fewer(10_000));
}

#[test]
fn a_rescuer_works_when_no_worker_can() {
    let runtime = Runtime::builder().max_workers(1).build().unwrap();
    let reclaim = runtime.queue("reclaim").rescuer().build().unwrap();
    let other = runtime.queue("other").build().unwrap();
    // The one worker sleeps undeclared.
    let (open, closed) = mpsc::channel::<()>();
    let (started, starts) = mpsc::channel();
    other
        .post(move || {
            started.send(()).unwrap();
            let _ = closed.recv();
        })
        .unwrap();
    starts.recv_timeout(LONG).unwrap();
    let name = reclaim.spawn(|| thread::current().name().map(str::to_owned)).unwrap();
    until("the rescue", || name.is_finished());
    assert_eq!(name.wait().unwrap().as_deref(), Some("workqueue-rescue"));
    let monitor = runtime.monitor();
    let reclaim = monitor.queues.iter().find(|q| q.name == "reclaim").unwrap();
    assert!(reclaim.mayday >= 1 && reclaim.rescued == 1, "{reclaim:?}");
    drop(open);
}

#[test]
fn the_watchdog_reports_a_stall_once() {
    let runtime = Runtime::builder()
        .max_workers(1)
        .watchdog_after(Duration::from_millis(30))
        .build()
        .unwrap();
    let queue = queue(&runtime);
    let (open, closed) = mpsc::channel::<()>();
    queue.post(move || closed.recv().unwrap_or(())).unwrap();
    queue.post(|| ()).unwrap();
    until("the report", || runtime.monitor().stalls == 1);
    thread::sleep(Duration::from_millis(60));
    assert_eq!(runtime.monitor().stalls, 1);
    drop(open);
}

#[test]
fn bad_input_is_named() {
    let runtime = runtime();
    let build = |name: &str| runtime.queue(name).build();
    for name in ["", "with space", "a=b", &"x".repeat(65)] {
        assert!(matches!(build(name), Err(BuildError::Name(_))), "{name}");
    }
    let queue = queue(&runtime);
    assert!(matches!(build("q"), Err(BuildError::NameTaken(_))));
    let error = |r: Result<Queue, BuildError>| r.unwrap_err().to_string();
    assert!(error(runtime.queue("a").max_active(0).build()).contains("max_active 0"));
    assert!(error(runtime.queue("a").max_active(1 << 20).build()).contains("1048576"));
    assert!(error(runtime.queue("a").nice(20).build()).contains("nice 20"));
    let nowhere = [CpuId(4000)].into_iter().collect();
    assert!(error(runtime.queue("a").cpumask(nowhere).strict(true).build()).contains("4000"));
    let empty = tollgate_workqueue::CpuSet::new();
    assert!(error(runtime.queue("a").cpumask(empty).build()).contains("empty"));
    assert!(error(runtime.queue("a").ordered().max_active(3).build()).contains("ordered"));
    assert!(error(runtime.queue("a").high_priority().nice(3).build()).contains("high-priority"));
    assert!(error(runtime.queue("a").backlog(0).build()).contains("backlog 0"));
    assert!(matches!(queue.post_on(CpuId(4000), || ()), Err(SubmitError::Cpu { cpu: 4000, .. })));
    assert!(matches!(runtime.set("none", "nice=1"), Err(AttributeError::NoSuchQueue(_))));
    assert!(matches!(runtime.set("q", "speed=1"), Err(AttributeError::Unknown(_))));
    assert!(matches!(runtime.set("q", "affinity_scope=die"), Err(AttributeError::Scope(_))));
    assert!(matches!(
        Runtime::builder().shard_capacity(100).build(),
        Err(BuildError::Setting { setting: "shard_capacity", value: 100, .. })
    ));
    assert!(matches!(
        Runtime::builder().max_workers(0).build(),
        Err(BuildError::Setting { setting: "max_workers", .. })
    ));
    runtime.shutdown();
    assert!(matches!(build("late"), Err(BuildError::ShutDown)));
}

#[test]
fn names_are_free_again_and_queues_are_used_again() {
    let runtime = runtime();
    for _ in 0..fewer(5000) {
        let queue = queue(&runtime);
        queue.post(|| ()).unwrap();
        queue.flush().unwrap();
    }
    assert!(runtime.dump().queues.is_empty());
}

#[test]
fn dump_and_monitor_show_what_is_there() {
    let runtime = Runtime::builder().default_scope(Scope::Cache).build().unwrap();
    let a = queue(&runtime);
    let _b = runtime.queue("b").scope(Scope::Cpu).strict(true).nice(3).build().unwrap();
    runtime.set("q", "max_active=3").unwrap();
    a.spawn(|| ()).unwrap().wait().unwrap();
    let dump = runtime.dump();
    let (b, q) = (&dump.queues[0], &dump.queues[1]);
    assert_eq!((q.affinity_scope.as_str(), q.max_active), ("default (cache)", Some(3)));
    assert_eq!((b.affinity_scope.as_str(), b.affinity_strict, b.nice), ("cpu", true, 3));
    assert_ne!(b.pool, q.pool);
    let json = serde_json::to_value(&dump).unwrap();
    assert_eq!(json["queues"][1]["affinity_scope"], "default (cache)");
    assert!(dump.to_string().contains("default (cache)"));
    let before = runtime.monitor();
    for _ in 0..100 {
        a.post(|| ()).unwrap();
    }
    a.flush().unwrap();
    let rates = runtime.monitor().since(&before);
    assert!(rates.queues[1].started_per_s > 0.0);
    assert_eq!(rates.queues[1].total, 101);
    assert!(rates.to_string().contains("rescued"));
    assert_eq!(serde_json::to_value(&rates).unwrap()["queues"][1]["name"], "q");
}

/// A worker that alternates between two queues gives each its own part of the CPU time, not all of
/// it to the one it happens to work for when the clock is read.
#[test]
#[cfg_attr(miri, ignore = "Miri has no CPU time")]
fn cpu_time_goes_to_the_queue_that_used_it() {
    let runtime = runtime();
    let heavy = runtime.queue("heavy").build().unwrap();
    let light = runtime.queue("light").build().unwrap();
    for _ in 0..100 {
        heavy.post(|| burn(Duration::from_millis(2))).unwrap();
        light.post(|| ()).unwrap();
        light.flush().unwrap();
        heavy.flush().unwrap();
    }
    until("accounting", || runtime.monitor().queues[0].cpu_time_ms > 100.0);
    let monitor = runtime.monitor();
    let [heavy, light] = [0, 1].map(|index| monitor.queues[index].cpu_time_ms);
    assert!(heavy > 3.0 * light, "heavy {heavy} ms, light {light} ms");
}

/// Uses the CPU for so long, whoever else does meanwhile.
fn burn(time: Duration) {
    let used = || Duration::try_from(rustix::time::clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let start = used();
    while used() - start < time {
        std::hint::black_box((0..1000).sum::<u64>());
    }
}

/// Both by choice, and only of items that are queued from then on.
#[test]
fn times_of_items_are_measured_by_choice() {
    let runtime = runtime();
    let queue = queue(&runtime);
    queue.spawn(|| ()).unwrap().wait().unwrap();
    assert_eq!(runtime.monitor().queues[0].run, None);
    queue.measure_latency(true);
    for _ in 0..20 {
        queue.post(|| thread::sleep(Duration::from_millis(2))).unwrap();
    }
    queue.post(|| panic!("on purpose")).unwrap();
    queue.item(|| ()).queue().unwrap();
    queue.flush().unwrap();
    let monitor = runtime.monitor();
    let (queued, run) = (monitor.queues[0].queued.unwrap(), monitor.queues[0].run.unwrap());
    assert_eq!((queued.count, run.count), (22, 22));
    assert!(run.p50_us >= 2000.0 && run.max_us >= run.p99_us, "{run:?}");
    assert!(queued.max_us >= 2000.0, "the last one waited for others: {queued:?}");
    queue.measure_latency(false);
    queue.spawn(|| ()).unwrap().wait().unwrap();
    assert_eq!(runtime.monitor().queues[0].run.unwrap().count, 22);
}

/// A subscriber that notes in which span each event was.
#[test]
fn items_have_spans_by_choice() {
    use tracing::span;
    #[derive(Clone, Default)]
    struct Notes(Arc<Mutex<Vec<String>>>);
    impl tracing::field::Visit for Visitor<'_> {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            self.0.push_str(&format!("{}={value:?}", field.name()));
        }
    }
    struct Visitor<'s>(&'s mut String);
    impl tracing::Subscriber for Notes {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
            let mut text = span.metadata().name().to_owned() + " ";
            span.record(&mut Visitor(&mut text));
            self.0.lock().unwrap().push(text);
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {}
        fn enter(&self, _: &span::Id) {
            self.0.lock().unwrap().push("enter".to_owned());
        }
        fn exit(&self, _: &span::Id) {
            self.0.lock().unwrap().push("exit".to_owned());
        }
    }
    let runtime = runtime();
    let queue = queue(&runtime);
    let notes = Notes::default();
    tracing::subscriber::with_default(notes.clone(), || {
        queue.post(|| ()).unwrap();
        queue.trace_items(true);
        queue.post(|| ()).unwrap();
        queue.flush().unwrap();
    });
    assert_eq!(*notes.0.lock().unwrap(), ["item queue=\"q\"", "enter", "exit"]);
}
