//! Features in pairs: order and rescue, delays and measuring, masks and places, requeueing and
//! cancelling.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use tollgate_workqueue::{CpuSet, Queued, Runtime, Scope, SubmitError, Work, blocking};

use crate::process::kept;
use crate::{Hold, LONG, hold, threads, two_caches, until};

#[test]
fn order_holds_while_a_rescuer_and_workers_take_turns() {
    kept("pairs::order_holds_while_a_rescuer_and_workers_take_turns", || {
        let runtime = Runtime::builder()
            .max_workers(1)
            .mayday_after(Duration::from_millis(1))
            .cpu_intensive_after(Duration::from_millis(1))
            .build()
            .unwrap();
        let other = runtime.queue("other").build().unwrap();
        let queue = runtime.queue("q").ordered().rescuer().build().unwrap();
        let (seen, rescued) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU32::new(0)));
        let mut posted = 0;
        for _ in 0..20 {
            let open = hold(&other, Hold::Undeclared);
            for _ in 0..200 {
                let (seen, rescued, number) = (Arc::clone(&seen), Arc::clone(&rescued), posted);
                let body = move || {
                    let name = thread::current().name().unwrap_or_default().to_owned();
                    rescued.fetch_add(u32::from(name.ends_with("rescue")), Ordering::SeqCst);
                    seen.lock().unwrap().push(number);
                };
                queue.post(body).unwrap();
                posted += 1;
            }
            until("a rescue", || seen.lock().unwrap().len() + 150 > posted);
            drop(open);
        }
        queue.flush().unwrap();
        assert!(rescued.load(Ordering::SeqCst) > 0);
        assert_eq!(*seen.lock().unwrap(), Vec::from_iter(0..posted));
    });
}

#[test]
fn an_ordered_queue_that_never_pauses_leaves_others_their_turn() {
    kept("pairs::an_ordered_queue_that_never_pauses_leaves_others_their_turn", || {
        let runtime = Runtime::builder().max_workers(1).build().unwrap();
        let ordered = runtime.queue("ordered").ordered().build().unwrap();
        let other = runtime.queue("other").build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        fn on(queue: &tollgate_workqueue::Queue, stop: &Arc<AtomicBool>) {
            if !stop.load(Ordering::SeqCst) {
                let (next, stop) = (queue.clone(), Arc::clone(stop));
                queue.post(move || on(&next, &stop)).unwrap();
            }
        }
        on(&ordered, &stop);
        for _ in 0..50 {
            other.spawn(|| ()).unwrap().wait().unwrap();
        }
        // Also after the queue was given another pool.
        ordered.set("affinity_scope=system").unwrap();
        let moved = runtime.dump().queues.iter().find(|q| q.name == "ordered").unwrap().pool;
        until("the new pool to work", || {
            let dump = runtime.dump();
            dump.pools.iter().any(|pool| pool.number == moved && pool.started_workers > 0)
        });
        stop.store(true, Ordering::SeqCst);
        ordered.flush().unwrap();
    });
}

#[test]
fn cpu_time_of_an_ordered_queue_that_never_pauses_is_counted() {
    kept("pairs::cpu_time_of_an_ordered_queue_that_never_pauses_is_counted", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").ordered().build().unwrap();
        let stop = AtomicBool::new(false);
        let cpu = || runtime.monitor().queues[0].cpu_time_ms;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    queue
                        .post(|| {
                            std::hint::black_box([0_u8; 64]);
                        })
                        .unwrap();
                }
            });
            until("CPU time", || cpu() > 0.0);
            stop.store(true, Ordering::SeqCst);
        });
        queue.flush().unwrap();
    });
}

#[test]
fn items_that_were_delayed_or_queued_again_are_measured_and_have_spans() {
    kept("pairs::items_that_were_delayed_or_queued_again_are_measured_and_have_spans", || {
        let runtime = Runtime::builder().build().unwrap();
        for ordered in [false, true] {
            let name = if ordered { "ordered" } else { "plain" };
            let queue = runtime.queue(name);
            let queue = if ordered { queue.ordered() } else { queue }.build().unwrap();
            queue.measure_latency(true);
            let runs = Arc::new(AtomicU32::new(0));
            let again: Arc<OnceLock<Work>> = Arc::default();
            let (count, me) = (Arc::clone(&runs), Arc::clone(&again));
            let item = queue.item(move || {
                if count.fetch_add(1, Ordering::SeqCst) == 0 {
                    // While it runs: once more.
                    assert_eq!(me.get().unwrap().queue(), Ok(Queued::Now));
                    blocking(|| thread::sleep(Duration::from_millis(20)));
                }
            });
            again.set(item.clone()).ok().unwrap();
            item.queue_delayed(Duration::from_millis(1)).unwrap();
            until("both runs", || runs.load(Ordering::SeqCst) == 2);
            queue.flush().unwrap();
            let monitor = runtime.monitor();
            let latency = monitor.queues.iter().find(|q| q.name == name).unwrap();
            assert_eq!(latency.run.unwrap().count, 2);
            assert_eq!(latency.queued.unwrap().count, 2);
            assert!(latency.run.unwrap().max_us >= 20_000.0 || ordered);
        }
    });
}

