use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use super::*;
use crate::machine::Machine;
use crate::region::Prefault;
use tollgate_topology::NodeId;

const KIB: usize = 1024;
/// Owners one after the other.
const MARKS: u8 = if cfg!(miri) { 6 } else { 100 };
/// Owners on each thread of the leak test.
const OWNERS: usize = 2000;

fn small(count: usize) -> PoolBuilder {
    Pool::builder().class(16 * KIB, count)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn a_taken_buffer_is_zero_whoever_had_it_before() {
    let pool = small(2).build().unwrap();
    for mark in 1..MARKS {
        let mut buffer = pool.take(9 * KIB).unwrap();
        assert_eq!(buffer.len(), 16 * KIB);
        assert!(is_zero(&buffer));
        buffer.fill(mark);
    }
    let stats = pool.stats();
    let inline = u64::from(MARKS) - 3;
    assert_eq!((stats.pre_cleared, stats.inline_clears), (2, inline));
    let cleared: u64 = stats.cleared_bytes.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(cleared, inline * 16 * KIB as u64);
}

#[test]
fn bad_classes_and_sizes_are_named() {
    assert!(matches!(Pool::builder().build(), Err(Error::Zero { what: "a pool", .. })));
    assert!(matches!(small(0).build(), Err(Error::Zero { .. })));
    let error = Pool::builder().class(5000, 1).build().unwrap_err().to_string();
    assert_eq!(
        error,
        "a class of a pool of 5000 bytes is not a multiple of 4096: the next one is 8192"
    );
    let error = Pool::builder().class(2 << 20, 1 << 40).build().unwrap_err();
    assert!(matches!(error, Error::TooLarge { what: "a pool", .. }), "{error}");
    let pool = Pool::builder().class(8 * KIB, 1).class(4 * KIB, 1).build().unwrap();
    assert_eq!(pool.take(0).unwrap_err(), Error::Zero { what: "a buffer", least_bytes: 1 });
    let error = pool.take(9 * KIB).unwrap_err();
    assert_eq!(error, Error::NoSuchClass { bytes: 9 * KIB, largest: 8 * KIB });
    let error = pool.take_towards(5, 5).unwrap_err();
    assert_eq!(error, Error::TargetOutside { target: 5, len: 5 });
    assert!(is_zero(&pool.take_towards(5, 4).unwrap()));
    let twice = Pool::builder().class(4 * KIB, 1).class(4 * KIB, 2).build().unwrap();
    assert_eq!(twice.classes().map(|(_, count, _)| count).collect::<Vec<_>>(), [3]);
    assert_eq!(pool.take(4 * KIB).unwrap().len(), 4 * KIB);
    assert_eq!(pool.take(4 * KIB + 1).unwrap().len(), 8 * KIB);
}

#[test]
fn a_pool_beyond_the_cgroup_limit_is_refused() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
    std::fs::create_dir_all(root.path().join("sys/fs/cgroup/job")).unwrap();
    std::fs::write(root.path().join("proc/self/cgroup"), "0::/job\n").unwrap();
    std::fs::write(root.path().join("sys/fs/cgroup/job/memory.max"), "65536\n").unwrap();
    let machine = Machine::at(root.path());
    assert!(small(4).machine(machine.clone()).build().is_ok());
    let error = small(5).machine(machine).build().unwrap_err().to_string();
    assert!(
        error.contains(
            "81920 bytes exceeds the limit of 65536 bytes (/sys/fs/cgroup/job/memory.max)"
        ),
        "{error}"
    );
}

#[test]
fn at_the_maximum_it_refuses_waits_or_takes_base_pages() {
    let pool = small(1).build().unwrap();
    let held = pool.take(1).unwrap();
    let error = pool.take(1).unwrap_err();
    assert_eq!(error, Error::Exhausted { buffer_bytes: 16 * KIB, limit: 1, waited_ms: None });
    drop(held);
    assert!(pool.take(1).is_ok());

    let wait = AtMaximum::Wait(Duration::from_millis(30));
    let pool = small(1).at_maximum(wait).build().unwrap();
    let held = pool.take(1).unwrap();
    let started = Instant::now();
    let error = pool.take(1).unwrap_err();
    assert!(started.elapsed() >= Duration::from_millis(30));
    assert!(error.to_string().contains("are taken after waiting 30 ms"), "{error}");
    drop(held);

    let pool = small(1).at_maximum(AtMaximum::BasePages { most: 2 }).build().unwrap();
    let mut held: Vec<_> = (0..3).map(|_| pool.take(1).unwrap()).collect();
    assert!(held.iter().all(|buffer| is_zero(buffer)));
    held[2].fill(1);
    assert!(matches!(pool.take(1), Err(Error::Exhausted { limit: 3, .. })));
    held.pop();
    assert!(is_zero(&pool.take(1).unwrap()));
    assert_eq!(pool.stats().base_page_buffers, 3);
}

