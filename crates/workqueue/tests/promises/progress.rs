//! Nobody who others wait for may block, and what was queued comes to an end.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tollgate_wakequeue::{Config, Layout, ShardId, WakeQueue};
use tollgate_workqueue::{CpuSet, Queued, Runtime, SubmitError, Topology, blocking};

use crate::process::kept;
use crate::{Hold, LONG, hold, kinds, until};

/// Posting inside an item neither waits nor runs the new item there, however full the shard is: a
/// lock that both items take may be held.
#[test]
fn a_lock_may_be_held_while_posting_inside_an_item() {
    kept("progress::a_lock_may_be_held_while_posting_inside_an_item", || {
        let runtime = Runtime::builder().shard_capacity(4).max_workers(1).build().unwrap();
        let limited = runtime.queue("limited").max_active(1).build().unwrap();
        let ordered = runtime.queue("ordered").ordered().build().unwrap();
        for queue in [runtime.queue("plain").build().unwrap(), limited, ordered] {
            let total = Arc::new(Mutex::new(0));
            let (inner, sum) = (queue.clone(), Arc::clone(&total));
            let outer = queue.spawn(move || {
                let mut locked = sum.lock().unwrap();
                for _ in 0..1000 {
                    let sum = Arc::clone(&sum);
                    inner.post(move || *sum.lock().unwrap() += 1).unwrap();
                }
                *locked += 1;
            });
            outer.unwrap().wait().unwrap();
            queue.flush().unwrap();
            assert_eq!(*total.lock().unwrap(), 1001);
        }
    });
}

#[test]
fn a_push_to_a_closed_queue_returns() {
    kept("progress::a_push_to_a_closed_queue_returns", || {
        let queue = WakeQueue::new(Layout::uniform(2, 1).unwrap(), Config::default()).unwrap();
        queue.close();
        for shard in [0, 1] {
            let _ = queue.push(ShardId(shard), 7, drop);
        }
    });
}

#[test]
fn timers_fire_while_an_ordered_queue_is_full() {
    kept("progress::timers_fire_while_an_ordered_queue_is_full", || {
        let runtime = Runtime::builder().build().unwrap();
        let ordered = runtime.queue("ordered").ordered().backlog(2).build().unwrap();
        let timers = runtime.queue("timers").build().unwrap();
        let (fire, fired) = mpsc::channel();
        let (started, starts) = mpsc::channel();
        let running = move || {
            started.send(()).unwrap();
            blocking(|| fired.recv_timeout(LONG)).unwrap();
        };
        ordered.post(running).unwrap();
        starts.recv_timeout(LONG).unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let count = || {
            let runs = Arc::clone(&runs);
            move || {
                runs.fetch_add(1, Ordering::SeqCst);
            }
        };
        ordered.post(count()).unwrap();
        ordered.post(count()).unwrap();
        let (delayed, timer) =
            (ordered.item(count()), timers.item(move || fire.send(()).unwrap_or(())));
        delayed.queue_delayed(Duration::from_millis(10)).unwrap();
        timer.queue_delayed(Duration::from_millis(100)).unwrap();
        until("all three items and the delayed one", || runs.load(Ordering::SeqCst) == 3);
    });
}

#[test]
fn a_rescuer_needs_no_room_in_a_shard() {
    kept("progress::a_rescuer_needs_no_room_in_a_shard", || {
        let runtime = Runtime::builder().shard_capacity(4).max_workers(1).build().unwrap();
        let other = runtime.queue("other").build().unwrap();
        let rescued = runtime.queue("rescued").rescuer().build().unwrap();
        let open = hold(&other, Hold::Undeclared);
        let runs = Arc::new(AtomicU32::new(0));
        for _ in 0..64 {
            let runs = Arc::clone(&runs);
            let body = move || {
                runs.fetch_add(1, Ordering::SeqCst);
            };
            rescued.post(body).unwrap();
        }
        until("the rescue of 64 items", || runs.load(Ordering::SeqCst) == 64);
        drop(open);
    });
}

