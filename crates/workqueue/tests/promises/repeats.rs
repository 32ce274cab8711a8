//! Settings, limits and delays, once more and inside themselves.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_workqueue::{
    AttributeError, JoinError, Queued, Runtime, Scope, SubmitError, WhenFull, blocking,
};

use crate::process::kept;
use crate::{Hold, LONG, hold, kinds, until};

#[test]
fn a_change_inside_a_change_is_refused() {
    kept("repeats::a_change_inside_a_change_is_refused", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let other = runtime.queue("other").build().unwrap();
        let inside =
            |result| matches!(result, Err(AttributeError::InsideChange(name)) if name == "q");
        queue
            .change(|attributes| {
                assert!(inside(queue.set("nice=3")));
                assert!(inside(queue.change(|_| ())));
                assert!(inside(runtime.set("q", "nice=4")));
                assert!(inside(runtime.set_default_scope(Scope::Numa)));
                assert!(inside(runtime.set_cpumask(None)));
                // All else may be done there.
                assert_eq!(queue.attributes().nice, 0);
                other.change(|attributes| attributes.nice = 1).unwrap();
                assert_eq!(queue.spawn(|| 7).unwrap().wait().unwrap(), 7);
                assert_eq!((runtime.dump().queues.len(), runtime.monitor().queues.len()), (2, 2));
                attributes.nice = 2;
            })
            .unwrap();
        assert_eq!((queue.attributes().nice, other.attributes().nice), (2, 1));
        let panic = std::panic::AssertUnwindSafe(|| queue.change(|_| panic!("on purpose")));
        assert!(std::panic::catch_unwind(panic).is_err());
        queue.set("nice=5").unwrap();
    });
}

/// What cannot be queued at once keeps its time, whether its queue is full or drained.
#[test]
fn a_delayed_item_whose_flush_is_refused_runs_in_its_time() {
    kept("repeats::a_delayed_item_whose_flush_is_refused_runs_in_its_time", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").ordered().backlog(2).when_full(WhenFull::Refuse);
        let queue = queue.build().unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&runs);
        let item = queue.item(move || _ = counter.fetch_add(1, Ordering::SeqCst));
        let delay = Duration::from_millis(300);
        for drained in [false, true] {
            let (start, open) = (Instant::now(), hold(&queue, Hold::Declared));
            assert_eq!(item.queue_delayed(delay).unwrap(), Queued::Now);
            let open = (!drained).then_some(open);
            if drained {
                queue.drain().unwrap();
            } else {
                while queue.post(|| ()).is_ok() {}
            }
            for _ in 0..2 {
                let refused = item.flush().unwrap_err().to_string();
                assert!(
                    refused.contains(if drained { "is drained" } else { "is full" }),
                    "{refused}"
                );
                assert!(item.is_pending());
            }
            assert_eq!(item.queue().unwrap(), Queued::AlreadyPending);
            drop(open);
            queue.reopen();
            let run = 1 + u32::from(drained);
            until("the run", || runs.load(Ordering::SeqCst) == run);
            assert!(start.elapsed() >= delay, "before its time");
            assert!(!item.flush().unwrap());
        }
        // It can be cancelled and flushed as any other.
        item.queue_delayed(LONG * 9).unwrap();
        queue.drain().unwrap();
        assert!(item.flush().is_err());
        queue.reopen();
        assert!(item.flush().unwrap());
        assert_eq!(runs.load(Ordering::SeqCst), 3);
        item.queue_delayed(Duration::from_millis(10)).unwrap();
        queue.drain().unwrap();
        assert!(item.flush().is_err() && item.cancel());
        queue.reopen();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(runs.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn a_time_for_searching_is_kept_by_pools_to_come() {
    kept("repeats::a_time_for_searching_is_kept_by_pools_to_come", || {
        let runtime = Runtime::builder().spin(Duration::from_millis(1)).build().unwrap();
        runtime.set_spin(Duration::ZERO);
        let before = runtime.queue("before").build().unwrap();
        let after = runtime.queue("after").scope(Scope::System).build().unwrap();
        for queue in [&before, &after] {
            for _ in 0..500 {
                queue.spawn(|| ()).unwrap().wait().unwrap();
            }
        }
        before.set("affinity_scope=cpu").unwrap();
        for _ in 0..500 {
            before.spawn(|| ()).unwrap().wait().unwrap();
        }
        let pools = runtime.dump().pools;
        assert_eq!(pools.len(), 3);
        assert!(pools.iter().all(|pool| pool.found_searching == 0), "{pools:?}");
    });
}

#[test]
fn a_limit_of_none_is_refused_and_changes_nothing() {
    kept("repeats::a_limit_of_none_is_refused_and_changes_nothing", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").max_active(3).build().unwrap();
        for wrong in ["max_active=0", "max_active=65537", "max_active=-1", "max_active="] {
            let error = queue.set(wrong).unwrap_err().to_string();
            assert!(error.contains("max_active"), "{wrong}: {error}");
        }
        let zero = queue.change(|attributes| attributes.max_active = Some(0));
        assert!(matches!(zero, Err(AttributeError::MaxActive(0))));
        assert!(runtime.queue("none").max_active(0).build().is_err());
        assert_eq!(queue.attributes().max_active, Some(3));
        let ordered = runtime.queue("ordered").ordered().build().unwrap();
        assert!(ordered.set("max_active=2").is_err());
        for queue in [queue, ordered] {
            assert_eq!(queue.spawn(|| 1).unwrap().wait().unwrap(), 1);
        }
    });
}

#[test]
fn items_that_panic_give_their_place_under_a_limit_back() {
    kept("repeats::items_that_panic_give_their_place_under_a_limit_back", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").max_active(2).build().unwrap();
        let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        for number in 0..600 {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            let body = move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if number % 5 == 0 {
                    blocking(thread::yield_now);
                }
                now.fetch_sub(1, Ordering::SeqCst);
                std::panic::resume_unwind(Box::new(number));
            };
            if number % 2 == 0 {
                queue.post(body).unwrap();
            } else {
                drop(queue.spawn(body).unwrap());
            }
        }
        queue.flush().unwrap();
        assert!(most.load(Ordering::SeqCst) <= 2);
        let both = Arc::new(std::sync::Barrier::new(2));
        let meet = || {
            let both = Arc::clone(&both);
            queue.spawn_blocking(move || both.wait()).unwrap()
        };
        let (one, other) = (meet(), meet());
        assert_ne!(one.wait().unwrap().is_leader(), other.wait().unwrap().is_leader());
        assert_eq!(runtime.monitor().queues[0].panics, 600);
        // A worker keeps its place for a moment, in case another item comes.
        until("places to be free", || runtime.dump().queues[0].nodes[0].active == 0);
    });
}

