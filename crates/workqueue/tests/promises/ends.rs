//! Ends of all sorts, beside other features: panics in every place, shutdowns that give up, forks,
//! maxima.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use tollgate_workqueue::{
    AttributeError, BuildError, MAX_DELAYED, MAX_POOLS, Queued, Runtime, Scope, SubmitError,
    WhenFull, blocking,
};

use crate::process::{in_a_copy, kept};
use crate::{Hold, LONG, hold, until};

#[test]
fn a_change_that_panics_changes_nothing() {
    kept("ends::a_change_that_panics_changes_nothing", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").max_active(3).build().unwrap();
        let before = queue.attributes();
        for _ in 0..3 {
            let change = || {
                queue.change(|attributes| {
                    attributes.max_active = Some(1);
                    panic!("on purpose");
                })
            };
            assert!(catch_unwind(AssertUnwindSafe(change)).is_err());
            assert_eq!(queue.attributes(), before);
            queue.set("affinity_scope=cpu").unwrap();
            queue.set("affinity_scope=default").unwrap();
            assert_eq!(queue.spawn(|| 1).unwrap().wait().unwrap(), 1);
        }
    });
}

#[test]
fn panics_of_hooks_waits_forks_and_inline_items_stop_nobody() {
    kept("ends::panics_of_hooks_waits_forks_and_inline_items_stop_nobody", || {
        let runtime = Runtime::builder()
            .on_thread_start(|| panic!("a start hook, on purpose"))
            .on_thread_stop(|| panic!("a stop hook, on purpose"))
            .on_panic(|_, _| panic!("a panic hook, on purpose"))
            .retire_after(Duration::from_micros(100))
            .max_workers(2)
            .build()
            .unwrap();
        for limited in [false, true] {
            let queue = runtime.queue("q");
            let queue = if limited { queue.max_active(2) } else { queue }.build().unwrap();
            for _ in 0..50 {
                queue.post(|| blocking(|| panic!("in a declared wait"))).unwrap();
                let inner = queue.clone();
                queue.post(move || _ = inner.join(|| panic!("left"), || panic!("right"))).unwrap();
                let inner = queue.clone();
                let body = move || drop(inner.map(&[1, 2, 3], 1, |n| assert_eq!(*n, 0)));
                queue.post(body).unwrap();
                let item = queue.item(|| blocking(|| panic!("in an item's declared wait")));
                item.queue().unwrap();
            }
            queue.flush().unwrap();
            // Nobody's place was lost: two of them still run at once.
            let together = Arc::new(Barrier::new(2));
            let meet = || {
                let together = Arc::clone(&together);
                queue.spawn_blocking(move || together.wait().is_leader()).unwrap()
            };
            let (a, b) = (meet(), meet());
            assert_ne!(a.wait().unwrap(), b.wait().unwrap());
            assert_eq!(runtime.monitor().queues[0].panics, 200);
            until("the count", || queue.in_flight() == 0);
        }
    });
}

#[test]
fn an_inline_item_that_panics_leaves_its_poster_alone() {
    kept("ends::an_inline_item_that_panics_leaves_its_poster_alone", || {
        let (tell, told) = mpsc::channel();
        let runtime = Runtime::builder()
            .shard_capacity(4)
            .max_workers(1)
            .on_panic(move |queue, panic| {
                let _ = tell.send((queue.to_owned(), panic.message().map(str::to_owned)));
            })
            .build()
            .unwrap();
        let inline = runtime.queue("inline").when_full(WhenFull::RunInline).build().unwrap();
        let filler = runtime.queue("filler").when_full(WhenFull::Refuse).build().unwrap();
        let open = hold(&filler, Hold::Undeclared);
        for cpu in &runtime.topology().allowed().clone() {
            while filler.post_on(cpu, || ()).is_ok() {}
        }
        let here = thread::current().id();
        inline
            .post(move || {
                assert_eq!(thread::current().id(), here);
                panic!("inline, on purpose");
            })
            .unwrap();
        let (queue, message) = told.recv_timeout(LONG).unwrap();
        assert_eq!((queue.as_str(), message.as_deref()), ("inline", Some("inline, on purpose")));
        let handle = inline.spawn(|| panic!("a handle's, on purpose")).unwrap();
        assert_eq!(handle.wait().unwrap_err().message(), Some("a handle's, on purpose"));
        drop(open);
        inline.flush().unwrap();
    });
}