/// What the rescuer moved aside before, a shard's worth of it, hides nothing from it.
#[test]
fn a_rescuer_finds_what_is_posted_behind_a_shard_full_of_others() {
    kept("progress::a_rescuer_finds_what_is_posted_behind_a_shard_full_of_others", || {
        for limited in [false, true] {
            let runtime = Runtime::builder().shard_capacity(4).max_workers(1).build().unwrap();
            let other = runtime.queue("other").build().unwrap();
            let rescued = runtime.queue("rescued").rescuer();
            let rescued = if limited { rescued.max_active(1) } else { rescued };
            let rescued = rescued.build().unwrap();
            let (outer, beside) = (runtime.queue("outer").build().unwrap(), other.clone());
            let waits = outer.spawn(move || {
                for others in [3, 2, 4, 1] {
                    (0..others).for_each(|_| beside.post(|| ()).unwrap());
                    rescued.post(|| ()).unwrap();
                    rescued.flush().unwrap();
                }
            });
            waits.unwrap().wait().unwrap();
            other.flush().unwrap();
        }
    });
}

/// They are woken by what is taken from the FIFO, and what the first ones post does not come there.
#[test]
fn all_who_wait_for_room_post_when_a_rescuer_has_made_it() {
    kept("progress::all_who_wait_for_room_post_when_a_rescuer_has_made_it", || {
        let one: CpuSet = Topology::current().unwrap().allowed().iter().take(1).collect();
        let runtime = Runtime::builder().cpumask(one).shard_capacity(2);
        let runtime = runtime.max_workers(1).build().unwrap();
        let other = runtime.queue("other").build().unwrap();
        let rescued = runtime.queue("rescued").rescuer().build().unwrap();
        let open = hold(&other, Hold::Undeclared);
        (0..2).for_each(|_| other.post(|| ()).unwrap());
        let posting: Vec<_> = (0..8)
            .map(|_| {
                let rescued = rescued.clone();
                thread::spawn(move || rescued.post(|| ()).unwrap())
            })
            .collect();
        // Long enough for the rescuer to be called, which finds nothing or little of its queue.
        thread::sleep(Duration::from_millis(300));
        drop(open);
        posting.into_iter().for_each(|thread| thread.join().unwrap());
        rescued.flush().unwrap();
    });
}

