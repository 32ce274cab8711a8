//! Features three at a time: limits, order, strictness and masks together with aborts, flushes,
//! requeueing, waits and forks.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use rustix::thread::sched_getcpu;
use tollgate_workqueue::{
    CpuId, CpuSet, Handle, JoinError, Queue, Queued, Runtime, Scope, Work, blocking,
};

use crate::process::kept;
use crate::{Hold, hold, kinds, two_caches, until};

#[test]
fn strict_limited_items_keep_their_place_while_others_are_aborted() {
    kept("threes::strict_limited_items_keep_their_place_while_others_are_aborted", || {
        let Some(machine) = two_caches() else { return };
        let runtime = Runtime::builder().topology(machine.clone()).build().unwrap();
        let queue = runtime.queue("q").scope(Scope::Cache).strict(true).max_active(1);
        let queue = queue.build().unwrap();
        let pods: Vec<CpuSet> =
            machine.pods(Scope::Cache).iter().map(|pod| pod.cpus.clone()).collect();
        for _ in 0..20 {
            let handles: Vec<_> = (0..60)
                .map(|turn| {
                    let pod = &pods[turn % 2];
                    let here = || CpuId::from_index(sched_getcpu());
                    (pod, queue.spawn_on(pod.lowest().unwrap(), here).unwrap())
                })
                .collect();
            let aborted: Vec<bool> = (handles.iter().enumerate())
                .map(|(turn, (_, handle))| turn % 3 == 0 && handle.abort())
                .collect();
            queue.flush().unwrap();
            for ((pod, handle), aborted) in handles.into_iter().zip(aborted) {
                assert!(handle.is_finished(), "the flush waited for it");
                match handle.wait() {
                    Ok(cpu) => assert!(!aborted && pod.contains(cpu), "{cpu:?} is not in {pod}"),
                    Err(error) => assert!(aborted && matches!(error, JoinError::Cancelled)),
                }
            }
            assert_eq!(queue.in_flight(), 0);
        }
    });
}

#[test]
fn a_flush_ends_though_items_queue_themselves_for_ever() {
    kept("threes::a_flush_ends_though_items_queue_themselves_for_ever", || {
        let runtime = Runtime::builder().build().unwrap();
        for queue in kinds(&runtime) {
            let stop = Arc::new(AtomicBool::new(false));
            let itself: Arc<OnceLock<Work>> = Arc::default();
            let (me, stops) = (Arc::clone(&itself), Arc::clone(&stop));
            let item = queue.item(move || {
                if !stops.load(Ordering::SeqCst) {
                    assert_eq!(me.get().unwrap().queue(), Ok(Queued::Now));
                }
            });
            itself.set(item.clone()).ok().unwrap();
            post_for_ever(&queue, &stop);
            item.queue().unwrap();
            for _ in 0..30 {
                queue.flush().unwrap();
                assert_eq!(item.flush(), Ok(true));
            }
            stop.store(true, Ordering::SeqCst);
            queue.drain().unwrap();
            assert_eq!((queue.in_flight(), item.panics().0), (0, 0));
        }
    });
}

/// An item that queues the next one, until told to stop.
fn post_for_ever(queue: &Queue, stop: &Arc<AtomicBool>) {
    if !stop.load(Ordering::SeqCst) {
        let (next, stop) = (queue.clone(), Arc::clone(stop));
        queue.post(move || post_for_ever(&next, &stop)).unwrap();
    }
}

#[test]
fn strict_items_wait_for_items_they_spawned_with_one_worker_a_pod() {
    fn down(queue: &Queue, left: u32) -> u32 {
        if left == 0 {
            return 0;
        }
        let below = queue.clone();
        1 + queue.spawn(move || down(&below, left - 1)).unwrap().wait().unwrap()
    }
    kept("threes::strict_items_wait_for_items_they_spawned_with_one_worker_a_pod", || {
        let Some(machine) = two_caches() else { return };
        let runtime = Runtime::builder().topology(machine.clone()).max_workers(1).build().unwrap();
        let queue = runtime.queue("q").scope(Scope::Cache).strict(true).build().unwrap();
        for cpu in machine.allowed() {
            let below = queue.clone();
            let depth = queue.spawn_on(cpu, move || down(&below, 50)).unwrap();
            assert_eq!(depth.wait().unwrap(), 50);
        }
        // An item for another pod is not run in this one.
        let pods: Vec<CpuSet> =
            machine.pods(Scope::Cache).iter().map(|pod| pod.cpus.clone()).collect();
        let (near, far) = (&pods[0], pods[1].clone());
        let other = queue.clone();
        let outer = queue.spawn_on(near.lowest().unwrap(), move || {
            let there = || CpuId::from_index(sched_getcpu());
            far.contains(other.spawn_on(far.lowest().unwrap(), there).unwrap().wait().unwrap())
        });
        assert!(outer.unwrap().wait().unwrap(), "it ran outside of its pod");
    });
}