#[test]
fn shutdowns_that_give_up_beside_waits_inside_and_outside() {
    kept("ends::shutdowns_that_give_up_beside_waits_inside_and_outside", || {
        for limited in [false, true] {
            let runtime = Arc::new(Runtime::builder().build().unwrap());
            let queue = runtime.queue("q");
            let queue = if limited { queue.max_active(4) } else { queue }.build().unwrap();
            let open = hold(&queue, Hold::Declared);
            let ran = Arc::new(AtomicU32::new(0));
            let counter = Arc::clone(&ran);
            queue
                .post(move || {
                    blocking(|| thread::sleep(Duration::from_millis(5)));
                    counter.fetch_add(1, Ordering::SeqCst);
                })
                .unwrap();
            let inner = Arc::clone(&runtime);
            let inside = queue.spawn(move || inner.shutdown_timeout(Duration::from_millis(5)));
            let inside = inside.unwrap();
            let outside = |millis| {
                let runtime = &runtime;
                move || runtime.shutdown_timeout(Duration::from_millis(millis))
            };
            thread::scope(|scope| {
                let all = [0, 1, 10].map(|millis| scope.spawn(outside(millis)));
                for each in all {
                    assert!(!each.join().unwrap(), "an item still waits");
                }
            });
            assert!(!inside.wait().unwrap(), "it cannot wait for itself");
            // Whoever gave up once waits no more.
            runtime.shutdown();
            assert!(matches!(queue.post(|| ()), Err(SubmitError::ShutDown(_))));
            drop(open);
            until("what was queued", || ran.load(Ordering::SeqCst) == 1 && queue.in_flight() == 0);
            assert!(runtime.shutdown_timeout(LONG), "now all has been run");
        }
    });
}

#[test]
fn looks_changes_and_posts_beside_a_shutdown_end_with_it() {
    kept("ends::looks_changes_and_posts_beside_a_shutdown_end_with_it", || {
        for round in 0..20 {
            let runtime = Runtime::builder().build().unwrap();
            let queue = runtime.queue("q").rescuer().build().unwrap();
            let (stop, refused) = (AtomicBool::new(false), AtomicBool::new(false));
            let until_told = |body: &dyn Fn()| {
                while !stop.load(Ordering::SeqCst) {
                    body();
                }
            };
            thread::scope(|scope| {
                scope.spawn(|| until_told(&|| drop((runtime.monitor(), runtime.dump()))));
                scope.spawn(|| {
                    until_told(&|| {
                        let _ = queue.set("max_active=2");
                        let _ = queue.set("max_active=default");
                        let _ = runtime.set_default_scope(Scope::Cpu);
                        drop(runtime.queue("other").rescuer().build());
                    });
                });
                scope.spawn(|| {
                    until_told(&|| {
                        let item = queue.item(|| ());
                        drop(item.queue_delayed(Duration::from_micros(10)));
                        drop((item.queue(), item.flush(), item.cancel_sync(), queue.flush()));
                        if queue.post(|| ()).is_err() {
                            refused.store(true, Ordering::SeqCst);
                        }
                    });
                });
                thread::sleep(Duration::from_millis(round % 5));
                runtime.shutdown();
                until("a refusal", || refused.load(Ordering::SeqCst));
                stop.store(true, Ordering::SeqCst);
            });
            assert_eq!(queue.in_flight(), 0);
        }
    });
}

