//! Limits, order and full places, together with cancelling, delays and changes of attributes.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_workqueue::{Queued, Runtime, SubmitError, WhenFull, Work, blocking};

use crate::process::{kept, kept_with};
use crate::{Hold, LONG, hold, until};

#[test]
fn a_lowered_limit_applies_to_what_is_queued() {
    kept("limits::a_lowered_limit_applies_to_what_is_queued", || {
        let runtime = Runtime::builder().max_workers(8).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let now = Arc::new(AtomicU32::new(0));
        let most = Arc::new(AtomicU32::new(0));
        let finished = Arc::new(AtomicU32::new(0));
        for _ in 0..1000 {
            let (now, most, finished) =
                (Arc::clone(&now), Arc::clone(&most), Arc::clone(&finished));
            let body = move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                blocking(|| thread::sleep(Duration::from_millis(1)));
                now.fetch_sub(1, Ordering::SeqCst);
                finished.fetch_add(1, Ordering::SeqCst);
            };
            queue.post(body).unwrap();
        }
        until("several at once", || most.load(Ordering::SeqCst) > 1);
        queue.set("max_active=1").unwrap();
        // What had started may end: eight workers had at most one item each.
        let before = finished.load(Ordering::SeqCst);
        until("the end of what ran", || finished.load(Ordering::SeqCst) >= before + 16);
        most.store(0, Ordering::SeqCst);
        assert!(finished.load(Ordering::SeqCst) < 900, "too few items are left to see a limit");
        queue.flush().unwrap();
        assert_eq!(finished.load(Ordering::SeqCst), 1000);
        assert_eq!(most.load(Ordering::SeqCst), 1, "items at once under max_active = 1");
    });
}

/// Producers are woken for many places at once. One that a running item waits for must not need
/// more of them than its own.
#[test]
fn one_free_place_in_an_ordered_backlog_is_enough_for_a_producer() {
    kept("limits::one_free_place_in_an_ordered_backlog_is_enough_for_a_producer", || {
        const BACKLOG: usize = 2048;
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").ordered().backlog(BACKLOG).build().unwrap();
        let (heard, hears) = mpsc::channel();
        let open = hold(&queue, Hold::Declared);
        queue.post(move || hears.recv_timeout(LONG).unwrap()).unwrap();
        (1..BACKLOG).for_each(|_| queue.post(|| ()).unwrap());
        let (asked, producer) = (Arc::new(AtomicBool::new(false)), queue.clone());
        let asks = Arc::clone(&asked);
        let producer = thread::spawn(move || {
            asks.store(true, Ordering::SeqCst);
            producer.post(|| ()).unwrap();
            heard.send(()).unwrap();
        });
        until("the producer to ask", || asked.load(Ordering::SeqCst));
        thread::sleep(Duration::from_millis(20));
        assert!(!producer.is_finished(), "the backlog takes no more than agreed");
        drop(open);
        producer.join().unwrap();
        queue.flush().unwrap();
    });
}

/// The queue before it, whose place it has, had room for many more.
#[test]
fn a_small_ordered_backlog_is_kept_after_a_queue_with_a_large_one() {
    kept("limits::a_small_ordered_backlog_is_kept_after_a_queue_with_a_large_one", || {
        let runtime = Runtime::builder().build().unwrap();
        drop(runtime.queue("large").ordered().build().unwrap());
        let small = runtime.queue("small").ordered().backlog(4).when_full(WhenFull::Refuse);
        let small = small.build().unwrap();
        let open = hold(&small, Hold::Declared);
        let ran = Arc::new(Mutex::new(Vec::new()));
        let accepted: Vec<_> = (0..8)
            .filter(|&n| {
                let ran = Arc::clone(&ran);
                small.post(move || ran.lock().unwrap().push(n)).is_ok()
            })
            .collect();
        drop(open);
        small.flush().unwrap();
        assert_eq!(accepted, [0, 1, 2, 3]);
        assert_eq!(*ran.lock().unwrap(), accepted);
    });
}

/// A producer that was woken for a place may not take it: where the limit is free by then, its item
/// runs without having waited. Those behind it must learn of the place all the same.
#[test]
fn more_producers_than_places_in_a_limited_backlog_all_return() {
    kept("limits::more_producers_than_places_in_a_limited_backlog_all_return", || {
        // One backlog: each node has its own.
        bind_to_one_cpu();
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").max_active(1).backlog(1).build().unwrap();
        for _ in 0..20 {
            let open = hold(&queue, Hold::Declared);
            queue.post(|| ()).unwrap();
            let waits = || runtime.dump().queues[0].nodes.iter().any(|node| node.waiting == 1);
            until("the backlog to be full", waits);
            let asked = AtomicU32::new(0);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        asked.fetch_add(1, Ordering::SeqCst);
                        queue.post(|| ()).unwrap();
                    });
                }
                until("the producers to ask", || asked.load(Ordering::SeqCst) == 4);
                // Nobody shows that they sleep.
                thread::sleep(Duration::from_millis(5));
                drop(open);
            });
            queue.flush().unwrap();
        }
    });
}

