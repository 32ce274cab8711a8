//! The protocol under the model checker: every interleaving within the preemption bound.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p tollgate-wakequeue --release --test loom`
//!
//! A lost wake-up shows as a deadlock, which loom reports; a lost or doubled item as a count.

#![cfg(loom)]

use std::num::NonZero;
use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread::{self, JoinHandle};
use tollgate_wakequeue::{Claim, Config, Layout, Next, ShardId, ShardPlan, WakeQueue};

const HERE: ShardId = ShardId(0);

fn config(max_workers: u16) -> Config {
    Config {
        shard_capacity: 2,
        max_workers,
        max_searchers: NonZero::new(1),
        spin: Duration::ZERO,
        retire_after: None,
        keep_per_shard: 1,
    }
}

/// Something all parties arrive at before any goes on.
struct Meeting {
    missing: Mutex<usize>,
    all_here: Condvar,
}

impl Meeting {
    fn of(parties: usize) -> Arc<Self> {
        Arc::new(Self { missing: Mutex::new(parties), all_here: Condvar::new() })
    }

    fn attend(&self) {
        let mut missing = self.missing.lock().unwrap();
        *missing -= 1;
        self.all_here.notify_all();
        while *missing > 0 {
            missing = self.all_here.wait(missing).unwrap();
        }
    }
}

type Threads = Arc<Mutex<Vec<JoinHandle<()>>>>;

/// Starts a worker that runs `count` items and then leaves without looking again.
fn start(
    queue: &Arc<WakeQueue<usize>>,
    claim: Claim,
    threads: &Threads,
    count: usize,
    run: impl Fn(usize) + Clone + Send + 'static,
) {
    let (queue, others) = (Arc::clone(queue), Arc::clone(threads));
    let handle = thread::spawn(move || {
        let mut worker = queue.worker(claim);
        for _ in 0..count {
            let grow = |claim| start(&queue, claim, &others, count, run.clone());
            match queue.next(&mut worker, grow) {
                Next::Item(item) => run(item),
                other => panic!("{other:?}"),
            }
        }
    });
    threads.lock().unwrap().push(handle);
}

fn join_all(threads: &Threads) {
    loop {
        let next = threads.lock().unwrap().pop();
        match next {
            Some(handle) => handle.join().unwrap(),
            None => return,
        }
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    if builder.preemption_bound.is_none() {
        builder.preemption_bound = Some(3);
    }
    builder.check(body);
}

/// park/wake: the worker may be anywhere on its way to sleep when the second item comes.
#[test]
fn no_wake_up_is_lost() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(1).unwrap(), config(1)).unwrap());
        let (threads, sum) = (Threads::default(), Arc::new(AtomicUsize::new(0)));
        let run = {
            let sum = Arc::clone(&sum);
            move |item| {
                sum.fetch_add(item, Ordering::SeqCst);
            }
        };
        for item in [1, 10] {
            queue.push(HERE, item, |claim| start(&queue, claim, &threads, 2, run.clone())).unwrap();
        }
        join_all(&threads);
        assert_eq!(queue.load(HERE).parked, 0, "whoever was woken is not asleep");
        assert_eq!(sum.load(Ordering::SeqCst), 11);
    });
}

/// Hand-over of the search: two items that wait for each other need both workers, though the
/// second push may have found a searcher who then took the first item.
#[test]
fn the_last_searcher_hands_over() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(2).unwrap(), config(2)).unwrap());
        let (threads, meeting) = (Threads::default(), Meeting::of(2));
        let run = move |_| meeting.attend();
        for item in 0..2 {
            queue.push(HERE, item, |claim| start(&queue, claim, &threads, 1, run.clone())).unwrap();
        }
        join_all(&threads);
        assert!(queue.is_empty());
    });
}