#[test]
fn items_of_two_runtimes_wait_for_each_other() {
    kept("ends::items_of_two_runtimes_wait_for_each_other", || {
        fn down(queues: &[tollgate_workqueue::Queue; 2], left: usize) -> usize {
            if left == 0 {
                return 0;
            }
            let below = queues.clone();
            let next = queues[left % 2].spawn(move || down(&below, left - 1)).unwrap();
            1 + next.wait().unwrap()
        }
        let runtimes = [(); 2].map(|()| Runtime::builder().max_workers(32).build().unwrap());
        let queues = [0, 1].map(|n: usize| runtimes[n].queue("q").build().unwrap());
        for _ in 0..20 {
            assert_eq!(down(&queues, 40), 40);
        }
        // The inner one ends while an item of the outer one flushes it.
        let [outer, inner] = runtimes;
        let [first, second] = queues;
        (0..100).for_each(|_| second.post(thread::yield_now).unwrap());
        let flushed = first.spawn(move || second.flush()).unwrap();
        drop(inner);
        assert_eq!(flushed.wait().unwrap(), Ok(()));
        drop(outer);
    });
}

#[test]
fn times_too_long_are_refused_or_for_ever() {
    kept("ends::times_too_long_are_refused_or_for_ever", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let item = queue.item(|| ());
        assert!(matches!(item.queue_delayed(Duration::MAX), Err(SubmitError::Delay(_))));
        assert!(!item.is_pending());
        assert_eq!(item.queue_delayed(LONG), Ok(Queued::Now));
        assert!(matches!(item.modify_delay(Duration::MAX), Err(SubmitError::Delay(_))));
        assert!(!item.is_pending(), "as documented");
        assert_eq!(item.queue().map(|_| item.flush().is_ok()), Ok(true));
        let handle = queue.spawn(|| 5).unwrap();
        assert!(matches!(handle.wait_timeout(Duration::MAX), Ok(Ok(5))));
        assert!(runtime.shutdown_timeout(Duration::MAX));
    });
}

#[test]
fn a_full_timer_refuses_and_has_room_again() {
    kept("ends::a_full_timer_refuses_and_has_room_again", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let hour = Duration::from_secs(3600);
        let mut items: Vec<_> = (0..MAX_DELAYED).map(|_| queue.item(|| ())).collect();
        for item in &items {
            assert_eq!(item.queue_delayed(hour), Ok(Queued::Now));
        }
        let late = queue.item(|| ());
        assert!(matches!(late.queue_delayed(hour), Err(SubmitError::TooManyDelayed(_))));
        assert!(!late.is_pending());
        assert_eq!(late.queue(), Ok(Queued::Now));
        // One that has a place keeps it.
        assert_eq!(items[0].modify_delay(hour), Ok(true));
        assert!(items.pop().unwrap().cancel());
        queue.flush().unwrap();
        assert_eq!(late.queue_delayed(hour), Ok(Queued::Now));
        assert_eq!(runtime.monitor().delayed, MAX_DELAYED);
        let (early, never) = items.split_at(1000);
        thread::scope(|scope| {
            scope.spawn(|| early.iter().for_each(|item| assert_eq!(item.flush(), Ok(true))));
            never.iter().for_each(|item| assert!(item.cancel()));
        });
        assert_eq!(runtime.monitor().delayed, 1);
    });
}