#[test]
fn a_waiter_is_woken_by_a_giver() {
    let pool = small(1).at_maximum(AtMaximum::Wait(Duration::from_secs(60))).build().unwrap();
    let mut held = pool.take(1).unwrap();
    held.fill(7);
    let waiter = {
        let pool = pool.clone();
        thread::spawn(move || is_zero(&pool.take(1).unwrap()))
    };
    while pool.stats().waits == 0 {
        thread::yield_now();
    }
    held.give_back();
    assert!(waiter.join().unwrap());
}

/// Thousands of owners on several threads write a mark of their own over the whole buffer, look
/// whether it stays theirs, and never find another's; two cleaners work between them.
#[test]
#[cfg_attr(miri, ignore = "spins and yields on seven threads, too long for the interpreter")]
fn thousands_of_owners_never_see_a_mark() {
    let pool = small(3).unbound_shelves(2).at_maximum(AtMaximum::Wait(Duration::from_secs(60)));
    let pool = pool.build().unwrap();
    let left = AtomicUsize::new(6);
    let own = |thread: usize| {
        for owner in 0..OWNERS {
            let mut buffer = pool.take(1).unwrap();
            assert!(is_zero(&buffer), "a mark of another owner");
            let mark = u8::try_from((thread * 37 + owner) % 255 + 1).unwrap();
            buffer.fill(mark);
            if owner % 16 == 0 {
                thread::yield_now();
            }
            assert!(buffer.iter().all(|byte| *byte == mark), "another owner wrote");
        }
        left.fetch_sub(1, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        for thread in 0..6 {
            let own = &own;
            scope.spawn(move || own(thread));
        }
        let options = CleanerOptions { bytes_per_second: usize::MAX, ..CleanerOptions::default() };
        let mut cleaner = pool.cleaner(options);
        while left.load(Ordering::Relaxed) > 0 {
            cleaner.step();
            if let Ok(Some(dirty)) = pool.dirty(1) {
                let situation = crate::plan::Situation::hot(dirty.len());
                drop(dirty.begin().finish(pool.plan().clearer(situation)));
            }
            thread::yield_now();
        }
    });
    let stats = pool.stats();
    assert_eq!(stats.pre_cleared + stats.inline_clears, 6 * OWNERS as u64);
}

#[test]
fn the_leak_check_finds_what_was_not_cleared() {
    let pool = small(2).leak_check(true).build().unwrap();
    for _ in 0..10 {
        // Clean as long as all is well, canaries and all.
        pool.take(1).unwrap().fill(3);
    }
    // A buffer that skips its clearing, as only the pool's own code can let it.
    let shelf = &pool.inner.classes[0].shelves[0];
    let index = shelf.lists.pop(List::Dirty).unwrap();
    shelf.lists.push(List::Zeroed, index);
    let error = pool.take(1).unwrap_err();
    assert_eq!(error, Error::Leak { offset: 0, byte: 0xC5, canary: true });
    assert_eq!(pool.stats().leaks, 1);
    let _other = pool.take(1).unwrap();
    assert!(matches!(pool.take(1), Err(Error::Exhausted { .. })), "the bad one stays withdrawn");
}

#[test]
fn states_return_where_they_belong() {
    let pool = small(1).build().unwrap();
    let lists = &pool.inner.classes[0].shelves[0].lists;
    pool.take(1).unwrap().fill(1);
    drop(pool.dirty(1).unwrap().unwrap());
    assert!(!lists.is_empty(List::Dirty));
    drop(pool.dirty(1).unwrap().unwrap().begin());
    assert!(!lists.is_empty(List::Dirty), "half-way is dirty");
    let clearer = *pool.plan().clearer(crate::plan::Situation::hot(16 * KIB));
    let zeroed = pool.dirty(1).unwrap().unwrap().begin().finish(&clearer);
    assert_eq!(format!("{zeroed:?}"), "Buffer<Zeroed>(16384 bytes)");
    drop(zeroed);
    assert!(!lists.is_empty(List::Zeroed) && lists.is_empty(List::Dirty));
    assert!(pool.dirty(1).unwrap().is_none());
}

#[test]
fn buffers_are_apart_and_every_shelf_is_reached() {
    let pool = small(5).unbound_shelves(3).build().unwrap();
    let held: Vec<_> = (0..5).map(|_| pool.take(1).unwrap()).collect();
    let starts: HashSet<usize> = held.iter().map(|buffer| buffer.as_ptr() as usize).collect();
    assert_eq!(starts.len(), 5);
    assert!(starts.iter().all(|a| starts.iter().all(|b| a == b || a.abs_diff(*b) >= 16 * KIB)));
    assert!(pool.take(1).is_err());
    drop(held);
    assert_eq!((0..5).map(|_| pool.take(1).unwrap()).filter(|buffer| is_zero(buffer)).count(), 5);
    let per_node = Pool::builder().class(4 * KIB, 4).per_node().build().unwrap();
    let nodes = Machine::current().topology().memory_nodes().len();
    assert_eq!(per_node.classes().next().unwrap().2.len(), nodes.min(4));
    assert!(Machine::current().check_node(NodeId(0)).is_ok());
}

