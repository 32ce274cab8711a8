//! What ends, what stays, and what is said of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tollgate_workqueue::{
    BuildError, Dump, Monitor, Queue, Runtime, Scope, SubmitError, WhenFull, blocking,
};

use crate::process::kept;
use crate::{Hold, LONG, hold, kinds, threads, until};

#[test]
fn a_name_is_free_while_items_of_its_last_owner_run() {
    kept("lives::a_name_is_free_while_items_of_its_last_owner_run", || {
        let runtime = Runtime::builder().build().unwrap();
        let mut gates = Vec::new();
        for round in 0..20_u32 {
            let queue = runtime.queue("q");
            let queue = match round % 4 {
                0 => queue,
                1 => queue.ordered(),
                2 => queue.max_active(1),
                _ => queue.rescuer(),
            };
            let queue = queue.build().unwrap();
            assert!(matches!(runtime.queue("q").build(), Err(BuildError::NameTaken(_))));
            let monitor = runtime.monitor().queues;
            assert_eq!(monitor.len(), 1, "of the queues before nothing is told");
            assert_eq!((monitor[0].started, monitor[0].in_flight, monitor[0].panics), (0, 0, 0));
            gates.push(hold(&queue, Hold::Declared));
            drop(queue.spawn(|| panic!("on purpose")).unwrap());
        }
        drop(gates);
        assert!(runtime.monitor().queues.is_empty());
        runtime.shutdown();
    });
}

/// What a queue has left behind is rescued though nobody holds the queue any more. Then its rescuer
/// ends.
#[test]
fn a_rescuer_stays_until_nothing_is_left_of_its_queue() {
    kept("lives::a_rescuer_stays_until_nothing_is_left_of_its_queue", || {
        let runtime = Runtime::builder().max_workers(1).build().unwrap();
        let outer = runtime.queue("outer").build().unwrap();
        for _ in 0..3 {
            let queue = runtime.queue("inner").rescuer().build().unwrap();
            let waits = outer.spawn(move || {
                let (done, wait) = mpsc::channel();
                queue.post(move || done.send(()).unwrap()).unwrap();
                drop(queue);
                blocking(|| wait.recv()).unwrap();
            });
            waits.unwrap().wait().unwrap();
        }
        until("the end of the rescuers", || {
            outer.post(|| ()).unwrap();
            threads("workqueue-rescu") == 0
        });
    });
}

/// Queues something when it is dropped.
struct Last(Queue, Arc<AtomicU32>);

impl Drop for Last {
    fn drop(&mut self) {
        let count = Arc::clone(&self.1);
        let more = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        if self.0.post(more).is_err() {
            self.1.fetch_add(1000, Ordering::SeqCst);
        }
    }
}

#[test]
fn what_an_item_owns_may_queue_when_it_is_dropped() {
    kept("lives::what_an_item_owns_may_queue_when_it_is_dropped", || {
        let runtime = Runtime::builder().build().unwrap();
        for queue in kinds(&runtime) {
            let count = Arc::new(AtomicU32::new(0));
            let last = || Last(queue.clone(), Arc::clone(&count));
            let open = hold(&queue, Hold::Declared);
            // Run, aborted, cancelled, and dropped with what was never queued.
            let (ran, aborted, owned) = (last(), last(), last());
            queue.post(move || drop(ran)).unwrap();
            let handle = queue.spawn(move || drop(aborted)).unwrap();
            let item = queue.item(move || drop(owned.0.name()));
            item.queue_delayed(Duration::from_secs(3600)).unwrap();
            assert!(item.cancel());
            drop(item);
            handle.abort();
            drop(open);
            until("all three", || count.load(Ordering::SeqCst) == 3);
            // Refused: dropped by whoever asked.
            queue.drain().unwrap();
            let late = last();
            assert!(matches!(queue.post(move || drop(late)), Err(SubmitError::Drained(_))));
            assert_eq!(count.load(Ordering::SeqCst), 1003);
        }
        let queue = runtime.queue("late").build().unwrap();
        let count = Arc::new(AtomicU32::new(0));
        let owned = Last(queue.clone(), Arc::clone(&count));
        let item = queue.item(move || drop(owned.0.name()));
        item.queue_delayed(Duration::from_secs(3600)).unwrap();
        drop(item);
        runtime.shutdown();
        until("the end of a delayed item", || count.load(Ordering::SeqCst) == 1000);
    });
}