/// Two pushers at once: one worker sleeps or is about to, both items are found.
#[test]
fn two_pushers_one_worker() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(1).unwrap(), config(1)).unwrap());
        let (threads, sum) = (Threads::default(), Arc::new(AtomicUsize::new(0)));
        let run = {
            let sum = Arc::clone(&sum);
            move |item| {
                sum.fetch_add(item, Ordering::SeqCst);
            }
        };
        let push = |item| {
            let (queue, threads, run) = (Arc::clone(&queue), Arc::clone(&threads), run.clone());
            move || {
                let grow = |claim| start(&queue, claim, &threads, 2, run);
                queue.push(HERE, item, grow).unwrap();
            }
        };
        let other = thread::spawn(push(1));
        push(10)();
        other.join().unwrap();
        join_all(&threads);
        assert_eq!(sum.load(Ordering::SeqCst), 11);
    });
}

/// Capacity: a pusher that waits for room is woken when there is some.
#[test]
fn a_full_shard_makes_its_pusher_wait_and_wakes_it() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(1).unwrap(), config(1)).unwrap());
        let (threads, sum) = (Threads::default(), Arc::new(AtomicUsize::new(0)));
        let run = {
            let sum = Arc::clone(&sum);
            move |item| {
                sum.fetch_add(item, Ordering::SeqCst);
            }
        };
        for item in [1, 10, 100] {
            queue.push_blocking(HERE, item, |claim| start(&queue, claim, &threads, 3, run.clone()));
        }
        join_all(&threads);
        assert_eq!(sum.load(Ordering::SeqCst), 111);
    });
}

/// Starts a worker that runs one item in a blocking section that ends when both items run.
fn start_blocking(
    queue: &Arc<WakeQueue<usize>>,
    claim: Claim,
    threads: &Threads,
    meeting: &Arc<Meeting>,
) {
    let (queue, others, meeting) = (Arc::clone(queue), Arc::clone(threads), Arc::clone(meeting));
    let handle = thread::spawn(move || {
        let (id, home) = (claim.id(), claim.home());
        let grow = |claim| start_blocking(&queue, claim, &others, &meeting);
        let mut worker = queue.worker(claim);
        assert!(matches!(queue.next(&mut worker, grow), Next::Item(_)));
        queue.discount(id, home, grow);
        meeting.attend();
        queue.recount(id, home);
    });
    threads.lock().unwrap().push(handle);
}

/// A worker that enters a blocking section leaves its place to another: an item pushed around that
/// moment is run although the first worker waits for it.
#[test]
fn a_blocked_worker_is_replaced() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(1).unwrap(), config(2)).unwrap());
        let (threads, meeting) = (Threads::default(), Meeting::of(2));
        for item in 0..2 {
            let grow = |claim| start_blocking(&queue, claim, &threads, &meeting);
            queue.push(HERE, item, grow).unwrap();
        }
        join_all(&threads);
        assert!(queue.is_empty());
    });
}

/// Closing reaches a worker wherever it is.
#[test]
fn closing_is_seen() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(1).unwrap(), config(1)).unwrap());
        let ran = Arc::new(AtomicUsize::new(0));
        let mut worker = None;
        let start = |claim| {
            let (queue, ran) = (Arc::clone(&queue), Arc::clone(&ran));
            worker = Some(thread::spawn(move || {
                let mut worker = queue.worker(claim);
                while let Next::Item(_) = queue.next(&mut worker, |_| unreachable!()) {
                    ran.fetch_add(1, Ordering::SeqCst);
                }
            }));
        };
        queue.push(HERE, 1, start).unwrap();
        queue.close();
        worker.unwrap().join().unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        assert_eq!(queue.load(HERE).room, 1);
    });
}

/// Two shards that see each other: the worker at home in one finds what is pushed to the other.
#[test]
fn sibling_shards_are_seen_before_sleeping() {
    model(|| {
        let plan = |near: [u16; 2]| ShardPlan { workers: 1, near: near.map(ShardId).to_vec() };
        let layout = Layout::new(vec![plan([0, 1]), plan([1, 0])]).unwrap();
        let queue = Arc::new(WakeQueue::new(layout, config(1)).unwrap());
        let threads = Threads::default();
        for shard in [0, 1] {
            let grow = |claim| start(&queue, claim, &threads, 2, |_| ());
            queue.push(ShardId(shard), 1, grow).unwrap();
        }
        join_all(&threads);
        assert!(queue.is_empty());
    });
}
