//! The protocol under the model checker: every interleaving within the preemption bound.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p tollgate-wakequeue --release --test
//! loom`
//!
//! A lost wake-up shows as a deadlock, which loom reports; a lost or doubled item as a count.

#![cfg(loom)]

use std::num::NonZero;
use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread::{self, JoinHandle};
use tollgate_wakequeue::{Claim, Config, Layout, Next, PodIndex, PushError, ShardId, WakeQueue};

const HERE: ShardId = ShardId(0);
const POD: PodIndex = PodIndex(0);

fn config(max_workers: u16) -> Config {
    Config {
        shard_capacity: 2,
        max_workers,
        max_searchers: NonZero::new(1),
        steal_after: Duration::ZERO,
        spin: Duration::ZERO,
        retire_after: None,
        keep_per_shard: 1,
        rest_after: Duration::ZERO,
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

    /// Without waiting for the others.
    fn arrive(&self) {
        *self.missing.lock().unwrap() -= 1;
        self.all_here.notify_all();
    }

    fn attend(&self) {
        self.arrive();
        let mut missing = self.missing.lock().unwrap();
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
    model_up_to(usize::MAX, body);
}

/// With so many preemptions at most, for what would take too long with more.
fn model_up_to(most: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3).min(most));
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
        assert_eq!(queue.load(POD).parked, 0, "whoever was woken is not asleep");
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
                let grow = |claim| start(&queue, claim, &threads, 2, run.clone());
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
            let grow = |claim| start(&queue, claim, &threads, 3, run.clone());
            queue.push_blocking(HERE, item, grow).unwrap();
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

/// Starts a worker that runs items until the queue is closed, the first one in a blocking section.
fn start_with_a_wait(
    queue: &Arc<WakeQueue<usize>>,
    claim: Claim,
    threads: &Threads,
    waited: &Arc<AtomicUsize>,
    run: impl Fn(usize) + Clone + Send + 'static,
) {
    let (queue, others, waited) = (Arc::clone(queue), Arc::clone(threads), Arc::clone(waited));
    let handle = thread::spawn(move || {
        let (id, home) = (claim.id(), claim.home());
        let grow = |claim| start_with_a_wait(&queue, claim, &others, &waited, run.clone());
        let mut worker = queue.worker(claim);
        while let Next::Item(item) = queue.next(&mut worker, grow) {
            if waited.swap(1, Ordering::SeqCst) == 0 {
                queue.discount(id, home, grow);
                queue.recount(id, home);
            }
            run(item);
        }
    });
    threads.lock().unwrap().push(handle);
}

/// A worker that comes back from a blocking section may be one too many and lie down. What is pushed
/// around that moment is run all the same, by the one that goes on. Two preemptions show what goes wrong
/// where the last one lies down, too.
#[test]
fn one_too_many_lies_down_and_one_goes_on() {
    model_up_to(2, || {
        let config = Config { shard_capacity: 4, ..config(2) };
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(1).unwrap(), config).unwrap());
        let (threads, waited) = (Threads::default(), Arc::new(AtomicUsize::new(0)));
        let all_ran = Meeting::of(4);
        let ran = Arc::clone(&all_ran);
        let run = move |_| ran.arrive();
        for item in 0..3 {
            let grow = |claim| start_with_a_wait(&queue, claim, &threads, &waited, run.clone());
            queue.push(HERE, item, grow).unwrap();
        }
        all_ran.attend();
        queue.close();
        join_all(&threads);
        assert!(queue.is_empty());
    });
}

/// Starts a worker that runs items until the queue is closed.
fn start_until_closed(
    queue: &Arc<WakeQueue<usize>>,
    claim: Claim,
    threads: &Threads,
    ran: &Arc<AtomicUsize>,
) {
    let (queue, others, ran) = (Arc::clone(queue), Arc::clone(threads), Arc::clone(ran));
    let handle = thread::spawn(move || {
        let mut worker = queue.worker(claim);
        let grow = |claim| start_until_closed(&queue, claim, &others, &ran);
        while let Next::Item(item) = queue.next(&mut worker, grow) {
            ran.fetch_add(item, Ordering::SeqCst);
        }
    });
    threads.lock().unwrap().push(handle);
}

/// Closing reaches a worker wherever it is.
#[test]
fn closing_is_seen() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(1).unwrap(), config(1)).unwrap());
        let (threads, ran) = (Threads::default(), Arc::new(AtomicUsize::new(0)));
        let grow = |claim| start_until_closed(&queue, claim, &threads, &ran);
        queue.push(HERE, 1, grow).unwrap();
        queue.close();
        join_all(&threads);
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        assert_eq!(queue.load(POD).room, 1);
    });
}