#[test]
fn every_worker_that_starts_says_that_it_stops() {
    kept("lives::every_worker_that_starts_says_that_it_stops", || {
        let (starts, stops) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        for round in 0..20 {
            let (started, stopped) = (Arc::clone(&starts), Arc::clone(&stops));
            let runtime = Runtime::builder()
                .on_thread_start(move || assert!(started.fetch_add(1, Ordering::SeqCst) % 3 > 0))
                .on_thread_stop(move || {
                    stopped.fetch_add(1, Ordering::SeqCst);
                    std::panic::resume_unwind(Box::new("on purpose"));
                })
                .retire_after(Duration::from_millis(1))
                .build()
                .unwrap();
            for queue in kinds(&runtime) {
                let waits =
                    |_| queue.spawn_blocking(|| thread::sleep(Duration::from_micros(200))).unwrap();
                let handles: Vec<_> = (0..8).map(waits).collect();
                handles.into_iter().for_each(|handle| handle.wait().unwrap());
            }
            if round % 2 == 0 {
                assert!(runtime.shutdown_timeout(LONG));
            }
            drop(runtime);
            assert_eq!(starts.load(Ordering::SeqCst), stops.load(Ordering::SeqCst));
        }
        assert!(starts.load(Ordering::SeqCst) >= 20);
    });
}

#[test]
fn counts_add_up_whatever_became_of_the_items() {
    kept("lives::counts_add_up_whatever_became_of_the_items", || {
        let runtime = Runtime::builder().shard_capacity(16).build().unwrap();
        let names = ["plain", "ordered", "limited", "inline"];
        let queues = [
            runtime.queue(names[0]).when_full(WhenFull::Refuse).build().unwrap(),
            runtime.queue(names[1]).ordered().backlog(16).build().unwrap(),
            runtime.queue(names[2]).max_active(2).backlog(16).build().unwrap(),
            runtime.queue(names[3]).when_full(WhenFull::RunInline).build().unwrap(),
        ];
        let (stop, to_begin) = (AtomicBool::new(false), [const { AtomicU32::new(0) }; 4]);
        let produce = |queue: &Queue, to_begin: &AtomicU32| {
            for number in 0..3000 {
                queue.measure_latency(number / 100 % 2 == 0);
                let begins = match number % 3 {
                    0 => queue.post(|| ()).is_ok(),
                    1 => queue.post(|| std::panic::resume_unwind(Box::new(0))).is_ok(),
                    _ => queue.spawn(|| ()).is_ok_and(|handle| !handle.abort()),
                };
                to_begin.fetch_add(u32::from(begins), Ordering::SeqCst);
            }
            queue.flush().unwrap();
        };
        thread::scope(|scope| {
            let pairs = queues.iter().zip(&to_begin);
            let producers: Vec<_> =
                pairs.map(|(queue, count)| scope.spawn(move || produce(queue, count))).collect();
            scope.spawn(|| {
                // Looked at meanwhile, as tools do.
                let mut before = runtime.monitor();
                while !stop.load(Ordering::SeqCst) {
                    let now = runtime.monitor();
                    let copy: Monitor =
                        serde_json::from_str(&serde_json::to_string(&now).unwrap()).unwrap();
                    assert_eq!(copy.queues.len(), 4);
                    assert!(now.since(&before).queues.iter().all(|q| q.started_per_s >= 0.0));
                    let dump = runtime.dump();
                    let copy: Dump =
                        serde_json::from_str(&serde_json::to_string(&dump).unwrap()).unwrap();
                    assert_eq!(copy.to_string(), dump.to_string());
                    before = now;
                }
            });
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            stop.store(true, Ordering::SeqCst);
        });
        for queue in &queues {
            queue.drain().unwrap();
        }
        let monitor = runtime.monitor();
        let by_name: HashMap<_, _> = monitor.queues.iter().map(|q| (q.name.as_str(), q)).collect();
        for (name, to_begin) in names.iter().zip(&to_begin) {
            let queue = by_name[name];
            assert_eq!(queue.started, u64::from(to_begin.load(Ordering::SeqCst)), "{name}");
            assert_eq!(queue.in_flight, 0, "{name}");
            assert!(queue.panics <= 1000 && queue.panics > 0, "{name}");
            assert!(queue.run.is_none_or(|run| run.count <= queue.started), "{name}");
        }
    });
}