#[test]
fn an_ordered_backlog_behind_a_full_shard_needs_no_stack() {
    const ITEMS: usize = 200_000;
    let small_stack = [("RUST_MIN_STACK", "262144")];
    kept_with(
        "limits::an_ordered_backlog_behind_a_full_shard_needs_no_stack",
        &small_stack,
        || {
            bind_to_one_cpu();
            let runtime = Runtime::builder().shard_capacity(4).max_workers(1).build().unwrap();
            let ordered = runtime.queue("ordered").ordered().backlog(ITEMS).build().unwrap();
            let other = runtime.queue("other").when_full(WhenFull::Refuse).build().unwrap();
            let open = hold(&other, Hold::Undeclared);
            let seen = Arc::new(AtomicUsize::new(0));
            for number in 0..ITEMS {
                let (seen, other) = (Arc::clone(&seen), other.clone());
                let body = move || {
                    // Nobody else may find room in the shard.
                    while other.post(|| ()).is_ok() {}
                    assert_eq!(seen.fetch_add(1, Ordering::SeqCst), number);
                };
                ordered.post(body).unwrap();
            }
            drop(open);
            ordered.flush().unwrap();
            assert_eq!(seen.load(Ordering::SeqCst), ITEMS);
            other.flush().unwrap();
        },
    );
}

fn bind_to_one_cpu() {
    let cpu = tollgate_workqueue::Topology::current().unwrap().allowed().lowest().unwrap();
    let mut mask = rustix::thread::CpuSet::new();
    mask.set(cpu.index());
    rustix::thread::sched_setaffinity(None, &mask).unwrap();
}

/// Whoever runs it: a worker's item that waits for it, a rescuer, or who queued it.
#[test]
fn a_limit_counts_what_runs_elsewhere_than_on_a_worker_of_its_own() {
    kept("limits::a_limit_counts_what_runs_elsewhere_than_on_a_worker_of_its_own", || {
        for place in ["waiter", "rescuer", "inline"] {
            let cpu = tollgate_workqueue::Topology::current().unwrap().allowed().lowest().unwrap();
            let runtime = Runtime::builder().cpumask([cpu].into_iter().collect());
            // Only a rescuer or the one who queues has a thread for it while another item runs.
            let runtime = if place == "waiter" { runtime } else { runtime.max_workers(1) };
            let runtime = runtime.shard_capacity(2).build().unwrap();
            let other = runtime.queue("other").build().unwrap();
            let limited = runtime.queue("limited");
            let limited = match place {
                "rescuer" => limited.rescuer(),
                "inline" => limited.when_full(WhenFull::RunInline),
                _ => limited,
            };
            let limited = limited.build().unwrap();
            let (begun, begins) = mpsc::channel();
            let (open, closed) = mpsc::channel::<()>();
            let body = move || {
                begun.send(()).unwrap();
                let _ = blocking(|| closed.recv());
            };
            let queue = limited.clone();
            let (held, poster) = match place {
                "waiter" => {
                    let outer = move || queue.spawn(body).unwrap().wait().unwrap();
                    other.post(outer).unwrap();
                    (None, None)
                }
                "rescuer" => {
                    let held = hold(&other, Hold::Undeclared);
                    queue.post(body).unwrap();
                    (Some(held), None)
                }
                _ => {
                    let held = hold(&other, Hold::Undeclared);
                    (0..2).for_each(|_| other.post(|| ()).unwrap());
                    (Some(held), Some(thread::spawn(move || queue.post(body).unwrap())))
                }
            };
            begins.recv_timeout(LONG).unwrap();
            limited.set("max_active=1").unwrap();
            drop(held);
            let (ran, runs) = mpsc::channel();
            limited.post(move || ran.send(()).unwrap()).unwrap();
            let early = runs.recv_timeout(Duration::from_millis(200));
            assert!(early.is_err(), "{place}: two at once under max_active = 1");
            drop(open);
            runs.recv_timeout(LONG).unwrap();
            poster.into_iter().for_each(|poster| poster.join().unwrap());
            limited.flush().unwrap();
            let nodes = &runtime.dump().queues[0].nodes;
            assert!(nodes.iter().all(|node| node.waiting == 0), "{place}: {nodes:?}");
        }
    });
}