/// A push meets closing: either it is refused, or its item is run, also when no worker was there
/// yet.
#[test]
fn what_is_accepted_while_closing_is_run() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(1).unwrap(), config(1)).unwrap());
        let (threads, ran) = (Threads::default(), Arc::new(AtomicUsize::new(0)));
        let closer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.close())
        };
        let mut accepted = 0;
        for item in [1, 10] {
            let grow = |claim| start_until_closed(&queue, claim, &threads, &ran);
            match queue.push(HERE, item, grow) {
                Ok(()) => accepted += item,
                Err(error) => assert_eq!(error, PushError::Closed(item)),
            }
        }
        closer.join().unwrap();
        join_all(&threads);
        assert_eq!(ran.load(Ordering::SeqCst), accepted);
        assert_eq!(queue.len(HERE), 0);
    });
}

/// Two workers with room for a third: the items of three that wait for each other are all begun.
#[test]
fn two_workers_with_room_left() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(2).unwrap(), config(3)).unwrap());
        let (threads, meeting) = (Threads::default(), Meeting::of(2));
        let run = move |_| meeting.attend();
        let other = {
            let (queue, threads, run) = (Arc::clone(&queue), Arc::clone(&threads), run.clone());
            thread::spawn(move || {
                let grow = |claim| start(&queue, claim, &threads, 1, run.clone());
                queue.push(HERE, 1, grow).unwrap();
            })
        };
        queue.push(HERE, 0, |claim| start(&queue, claim, &threads, 1, run.clone())).unwrap();
        other.join().unwrap();
        join_all(&threads);
        assert!(queue.is_empty());
    });
}

/// Two pods of one CPU that see each other. Both items are pushed to the first and wait for each
/// other: its one worker can run only one, so the other pod must help.
#[test]
fn an_overloaded_pod_is_helped() {
    model(|| {
        let layout = Layout::pods_of(2, 1, 1).unwrap();
        let queue = Arc::new(WakeQueue::new(layout, config(2)).unwrap());
        let (threads, meeting) = (Threads::default(), Meeting::of(2));
        let run = move |_| meeting.attend();
        for item in 0..2 {
            queue.push(HERE, item, |claim| start(&queue, claim, &threads, 1, run.clone())).unwrap();
        }
        join_all(&threads);
        assert!(queue.is_empty());
    });
}

/// As before, with a helper that runs an item of its own first: it is asleep, searching, or about
/// to lie down when the first pod has too much.
#[test]
fn an_overloaded_pod_is_helped_by_one_that_was_busy() {
    model(|| {
        let layout = Layout::pods_of(2, 1, 1).unwrap();
        let queue = Arc::new(WakeQueue::new(layout, config(2)).unwrap());
        let (threads, meeting) = (Threads::default(), Meeting::of(2));
        // Item 9 is the helper's own.
        let run = move |item| {
            if item < 2 {
                meeting.attend()
            }
        };
        let grow = |claim: Claim| {
            let count = 1 + usize::from(claim.home() == ShardId(1));
            start(&queue, claim, &threads, count, run.clone());
        };
        queue.push(ShardId(1), 9, grow).unwrap();
        for item in 0..2 {
            queue.push(HERE, item, grow).unwrap();
        }
        join_all(&threads);
        assert!(queue.is_empty());
    });
}

/// A pod without workers, because there are fewer than pods: the other one runs its items.
#[test]
fn a_pod_without_workers_is_served() {
    model(|| {
        let layout = Layout::pods_of(2, 1, 1).unwrap();
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

/// What must not be refused reaches a worker wherever that is on its way to sleep, though the ring
/// is full.
#[test]
fn an_overflowing_shard_is_emptied() {
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
            let grow = |claim| start(&queue, claim, &threads, 3, run.clone());
            queue.push_unbounded(HERE, item, grow).unwrap();
        }
        join_all(&threads);
        assert_eq!(sum.load(Ordering::SeqCst), 111);
    });
}

/// Somebody takes an item out of the middle while a worker is on its way to sleep: what was moved
/// on the way is not overlooked.
#[test]
fn what_was_moved_is_not_overlooked() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(1).unwrap(), config(1)).unwrap());
        let (threads, ran) = (Threads::default(), Arc::new(AtomicUsize::new(0)));
        let first_ran = Meeting::of(2);
        let run = {
            let (ran, first_ran) = (Arc::clone(&ran), Arc::clone(&first_ran));
            move |item| {
                ran.fetch_add(item, Ordering::SeqCst);
                if item == 1 {
                    first_ran.arrive();
                }
            }
        };
        let grow = |claim| start(&queue, claim, &threads, 2, run.clone());
        queue.push(HERE, 1, grow).unwrap();
        first_ran.attend();
        // The worker, which leaves after this item, has looked and will look again.
        queue.push(HERE, 2, grow).unwrap();
        let rescued = queue.take_if(|&item| item == 10, grow);
        assert_eq!(rescued, None);
        join_all(&threads);
        assert_eq!(ran.load(Ordering::SeqCst), 3);
    });
}