#[test]
fn a_flush_waits_for_the_second_run_of_an_item_queued_while_it_ran() {
    kept("progress::a_flush_waits_for_the_second_run_of_an_item_queued_while_it_ran", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        for _ in 0..20 {
            let (open, closed) = mpsc::channel::<()>();
            let runs = Arc::new(AtomicU32::new(0));
            let counter = Arc::clone(&runs);
            let item = queue.item(move || {
                let _ = blocking(|| closed.recv());
                thread::sleep(Duration::from_millis(2));
                counter.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(item.queue(), Ok(Queued::Now));
            until("the first run", || item.is_running());
            assert_eq!(item.queue(), Ok(Queued::Now));
            drop(open);
            queue.flush().unwrap();
            assert_eq!(runs.load(Ordering::SeqCst), 2);
        }
    });
}

#[test]
fn a_drain_waits_for_the_second_run_too_and_admits_it() {
    kept("progress::a_drain_waits_for_the_second_run_too_and_admits_it", || {
        let runtime = Runtime::builder().build().unwrap();
        for ordered in [false, true] {
            let queue = runtime.queue("q");
            let queue = if ordered { queue.ordered() } else { queue }.build().unwrap();
            for _ in 0..20 {
                let (open, closed) = mpsc::channel::<()>();
                let runs = Arc::new(AtomicU32::new(0));
                let counter = Arc::clone(&runs);
                let item = queue.item(move || {
                    let _ = blocking(|| closed.recv());
                    counter.fetch_add(1, Ordering::SeqCst);
                });
                assert_eq!(item.queue(), Ok(Queued::Now));
                until("the first run", || item.is_running());
                assert_eq!(item.queue(), Ok(Queued::Now));
                let opener = thread::spawn(move || {
                    thread::sleep(Duration::from_millis(5));
                    drop(open);
                });
                queue.drain().unwrap();
                assert_eq!(runs.load(Ordering::SeqCst), 2);
                opener.join().unwrap();
                queue.reopen();
            }
        }
    });
}

#[test]
fn a_drain_does_not_wait_for_delayed_items_and_leaves_them_usable() {
    kept("progress::a_drain_does_not_wait_for_delayed_items_and_leaves_them_usable", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&runs);
        let item = queue.item(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        item.queue_delayed(Duration::from_millis(50)).unwrap();
        queue.drain().unwrap();
        assert!(matches!(item.queue_delayed(LONG), Err(SubmitError::Drained(_))));
        // Its time comes while the queue is closed.
        until("the end of the delay", || !item.is_pending());
        assert_eq!(runs.load(Ordering::SeqCst), 0);
        queue.reopen();
        assert_eq!(item.queue(), Ok(Queued::Now));
        queue.flush().unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_cancelled_timer_lets_go_of_its_item_and_queue() {
    kept("progress::a_cancelled_timer_lets_go_of_its_item_and_queue", || {
        let runtime = Runtime::builder().build().unwrap();
        for _ in 0..3 {
            let queue = runtime.queue("q").build().unwrap();
            let item = queue.item(|| ());
            item.queue_delayed(Duration::from_secs(3600)).unwrap();
            assert_eq!(item.cancel_sync(), Ok(true));
            drop((item, queue));
            assert_eq!(runtime.monitor().delayed, 0);
            drop(runtime.queue("q").build().expect("the name is free again"));
        }
    });
}

#[test]
fn monitors_look_while_queues_come_and_go() {
    kept("progress::monitors_look_while_queues_come_and_go", || {
        let runtime = Runtime::builder().build().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        let _ = (runtime.monitor(), runtime.dump().to_string());
                    }
                });
            }
            for round in 0..1500 {
                let queue = runtime.queue("q");
                let queue = match round % 4 {
                    0 => queue,
                    1 => queue.ordered(),
                    2 => queue.rescuer(),
                    _ => queue.max_active(2),
                };
                let queue = queue.build().unwrap();
                // Some of them are dropped with items queued, which still run.
                (0..8).for_each(|_| queue.post(|| ()).unwrap());
                if round % 3 == 0 {
                    queue.flush().unwrap();
                }
            }
            stop.store(true, Ordering::SeqCst);
        });
    });
}

#[test]
fn threads_that_cannot_be_started_are_an_error_or_a_delay() {
    kept("progress::threads_that_cannot_be_started_are_an_error_or_a_delay", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        queue.spawn(|| ()).unwrap().wait().unwrap();
        drop(queue);
        forbid_new_threads();
        for _ in 0..3 {
            // The pool has a worker; a rescuer cannot be had.
            assert!(runtime.queue("rescued").rescuer().build().is_err());
            let (_, _) = (runtime.monitor(), runtime.dump());
            let queue = runtime.queue("q").build().unwrap();
            queue.spawn(|| ()).unwrap().wait().unwrap();
            let (_, _) = (runtime.monitor(), runtime.monitor());
        }
    });
}

#[test]
fn a_worker_that_could_not_be_started_is_tried_again() {
    kept("progress::a_worker_that_could_not_be_started_is_tried_again", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let handle = {
            // By a thread that may not start others; the rest of the process may.
            let queue = queue.clone();
            thread::spawn(move || {
                forbid_new_threads();
                queue.spawn(|| 7).unwrap()
            })
        };
        // Nothing else is ever queued.
        let handle = handle.join().unwrap();
        until("the item", || handle.is_finished());
        assert_eq!(handle.wait().unwrap(), 7);
    });
}

