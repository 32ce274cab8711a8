//! The queue with real threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tollgate_wakequeue::{
    Claim, Config, ConfigError, Layout, Next, PodIndex, PushError, ShardId, ShardPlan, WakeQueue,
};

type Job = Box<dyn FnOnce() + Send>;

/// Miri is thousands of times slower.
const fn fewer(count: usize) -> usize {
    if cfg!(miri) { count.div_ceil(20) } else { count }
}

const LONG: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 20 });

fn config() -> Config {
    Config { shard_capacity: if cfg!(miri) { 64 } else { 8192 }, ..Config::default() }
}

/// A queue with its threads.
struct Threads {
    queue: WakeQueue<Job>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    retired: AtomicUsize,
}

impl Threads {
    fn new(layout: Layout, config: Config) -> Arc<Self> {
        let queue = WakeQueue::new(layout, config).unwrap();
        Arc::new(Self { queue, threads: Mutex::default(), retired: AtomicUsize::new(0) })
    }

    fn start(self: &Arc<Self>, claim: Claim) {
        let crew = Arc::clone(self);
        let thread = thread::spawn(move || {
            let mut worker = crew.queue.worker(claim);
            loop {
                match crew.queue.next(&mut worker, |claim| crew.start(claim)) {
                    Next::Item(job) => job(),
                    Next::Closed => return,
                    Next::Retired => {
                        crew.retired.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                }
            }
        });
        self.threads.lock().unwrap().push(thread);
    }

    fn push(self: &Arc<Self>, shard: u16, job: impl FnOnce() + Send + 'static) {
        // Refused only when a job pushes while the test closes the queue.
        let _ = self.queue.push_blocking(ShardId(shard), Box::new(job), |claim| self.start(claim));
    }

    fn close(&self) {
        self.queue.close();
        loop {
            let next = self.threads.lock().unwrap().pop();
            match next {
                Some(thread) => thread.join().unwrap(),
                None => return,
            }
        }
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what} did not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

fn count() -> (Arc<AtomicU64>, impl Fn() -> Box<dyn FnOnce() + Send>) {
    let counter = Arc::new(AtomicU64::new(0));
    let one = Arc::clone(&counter);
    let make = move || -> Box<dyn FnOnce() + Send> {
        let one = Arc::clone(&one);
        Box::new(move || {
            one.fetch_add(1, Ordering::Relaxed);
        })
    };
    (counter, make)
}

#[test]
fn many_pushers_small_shards_everything_once() {
    let config = Config { shard_capacity: 8, max_workers: 4, ..Config::default() };
    for layout in [Layout::unsharded(3), Layout::uniform(3, 1), Layout::pods_of(3, 1, 1)] {
        let crew = Threads::new(layout.unwrap(), config.clone());
        let shards = crew.queue.layout().shards().len();
        let (counter, job) = count();
        thread::scope(|scope| {
            for pusher in 0..4_usize {
                let (crew, job) = (&crew, &job);
                let jobs: Vec<_> = (0..fewer(2000)).map(|_| job()).collect();
                scope.spawn(move || {
                    for job in jobs {
                        crew.push(u16::try_from(pusher % shards).unwrap(), job);
                    }
                });
            }
        });
        crew.close();
        let all = 4 * fewer(2000) as u64;
        assert_eq!(counter.load(Ordering::Relaxed), all);
        let counters = crew.queue.counters();
        assert_eq!(counters.own + counters.in_pod + counters.outside, all);
    }
}

#[test]
fn one_worker_keeps_the_order_of_a_shard() {
    let crew = Threads::new(Layout::unsharded(1).unwrap(), config());
    let seen = Arc::new(Mutex::new(Vec::new()));
    for item in 0..fewer(1000) {
        let seen = Arc::clone(&seen);
        crew.push(0, move || seen.lock().unwrap().push(item));
    }
    crew.close();
    assert_eq!(*seen.lock().unwrap(), (0..fewer(1000)).collect::<Vec<_>>());
}

#[test]
fn idle_workers_retire_and_come_back() {
    let config = Config {
        retire_after: Some(Duration::from_millis(5)),
        keep_per_shard: 0,
        spin: Duration::ZERO,
        ..config()
    };
    let crew = Threads::new(Layout::unsharded(2).unwrap(), config);
    let (counter, job) = count();
    for round in 1..=5 {
        crew.push(0, job());
        until("the run", || counter.load(Ordering::Relaxed) == round);
        until("retirement", || crew.queue.load(PodIndex(0)).room == 256);
    }
    // A worker has left before its thread says so.
    until("the last thread's end", || crew.retired.load(Ordering::SeqCst) >= 5);
    crew.close();
}

#[test]
fn a_swamped_shard_is_helped_by_one_that_always_has_work() {
    let crew = Threads::new(Layout::uniform(2, 1).unwrap(), config());
    let helped = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicU64::new(0));
    fn own_work(crew: &Arc<Threads>, stop: &Arc<AtomicU64>) {
        if stop.load(Ordering::Relaxed) > 0 {
            return;
        }
        let (again, stop) = (Arc::clone(crew), Arc::clone(stop));
        crew.push(1, move || own_work(&again, &stop));
    }
    // The worker of shard 0 is held; its items can only be run by the other one, which never
    // finds its own shard empty.
    let (open, closed) = std::sync::mpsc::channel::<()>();
    crew.push(0, move || closed.recv().unwrap_or(()));
    own_work(&crew, &stop);
    own_work(&crew, &stop);
    for _ in 0..fewer(500) {
        let helped = Arc::clone(&helped);
        crew.push(0, move || {
            helped.fetch_add(1, Ordering::Relaxed);
        });
    }
    until("help", || helped.load(Ordering::Relaxed) >= fewer(400) as u64);
    stop.store(1, Ordering::Relaxed);
    drop(open);
    crew.close();
}

#[test]
fn full_shards_and_bad_settings_are_refused() {
    let config = Config { shard_capacity: 2, ..Config::default() };
    let queue = WakeQueue::new(Layout::unsharded(1).unwrap(), config).unwrap();
    let claim = Mutex::new(None);
    queue.push(ShardId(0), 1, |new| *claim.lock().unwrap() = Some(new)).unwrap();
    queue.push(ShardId(0), 2, |_| unreachable!("one is on its way")).unwrap();
    assert_eq!(queue.push(ShardId(0), 3, |_| ()), Err(PushError::Full(3)));
    assert!(!queue.retry_growth(|_| unreachable!()), "nothing failed yet");
    queue.abandon(claim.lock().unwrap().take().unwrap());
    assert_eq!(queue.load(PodIndex(0)).room, 0, "no thread is asked for again so soon");
    assert!(queue.has_active_workers(), "somebody has to try again");
    let again = Mutex::new(None);
    assert!(queue.retry_growth(|new| *again.lock().unwrap() = Some(new)));
    assert!(again.lock().unwrap().is_some(), "two items wait");
    assert_eq!(queue.load(PodIndex(0)).room, 255);
    let bad = |config| WakeQueue::<u32>::new(Layout::unsharded(1).unwrap(), config).err();
    let capacity = |shard_capacity| Config { shard_capacity, ..Config::default() };
    assert_eq!(bad(capacity(100)), Some(ConfigError::Capacity { capacity: 100 }));
    assert_eq!(bad(capacity(1)), Some(ConfigError::Capacity { capacity: 1 }));
    let nobody = Config { max_workers: 0, ..Config::default() };
    assert_eq!(bad(nobody), Some(ConfigError::MaxWorkers));
}

#[test]
fn a_layout_of_more_shards_than_have_numbers_is_refused() {
    let layout = Layout::pods_of(300, 300, 1);
    assert_eq!(layout, Err(ConfigError::Shards { count: 90_000, max: 4096 }));
    assert_eq!(Layout::uniform(0, 1), Err(ConfigError::Shards { count: 0, max: 4096 }));
    // Each shard knows the order of all others, which Miri takes minutes to write down.
    let pods = if cfg!(miri) { 4 } else { 16 };
    assert_eq!(Layout::pods_of(pods, pods, 1).unwrap().pods(), usize::from(pods));
}

/// `take_if` moves what it looks at out of the ring: not even a look that panics may lose it.
#[test]
fn a_look_that_panics_loses_no_item_and_leaves_the_order() {
    let config = Config { shard_capacity: 8, ..Config::default() };
    let queue = WakeQueue::new(Layout::unsharded(1).unwrap(), config).unwrap();
    let claim = Mutex::new(None);
    for item in 0..6 {
        let grow = |new| assert!(claim.lock().unwrap().replace(new).is_none());
        queue.push(ShardId(0), item, grow).unwrap();
    }
    for wrong in [0, 3, 5] {
        let look = |item: &i32| {
            assert!(*item != wrong, "on purpose");
            false
        };
        let looked = catch_unwind(AssertUnwindSafe(|| queue.take_if(look, |_| ())));
        assert!(looked.is_err());
        assert_eq!(queue.len(ShardId(0)), 6);
    }
    assert_eq!(queue.take_if(|item| *item == 4, |_| ()), Some(4));
    queue.close();
    let mut worker = queue.worker(claim.into_inner().unwrap().unwrap());
    let mut items = Vec::new();
    while let Next::Item(item) = queue.next(&mut worker, |_| unreachable!("there is a worker")) {
        items.push(item);
    }
    assert_eq!(items, [0, 1, 2, 3, 5]);
}

/// A pod whose worker is held, and another one with nothing to do.
fn two_pods(strict: bool) -> (Arc<Threads>, std::sync::mpsc::Sender<()>) {
    let plan = |pod: u16| {
        let near = if strict { vec![pod] } else { vec![pod, 1 - pod] };
        let near = near.into_iter().map(ShardId).collect();
        ShardPlan { workers: 1, pod: PodIndex(pod), near }
    };
    let threads = Threads::new(Layout::new(vec![plan(0), plan(1)]).unwrap(), config());
    let (open, closed) = std::sync::mpsc::channel::<()>();
    threads.push(0, move || closed.recv().unwrap_or(()));
    until("the start", || threads.queue.is_empty());
    (threads, open)
}

#[test]
fn work_goes_outward_when_its_pod_is_busy() {
    let (threads, open) = two_pods(false);
    let (counter, job) = count();
    for round in 1..=20 {
        // The other pod's worker sleeps, searches or is about to lie down.
        threads.push(0, job());
        until("help", || counter.load(Ordering::Relaxed) == round);
    }
    assert_eq!(threads.queue.counters().outside, 20);
    drop(open);
    threads.close();
}

#[test]
fn work_stays_in_a_pod_that_has_a_sleeper() {
    let plan = Layout::pods_of(2, 1, 1).unwrap();
    let threads = Threads::new(plan, config());
    let (counter, job) = count();
    for round in 1..=50 {
        threads.push(u16::try_from(round % 2).unwrap(), job());
        until("the run", || counter.load(Ordering::Relaxed) == round);
    }
    let counters = threads.queue.counters();
    assert_eq!((counters.own, counters.outside), (50, 0), "{counters:?}");
    threads.close();
}

#[test]
fn a_strict_pod_is_left_alone() {
    let (threads, open) = two_pods(true);
    let (counter, job) = count();
    threads.push(0, job());
    threads.push(1, job());
    until("the run in the other pod", || counter.load(Ordering::Relaxed) == 1);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(counter.load(Ordering::Relaxed), 1);
    drop(open);
    threads.close();
    assert_eq!(counter.load(Ordering::Relaxed), 2);
}

#[test]
fn a_closed_queue_refuses_and_runs_the_rest() {
    let threads = Threads::new(Layout::unsharded(1).unwrap(), config());
    let (counter, job) = count();
    (0..100).for_each(|_| threads.push(0, job()));
    threads.queue.close();
    let refused = threads.queue.push(ShardId(0), job(), |_| unreachable!());
    assert!(matches!(refused, Err(PushError::Closed(_))));
    let refused = threads.queue.push_blocking(ShardId(0), job(), |_| unreachable!());
    assert!(refused.is_err());
    assert!(threads.queue.push_unbounded(ShardId(0), job(), |_| unreachable!()).is_err());
    threads.close();
    assert_eq!(counter.load(Ordering::Relaxed), 100);
}

#[test]
fn a_pusher_that_waits_for_room_is_told_of_the_end() {
    let config = Config { shard_capacity: 2, ..config() };
    let queue = Arc::new(WakeQueue::<Job>::new(Layout::unsharded(1).unwrap(), config).unwrap());
    let idle = || -> Job { Box::new(|| ()) };
    (0..2).for_each(|_| assert!(queue.push(ShardId(0), idle(), |_| ()).is_ok()));
    let pusher = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || queue.push_blocking(ShardId(0), Box::new(|| ()), |_| ()).is_err())
    };
    thread::sleep(Duration::from_millis(20));
    queue.close();
    assert!(pusher.join().unwrap());
}