#[test]
#[cfg_attr(miri, ignore = "half a cache of buffers, too long for the interpreter")]
fn what_went_through_the_cache_since_makes_a_buffer_cold() {
    let mut plan = ClearPlan::detected();
    plan.set("hot = plain; cold = plain reverse 16K").unwrap();
    let llc = plan.llc_bytes();
    let bytes = 1 << 20;
    let count = llc / bytes;
    let builder = Pool::builder().class(bytes, count).prefault(Prefault::Lazy).plan(plan);
    // Reserved pages are other tests' business.
    let builder = builder.ladder(&[Backing::Base]);
    let pool = builder.build().unwrap();
    let held: Vec<_> = (0..count).map(|_| pool.take(1).unwrap()).collect();
    held.into_iter().for_each(Buffer::give_back);
    let shelf = &pool.inner.classes[0].shelves[0];
    let heats: Vec<Heat> =
        (0..count).map(|index| shelf.heat(Index(u32::try_from(index).unwrap()), llc)).collect();
    // The list gives the first buffer first, and they came back in that order.
    assert_eq!((heats[0], heats[count - 1]), (Heat::Cold, Heat::Hot));
    pool.take(1).unwrap().give_back_as(Heat::Cold);
    assert_eq!(shelf.heat(Index(u32::try_from(count - 1).unwrap()), llc), Heat::Cold);
}

#[test]
fn the_cleaner_keeps_to_its_budget_and_the_owner_s_word() {
    let pool = small(4).build().unwrap();
    let held: Vec<_> = (0..4).map(|_| pool.take(1).unwrap()).collect();
    held.into_iter().for_each(|buffer| buffer.give_back_as(Heat::Cold));
    let busy = Box::new(|| false);
    let mut cleaner = pool.cleaner(CleanerOptions { idle: busy, ..CleanerOptions::default() });
    assert_eq!(cleaner.step(), Step::Busy);
    // A tenth of a second's worth is less than a buffer, so one buffer may go at once.
    let slow = CleanerOptions { bytes_per_second: 16 * KIB, ..CleanerOptions::default() };
    let mut cleaner = pool.cleaner(slow);
    assert_eq!(cleaner.step(), Step::Cleared(16 * KIB));
    let Step::Budget(wait) = cleaner.step() else { panic!("no budget is left") };
    assert!(wait <= Duration::from_secs(1) && wait > Duration::from_millis(300), "{wait:?}");
    let fast = CleanerOptions { bytes_per_second: usize::MAX, ..CleanerOptions::default() };
    let mut cleaner = pool.cleaner(fast);
    for _ in 0..3 {
        assert_eq!(cleaner.step(), Step::Cleared(16 * KIB));
    }
    assert_eq!(cleaner.step(), Step::Nothing);
    assert_eq!(pool.stats().background_clears, 4);
}

#[test]
fn the_cleaner_leaves_hot_buffers_until_the_pool_is_quiet() {
    let pool = small(2).build().unwrap();
    let mut cleaner = pool.cleaner(CleanerOptions::default());
    pool.take(1).unwrap().give_back();
    assert_eq!(cleaner.step(), Step::Hot);
    pool.take(1).unwrap().give_back();
    assert_eq!(cleaner.step(), Step::Hot, "given back since the last step");
    assert_eq!(cleaner.step(), Step::Cleared(16 * KIB), "quiet since the last step");
}

/// An executor with a thread for each job, which is enough to see that jobs come and end.
struct Threads(Mutex<Vec<thread::JoinHandle<()>>>);

impl Background for Threads {
    fn run_after(&self, delay: Duration, job: Job) {
        let thread = thread::spawn(move || {
            thread::sleep(delay);
            job.run();
        });
        self.0.lock().unwrap().push(thread);
    }
}

#[test]
fn an_executor_clears_what_comes_back_and_sleeps_between() {
    // A buffer counts as cleared a moment before it is on its list.
    let wait = AtMaximum::Wait(Duration::from_secs(30));
    let pool = small(4).at_maximum(wait).build().unwrap();
    let threads = Arc::new(Threads(Mutex::new(Vec::new())));
    let options = CleanerOptions { bytes_per_second: usize::MAX, ..CleanerOptions::default() };
    pool.cleaner(options).run_on(threads.clone());
    for round in 1..=3 {
        let held: Vec<_> = (0..4).map(|_| pool.take(1).unwrap()).collect();
        held.into_iter().for_each(|mut buffer| buffer.fill(1));
        let started = Instant::now();
        while pool.stats().background_clears < 4 * round {
            assert!(started.elapsed() < Duration::from_secs(30), "the cleaner sleeps on");
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(pool.stats().pre_cleared, 12);
    assert_eq!(pool.stats().inline_clears, 0);
    drop(pool);
    loop {
        // Every job ends, and none starts another once the pool is gone.
        let Some(thread) = threads.0.lock().unwrap().pop() else { break };
        thread.join().unwrap();
    }
}