/// From now on this thread cannot start others. The limit does not bind root, so it becomes
/// somebody else where it is root.
fn forbid_new_threads() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nproc).maximum;
    setrlimit(Resource::Nproc, Rlimit { current: Some(0), maximum }).unwrap();
    if rustix::process::geteuid().is_root() {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    }
    assert!(thread::Builder::new().spawn(|| ()).is_err(), "the limit does not bind");
}

/// However long items may compute, rescuers are called as often as they are promised.
#[test]
fn rescuers_come_however_long_items_may_compute() {
    kept("progress::rescuers_come_however_long_items_may_compute", || {
        let runtime = Runtime::builder()
            .cpu_intensive_after(Duration::from_secs(3600))
            .max_workers(1)
            .build()
            .unwrap();
        let other = runtime.queue("other").build().unwrap();
        let open = hold(&other, Hold::Undeclared);
        // The housekeeper has looked, and sleeps: it learns of the new rescuer.
        thread::sleep(Duration::from_millis(50));
        let rescued = runtime.queue("rescued").rescuer().build().unwrap();
        assert_eq!(rescued.spawn(|| 7).unwrap().wait_timeout(LONG).unwrap().unwrap(), 7);
        // With its rescuer busy and more waiting, calls go on. A look per second would be too few.
        let busy = hold(&rescued, Hold::Undeclared);
        rescued.post(|| ()).unwrap();
        let called = || runtime.monitor().queues.iter().map(|queue| queue.mayday).sum::<u64>();
        until("60 calls", || called() >= 60);
        drop((busy, open));
        rescued.flush().unwrap();
    });
}

/// The most that each setting can be is never, and does not end the thread that watches the clock.
#[test]
fn times_without_end_are_never() {
    kept("progress::times_without_end_are_never", || {
        let runtime = Runtime::builder()
            .cpu_intensive_after(Duration::MAX)
            .mayday_after(Duration::MAX)
            .watchdog_after(Duration::MAX)
            .retire_after(Duration::MAX)
            .spin(Duration::MAX)
            .max_workers(1)
            .build()
            .unwrap();
        for queue in kinds(&runtime) {
            let open = hold(&queue, Hold::Undeclared);
            let (ran, item_ran) = (Arc::new(AtomicU32::new(0)), mpsc::channel());
            let count = Arc::clone(&ran);
            let item = queue.item(move || {
                count.fetch_add(1, Ordering::SeqCst);
                item_ran.0.send(()).unwrap();
            });
            let absurd = item.queue_delayed(Duration::MAX);
            assert!(matches!(absurd, Err(SubmitError::Delay(_))));
            item.queue_delayed(Duration::from_millis(20)).unwrap();
            let late = queue.spawn(|| 7).unwrap().wait_timeout(Duration::from_millis(50));
            drop(open);
            let seven = late.unwrap_err().wait_timeout(Duration::MAX).unwrap();
            assert_eq!(seven.unwrap(), 7);
            item_ran.1.recv_timeout(LONG).unwrap();
            assert_eq!(ran.load(Ordering::SeqCst), 1);
        }
        assert!(runtime.shutdown_timeout(Duration::MAX));
    });
}

/// How often this process's housekeeper has gone to sleep. A thread has its name a moment after it
/// was started.
fn sleeps_of_the_housekeeper() -> Option<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let mut paths = tasks.map(|task| task.unwrap().path());
    let path = paths.find(|path| {
        let name = std::fs::read_to_string(path.join("comm"));
        name.is_ok_and(|name| name.starts_with("workqueue-house"))
    })?;
    let status = std::fs::read_to_string(path.join("status")).unwrap();
    status.lines().find(|line| line.starts_with("voluntary_ctxt")).map(str::to_owned)
}

