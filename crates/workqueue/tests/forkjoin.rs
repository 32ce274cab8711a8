//! Fork and join, scopes and loops, on real workers and from outside.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_workqueue::{Queue, Runtime, blocking};

/// Miri is thousands of times slower.
const fn fewer(count: usize) -> usize {
    if cfg!(miri) { count.div_ceil(500) } else { count }
}

fn runtime() -> Runtime {
    Runtime::builder().build().unwrap()
}

fn queue(runtime: &Runtime) -> Queue {
    runtime.queue("q").build().unwrap()
}

fn add(count: &AtomicUsize, more: usize) {
    count.fetch_add(more, Ordering::Relaxed);
}

fn fibonacci(queue: &Queue, n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    let (a, b) = queue.join(|| fibonacci(queue, n - 1), || fibonacci(queue, n - 2));
    a + b
}

const DEEP: u32 = if cfg!(miri) { 9 } else { 23 };
const DEEP_FIBONACCI: u64 = if cfg!(miri) { 34 } else { 28_657 };

#[test]
fn joins_nest_from_outside_and_inside() {
    let runtime = runtime();
    let queue = queue(&runtime);
    assert_eq!(fibonacci(&queue, DEEP), DEEP_FIBONACCI);
    let inside = queue.clone();
    let handle = queue.spawn(move || fibonacci(&inside, DEEP)).unwrap();
    assert_eq!(handle.wait().unwrap(), DEEP_FIBONACCI);
    queue.flush().unwrap();
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn many_threads_join_on_one_queue_at_once() {
    let runtime = runtime();
    let queue = queue(&runtime);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(fibonacci(&queue, DEEP - 4), fibonacci_of(DEEP - 4)));
        }
    });
}

fn fibonacci_of(n: u32) -> u64 {
    (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0
}

#[test]
fn the_other_closure_runs_elsewhere_when_a_worker_is_free() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let both = Barrier::new(2);
    let (here, there) = queue.join(
        || {
            both.wait();
            thread::current().id()
        },
        || {
            both.wait();
            thread::current().id()
        },
    );
    assert_ne!(here, there);
}

#[test]
fn the_closures_borrow_and_return() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let mut numbers: Vec<_> = (0..10_u32).collect();
    let (left, right) = numbers.split_at_mut(5);
    let (a, b) = queue.join(
        || left.iter_mut().map(std::mem::take).sum::<u32>(),
        || String::from_iter(right.iter().map(ToString::to_string)),
    );
    assert_eq!((a, b.as_str()), (10, "56789"));
}

#[test]
fn panics_come_out_when_both_have_ended() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let text = |panic: Box<dyn std::any::Any + Send>| *panic.downcast::<&str>().unwrap();
    for round in 0..fewer(200) {
        let ended = AtomicU32::new(0);
        let end = || {
            ended.fetch_add(1, Ordering::SeqCst);
        };
        let a = catch_unwind(AssertUnwindSafe(|| queue.join(|| panic!("a"), end)));
        assert_eq!(a.map_err(text), Err("a"));
        let ended_before = ended.swap(0, Ordering::SeqCst);
        assert!(ended_before <= 1);
        let b = catch_unwind(AssertUnwindSafe(|| queue.join(end, || panic!("b"))));
        assert_eq!(b.map_err(text), Err("b"), "round {round}");
        assert_eq!(ended.load(Ordering::SeqCst), 1);
        let both: Result<((), ()), _> =
            catch_unwind(AssertUnwindSafe(|| queue.join(|| panic!("a"), || panic!("b"))));
        assert_eq!(both.map_err(text), Err("a"));
    }
    assert_eq!(queue.join(|| 1, || 2), (1, 2), "the workers live");
}