#[test]
fn order_holds_while_masks_scopes_and_pools_change() {
    kept("threes::order_holds_while_masks_scopes_and_pools_change", || {
        let Some(machine) = two_caches() else { return };
        let one: CpuSet = machine.allowed().lowest().into_iter().collect();
        let runtime = Runtime::builder()
            .topology(machine)
            .mayday_after(Duration::from_millis(1))
            .build()
            .unwrap();
        let queue = runtime.queue("q").ordered().strict(true).rescuer().build().unwrap();
        let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), AtomicBool::new(false));
        let posted = thread::scope(|scope| {
            let poster = scope.spawn(|| {
                let mut number = 0_u32;
                while !stop.load(Ordering::SeqCst) {
                    let seen = Arc::clone(&seen);
                    queue.post(move || seen.lock().unwrap().push(number)).unwrap();
                    number += 1;
                }
                number
            });
            for _ in 0..50 {
                runtime.set_cpumask(Some(one.clone())).unwrap();
                queue.set("affinity_scope=cpu").unwrap();
                queue.set("affinity_strict=0").unwrap();
                runtime.set_cpumask(None).unwrap();
                queue.set("affinity_scope=default").unwrap();
                queue.set("affinity_strict=1").unwrap();
            }
            stop.store(true, Ordering::SeqCst);
            poster.join().unwrap()
        });
        queue.flush().unwrap();
        assert_eq!(*seen.lock().unwrap(), Vec::from_iter(0..posted));
    });
}

#[test]
fn items_are_awaited_while_their_queue_moves_to_other_pools() {
    fn sum(queue: &Queue, from: u32, to: u32) -> u32 {
        if to - from < 4 {
            return (from..to).sum();
        }
        let (middle, below) = (from.midpoint(to), queue.clone());
        let right = queue.spawn(move || sum(&below, middle, to)).unwrap();
        sum(queue, from, middle) + right.wait().unwrap()
    }
    kept("threes::items_are_awaited_while_their_queue_moves_to_other_pools", || {
        let Some(machine) = two_caches() else { return };
        let runtime = Runtime::builder().topology(machine).max_workers(64).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let settings = ["affinity_scope=cpu", "affinity_strict=1", "affinity_scope=system"];
                let back = ["affinity_strict=0", "affinity_scope=cache"];
                for setting in settings.iter().chain(&back).cycle() {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    queue.set(setting).unwrap();
                }
            });
            for _ in 0..100 {
                let inner = queue.clone();
                let total = queue.spawn(move || sum(&inner, 0, 100)).unwrap();
                assert_eq!(total.wait().unwrap(), 4950);
            }
            stop.store(true, Ordering::SeqCst);
        });
        queue.drain().unwrap();
        assert_eq!(queue.in_flight(), 0);
    });
}

#[test]
fn waits_aborts_and_flushes_inside_and_outside_count_each_item_once() {
    kept("threes::waits_aborts_and_flushes_inside_and_outside_count_each_item_once", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let (ended, stop) = (Arc::new(AtomicU32::new(0)), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    queue.flush().unwrap();
                }
            });
            for round in 0..300_u32 {
                let (inner, count) = (queue.clone(), Arc::clone(&ended));
                let outer = queue.spawn(move || {
                    let child = |_| {
                        let count = Arc::clone(&count);
                        inner.spawn(move || count.fetch_add(1, Ordering::SeqCst)).unwrap()
                    };
                    let children: Vec<Handle<u32>> = (0..8).map(child).collect();
                    children.into_iter().map(|child| end(child, round, &count)).sum::<u32>()
                });
                assert_eq!(outer.unwrap().wait().unwrap(), 8);
            }
            stop.store(true, Ordering::SeqCst);
        });
        queue.drain().unwrap();
        assert_eq!((ended.load(Ordering::SeqCst), queue.in_flight()), (2400, 0));
    });
}