/// Set while such items begin and end: no place is lost, and none is given twice.
#[test]
fn a_limit_that_comes_and_goes_keeps_its_places() {
    kept("limits::a_limit_that_comes_and_goes_keeps_its_places", || {
        let runtime = Runtime::builder().shard_capacity(2).build().unwrap();
        let outer = runtime.queue("outer").build().unwrap();
        let limited = runtime.queue("limited").rescuer().when_full(WhenFull::RunInline);
        let limited = limited.backlog(64).build().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let (over, queue) = (Arc::clone(&over), limited.clone());
            let body = move || {
                while !over.load(Ordering::SeqCst) {
                    // Refused where the backlog is full.
                    queue.spawn(|| ()).into_iter().for_each(|item| item.wait().unwrap());
                }
            };
            outer.post(body).unwrap();
        }
        thread::scope(|scope| {
            let posts = || {
                while !over.load(Ordering::SeqCst) {
                    limited.post(|| ()).unwrap();
                }
            };
            scope.spawn(posts);
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(1) {
                limited.set("max_active=1").unwrap();
                limited.set("max_active=default").unwrap();
            }
            over.store(true, Ordering::SeqCst);
        });
        outer.flush().unwrap();
        limited.set("max_active=1").unwrap();
        limited.flush().unwrap();
        let active = || runtime.dump().queues[0].nodes.iter().map(|node| node.active).sum::<u32>();
        until("all places to be free", || active() == 0);
        // With a place too many they would meet.
        let now = Arc::new(AtomicU32::new(0));
        for _ in 0..20 {
            let now = Arc::clone(&now);
            let body = move || {
                assert_eq!(now.fetch_add(1, Ordering::SeqCst), 0);
                blocking(|| thread::sleep(Duration::from_millis(1)));
                now.fetch_sub(1, Ordering::SeqCst);
            };
            limited.post(body).unwrap();
        }
        limited.flush().unwrap();
        assert_eq!(runtime.monitor().queues[0].panics, 0);
    });
}

/// What runs on while the limit goes and comes back takes one place, not one for each time.
#[test]
fn a_limit_that_is_set_again_counts_a_running_item_once() {
    kept("limits::a_limit_that_is_set_again_counts_a_running_item_once", || {
        for place in ["worker", "waiter"] {
            // A limit of its own for each node would have room for both.
            bind_to_one_cpu();
            let runtime = Runtime::builder().max_workers(4).build().unwrap();
            let queue = runtime.queue("q").build().unwrap();
            let outer = runtime.queue("outer").build().unwrap();
            let open = run_at(place, &queue, &outer);
            for setting in ["max_active=2", "max_active=default", "max_active=2"] {
                queue.set(setting).unwrap();
            }
            let (ran, runs) = mpsc::channel();
            queue.post(move || ran.send(()).unwrap()).unwrap();
            let early = runs.recv_timeout(Duration::from_secs(5));
            assert!(early.is_ok(), "{place}: one item takes both places");
            // One that ends while there is none is not counted by the next.
            queue.set("max_active=default").unwrap();
            drop(open);
            queue.flush().unwrap();
            outer.flush().unwrap();
            queue.set("max_active=1").unwrap();
            until("all places to be free", || active(&runtime, "q") == 0);
        }
    });
}

/// Once, whether the limit came before or after them, and also inside an item that waits for them.
#[test]
fn a_dump_counts_each_running_item_once() {
    kept("limits::a_dump_counts_each_running_item_once", || {
        for place in ["worker", "waiter"] {
            bind_to_one_cpu();
            let runtime = Runtime::builder().max_workers(4).build().unwrap();
            let queue = runtime.queue("q").build().unwrap();
            let outer = runtime.queue("outer").build().unwrap();
            let open = run_at(place, &queue, &outer);
            // Until the worker that finds it taken by who waits for it has seen that.
            let is_counted_once = || active(&runtime, "q") == 1;
            until(&format!("{place}: one item, no limit"), is_counted_once);
            for setting in ["max_active=2", "max_active=default", "max_active=2"] {
                queue.set(setting).unwrap();
                until(&format!("{place}: one item, {setting}"), is_counted_once);
            }
            drop(open);
            queue.flush().unwrap();
            until("it to end", || active(&runtime, "q") == 0);
        }
    });
}