#[test]
fn what_is_aborted_under_a_limit_makes_room_for_producers_in_time() {
    kept("repeats::what_is_aborted_under_a_limit_makes_room_for_producers_in_time", || {
        let runtime = Runtime::builder().shard_capacity(4).build().unwrap();
        for kind in 0..2 {
            let queue = runtime.queue("q").backlog(8);
            let queue = if kind == 0 { queue.max_active(1) } else { queue.ordered() };
            let queue = queue.build().unwrap();
            let ran = Arc::new(AtomicU32::new(0));
            let open = hold(&queue, Hold::Declared);
            let aborted = Arc::new(AtomicU32::new(0));
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for number in 0..50 {
                            let ran = Arc::clone(&ran);
                            let body = move || ran.fetch_add(1, Ordering::SeqCst);
                            let handle = queue.spawn(body).unwrap();
                            if number % 2 == 0 && handle.abort() {
                                aborted.fetch_add(1, Ordering::SeqCst);
                                assert!(matches!(handle.wait(), Err(JoinError::Cancelled)));
                            }
                        }
                    });
                }
                until("a full queue", || queue.in_flight() >= 9);
                drop(open);
            });
            queue.drain().unwrap();
            assert_eq!(ran.load(Ordering::SeqCst) + aborted.load(Ordering::SeqCst), 200);
        }
    });
}

#[test]
fn a_shorter_delay_is_not_kept_waiting_by_a_longer_one() {
    kept("repeats::a_shorter_delay_is_not_kept_waiting_by_a_longer_one", || {
        let runtime = Runtime::builder().build().unwrap();
        let hour = Duration::from_secs(3600);
        for queue in kinds(&runtime) {
            let (tell, told) = mpsc::channel();
            let item = |name: &'static str| {
                let tell = tell.clone();
                queue.item(move || tell.send((name, Instant::now())).unwrap())
            };
            let (late, soon, moved) = (item("late"), item("soon"), item("moved"));
            assert_eq!(late.queue_delayed(hour), Ok(Queued::Now));
            assert_eq!(moved.queue_delayed(hour), Ok(Queued::Now));
            // The clock's keeper sleeps for an hour by now, or is about to.
            let start = Instant::now();
            assert_eq!(soon.queue_delayed(Duration::from_millis(20)), Ok(Queued::Now));
            assert_eq!(soon.queue_delayed(hour), Ok(Queued::AlreadyPending));
            let (name, when) = told.recv_timeout(LONG).unwrap();
            assert_eq!(name, "soon");
            assert!(when >= start + Duration::from_millis(20), "not before its time");
            assert_eq!(moved.modify_delay(Duration::ZERO), Ok(true));
            assert_eq!(told.recv_timeout(LONG).unwrap().0, "moved");
            assert_eq!(late.flush(), Ok(true));
            assert_eq!(told.recv_timeout(LONG).unwrap().0, "late");
            assert_eq!((late.cancel(), late.is_pending()), (false, false));
        }
        assert_eq!(runtime.monitor().delayed, 0);
    });
}