#[test]
fn an_idle_runtime_with_a_rescuer_does_not_wake_up() {
    kept("progress::an_idle_runtime_with_a_rescuer_does_not_wake_up", || {
        let runtime = Runtime::builder().mayday_after(Duration::from_millis(1)).build().unwrap();
        let queue = runtime.queue("q").rescuer().build().unwrap();
        queue.spawn(|| ()).unwrap().wait().unwrap();
        until("no sleep to end", || {
            let before = sleeps_of_the_housekeeper();
            thread::sleep(Duration::from_millis(300));
            before.is_some() && before == sleeps_of_the_housekeeper()
        });
    });
}

/// Items that wait for another queue may use up all workers: its rescuer runs what they wait for.
#[test]
fn items_that_wait_on_every_worker_are_resolved_by_a_rescuer() {
    kept("progress::items_that_wait_on_every_worker_are_resolved_by_a_rescuer", || {
        let runtime = Runtime::builder().max_workers(2).build().unwrap();
        let outer = runtime.queue("outer").build().unwrap();
        let inner = runtime.queue("inner").rescuer().build().unwrap();
        let (ran, meet) = (Arc::new(AtomicU32::new(0)), Arc::new(Barrier::new(2)));
        for _ in 0..2 {
            let (inner, ran, meet) = (inner.clone(), Arc::clone(&ran), Arc::clone(&meet));
            let body = move || {
                blocking(|| meet.wait());
                let count = Arc::clone(&ran);
                let add = move || _ = count.fetch_add(1, Ordering::SeqCst);
                inner.post(add).unwrap();
                inner.flush().unwrap();
                assert!(ran.load(Ordering::SeqCst) > 0);
            };
            outer.post(body).unwrap();
        }
        outer.flush().unwrap();
        assert_eq!((ran.load(Ordering::SeqCst), runtime.monitor().queues[1].panics), (2, 0));
    });
}

/// A queue may have left items in the pool that it had before its attributes changed.
#[test]
fn a_rescuer_comes_for_what_its_queue_left_in_another_pool() {
    kept("progress::a_rescuer_comes_for_what_its_queue_left_in_another_pool", || {
        for kind in ["plain", "limited", "ordered"] {
            let runtime = Runtime::builder().max_workers(1).build().unwrap();
            let outer = runtime.queue("outer").build().unwrap();
            let inner = runtime.queue("inner").rescuer();
            let inner = match kind {
                "limited" => inner.max_active(1),
                "ordered" => inner.ordered(),
                _ => inner,
            };
            let (inner, ran) = (inner.build().unwrap(), Arc::new(AtomicU32::new(0)));
            let (own, count) = (inner.clone(), Arc::clone(&ran));
            let body = move || {
                own.post(move || _ = count.fetch_add(1, Ordering::SeqCst)).unwrap();
                own.set("nice=1").unwrap();
                own.flush().unwrap();
            };
            outer.spawn(body).unwrap().wait().unwrap();
            assert_eq!(ran.load(Ordering::SeqCst), 1, "{kind}");
        }
    });
}

#[test]
fn what_an_item_delays_during_a_drain_is_dropped_as_refused() {
    kept("progress::what_an_item_delays_during_a_drain_is_dropped_as_refused", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&runs);
        let later = queue.item(move || _ = count.fetch_add(1, Ordering::SeqCst));
        let (begun, begins) = mpsc::channel();
        let (own, delayed) = (queue.clone(), later.clone());
        let body = move || {
            begun.send(()).unwrap();
            let closed = || matches!(own.post(|| ()), Err(SubmitError::Drained(_)));
            let outside = || thread::scope(|scope| scope.spawn(closed).join().unwrap());
            blocking(|| until("the drain", outside));
            assert_eq!(delayed.queue_delayed(Duration::from_millis(50)), Ok(Queued::Now));
        };
        queue.post(body).unwrap();
        begins.recv_timeout(LONG).unwrap();
        queue.drain().unwrap();
        until("its time", || runtime.monitor().queues[0].refused == 1);
        queue.flush().unwrap();
        assert_eq!((runs.load(Ordering::SeqCst), later.is_pending()), (0, false));
        assert_eq!(runtime.monitor().queues[0].panics, 0);
    });
}
