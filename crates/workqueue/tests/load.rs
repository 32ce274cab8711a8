//! Queues under load: message pairs, attribute changes, and random operations against a model.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tollgate_workqueue::{Queue, Queued, Runtime, Work, blocking};

const PAIRS: u64 = 20;

/// The shape that undid the shared wake queue in the kernel: many senders and receivers in one
/// cache, each waking the other. Forty tasks in twenty pairs, each waiting for its partner's
/// message. It has to finish, and wake-ups must not outnumber what the messages call for.
#[test]
fn forty_tasks_in_twenty_pairs() {
    const MESSAGES: u64 = 200;
    let runtime = Runtime::builder().max_workers(64).build().unwrap();
    let queue = runtime.queue("pairs").build().unwrap();
    let mut handles = Vec::new();
    for _ in 0..PAIRS {
        let (to_right, left) = mpsc::channel::<u64>();
        let (to_left, right) = mpsc::channel::<u64>();
        let there = move || {
            (0..MESSAGES).for_each(|i| {
                to_right.send(i).unwrap();
                assert_eq!(blocking(|| right.recv()), Ok(i));
            });
        };
        let back = move || {
            (0..MESSAGES).for_each(|_| {
                let message = blocking(|| left.recv()).unwrap();
                to_left.send(message).unwrap();
            });
        };
        handles.push(queue.spawn(there).unwrap());
        handles.push(queue.spawn(back).unwrap());
    }
    handles.into_iter().for_each(|handle| handle.wait().unwrap());
    let pool = &runtime.dump().pools[0];
    assert!(pool.wakes <= 2 * PAIRS * MESSAGES, "{pool:?}");
    assert!(pool.started_workers <= 64, "{pool:?}");
}