/// A thread cannot be started: the item is run once it is tried again.
#[test]
fn growth_is_tried_again() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(1).unwrap(), config(2)).unwrap());
        let threads = Threads::default();
        queue.push(HERE, 1, |claim| queue.abandon(claim)).unwrap();
        let pusher = {
            let queue = Arc::clone(&queue);
            let threads = Arc::clone(&threads);
            thread::spawn(move || {
                queue.push(HERE, 2, |claim| start(&queue, claim, &threads, 2, |_| ())).unwrap();
            })
        };
        assert!(queue.retry_growth(|claim| start(&queue, claim, &threads, 2, |_| ())));
        pusher.join().unwrap();
        join_all(&threads);
        assert!(queue.is_empty());
    });
}

/// Two shards of a pod: the worker at home in one finds what is pushed to the other.
#[test]
fn sibling_shards_are_seen_before_sleeping() {
    model(|| {
        let queue = WakeQueue::new(Layout::uniform(2, 1).unwrap(), config(1)).unwrap();
        let queue = Arc::new(queue);
        let threads = Threads::default();
        for shard in [0, 1] {
            let grow = |claim| start(&queue, claim, &threads, 2, |_| ());
            queue.push(ShardId(shard), 1, grow).unwrap();
        }
        join_all(&threads);
        assert!(queue.is_empty());
    });
}

/// A queue begins to rest while an item is pushed: its worker leaves, or runs the item, or the push
/// asks for another one.
#[test]
fn nothing_is_lost_when_a_queue_begins_to_rest() {
    model(|| {
        let queue = Arc::new(WakeQueue::new(Layout::unsharded(1).unwrap(), config(1)).unwrap());
        let (threads, sum) = (Threads::default(), Arc::new(AtomicUsize::new(0)));
        push_to_resting(&queue, 1, &threads, &sum);
        let rests = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.set_resting(true))
        };
        push_to_resting(&queue, 10, &threads, &sum);
        rests.join().unwrap();
        join_all(&threads);
        assert_eq!(sum.load(Ordering::SeqCst), 11);
        assert_eq!((queue.load(POD).parked, queue.load(POD).awake), (0, 0), "all have left");
    });
}

fn push_to_resting(
    queue: &Arc<WakeQueue<usize>>,
    item: usize,
    threads: &Threads,
    sum: &Arc<AtomicUsize>,
) {
    queue.push(HERE, item, |claim| serve_until_rest(queue, claim, threads, sum)).unwrap();
}

/// Starts a worker that runs what comes until it is sent away.
fn serve_until_rest(
    queue: &Arc<WakeQueue<usize>>,
    claim: Claim,
    threads: &Threads,
    sum: &Arc<AtomicUsize>,
) {
    let (queue, others, sum) = (Arc::clone(queue), Arc::clone(threads), Arc::clone(sum));
    let handle = thread::spawn(move || {
        let mut worker = queue.worker(claim);
        let grow = |claim| serve_until_rest(&queue, claim, &others, &sum);
        while let Next::Item(item) = queue.next(&mut worker, grow) {
            sum.fetch_add(item, Ordering::SeqCst);
        }
    });
    threads.lock().unwrap().push(handle);
}

/// Starts a worker. Item 0 pushes item 1 and waits for it in a blocking section, pushes item 2 at its
/// end, and then waits for that without saying so. Who has run item 0 or 2 leaves.
fn start_comes_back(
    queue: &Arc<WakeQueue<usize>>,
    claim: Claim,
    threads: &Threads,
    ran: &Arc<[Arc<Meeting>; 2]>,
) {
    let (queue, others, ran) = (Arc::clone(queue), Arc::clone(threads), Arc::clone(ran));
    let handle = thread::spawn(move || {
        let (id, home) = (claim.id(), claim.home());
        let grow = |claim| start_comes_back(&queue, claim, &others, &ran);
        let mut worker = queue.worker(claim);
        while let Next::Item(item) = queue.next(&mut worker, grow) {
            match item {
                0 => {
                    queue.discount(id, home, grow);
                    queue.push(HERE, 1, grow).unwrap();
                    ran[0].attend();
                    queue.push(HERE, 2, grow).unwrap();
                    queue.recount(id, home);
                    ran[1].attend();
                    return queue.close();
                }
                1 => ran[0].arrive(),
                _ => return ran[1].arrive(),
            }
        }
    });
    threads.lock().unwrap().push(handle);
}

/// A sleeper is woken for an item, and is one too many when it comes, because a worker came back
/// meanwhile. It lies down without the item; no other pod was asked, because it was on its way.
#[test]
fn one_too_many_that_was_woken_for_an_item_has_another_pod_run_it() {
    model_up_to(2, || {
        let layout = Layout::pods_of(2, 1, 1).unwrap();
        let queue = Arc::new(WakeQueue::new(layout, config(3)).unwrap());
        let (threads, ran) = (Threads::default(), Arc::new([Meeting::of(2), Meeting::of(2)]));
        let grow = |claim| start_comes_back(&queue, claim, &threads, &ran);
        queue.push(HERE, 0, grow).unwrap();
        join_all(&threads);
        assert!(queue.is_empty());
    });
}