#[test]
fn the_last_pool_refused_changes_nothing() {
    kept("ends::the_last_pool_refused_changes_nothing", || {
        let runtime = Runtime::builder().shard_capacity(4).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let other = runtime.queue("other").build().unwrap();
        let mut pools = 1;
        'all: for nice in 0..=19 {
            for scope in Scope::ALL {
                for (strict, localize) in
                    [(false, false), (false, true), (true, false), (true, true)]
                {
                    let changed = other.change(|attributes| {
                        attributes.nice = nice;
                        attributes.affinity_scope = Some(scope);
                        attributes.affinity_strict = strict;
                        attributes.localize = localize;
                    });
                    match changed {
                        Ok(()) => pools = runtime.dump().pools.len(),
                        Err(error) => {
                            assert!(matches!(error, AttributeError::TooManyPools), "{error}");
                            break 'all;
                        }
                    }
                }
            }
        }
        assert_eq!(pools, MAX_POOLS);
        let attributes = other.attributes();
        let refused = runtime.queue("third").nice(19).localize(true).build();
        assert!(matches!(refused, Err(BuildError::Attributes(AttributeError::TooManyPools))));
        assert!(runtime.queue("third").build().is_ok(), "that name is free, that pool is there");
        assert_eq!(other.attributes(), attributes);
        for queue in [&queue, &other] {
            assert_eq!(queue.spawn(|| 3).unwrap().wait().unwrap(), 3);
        }
        other.change(|attributes| *attributes = queue.attributes()).unwrap();
    });
}

/// What a copy of the process drops, it drops: no lock of a thread that is not there is asked for.
#[test]
fn a_copy_of_the_process_may_drop_everything() {
    kept("ends::a_copy_of_the_process_may_drop_everything", || {
        let runtime = Runtime::builder().build().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            // Somebody holds the locks of the registry at most moments.
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    drop(runtime.queue("comes").rescuer().build().unwrap());
                    drop((runtime.monitor(), runtime.dump()));
                    thread::sleep(Duration::from_micros(20));
                }
            });
            for _ in 0..15 {
                let queue = runtime.queue("q").rescuer().build().unwrap();
                let open = hold(&queue, Hold::Declared);
                let item = queue.item(|| ());
                item.queue_delayed(LONG).unwrap();
                let handle = queue.spawn(|| 1).unwrap().abort_on_drop();
                let mut parts = Some((handle, item, queue));
                let status = in_a_copy(|| {
                    drop(parts.take());
                    // Hundreds of panics with their backtraces take longer than all else.
                    std::panic::set_hook(Box::new(|_| ()));
                    let looks: [&dyn Fn(); 4] = [
                        &|| drop(runtime.dump()),
                        &|| drop(runtime.monitor()),
                        &|| drop(runtime.set("q", "max_active=1")),
                        &|| drop(runtime.queue("new").build()),
                    ];
                    let silent = |look: &&&dyn Fn()| catch_unwind(AssertUnwindSafe(look)).is_ok();
                    i32::try_from(looks.iter().filter(silent).count()).unwrap()
                });
                assert_eq!(status, 0, "the child's wait status; 256 for each look that is silent");
                drop(open);
                // It would keep its queue, and the name.
                assert!(parts.as_ref().is_some_and(|(_, item, _)| item.cancel()));
                drop(parts);
            }
            stop.store(true, Ordering::SeqCst);
        });
    });
}

#[test]
fn awaited_handles_of_a_runtime_that_ends_are_through_or_cancelled() {
    kept("ends::awaited_handles_of_a_runtime_that_ends_are_through_or_cancelled", || {
        for round in 0..50_u64 {
            let runtime = Runtime::builder().build().unwrap();
            let queue = runtime.queue("q").max_active(2).build().unwrap();
            let handles: Vec<_> = (0..200).map(|n| queue.spawn(move || n).unwrap()).collect();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let mut sum = 0;
                    for (n, handle) in handles.into_iter().enumerate() {
                        let handle = if n % 3 == 0 { handle.abort_on_drop() } else { handle };
                        sum += match handle.wait() {
                            Ok(n) => n,
                            Err(error) => panic!("{n}: {error:?}"),
                        };
                    }
                    sum
                });
                thread::sleep(Duration::from_micros(round * 20));
                runtime.shutdown();
                assert_eq!(waiter.join().unwrap(), 19_900);
            });
            let late = queue.spawn(|| ());
            assert!(matches!(late, Err(SubmitError::ShutDown(_))));
        }
    });
}