/// The same with messages that are items: each answer is queued by the one before.
#[test]
fn twenty_chains_of_items() {
    const MESSAGES: u64 = 2000;
    fn send(queue: &Queue, left: u64, done: &Arc<AtomicU64>) {
        if left == 0 {
            done.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let (to, done) = (queue.clone(), Arc::clone(done));
        queue.post(move || send(&to, left - 1, &done)).unwrap();
    }
    let runtime = Runtime::builder().build().unwrap();
    let queue = runtime.queue("chains").build().unwrap();
    let done = Arc::new(AtomicU64::new(0));
    (0..PAIRS).for_each(|_| send(&queue, MESSAGES, &done));
    queue.drain().unwrap();
    assert_eq!(done.load(Ordering::SeqCst), PAIRS);
    let pool = &runtime.dump().pools[0];
    assert!(pool.wakes <= PAIRS * MESSAGES, "{pool:?}");
}

/// Attributes change all the time while items are queued by several threads, for a bounded time.
#[test]
fn attributes_change_under_load() {
    const SETTINGS: [&str; 12] = [
        "affinity_scope=cpu",
        "max_active=1",
        "affinity_strict=1",
        "affinity_scope=cache",
        "max_active=3",
        "nice=1",
        "affinity_strict=0",
        "localize=1",
        "max_active=default",
        "affinity_scope=default",
        "localize=0",
        "nice=0",
    ];
    let runtime = Runtime::builder().max_workers(8).build().unwrap();
    let plain = runtime.queue("plain").build().unwrap();
    let rescued = runtime.queue("rescued").rescuer().backlog(512).build().unwrap();
    let ordered = runtime.queue("ordered").ordered().backlog(512).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let counted = Arc::new(AtomicU64::new(0));
    let in_order = Arc::new(Mutex::new(0_u64));
    let (mut issued, mut issued_in_order) = (0, 0);
    thread::scope(|scope| {
        let mut producers = Vec::new();
        for queue in [&plain, &plain, &rescued] {
            let (stop, counted) = (Arc::clone(&stop), Arc::clone(&counted));
            producers.push(scope.spawn(move || {
                let mut issued = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let counted = Arc::clone(&counted);
                    let count = move || {
                        counted.fetch_add(1, Ordering::Relaxed);
                    };
                    queue.post(count).unwrap();
                    issued += 1;
                }
                issued
            }));
        }
        let sequence = scope.spawn(|| {
            let mut issued = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let in_order = Arc::clone(&in_order);
                let check = move || {
                    let mut next = in_order.lock().unwrap();
                    assert_eq!(*next, issued, "out of order, lost or doubled");
                    *next += 1;
                };
                ordered.post(check).unwrap();
                issued += 1;
            }
            issued
        });
        let start = Instant::now();
        for round in 0.. {
            if start.elapsed() > Duration::from_millis(1500) {
                break;
            }
            let setting = SETTINGS[round % SETTINGS.len()];
            plain.set(setting).unwrap();
            rescued.set(SETTINGS[(round + 5) % SETTINGS.len()]).unwrap();
            if !setting.starts_with("max_active") {
                ordered.set(setting).unwrap();
            }
            if round % 16 == 0 {
                plain.flush().unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        issued = producers.into_iter().map(|producer| producer.join().unwrap()).sum::<u64>();
        issued_in_order = sequence.join().unwrap();
    });
    for queue in [&plain, &rescued, &ordered] {
        queue.drain().unwrap();
        assert_eq!(queue.in_flight(), 0);
    }
    assert_eq!(counted.load(Ordering::Relaxed), issued);
    assert_eq!(*in_order.lock().unwrap(), issued_in_order);
    assert!(runtime.monitor().queues.iter().all(|queue| queue.panics == 0));
}

#[derive(Clone, Debug)]
enum Step {
    Post,
    QueueItem(usize),
    CancelItem(usize),
    FlushItem(usize),
    DisableItem(usize),
    EnableItem(usize),
    Flush,
    SetScope(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Post),
        4 => (0..3_usize).prop_map(Step::QueueItem),
        2 => (0..3_usize).prop_map(Step::CancelItem),
        1 => (0..3_usize).prop_map(Step::FlushItem),
        1 => (0..3_usize).prop_map(Step::DisableItem),
        1 => (0..3_usize).prop_map(Step::EnableItem),
        1 => Just(Step::Flush),
        1 => (0..3_usize).prop_map(Step::SetScope),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// An ordered queue does what a list would do: the model is the list of what must have run.
    #[test]
    fn an_ordered_queue_is_a_list(steps in proptest::collection::vec(step(), 1..60)) {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("list").ordered().build().unwrap();
        let ran = Arc::new(Mutex::new(Vec::new()));
        let note = |what: usize| {
            let ran = Arc::clone(&ran);
            move || ran.lock().unwrap().push(what)
        };
        let items: Vec<Work> = (0..3).map(|item| queue.item(note(item))).collect();
        let mut disabled = [0_u32; 3];
        // (what, cancelled)
        let mut model: Vec<usize> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Post => {
                    queue.post(note(100 + number)).unwrap();
                    model.push(100 + number);
                }
                Step::QueueItem(item) => match items[item].queue() {
                    Ok(Queued::Now) => {
                        prop_assert_eq!(disabled[item], 0);
                        model.push(item);
                    }
                    Ok(Queued::AlreadyPending) => prop_assert_eq!(disabled[item], 0),
                    Err(_) => prop_assert!(disabled[item] > 0),
                },
                Step::CancelItem(item) => {
                    if items[item].cancel() {
                        let latest = model.iter().rposition(|&what| what == item);
                        model.remove(latest.expect("it was queued"));
                    }
                }
                Step::DisableItem(item) => {
                    disabled[item] += 1;
                    if items[item].disable_sync().unwrap() {
                        let latest = model.iter().rposition(|&what| what == item);
                        model.remove(latest.expect("it was queued"));
                    }
                    prop_assert!(!items[item].is_running());
                }
                Step::EnableItem(item) => {
                    prop_assert_eq!(items[item].enable().is_ok(), disabled[item] > 0);
                    disabled[item] = disabled[item].saturating_sub(1);
                }
                Step::FlushItem(item) => {
                    items[item].flush().unwrap();
                    let runs = ran.lock().unwrap().iter().filter(|&&what| what == item).count();
                    prop_assert_eq!(runs, model.iter().filter(|&&what| what == item).count());
                }
                Step::Flush => {
                    queue.flush().unwrap();
                    prop_assert_eq!(&*ran.lock().unwrap(), &model);
                }
                Step::SetScope(scope) => {
                    let scope = ["cpu", "cache", "system"][scope];
                    queue.set(&format!("affinity_scope={scope}")).unwrap();
                }
            }
        }
        queue.flush().unwrap();
        prop_assert_eq!(&*ran.lock().unwrap(), &model);
    }
}