/// An item of `queue` that runs until the sender is dropped: on a worker, or inside an item of
/// `outer` that waits for it.
fn run_at(
    place: &str,
    queue: &tollgate_workqueue::Queue,
    outer: &tollgate_workqueue::Queue,
) -> mpsc::Sender<()> {
    if place == "worker" {
        return hold(queue, Hold::Declared);
    }
    let (begun, begins) = mpsc::channel();
    let (open, closed) = mpsc::channel::<()>();
    let body = move || {
        begun.send(()).unwrap();
        let _ = blocking(|| closed.recv());
    };
    let inner = queue.clone();
    outer.post(move || inner.spawn(body).unwrap().wait().unwrap()).unwrap();
    begins.recv_timeout(LONG).unwrap();
    open
}

/// Items of this queue that run, as the dump has it.
fn active(runtime: &Runtime, name: &str) -> u32 {
    let dump = runtime.dump();
    let queue = dump.queues.iter().find(|queue| queue.name == name).unwrap();
    queue.nodes.iter().map(|node| node.active).sum()
}

#[test]
fn a_cancelled_item_leaves_no_gap_in_an_ordered_queue() {
    kept("limits::a_cancelled_item_leaves_no_gap_in_an_ordered_queue", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").ordered().build().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let items: Vec<_> = (0..300)
            .map(|number| {
                let seen = Arc::clone(&seen);
                queue.item(move || seen.lock().unwrap().push(number))
            })
            .collect();
        let open = hold(&queue, Hold::Declared);
        for item in &items {
            assert_eq!(item.queue(), Ok(Queued::Now));
        }
        for item in items.iter().step_by(3) {
            assert!(item.cancel());
        }
        for item in items.iter().skip(1).step_by(3) {
            assert_eq!(item.cancel_sync(), Ok(true));
        }
        // To the end of the order, not to their old place.
        for item in items.iter().step_by(3) {
            assert_eq!(item.queue(), Ok(Queued::Now));
        }
        drop(open);
        queue.flush().unwrap();
        let expected: Vec<_> = (2..300).step_by(3).chain((0..300).step_by(3)).collect();
        assert_eq!(*seen.lock().unwrap(), expected);
    });
}

#[test]
fn disabling_removes_what_is_queued_under_a_limit() {
    kept("limits::disabling_removes_what_is_queued_under_a_limit", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").max_active(1).build().unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&runs);
        let item = queue.item(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        for round in 0..50 {
            let open = hold(&queue, Hold::Declared);
            assert_eq!(item.queue(), Ok(Queued::Now));
            assert_eq!(item.disable_sync(), Ok(true));
            assert_eq!(item.queue(), Err(SubmitError::Disabled));
            drop(open);
            queue.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), round);
            item.enable().unwrap();
            assert_eq!(item.queue(), Ok(Queued::Now));
            assert!(item.flush().is_ok());
            assert_eq!(runs.load(Ordering::SeqCst), round + 1);
        }
    });
}

#[test]
fn attributes_change_while_items_are_cancelled_and_requeued() {
    kept("limits::attributes_change_while_items_are_cancelled_and_requeued", || {
        let runtime = Runtime::builder().max_workers(8).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| churn(&queue, &stop));
            }
            for setting in SETTINGS.iter().cycle().take(600) {
                queue.set(setting).unwrap();
            }
            stop.store(true, Ordering::SeqCst);
        });
        queue.drain().unwrap();
        assert_eq!(queue.in_flight(), 0);
    });
}

const SETTINGS: [&str; 6] = [
    "max_active=1",
    "affinity_scope=cpu",
    "max_active=2",
    "affinity_strict=1",
    "max_active=default",
    "affinity_strict=0",
];

/// Every queueing that was accepted is either run once or cancelled once.
fn churn(queue: &tollgate_workqueue::Queue, stop: &AtomicBool) {
    let runs = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&runs);
    let item = queue.item(move || {
        counter.fetch_add(1, Ordering::SeqCst);
    });
    let (mut queued, mut cancelled) = (0_u32, 0_u32);
    while !stop.load(Ordering::SeqCst) {
        for turn in 0..100 {
            queued += u32::from(item.queue().unwrap() == Queued::Now);
            cancelled += u32::from(turn % 3 == 0 && item.cancel());
        }
        cancelled += u32::from(item.cancel_sync().unwrap());
        assert_eq!(runs.load(Ordering::SeqCst), queued - cancelled);
    }
}