#[test]
fn what_a_panic_leaves_is_dropped_once() {
    struct Counted<'c>(&'c AtomicUsize);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let runtime = runtime();
    let queue = queue(&runtime);
    let drops = AtomicUsize::new(0);
    for round in 1..=fewer(300) {
        let captured = Counted(&drops);
        let _ = catch_unwind(AssertUnwindSafe(|| {
            queue.join(
                || {
                    if round % 2 == 0 {
                        panic!("on purpose")
                    }
                },
                move || captured,
            )
        }));
        assert_eq!(drops.load(Ordering::SeqCst), round);
    }
}

#[test]
fn a_scope_waits_for_all_and_nests() {
    fn tree(queue: &Queue, depth: u32, count: &AtomicUsize) {
        queue.scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    count.fetch_add(1, Ordering::Relaxed);
                    if depth > 0 {
                        tree(queue, depth - 1, count);
                    }
                });
            }
        });
    }
    let runtime = runtime();
    let queue = queue(&runtime);
    let count = AtomicUsize::new(0);
    let depth = if cfg!(miri) { 2 } else { 6 };
    tree(&queue, depth, &count);
    let all: usize = (0..=depth).map(|level| 3_usize.pow(level + 1)).sum();
    assert_eq!(count.into_inner(), all);
}

#[test]
fn spawned_closures_spawn_more_than_a_deque_holds() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let count = AtomicUsize::new(0);
    queue.scope(|scope| {
        for _ in 0..fewer(2000) {
            scope.spawn(|| {
                scope.spawn(|| add(&count, 1));
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(count.into_inner(), 2 * fewer(2000));
}

#[test]
fn a_scope_ends_with_its_closures_whatever_happens() {
    let runtime = runtime();
    let queue = queue(&runtime);
    for early in [true, false] {
        let ended = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            queue.scope(|scope| {
                for number in 0..50 {
                    let ended = &ended;
                    scope.spawn(move || {
                        thread::sleep(Duration::from_micros(100));
                        ended.fetch_add(1, Ordering::SeqCst);
                        assert!(number != 7, "a closure");
                    });
                }
                if early {
                    // Goes on for as long as it borrows, forgotten or not.
                    let _ = std::mem::ManuallyDrop::new(scope);
                    panic!("the body");
                }
            });
        }));
        let panic = result.unwrap_err();
        let text = panic.downcast_ref::<&str>().copied();
        assert_eq!(text, Some(if early { "the body" } else { "a closure" }));
        assert_eq!(ended.into_inner(), 50);
    }
}

#[test]
fn a_thread_from_elsewhere_may_spawn_into_a_scope() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let count = AtomicUsize::new(0);
    queue.scope(|scope| {
        thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    for _ in 0..10 {
                        scope.spawn(|| add(&count, 1));
                    }
                });
            }
        });
    });
    assert_eq!(count.into_inner(), 30);
}

#[test]
fn a_scope_inside_a_join_inside_a_scope() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let count = AtomicUsize::new(0);
    let one = || add(&count, 1);
    for _ in 0..fewer(500) {
        queue.scope(|scope| {
            scope.spawn(one);
            queue.join(
                || {
                    scope.spawn(one);
                    queue.scope(|inner| inner.spawn(|| scope.spawn(one)));
                },
                || {
                    scope.spawn(one);
                    queue.join(one, || scope.spawn(one));
                },
            );
        });
    }
    assert_eq!(count.into_inner(), 6 * fewer(500));
}

#[test]
fn two_queues_fork_inside_each_other() {
    let runtime = runtime();
    let (even, odd) =
        (runtime.queue("even").build().unwrap(), runtime.queue("odd").build().unwrap());
    fn down(queues: [&Queue; 2], left: u32) -> u32 {
        if left == 0 {
            return 1;
        }
        let [this, next] = queues;
        let (a, b) = this.join(|| down([next, this], left - 1), || down([next, this], left - 1));
        a + b
    }
    let depth = if cfg!(miri) { 4 } else { 14 };
    assert_eq!(down([&even, &odd], depth), 1 << depth);
    even.flush().unwrap();
    odd.flush().unwrap();
}