#[test]
fn masks_change_while_items_are_sent_to_places() {
    kept("pairs::masks_change_while_items_are_sent_to_places", || {
        let Some(machine) = two_caches() else { return };
        let runtime = Runtime::builder().topology(machine.clone()).build().unwrap();
        let queue = runtime.queue("q").scope(Scope::Cpu).strict(true).max_active(2);
        let queue = queue.build().unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let stop = AtomicBool::new(false);
        let accepted = thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut accepted = 0;
                while !stop.load(Ordering::SeqCst) {
                    for cpu in machine.allowed() {
                        let runs = Arc::clone(&runs);
                        let body = move || {
                            runs.fetch_add(1, Ordering::SeqCst);
                        };
                        match queue.post_on(cpu, body) {
                            Ok(()) => accepted += 1,
                            Err(SubmitError::Cpu { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
                accepted
            });
            for cpu in machine.allowed().iter().cycle().take(200) {
                let one: CpuSet = [cpu].into_iter().collect();
                runtime.set_cpumask(Some(one.clone())).unwrap();
                runtime.set_cpumask(None).unwrap();
                queue.change(|attributes| attributes.cpumask = Some(one)).unwrap();
                queue.set("cpumask=default").unwrap();
            }
            stop.store(true, Ordering::SeqCst);
            sender.join().unwrap()
        });
        queue.drain().unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), accepted);
    });
}

#[test]
fn a_mask_that_leaves_no_cpu_counts_for_nothing() {
    kept("pairs::a_mask_that_leaves_no_cpu_counts_for_nothing", || {
        let Some(machine) = two_caches() else { return };
        let all: Vec<_> = machine.allowed().iter().collect();
        let (own, other) = (all[0], all[1]);
        let runtime = Runtime::builder().topology(machine).build().unwrap();
        let queue = runtime.queue("q").cpumask([own].into_iter().collect()).build().unwrap();
        let here = || rustix::thread::sched_getcpu();
        assert_eq!(queue.spawn(here).unwrap().wait().unwrap(), own.index());
        runtime.set_cpumask(Some([other].into_iter().collect())).unwrap();
        assert_eq!(queue.spawn(here).unwrap().wait().unwrap(), other.index());
        assert!(matches!(queue.post_on(own, || ()), Err(SubmitError::Cpu { .. })));
        runtime.set_cpumask(None).unwrap();
        assert_eq!(queue.spawn(here).unwrap().wait().unwrap(), own.index());
    });
}

#[test]
fn an_item_changes_itself_while_it_runs() {
    kept("pairs::an_item_changes_itself_while_it_runs", || {
        let runtime = Runtime::builder().build().unwrap();
        // Items that own themselves keep their queue, and its name.
        for limited in [false, true] {
            let queue = runtime.queue(if limited { "limited" } else { "plain" });
            let queue = if limited { queue.max_active(1) } else { queue }.build().unwrap();
            let itself: Arc<OnceLock<Work>> = Arc::default();
            let runs = Arc::new(AtomicU32::new(0));
            let (me, count) = (Arc::clone(&itself), Arc::clone(&runs));
            let item = queue.item(move || {
                let me = me.get().unwrap();
                match count.fetch_add(1, Ordering::SeqCst) {
                    0 => assert_eq!(me.modify_delay(Duration::from_millis(1)), Ok(false)),
                    1 => {
                        assert_eq!(me.queue(), Ok(Queued::Now));
                        assert_eq!(me.modify_delay(LONG), Ok(true));
                        assert!(me.cancel());
                        assert_eq!(me.queue_delayed(Duration::ZERO), Ok(Queued::Now));
                    }
                    2 => {
                        assert_eq!(me.disable(), Ok(false));
                        assert_eq!(me.queue(), Err(SubmitError::Disabled));
                        me.enable().unwrap();
                        assert_eq!(me.queue(), Ok(Queued::Now));
                        panic!("with a run to come, on purpose");
                    }
                    _ => {}
                }
            });
            itself.set(item.clone()).ok().unwrap();
            item.queue().unwrap();
            until("four runs", || runs.load(Ordering::SeqCst) == 4);
            queue.flush().unwrap();
            assert_eq!((item.panics().0, item.is_pending(), item.is_running()), (1, false, false));
        }
    });
}