#[test]
fn a_delayed_item_finds_its_queue_full_and_is_not_lost() {
    kept("limits::a_delayed_item_finds_its_queue_full_and_is_not_lost", || {
        let runtime = Runtime::builder().shard_capacity(4).max_workers(1).build().unwrap();
        for when_full in [WhenFull::Block, WhenFull::Refuse, WhenFull::RunInline] {
            let queue = runtime.queue("q").when_full(when_full).build().unwrap();
            let filler = runtime.queue("filler").when_full(WhenFull::Refuse).build().unwrap();
            let runs = Arc::new(AtomicU32::new(0));
            let counter = Arc::clone(&runs);
            let item = queue.item(move || {
                let thread = thread::current().name().unwrap_or_default().to_owned();
                assert!(!thread.contains("keeper"), "the thread of the timer runs no items");
                counter.fetch_add(1, Ordering::SeqCst);
            });
            let open = hold(&filler, Hold::Undeclared);
            // Every shard, whichever one the timer will choose.
            for cpu in &runtime.topology().allowed().clone() {
                while filler.post_on(cpu, || ()).is_ok() {}
            }
            item.queue_delayed(Duration::from_millis(5)).unwrap();
            thread::sleep(Duration::from_millis(50));
            assert_eq!(runs.load(Ordering::SeqCst), 0);
            drop(open);
            until(&format!("the delayed item ({when_full:?})"), || {
                runs.load(Ordering::SeqCst) == 1
            });
            assert_eq!(item.panics().0, 0);
            filler.flush().unwrap();
        }
    });
}

/// Items whose time came while the only worker was taken: they are in the queue as if they had been
/// queued then, in a FIFO or on a list beside one that is full.
fn due_behind(queue: &tollgate_workqueue::Queue, count: u32) -> (Vec<Work>, Arc<AtomicU32>) {
    let runs = Arc::new(AtomicU32::new(0));
    let items: Vec<_> = (0..count)
        .map(|number| {
            let counter = Arc::clone(&runs);
            let item = queue.item(move || {
                counter.fetch_add(1, Ordering::SeqCst);
            });
            match number % 3 {
                0 => drop(item.queue_delayed(Duration::ZERO).unwrap()),
                1 => drop(item.queue_delayed(Duration::from_millis(3)).unwrap()),
                _ => drop(item.modify_delay(Duration::from_millis(1)).unwrap()),
            }
            item
        })
        .collect();
    (items, runs)
}

#[test]
fn an_item_whose_time_came_before_a_drain_or_the_end_is_run() {
    kept("limits::an_item_whose_time_came_before_a_drain_or_the_end_is_run", || {
        for end in ["drain", "shutdown", "drop"] {
            for kind in ["plain", "limited", "ordered"] {
                let builder = Runtime::builder().max_workers(1).concurrency(1);
                let runtime = builder.shard_capacity(4).build().unwrap();
                let queue = runtime.queue("q").when_full(WhenFull::Refuse);
                let queue = match kind {
                    "limited" => queue.max_active(1),
                    "ordered" => queue.ordered(),
                    _ => queue,
                };
                let queue = queue.build().unwrap();
                let open = hold(&queue, Hold::Undeclared);
                // More than the FIFO holds.
                let (items, runs) = due_behind(&queue, 9);
                until("the time of all", || {
                    runtime.monitor().delayed == 0 && queue.in_flight() == 10
                });
                assert!(items.iter().all(Work::is_pending));
                let later = thread::spawn(move || {
                    thread::sleep(Duration::from_millis(20));
                    drop(open);
                });
                match end {
                    "drain" => queue.drain().unwrap(),
                    "shutdown" => runtime.shutdown(),
                    _ => drop(runtime),
                }
                assert_eq!(runs.load(Ordering::SeqCst), 9, "{kind} {end}");
                assert!(!items.iter().any(Work::is_pending), "{kind} {end}");
                later.join().unwrap();
            }
        }
    });
}

#[test]
fn a_flush_of_an_item_whose_time_came_waits_for_its_turn() {
    kept("limits::a_flush_of_an_item_whose_time_came_waits_for_its_turn", || {
        let runtime = Runtime::builder().max_workers(1).shard_capacity(4).build().unwrap();
        let queue = runtime.queue("q").when_full(WhenFull::Refuse).build().unwrap();
        let open = hold(&queue, Hold::Undeclared);
        let (items, runs) = due_behind(&queue, 60);
        until("the time of all", || runtime.monitor().delayed == 0 && queue.in_flight() == 61);
        thread::scope(|scope| {
            let flushes: Vec<_> =
                items.iter().take(20).map(|item| scope.spawn(|| item.flush())).collect();
            thread::sleep(Duration::from_millis(20));
            assert_eq!((runtime.monitor().delayed, runs.load(Ordering::SeqCst)), (0, 0));
            drop(open);
            queue.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), 60, "queued before the flush of the queue");
            for flush in flushes {
                assert_eq!(flush.join().unwrap(), Ok(true));
            }
        });
        assert!(items.iter().all(|item| item.flush() == Ok(false)));
    });
}
