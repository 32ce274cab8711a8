//! What is said of pods, limits and delays while they are at work.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet as Mask, sched_getcpu, sched_setaffinity};
use tollgate_workqueue::{CpuId, CpuSet, Dump, Runtime, Scope, blocking};

use crate::process::kept;
use crate::{Hold, LONG, hold, kinds, two_caches, until};

/// One pod's progress says nothing about another, whose workers stay at home.
#[test]
fn a_stuck_pod_is_reported_though_another_one_moves() {
    kept("views::a_stuck_pod_is_reported_though_another_one_moves", || {
        let Some(machine) = two_caches() else { return };
        let runtime = Runtime::builder()
            .topology(machine.clone())
            .max_workers(1)
            .watchdog_after(Duration::from_millis(50))
            .build()
            .unwrap();
        let queue = runtime.queue("q").scope(Scope::Cache).strict(true).build().unwrap();
        let pods = machine.pods(Scope::Cache);
        let cpu = |pod: usize| pods.iter().nth(pod).unwrap().cpus.lowest().unwrap();
        let (open, closed) = mpsc::channel::<()>();
        let (started, starts) = mpsc::channel();
        let stuck = move || {
            started.send(()).unwrap();
            let _ = closed.recv();
        };
        queue.post_on(cpu(1), stuck).unwrap();
        starts.recv_timeout(LONG).unwrap();
        let waits = queue.spawn_on(cpu(1), || ()).unwrap();
        until("the report", || {
            queue.spawn_on(cpu(0), || ()).unwrap().wait().unwrap();
            runtime.monitor().stalls == 1
        });
        assert!(!waits.is_finished());
        drop(open);
        waits.wait().unwrap();
    });
}

/// An item counts as one that computes by the CPU time it used. One that waits without saying so
/// does not, however long.
#[test]
fn an_item_that_waits_is_not_said_to_compute() {
    kept("views::an_item_that_waits_is_not_said_to_compute", || {
        let runtime = Runtime::builder().build().unwrap();
        let waiting = runtime.queue("waiting").build().unwrap();
        let computing = runtime.queue("computing").nice(1).build().unwrap();
        let open = hold(&waiting, Hold::Undeclared);
        let (stop, stopped) = mpsc::channel::<()>();
        computing
            .post(move || {
                while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    std::hint::black_box((0..1000).sum::<u64>());
                }
            })
            .unwrap();
        let counts = || {
            let queues = runtime.monitor().queues;
            let of = |name: &str| queues.iter().find(|q| q.name == name).unwrap().cpu_intensive;
            (of("waiting"), of("computing"))
        };
        // It began after the one that waits, which has been there for longer.
        until("the one that computes to be noticed", || counts().1 == 1);
        assert_eq!(counts(), (0, 1));
        drop((open, stop));
    });
}

#[test]
fn a_dump_says_who_is_awake_and_asleep_and_what_each_node_runs() {
    kept("views::a_dump_says_who_is_awake_and_asleep_and_what_each_node_runs", || {
        let runtime = Runtime::builder().spin(Duration::ZERO).build().unwrap();
        let queue = runtime.queue("q").max_active(1).build().unwrap();
        let awake = |dump: &Dump| dump.pools[0].pods.iter().map(|pod| pod.awake).sum::<u16>();
        let asleep = |dump: &Dump| dump.pools[0].pods.iter().map(|pod| pod.asleep).sum::<u16>();
        let waits =
            |dump: &Dump| -> usize { dump.pools[0].pods.iter().map(|pod| pod.not_counted).sum() };
        let node = |dump: &Dump| {
            let nodes = &dump.queues[0].nodes;
            (
                nodes.iter().map(|node| node.active).sum::<u32>(),
                nodes.iter().map(|node| node.waiting).sum::<u32>(),
            )
        };
        let undeclared = hold(&queue, Hold::Undeclared);
        for _ in 0..3 {
            queue.post(|| ()).unwrap();
        }
        // A worker brings each of them as far as the limit.
        until("three that wait for the limit", || node(&runtime.dump()) == (1, 3));
        until("one awake", || awake(&runtime.dump()) == 1);
        drop(undeclared);
        queue.flush().unwrap();
        until("sleep", || {
            let dump = runtime.dump();
            (awake(&dump), node(&dump)) == (0, (0, 0)) && asleep(&dump) > 0
        });
        let declared = hold(&queue, Hold::Declared);
        until("one that waits and is not counted", || {
            let dump = runtime.dump();
            (awake(&dump), waits(&dump), node(&dump)) == (0, 1, (1, 0))
        });
        drop(declared);
        queue.flush().unwrap();
    });
}