#[test]
fn whatever_runs_may_look_at_the_runtime() {
    kept("lives::whatever_runs_may_look_at_the_runtime", || {
        let place: Arc<std::sync::OnceLock<Runtime>> = Arc::default();
        let (panicked, started) = (Arc::clone(&place), Arc::clone(&place));
        let looks = Arc::new(AtomicU32::new(0));
        let (in_panics, in_starts) = (Arc::clone(&looks), Arc::clone(&looks));
        let look = |runtime: &Runtime, looks: &AtomicU32| {
            let seen = runtime.dump().to_string().len() + runtime.monitor().queues.len();
            looks.fetch_add(u32::from(seen > 0), Ordering::SeqCst);
        };
        let built = Runtime::builder()
            .on_panic(move |_, _| {
                let runtime = panicked.get().unwrap();
                look(runtime, &in_panics);
                runtime.set_default_scope(Scope::Numa).unwrap();
                runtime.set_cpumask(None).unwrap();
                runtime.set("plain", "nice=1").unwrap();
            })
            .on_thread_start(move || started.get().into_iter().for_each(|r| look(r, &in_starts)))
            .build()
            .unwrap();
        let queues = kinds(&built);
        place.set(built).unwrap();
        for queue in &queues {
            queue.post(|| std::panic::resume_unwind(Box::new(1))).unwrap();
            queue.flush().unwrap();
            let (inside, looks) = (Arc::clone(&place), Arc::clone(&looks));
            let looked = queue.spawn(move || blocking(|| look(inside.get().unwrap(), &looks)));
            looked.unwrap().wait().unwrap();
        }
        assert!(looks.load(Ordering::SeqCst) >= 9);
        place.get().unwrap().shutdown();
    });
}

#[test]
fn wrong_names_and_settings_are_said_and_nothing_is_made() {
    kept("lives::wrong_names_and_settings_are_said_and_nothing_is_made", || {
        let runtime = Runtime::builder().build().unwrap();
        let long = "x".repeat(1000);
        for name in ["", " ", "a b", "a=b", "a\n", "\0", long.as_str()] {
            assert!(matches!(runtime.queue(name).build(), Err(BuildError::Name(_))), "{name:?}");
        }
        for name in ["ü", "a/b", "..", "-", "\"", "名"] {
            let queue = runtime.queue(name).build().unwrap();
            assert_eq!(queue.name(), name);
            runtime.set(name, "nice=1").unwrap();
        }
        assert!(runtime.queue("q").backlog(0).build().is_err());
        assert!(runtime.queue("q").nice(20).build().is_err());
        assert!(runtime.queue("q").ordered().max_active(2).build().is_err());
        assert!(runtime.monitor().queues.is_empty());
        let builder = Runtime::builder;
        assert!(builder().max_workers(0).build().is_err());
        assert!(builder().concurrency(0).build().is_err());
        assert!(builder().shard_capacity(3).build().is_err());
        assert!(builder().stack_size(1).build().is_err());
        assert!(builder().stack_size(usize::MAX).build().is_err());
        let nul = builder().thread_name("a\0b").build();
        assert!(matches!(nul, Err(BuildError::ThreadName(name)) if name == "a\0b"));
        let odd = builder().thread_name("").spin(Duration::ZERO).retire_after(Duration::MAX);
        let odd = odd.mayday_after(Duration::ZERO).watchdog_after(Duration::MAX);
        let odd = odd.build().unwrap();
        let queue = odd.queue("q").rescuer().build().unwrap();
        for _ in 0..3 {
            let item = queue.spawn(|| 1).unwrap();
            assert_eq!(item.wait_timeout(LONG).unwrap().unwrap(), 1);
            let asleep = || odd.dump().pools[0].pods.iter().map(|pod| pod.asleep).sum::<u16>();
            until("sleep", || asleep() > 0);
        }
        odd.set_spin(Duration::MAX);
        assert_eq!(queue.spawn(|| 2).unwrap().wait().unwrap(), 2);
    });
}