/// Whoever delays an item beside others leaves nothing in the timer that keeps it there.
#[test]
fn an_item_that_two_delay_at_once_goes_when_it_is_cancelled() {
    kept("repeats::an_item_that_two_delay_at_once_goes_when_it_is_cancelled", || {
        let runtime = Runtime::builder().build().unwrap();
        for _ in 0..3000 {
            let queue = runtime.queue("q").build().expect("the name is free");
            let item = queue.item(|| ());
            thread::scope(|scope| {
                let delay = || {
                    for _ in 0..5 {
                        item.modify_delay(Duration::from_secs(3600)).unwrap();
                    }
                };
                scope.spawn(delay);
                delay();
            });
            assert!(item.cancel());
        }
    });
}

#[test]
fn a_disabled_item_lets_no_delay_through() {
    kept("repeats::a_disabled_item_lets_no_delay_through", || {
        let runtime = Runtime::builder().build().unwrap();
        for queue in kinds(&runtime) {
            let runs = Arc::new(AtomicU32::new(0));
            let count = Arc::clone(&runs);
            let item = queue.item(move || drop(count.fetch_add(1, Ordering::SeqCst).to_string()));
            for _ in 0..255 {
                item.disable().unwrap();
            }
            assert!(item.disable().is_err());
            assert_eq!(item.queue_delayed(Duration::ZERO), Err(SubmitError::Disabled));
            assert_eq!(item.modify_delay(Duration::ZERO), Err(SubmitError::Disabled));
            for _ in 0..255 {
                item.enable().unwrap();
            }
            assert!(item.enable().is_err());
            for _ in 0..50 {
                item.queue_delayed(Duration::from_micros(50)).unwrap();
                assert!(item.disable_sync().is_ok());
                let before = runs.load(Ordering::SeqCst);
                // A run that was on its way would come before the flush ends.
                queue.flush().unwrap();
                assert_eq!(runs.load(Ordering::SeqCst), before, "it is disabled");
                item.enable().unwrap();
            }
            let before = runs.load(Ordering::SeqCst);
            item.queue().unwrap();
            item.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), before + 1, "enabled again");
        }
    });
}

#[test]
fn inline_items_end_at_their_depth_and_in_order_of_call() {
    kept("repeats::inline_items_end_at_their_depth_and_in_order_of_call", || {
        fn down(queue: &tollgate_workqueue::Queue, depth: u32, deepest: &Arc<AtomicU32>) {
            deepest.fetch_max(depth, Ordering::SeqCst);
            let (below, next) = (queue.clone(), Arc::clone(deepest));
            let more = move || down(&below, depth + 1, &next);
            match queue.post(more) {
                Ok(()) => {}
                Err(error) => assert!(matches!(error, SubmitError::Full { .. })),
            }
        }
        let runtime = Runtime::builder().shard_capacity(2).max_workers(1).build().unwrap();
        let queue = runtime.queue("q").when_full(WhenFull::RunInline).build().unwrap();
        let open = hold(&queue, Hold::Undeclared);
        let here = thread::current().id();
        // What finds no room runs here.
        let fill = || {
            let inline = Arc::new(AtomicU32::new(0));
            while inline.load(Ordering::SeqCst) == 0 {
                let count = Arc::clone(&inline);
                let body = move || {
                    count.fetch_add(u32::from(thread::current().id() == here), Ordering::SeqCst);
                };
                queue.post(body).unwrap();
            }
        };
        let deepest = Arc::new(AtomicU32::new(0));
        // On a busy machine room may have come since: then what found it takes that.
        for _ in 0..10 {
            fill();
            down(&queue, 0, &deepest);
            if deepest.load(Ordering::SeqCst) >= 16 {
                break;
            }
        }
        assert!((16..=64).contains(&deepest.load(Ordering::SeqCst)), "{deepest:?}");
        drop(open);
        queue.flush().unwrap();
        assert!(runtime.monitor().queues[0].inlined > 0);
    });
}