/// However far away the clock is watched.
#[test]
fn a_delayed_item_runs_near_its_submitter_or_where_it_was_told() {
    kept("views::a_delayed_item_runs_near_its_submitter_or_where_it_was_told", || {
        let Some(machine) = two_caches() else { return };
        let runtime = Runtime::builder().topology(machine.clone()).build().unwrap();
        let queue = runtime.queue("q").scope(Scope::Cache).strict(true).build().unwrap();
        let (tell, told) = mpsc::channel();
        let item = queue.item(move || {
            let _ = tell.send(CpuId::from_index(sched_getcpu()));
        });
        for _ in 0..10 {
            for pod in &machine.pods(Scope::Cache) {
                let within = |cpus: &CpuSet| {
                    let cpu = told.recv_timeout(LONG).unwrap();
                    assert!(cpus.contains(cpu), "{cpu} is not one of {cpus}");
                    until("the end of the run", || !item.is_running());
                };
                let delay = Duration::from_millis(1);
                item.queue_delayed_on(pod.cpus.lowest().unwrap(), delay).unwrap();
                within(&pod.cpus);
                bind_to(&pod.cpus);
                let start = Instant::now();
                item.queue_delayed(delay).unwrap();
                within(&pod.cpus);
                assert!(start.elapsed() >= delay);
            }
        }
    });
}

#[test]
fn what_was_aborted_or_cancelled_is_not_counted_as_started() {
    kept("views::what_was_aborted_or_cancelled_is_not_counted_as_started", || {
        let runtime = Runtime::builder().max_workers(1).build().unwrap();
        for queue in kinds(&runtime) {
            queue.measure_latency(true);
            let open = hold(&queue, Hold::Undeclared);
            let again = queue.item(|| ());
            for _ in 0..50 {
                assert!(queue.spawn(|| ()).unwrap().abort());
                again.queue().unwrap();
                assert!(again.cancel());
            }
            let late = queue.item(|| ());
            late.queue_delayed(LONG * 9).unwrap();
            assert!(late.cancel());
            drop(open);
            queue.drain().unwrap();
            let monitor = runtime.monitor();
            let seen = monitor.queues.iter().find(|seen| seen.name == queue.name()).unwrap();
            let (queued, run) = (seen.queued.unwrap().count, seen.run.unwrap().count);
            assert_eq!((seen.started, queued, run), (1, 1, 1), "{seen:?}");
        }
    });
}

/// Runs two items, one of them by its waiter, and tells how many count as started and as measured.
fn started_and_measured(runtime: &Runtime, name: &str) -> (u64, u64) {
    let queue = runtime.queue(name).build().unwrap();
    queue.measure_latency(true);
    let inner = queue.clone();
    let sum = queue.spawn(move || inner.spawn(|| 3).unwrap().wait().unwrap() + 4).unwrap();
    assert_eq!(sum.wait().unwrap(), 7);
    queue.flush().unwrap();
    let seen = runtime.monitor().queues.swap_remove(0);
    (seen.started, seen.run.unwrap().count)
}

#[test]
fn what_a_waiter_runs_is_counted_once_and_a_new_queue_counts_from_zero() {
    kept("views::what_a_waiter_runs_is_counted_once_and_a_new_queue_counts_from_zero", || {
        let runtime = Runtime::builder().max_workers(1).build().unwrap();
        for name in ["one", "two", "three"] {
            assert_eq!(started_and_measured(&runtime, name), (2, 2), "{name}");
        }
    });
}

#[test]
fn a_deferred_run_that_is_cancelled_is_not_counted_as_started() {
    kept("views::a_deferred_run_that_is_cancelled_is_not_counted_as_started", || {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("q").build().unwrap();
        let (begun, begins) = mpsc::channel();
        let (open, closed) = mpsc::channel::<()>();
        let item = queue.item(move || {
            begun.send(()).unwrap();
            let _ = blocking(|| closed.recv());
        });
        item.queue().unwrap();
        begins.recv_timeout(LONG).unwrap();
        for _ in 0..20 {
            item.queue().unwrap();
            // Its job finds it running, and leaves the run to come to whoever runs it.
            queue.spawn(|| ()).unwrap().wait().unwrap();
            assert!(item.cancel());
        }
        drop(open);
        queue.drain().unwrap();
        assert_eq!(runtime.monitor().queues[0].started, 21);
    });
}

/// From now on this thread runs there only.
fn bind_to(cpus: &CpuSet) {
    let mut mask = Mask::new();
    cpus.iter().for_each(|cpu| mask.set(cpu.index()));
    sched_setaffinity(None, &mask).unwrap();
}