#[test]
fn an_ordered_or_limited_queue_keeps_its_limit() {
    let runtime = runtime();
    for ordered in [true, false] {
        let queue = runtime.queue("q");
        let queue = if ordered { queue.ordered() } else { queue.max_active(1) }.build().unwrap();
        let inside = queue.clone();
        let threads = queue
            .spawn(move || {
                let ids: Vec<_> = inside.map(&[(); 64], 1, |()| {
                    thread::sleep(Duration::from_micros(50));
                    thread::current().id()
                });
                ids.iter().filter(|id| **id != thread::current().id()).count()
            })
            .unwrap();
        assert_eq!(threads.wait().unwrap(), 0, "helpers are items, of which there may be one");
    }
}

#[test]
fn a_limited_queue_helps_its_items_up_to_its_limit() {
    let runtime = runtime();
    let queue = runtime.queue("q").max_active(2).build().unwrap();
    let inside = queue.clone();
    let met = queue.spawn(move || {
        let both = Barrier::new(2);
        let meet = || blocking(|| both.wait());
        inside.join(meet, meet);
    });
    met.unwrap().wait().unwrap();
}

#[test]
fn a_drained_or_shut_down_queue_forks_on_the_callers_thread() {
    let runtime = runtime();
    let queue = queue(&runtime);
    queue.drain().unwrap();
    assert_eq!(fibonacci(&queue, 10), 55);
    queue.reopen();
    runtime.shutdown();
    assert_eq!(fibonacci(&queue, 10), 55);
    let here = thread::current().id();
    assert!(queue.map(&[(); 10], 1, |()| thread::current().id()).iter().all(|id| *id == here));
}

#[test]
fn loops_visit_every_item_once_and_in_place() {
    let runtime = runtime();
    let queue = queue(&runtime);
    for len in [0, 1, 7, if cfg!(miri) { 40 } else { 100_000 }] {
        for chunk in [0, 1, 3, 1000] {
            if cfg!(miri) && chunk == 1 {
                continue;
            }
            let mut numbers: Vec<usize> = (0..len).collect();
            queue.for_each_mut(&mut numbers, chunk, |n| *n += 1);
            assert_eq!(
                queue.map(&numbers, chunk, |n| n * 2),
                Vec::from_iter((1..=len).map(|n| 2 * n))
            );
            let sum = AtomicUsize::new(0);
            queue.for_each(&numbers, chunk, |n| add(&sum, *n));
            assert_eq!(sum.into_inner(), len * (len + 1) / 2);
            let chunks = AtomicUsize::new(0);
            queue.for_each_chunk_mut(&mut numbers, 10, |first, items| {
                assert!(first % 10 == 0 && items.len() <= 10 && items[0] == first + 1);
                chunks.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(chunks.into_inner(), len.div_ceil(10));
        }
    }
}

#[test]
fn a_loop_that_panics_drops_what_it_had() {
    let runtime = runtime();
    let queue = queue(&runtime);
    let live = Arc::new(());
    let result = catch_unwind(AssertUnwindSafe(|| {
        queue.map(&Vec::from_iter(0..100), 1, |n| {
            assert!(*n != 50, "on purpose");
            Arc::clone(&live)
        })
    }));
    assert!(result.is_err());
    assert_eq!(Arc::strong_count(&live), 1);
}

/// The thief holds the closure while its owner waits asleep, and rings.
#[test]
fn an_owner_sleeps_for_what_was_stolen() {
    let runtime = runtime();
    let queue = queue(&runtime);
    for pause_ms in [0, 1, 5] {
        let (begun, begins) = mpsc::channel();
        let start = Instant::now();
        queue.join(
            // Ends when the other has begun, so that it was stolen for sure.
            || blocking(|| begins.recv().unwrap()),
            move || {
                begun.send(()).unwrap();
                thread::sleep(Duration::from_millis(pause_ms));
            },
        );
        assert!(start.elapsed() >= Duration::from_millis(pause_ms));
    }
}