/// Of two who queue an item at once, one may be told that it is pending already. Then it runs, also where the
/// other one is refused.
#[test]
fn an_item_that_somebody_was_told_is_pending_runs() {
    kept("repeats::an_item_that_somebody_was_told_is_pending_runs", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").ordered().backlog(1).when_full(WhenFull::Refuse);
        let queue = queue.build().unwrap();
        let mut told = 0;
        for _ in 0..100 {
            let open = hold(&queue, Hold::Undeclared);
            queue.post(|| ()).unwrap();
            let runs = Arc::new(AtomicU32::new(0));
            let counter = Arc::clone(&runs);
            let item = queue.item(move || {
                counter.fetch_add(1, Ordering::SeqCst);
            });
            let is_told = || {
                (0..2000).any(|_| match item.queue() {
                    Err(SubmitError::Full { .. }) => false,
                    other => other.map(|_| true).unwrap(),
                })
            };
            let one_told = thread::scope(|scope| {
                let other = scope.spawn(is_told);
                is_told() | other.join().unwrap()
            });
            drop(open);
            queue.flush().unwrap();
            assert!(runs.load(Ordering::SeqCst) > 0 || !one_told);
            told += u32::from(one_told);
        }
        println!("told in {told} of 100 rounds");
    });
}

/// So it is in a drain, where the queue's own items may queue.
#[test]
fn an_item_that_somebody_was_told_is_pending_runs_during_a_drain() {
    kept("repeats::an_item_that_somebody_was_told_is_pending_runs_during_a_drain", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").max_active(2).backlog(1).build().unwrap();
        let mut told = 0;
        for _ in 0..100 {
            let runs = Arc::new(AtomicU32::new(0));
            let counter = Arc::clone(&runs);
            let item = queue.item(move || {
                counter.fetch_add(1, Ordering::SeqCst);
            });
            let (start, answers) = (Arc::new(Barrier::new(2)), Arc::new(AtomicU32::new(0)));
            let opens = [0, 1].map(|_| {
                let (open, closed) = mpsc::channel::<()>();
                let (start, answers) = (Arc::clone(&start), Arc::clone(&answers));
                let item = item.clone();
                let body = move || {
                    let _ = blocking(|| closed.recv());
                    blocking(|| start.wait());
                    // The backlog is full, unless the other one has been told.
                    let is_told = (0..2000).any(|_| match item.queue() {
                        Err(SubmitError::Full { .. }) => false,
                        other => other.map(|_| true).unwrap(),
                    });
                    answers.fetch_add(is_told.into(), Ordering::SeqCst);
                    // The backlog stays full while the other one tries.
                    blocking(|| start.wait());
                };
                queue.post(body).unwrap();
                open
            });
            until("both to run", || active_and_waiting(&runtime) == (2, 0));
            queue.post(|| ()).unwrap();
            until("the backlog to be full", || active_and_waiting(&runtime) == (2, 1));
            thread::scope(|scope| {
                let drain = scope.spawn(|| queue.drain());
                until("the drain to begin", || runtime.dump().queues[0].drained);
                drop(opens);
                drain.join().unwrap().unwrap();
            });
            let one_told = answers.load(Ordering::SeqCst) > 0;
            assert!(runs.load(Ordering::SeqCst) > 0 || !one_told, "told, and never run");
            assert!(!item.is_pending());
            told += u32::from(one_told);
            queue.reopen();
        }
        println!("told in {told} of 100 rounds");
    });
}

/// Items that run, and those that wait for the limit, of the one queue.
fn active_and_waiting(runtime: &Runtime) -> (u32, u32) {
    let nodes = runtime.dump().queues[0].nodes.clone();
    nodes
        .iter()
        .fold((0, 0), |(active, waiting), node| (active + node.active, waiting + node.waiting))
}

#[test]
fn an_item_that_two_flush_in_vain_goes_on_waiting_for_its_time() {
    kept("repeats::an_item_that_two_flush_in_vain_goes_on_waiting_for_its_time", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let item = queue.item(|| ());
        item.queue_delayed(Duration::from_secs(3600)).unwrap();
        queue.drain().unwrap();
        let flush = || {
            for _ in 0..20_000 {
                // Of what the other one began, it may only hear that it is over.
                let _ = item.flush();
            }
        };
        thread::scope(|scope| {
            scope.spawn(flush);
            flush();
        });
        thread::sleep(Duration::from_millis(50));
        assert!(item.is_pending());
        assert_eq!(runtime.monitor().queues[0].refused, 0);
        assert!(item.cancel());
    });
}