/// Waits for an item or stops it, one way or another, and counts it if it was stopped.
fn end(child: Handle<u32>, way: u32, ended: &AtomicU32) -> u32 {
    let child = match child.wait_timeout(Duration::from_micros(u64::from(way % 3) * 20)) {
        Ok(result) => return u32::from(result.is_ok()),
        Err(child) => child,
    };
    if way.is_multiple_of(2) && child.abort() {
        ended.fetch_add(1, Ordering::SeqCst);
        return u32::from(matches!(child.wait(), Err(JoinError::Cancelled)));
    }
    u32::from(child.wait().is_ok())
}

#[test]
fn forks_inside_an_ordered_item_leave_the_order_alone() {
    kept("threes::forks_inside_an_ordered_item_leave_the_order_alone", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("ordered").ordered().build().unwrap();
        let other = runtime.queue("other").max_active(2).build().unwrap();
        let (seen, inside) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU32::new(0)));
        for number in 0..200_u32 {
            let (seen, inside) = (Arc::clone(&seen), Arc::clone(&inside));
            let (own, foreign) = (queue.clone(), other.clone());
            let body = move || {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                let mut values = vec![number; 64];
                own.join(|| foreign.flush().unwrap(), || foreign.post(|| ()).unwrap());
                foreign.for_each_mut(&mut values, 4, |value| *value += 1);
                own.scope(|scope| {
                    for value in &mut values {
                        scope.spawn(|| *value += 1);
                    }
                });
                assert!(values.iter().all(|&value| value == number + 2));
                inside.fetch_sub(1, Ordering::SeqCst);
                seen.lock().unwrap().push(number);
            };
            queue.post(body).unwrap();
        }
        queue.flush().unwrap();
        other.drain().unwrap();
        assert_eq!(*seen.lock().unwrap(), Vec::from_iter(0..200));
    });
}

#[test]
fn an_item_limits_its_own_queue_and_counts() {
    kept("threes::an_item_limits_its_own_queue_and_counts", || {
        let runtime = Runtime::builder().max_workers(8).build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        for _ in 0..20 {
            let (now, most) = (Arc::new(AtomicU32::new(1)), Arc::new(AtomicU32::new(0)));
            let (inner, running, peak) = (queue.clone(), Arc::clone(&now), Arc::clone(&most));
            let outer = queue.spawn(move || {
                inner.set("max_active=2").unwrap();
                for _ in 0..40 {
                    let (now, most) = (Arc::clone(&running), Arc::clone(&peak));
                    let body = move || {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        blocking(|| thread::sleep(Duration::from_micros(100)));
                        now.fetch_sub(1, Ordering::SeqCst);
                    };
                    inner.post(body).unwrap();
                }
                blocking(|| until("items beside this one", || peak.load(Ordering::SeqCst) > 0));
                running.fetch_sub(1, Ordering::SeqCst);
            });
            outer.unwrap().wait().unwrap();
            queue.flush().unwrap();
            assert_eq!(most.load(Ordering::SeqCst), 2, "of max_active = 2");
            queue.set("max_active=default").unwrap();
        }
    });
}

#[test]
fn cancelled_places_in_a_full_shard_come_back() {
    kept("threes::cancelled_places_in_a_full_shard_come_back", || {
        let runtime = Runtime::builder().shard_capacity(16).max_workers(1).build().unwrap();
        let queue = runtime.queue("q").when_full(tollgate_workqueue::WhenFull::Refuse);
        let queue = queue.build().unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        for round in 1..=20 {
            let open = hold(&queue, Hold::Undeclared);
            let counter = Arc::clone(&runs);
            let item = queue.item(move || {
                counter.fetch_add(1, Ordering::SeqCst);
            });
            // Each takes a place, which nobody but the worker can empty.
            let refused = (0..100_000).find(|_| {
                let refused = item.queue().is_err();
                assert_eq!(item.cancel(), !refused);
                refused
            });
            assert!(refused.is_some(), "a queue has a maximum");
            assert!(!item.is_pending());
            drop(open);
            queue.flush().unwrap();
            assert_eq!(item.queue(), Ok(Queued::Now));
            assert_eq!(item.flush().map(|_| runs.load(Ordering::SeqCst)), Ok(round));
        }
        // Whoever waits for an item hears of its end shortly before the queue counts it.
        until("the count", || queue.in_flight() == 0);
    });
}