#[test]
fn flushes_cancels_and_delays_of_one_item_race() {
    kept("pairs::flushes_cancels_and_delays_of_one_item_race", || {
        let runtime = Runtime::builder().build().unwrap();
        for kind in 0..3 {
            let queue = runtime.queue("q");
            let queue = match kind {
                0 => queue,
                1 => queue.ordered(),
                _ => queue.max_active(1),
            };
            let queue = queue.build().unwrap();
            let (now, runs) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            let (inside, count) = (Arc::clone(&now), Arc::clone(&runs));
            let item = queue.item(move || {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "twice at once");
                count.fetch_add(1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
            });
            thread::scope(|scope| {
                for thread in 0..4_u64 {
                    let (item, queue) = (&item, &queue);
                    scope.spawn(move || {
                        for round in 0..500 {
                            match (thread + round) % 6 {
                                0 => drop(item.queue()),
                                1 => drop(item.queue_delayed(Duration::from_micros(round))),
                                2 => drop(item.modify_delay(Duration::from_micros(round % 50))),
                                3 => drop(item.flush()),
                                4 => drop(item.cancel_sync()),
                                _ => drop(queue.flush()),
                            }
                        }
                    });
                }
            });
            let before = item.cancel_sync().map(|_| runs.load(Ordering::SeqCst)).unwrap();
            queue.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), before, "cancelled for good");
            assert_eq!(item.panics().0, 0);
            assert_eq!(queue.in_flight(), 0);
        }
    });
}

#[test]
fn forked_closures_of_every_kind_of_queue_flush_drain_and_panic() {
    kept("pairs::forked_closures_of_every_kind_of_queue_flush_drain_and_panic", || {
        let runtime = Runtime::builder().build().unwrap();
        for kind in 0..4 {
            let queue = runtime.queue("q");
            let queue = match kind {
                0 => queue,
                1 => queue.ordered(),
                2 => queue.max_active(1),
                _ => queue.rescuer(),
            };
            let queue = queue.build().unwrap();
            let runs = AtomicU32::new(0);
            for _ in 0..100 {
                queue.scope(|scope| {
                    for _ in 0..8 {
                        scope.spawn(|| {
                            // Inside an item it is an error, elsewhere it ends.
                            let _ = queue.flush();
                            runs.fetch_add(1, Ordering::SeqCst);
                        });
                    }
                });
            }
            assert_eq!(runs.load(Ordering::SeqCst), 800);
            let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                queue.scope(|scope| {
                    for number in 0..100 {
                        let runs = &runs;
                        scope.spawn(move || {
                            runs.fetch_add(1, Ordering::SeqCst);
                            assert_ne!(number, 50, "on purpose");
                        });
                    }
                });
            }));
            assert!(panics.is_err());
            assert_eq!(runs.load(Ordering::SeqCst), 900);
            queue.scope(|scope| scope.spawn(|| drop(queue.drain())));
            queue.drain().unwrap();
            assert_eq!(queue.in_flight(), 0);
        }
    });
}

#[test]
fn workers_end_with_the_last_queue_of_their_attributes() {
    kept("pairs::workers_end_with_the_last_queue_of_their_attributes", || {
        let runtime = Runtime::builder().thread_name("wq").build().unwrap();
        let stays = runtime.queue("stays").build().unwrap();
        stays.spawn(|| ()).unwrap().wait().unwrap();
        for round in 0..4 {
            let runs = Arc::new(AtomicU32::new(0));
            let goes = runtime.queue("goes").scope(Scope::Cpu).nice(1).build().unwrap();
            let twin = goes.clone();
            let open = hold(&goes, Hold::Undeclared);
            for _ in 0..100 {
                let runs = Arc::clone(&runs);
                let body = move || {
                    runs.fetch_add(1, Ordering::SeqCst);
                };
                goes.post(body).unwrap();
            }
            drop(goes);
            assert!(threads("wq-1.") > 0);
            if round % 2 == 0 {
                twin.set("nice=2").unwrap();
            }
            drop(twin);
            drop(open);
            until("the end of the workers", || threads("wq-1.") == 0 && threads("wq-2.") == 0);
            assert_eq!(runs.load(Ordering::SeqCst), 100, "what was queued is run first");
        }
        assert!(threads("wq-0.") > 0);
        stays.spawn(|| ()).unwrap().wait().unwrap();
    });
}

#[test]
fn closures_that_wait_run_beside_each_other_by_their_name_alone() {
    kept("pairs::closures_that_wait_run_beside_each_other_by_their_name_alone", || {
        let runtime = Runtime::builder().max_workers(8).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let barrier = Arc::new(std::sync::Barrier::new(8));
        let handles: Vec<_> = (0..8)
            .map(|_| {
                let barrier = Arc::clone(&barrier);
                queue.spawn_blocking(move || barrier.wait().is_leader()).unwrap()
            })
            .collect();
        let leaders = handles.into_iter().map(|handle| handle.wait().unwrap());
        assert_eq!(leaders.filter(|&leads| leads).count(), 1);
        let global = tollgate_workqueue::spawn_blocking(|| 7).unwrap();
        assert_eq!(global.wait().unwrap(), 7);
    });
}
