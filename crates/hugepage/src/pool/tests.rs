use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::lists::List;
use super::*;
use crate::error::Error;
use crate::machine::Machine;
use crate::plan::{ClearPlan, Heat, Situation};
use crate::region::Backing;
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
        assert_eq!((buffer.len(), buffer.capacity()), (9 * KIB, 16 * KIB));
        assert!(is_zero(&buffer));
        buffer.fill(mark);
    }
    let stats = pool.stats();
    let inline = u64::from(MARKS) - 3;
    assert_eq!((stats.pre_cleared, stats.inline_clears), (2, inline));
    let cleared: u64 = stats.cleared_bytes.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(cleared, inline * 9 * KIB as u64, "only what was written");
}

#[test]
fn bad_classes_and_sizes_are_named() {
    assert!(matches!(Pool::builder().build(), Err(Error::Zero { what: "a pool", .. })));
    assert!(matches!(Pool::builder().class(0, 1).build(), Err(Error::Zero { .. })));
    let error = Pool::builder().class(4 * KIB, 0).build().unwrap_err().to_string();
    assert_eq!(error, "a class of a pool with 0 buffers of 4096 bytes: the least is 1 buffer");
    for bytes in [usize::MAX, usize::MAX - 4094] {
        let error = Pool::builder().class(bytes, 1).build().unwrap_err();
        let large = matches!(error, Error::TooLarge { what: "a class of a pool", .. });
        assert!(large && error.to_string().contains(&bytes.to_string()), "{error}");
    }
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
    assert_eq!(pool.take(4 * KIB).unwrap().capacity(), 4 * KIB);
    assert_eq!(pool.take(4 * KIB + 1).unwrap().capacity(), 8 * KIB);
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
    assert!(error.to_string().contains("is taken after waiting 30 ms"), "{error}");
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
            let bytes = 1 + (thread * 7919 + owner * 104_729) % (16 * KIB);
            let mut buffer = pool.take(bytes).unwrap();
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
                let situation = Situation::hot(dirty.len());
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
        pool.take(16 * KIB).unwrap().fill(3);
    }
    // A buffer that skips its clearing, as only the pool's own code can let it.
    let mut slot = pool.core().pop_from(0, 0, List::Dirty).unwrap();
    slot.dirty = 0;
    pool.core().put_down(slot);
    let error = pool.take(1).unwrap_err();
    assert_eq!(error, Error::Leak { offset: 0, byte: 0xC5, canary: true });
    assert_eq!(pool.stats().leaks, 1);
    let _other = pool.take(1).unwrap();
    assert!(matches!(pool.take(1), Err(Error::Exhausted { .. })), "the bad one stays withdrawn");
}

#[test]
fn states_return_where_they_belong() {
    let pool = small(1).build().unwrap();
    let lists = &pool.core().classes[0].shelves[0].lists;
    pool.take(1).unwrap().fill(1);
    drop(pool.dirty(1).unwrap().unwrap());
    assert!(!lists.is_empty(List::Dirty));
    drop(pool.dirty(1).unwrap().unwrap().begin());
    assert!(!lists.is_empty(List::Dirty), "half-way is dirty");
    let clearer = *pool.plan().clearer(Situation::hot(16 * KIB));
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

/// The heat of every buffer on the shelf's dirty list, in the order in which they would be taken.
fn heats(pool: &Pool) -> Vec<Heat> {
    let core = pool.core();
    let slots: Vec<_> = std::iter::from_fn(|| core.pop_from(0, 0, List::Dirty)).collect();
    let heats = slots.iter().map(|slot| slot.heat).collect();
    slots.into_iter().rev().for_each(|slot| core.put_down(slot));
    heats
}

#[test]
#[cfg_attr(miri, ignore = "half a cache of buffers, too long for the interpreter")]
fn what_went_through_the_cache_since_makes_a_buffer_cold() {
    let plan = ClearPlan::detected();
    let bytes = 1 << 20;
    let count = plan.llc_bytes() / bytes;
    let builder = Pool::builder().class(bytes, count).prefault(Prefault::Lazy).plan(plan);
    // Reserved pages are other tests' business.
    let pool = builder.ladder(&[Backing::Base]).build().unwrap();
    let held: Vec<_> = (0..count).map(|_| pool.take(bytes).unwrap()).collect();
    held.into_iter().for_each(|mut buffer| buffer.first_mut(1)[0] = 1);
    let found = heats(&pool);
    assert_eq!((found[0], found[count - 1]), (Heat::Hot, Heat::Cold), "the last one comes first");
    // An owner's word counts more.
    pool.take_to_fill(1).unwrap().append(&[1]).unwrap();
    let mut filling = pool.take_to_fill(1).unwrap();
    filling.append(&[1]).unwrap();
    filling.finish().unwrap().give_back_as(Heat::Cold);
    assert_eq!(heats(&pool)[0], Heat::Cold);
}

#[test]
#[cfg_attr(miri, ignore = "waits for real time")]
fn time_alone_makes_a_buffer_cold() {
    // 8 MiB at 1 GB/s are 8 ms.
    let root = tempfile::tempdir().unwrap();
    let cache = root.path().join("sys/devices/system/cpu/cpu0/cache/index0");
    std::fs::create_dir_all(&cache).unwrap();
    let files = [("level", "3"), ("shared_cpu_list", "0"), ("size", "8192K")];
    files.iter().for_each(|(file, text)| std::fs::write(cache.join(file), text).unwrap());
    std::fs::write(root.path().join("sys/devices/system/cpu/online"), "0").unwrap();
    let pool = small(1).machine(Machine::at(root.path())).build().unwrap();
    pool.take(1).unwrap().fill(1);
    let started = Instant::now();
    let hot = heats(&pool)[0];
    assert!(hot == Heat::Hot || started.elapsed() > Duration::from_millis(4));
    thread::sleep(Duration::from_millis(30));
    assert_eq!(heats(&pool)[0], Heat::Cold, "nobody else gave anything back");
}

#[test]
fn the_cleaner_keeps_to_its_budget_and_the_owner_s_word() {
    let pool = small(4).build().unwrap();
    dirty_all(&pool, 4, Heat::Cold);
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
    pool.take(1).unwrap().fill(1);
    let busy = Instant::now();
    let first = cleaner.step();
    pool.take(1).unwrap().fill(1);
    let second = cleaner.step();
    // On a machine that stops this thread for 34 ms they are cold by now, and rightly cleared.
    if busy.elapsed() < Duration::from_millis(20) {
        assert_eq!((first, second), (Step::Hot, Step::Hot), "given back since the step before");
        assert_eq!(cleaner.step(), Step::Cleared(1), "quiet since the last step");
    }
}

/// Takes `count` buffers, writes all of each and gives them back.
fn dirty_all(pool: &Pool, count: usize, heat: Heat) {
    let held: Vec<_> = (0..count).map(|_| pool.take(16 * KIB).unwrap()).collect();
    for mut buffer in held {
        buffer.fill(1);
        buffer.give_back_as(heat);
    }
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

#[test]
fn a_buffer_in_use_all_the_time_does_not_keep_the_cleaner_from_the_others() {
    let pool = small(4).build().unwrap();
    dirty_all(&pool, 3, Heat::Cold);
    let mut cleaner = pool.cleaner(CleanerOptions::default());
    let mut cleared = 0;
    for _ in 0..8 {
        // The one on top is always hot, and something was given back since the step before.
        pool.take_filled(&[1]).unwrap().give_back_as(Heat::Hot);
        cleared += usize::from(matches!(cleaner.step(), Step::Cleared(_)));
    }
    assert!(cleared >= 2, "{cleared} cleared");
}

#[test]
fn only_what_was_written_is_cleared() {
    let pool = small(1).build().unwrap();
    pool.take(16 * KIB).unwrap().give_back();
    assert!(pool.dirty(1).unwrap().is_none(), "nothing was written");
    pool.take(16 * KIB).unwrap().first_mut(100).fill(9);
    let mut cleaner = pool.cleaner(CleanerOptions::default());
    // The first step may find it hot; by the second the pool is quiet.
    let _ = (cleaner.step(), cleaner.step());
    assert_eq!(pool.stats().cleared_bytes.iter().map(|(_, bytes)| bytes).sum::<u64>(), 100);
    // An owner of few bytes has few bytes cleared, and sees the others only when they are.
    pool.take(16 * KIB).unwrap().fill(7);
    let mut few = pool.take(10).unwrap();
    assert!(is_zero(&few) && few.len() == 10);
    let cleared = || pool.stats().cleared_bytes.iter().map(|(_, bytes)| bytes).sum::<u64>();
    assert_eq!(cleared(), 110);
    few.fill(3);
    few.resize(5000).unwrap();
    assert!(few[..10].iter().all(|byte| *byte == 3) && is_zero(&few[10..]));
    few.resize(5).unwrap();
    few.resize(16 * KIB).unwrap();
    assert!(few[..5].iter().all(|byte| *byte == 3) && is_zero(&few[5..]));
    assert_eq!(few.resize(0), Err(Error::Zero { what: "a buffer", least_bytes: 1 }));
    let error = few.resize(16 * KIB + 1).unwrap_err();
    assert_eq!(error, Error::TooLong { bytes: 16 * KIB + 1, capacity: 16 * KIB });
    drop(few);
    assert!(is_zero(&pool.take(16 * KIB).unwrap()));
}

#[test]
fn a_filled_buffer_shows_what_was_filled_in_and_nothing_else() {
    let pool = small(1).build().unwrap();
    pool.take(16 * KIB).unwrap().fill(7);
    let buffer = pool.take_filled(b"mine").unwrap();
    assert_eq!(&buffer[..], b"mine");
    assert_eq!(pool.stats().uncleared, 1);
    drop(buffer);
    let mut filling = pool.take_to_fill(6).unwrap();
    filling.append(b"abc").unwrap();
    let error = filling.append(b"defg").unwrap_err();
    assert_eq!(error, Error::TooLong { bytes: 7, capacity: 6 });
    assert_eq!((filling.filled(), filling.remaining()), (3, 3));
    let mut buffer = filling.finish().unwrap();
    buffer.resize(16 * KIB).unwrap();
    assert_eq!(&buffer[..3], b"abc");
    assert!(is_zero(&buffer[3..]), "bytes of an earlier owner");
    drop(buffer);
    assert!(matches!(pool.take_to_fill(1).unwrap().finish(), Err(Error::Zero { .. })));
    // What a writer of raw memory may have written is not trusted to be zero.
    let mut filling = pool.take_to_fill(2000).unwrap();
    filling.spare_mut().iter_mut().for_each(|byte| _ = byte.write(5));
    drop(filling);
    assert!(is_zero(&pool.take(16 * KIB).unwrap()));
}

#[test]
#[cfg_attr(miri, ignore = "reads a file")]
fn a_file_is_read_into_a_buffer() {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"0123456789").unwrap();
    let pool = small(1).build().unwrap();
    pool.take(16 * KIB).unwrap().fill(7);
    let mut filling = pool.take_to_fill(16 * KIB).unwrap();
    assert_eq!(filling.read_at(&file, 4, 3), Ok(3));
    assert_eq!(filling.read_at(&file, 7, 100), Ok(3), "the end of the file");
    assert_eq!(filling.read_at(&file, 10, 100), Ok(0));
    for too_long in [16 * KIB, usize::MAX] {
        let refused = filling.read_at(&file, 0, too_long);
        assert!(matches!(refused, Err(Error::TooLong { .. })), "{refused:?}");
    }
    let directory = std::fs::File::open("/").unwrap();
    assert!(matches!(filling.read_at(&directory, 0, 1), Err(Error::System { .. })));
    assert_eq!(&filling.finish().unwrap()[..], b"456789");
}

#[test]
fn pre_cleared_or_nothing() {
    let pool = small(2).build().unwrap();
    let first = pool.take_cleared(1).unwrap().expect("cleared at the start");
    pool.take(1).unwrap().fill(1);
    assert!(pool.take_cleared(1).unwrap().is_none(), "the other one is dirty");
    assert_eq!(pool.stats().inline_clears, 0);
    drop(first);
    assert!(pool.take_cleared(1).unwrap().is_some(), "nothing was written to it");
    assert!(matches!(pool.take_cleared(0), Err(Error::Zero { .. })));
}

#[test]
fn the_memory_outlives_the_pool_while_a_buffer_does() {
    for secret in [false, true] {
        let builder = small(2).ladder(&[Backing::Base]);
        let pool = if secret { builder.secret() } else { builder }.build().unwrap();
        let mut buffers: Vec<_> = (0..2).map(|_| pool.take(1).unwrap()).collect();
        drop(pool);
        buffers[0].fill(1);
        let other = buffers.pop();
        thread::spawn(move || drop(other)).join().unwrap();
        assert_eq!(buffers[0][0], 1);
    }
}

#[test]
fn idle_memory_goes_back_and_comes_again() {
    let mut builders = vec![small(3).ladder(&[Backing::Base])];
    if !cfg!(miri) {
        builders.push(Pool::builder().class(2 << 20, 3).ladder(&[Backing::Thp, Backing::Base]));
        builders.push(small(3).ladder(&[Backing::Base]).secret());
    }
    for builder in builders {
        let pool = builder.build().unwrap();
        let (bytes, count, _) = pool.classes().next().unwrap();
        let mut held = pool.take(bytes).unwrap();
        held.fill(1);
        pool.take(bytes).unwrap().fill(2);
        assert_eq!(pool.trim(Duration::from_secs(3600)).unwrap(), 0, "all were used this hour");
        assert_eq!(pool.trim(Duration::ZERO).unwrap(), (count - 1) * bytes, "one is in use");
        assert!(held.iter().all(|byte| *byte == 1));
        if !cfg!(miri) {
            let region = &pool.core().classes[0].shelves[0].region;
            let resident = region.resident_bytes().unwrap();
            assert!(resident <= bytes, "{resident} bytes are still there");
        }
        let (a, b) = (pool.take(bytes).unwrap(), pool.take(bytes).unwrap());
        assert!(is_zero(&a) && is_zero(&b));
        let stats = pool.stats();
        assert_eq!((stats.released, stats.backed), (2, 2));
        drop((a, b, held));
        assert!(is_zero(&pool.take(bytes).unwrap()));
    }
}

#[test]
fn a_pool_grows_as_it_is_used() {
    let pool = small(3).ladder(&[Backing::Base]).backed_at_start(1).build().unwrap();
    let held: Vec<_> = (0..3).map(|_| pool.take(1).unwrap()).collect();
    assert!(held.iter().all(|buffer| is_zero(buffer)));
    assert_eq!(pool.stats().backed, 2);
    assert!(matches!(pool.take(1), Err(Error::Exhausted { limit: 3, .. })));
    drop(held);
    // Buffers that have memory come before those that have none.
    let pool = small(3).ladder(&[Backing::Base]).backed_at_start(1).build().unwrap();
    (0..5).for_each(|_| pool.take(1).unwrap().fill(1));
    assert_eq!(pool.stats().backed, 0);
}

#[test]
fn a_waiter_clears_outside_the_lock() {
    // Two waiters of large buffers: the giver of the second must not wait for the clear of the
    // first.
    let bytes = if cfg!(miri) { 16 * KIB } else { 64 << 20 };
    let wait = AtMaximum::Wait(Duration::from_secs(60));
    let builder = Pool::builder().class(bytes, 1).at_maximum(wait);
    let pool = builder.ladder(&[Backing::Thp, Backing::Base]).build().unwrap();
    let mut held = pool.take(bytes).unwrap();
    held.fill(7);
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let pool = pool.clone();
            thread::spawn(move || is_zero(&pool.take(bytes).unwrap()))
        })
        .collect();
    while pool.stats().waits < 2 {
        thread::yield_now();
    }
    held.give_back();
    assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap()));
}

#[test]
fn a_panicking_idle_counts_as_busy_and_the_cleaner_goes_on() {
    let pool = small(2).build().unwrap();
    dirty_all(&pool, 2, Heat::Cold);
    let panics = Arc::new(AtomicUsize::new(2));
    let idle = {
        let panics = panics.clone();
        Box::new(move || {
            let left =
                panics.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            // No message on the terminal, which would look like a failed test.
            if left.is_ok() {
                std::panic::resume_unwind(Box::new("not now"));
            }
            true
        })
    };
    let threads = Arc::new(Threads(Mutex::new(Vec::new())));
    let options = CleanerOptions { idle, ..CleanerOptions::default() };
    pool.cleaner(options).run_on(threads);
    wait_for(|| pool.stats().background_clears == 2);
    assert_eq!(pool.stats().idle_panics, 2);
}

fn wait_for(done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(30), "it never comes");
        thread::sleep(Duration::from_millis(1));
    }
}

/// An executor that keeps its jobs until the test runs them.
struct Kept(Mutex<Vec<Job>>);

impl Background for Kept {
    fn run_after(&self, _delay: Duration, job: Job) {
        self.0.lock().unwrap().push(job);
    }
}

impl Kept {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Vec::new())))
    }

    fn next(&self) -> Option<Job> {
        self.0.lock().unwrap().pop()
    }
}

#[test]
fn a_second_cleaner_ends_the_first() {
    let pool = small(4).build().unwrap();
    let (first, second) = (Kept::new(), Kept::new());
    pool.cleaner(CleanerOptions::default()).run_on(first.clone());
    first.next().unwrap().run();
    pool.cleaner(CleanerOptions::default()).run_on(second.clone());
    second.next().unwrap().run();
    dirty_all(&pool, 1, Heat::Cold);
    assert!(first.next().is_none(), "only the cleaner handed over last is started");
    second.next().unwrap().run();
    assert_eq!(pool.stats().background_clears, 1);
    // A job of the first that was still on its way does nothing.
    let third = Kept::new();
    dirty_all(&pool, 1, Heat::Cold);
    let stale = second.next().unwrap();
    pool.cleaner(CleanerOptions::default()).run_on(third);
    stale.run();
    assert_eq!((pool.stats().background_clears, second.next().is_none()), (1, true));
}

#[test]
fn a_job_that_an_executor_drops_is_offered_again() {
    let pool = small(2).build().unwrap();
    let kept = Kept::new();
    pool.cleaner(CleanerOptions::default()).run_on(kept.clone());
    drop(kept.next());
    dirty_all(&pool, 1, Heat::Cold);
    kept.next().expect("offered again").run();
    assert_eq!(pool.stats().background_clears, 1);
}

/// The cleaner sleeps on each class apart. Givers of several classes wake it, and it starts itself
/// again while there is something to do: all that is one job.
#[test]
fn a_cleaner_of_several_classes_has_one_job_on_its_way() {
    let pool = Pool::builder().class(4 * KIB, 1).class(8 * KIB, 1).build().unwrap();
    let kept = Kept::new();
    let busy = CleanerOptions { idle: Box::new(|| false), ..CleanerOptions::default() };
    pool.cleaner(busy).run_on(kept.clone());
    kept.next().unwrap().run();
    for _ in 0..10 {
        pool.take(4 * KIB).unwrap().fill(1);
        pool.take(8 * KIB).unwrap().fill(1);
        // Nothing is dirty, so the job sleeps on both classes; then both are given back.
        let held = (pool.take(4 * KIB).unwrap(), pool.take(8 * KIB).unwrap());
        kept.next().expect("what is given back starts it").run();
        drop(held);
        assert!(kept.0.lock().unwrap().len() <= 1, "{:?}", kept.0.lock().unwrap());
    }
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
#[expect(unsafe_code, reason = "shares memory with itself")]
fn a_shared_buffer_is_seen_through_its_descriptor() {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    for ladder in [&[Backing::Base][..], &[Backing::Thp, Backing::Base]] {
        let builder = Pool::builder().class(2 << 20, 3).shareable().ladder(ladder);
        let pool = builder.build().unwrap();
        let held = pool.take(1).unwrap();
        let mut buffer = pool.take(100).unwrap();
        buffer[..4].copy_from_slice(b"mine");
        // SAFETY: this test alone has the descriptor, and holds no reference while it writes by it.
        let (file, offset) = unsafe { buffer.descriptor() }.expect("shareable");
        let file = std::fs::File::from(file.try_clone_to_owned().unwrap());
        let mut read = [0; 4];
        file.read_exact_at(&mut read, offset).unwrap();
        assert_eq!(&read, b"mine");
        file.write_all_at(b"yours", offset).unwrap();
        assert_eq!(&buffer[..5], b"yours");
        // Its length cannot be changed by anybody.
        // SAFETY: takes no pointer.
        assert_ne!(unsafe { libc::ftruncate(file.as_raw_fd(), 0) }, 0);
        // What came in by the descriptor is cleared like anything else, and its memory can go.
        drop(buffer);
        assert!(is_zero(&pool.take(2 << 20).unwrap()));
        assert_eq!(pool.trim(Duration::ZERO).unwrap(), 2 * (2 << 20));
        assert!(is_zero(&pool.take(2 << 20).unwrap()));
        drop(held);
    }
    let mut private = small(1).build().unwrap().take(1).unwrap();
    // SAFETY: there is none to misuse.
    assert!(unsafe { private.descriptor() }.is_none());
    let error = small(1).secret().shareable().build().unwrap_err().to_string();
    assert!(error.contains("MADV_WIPEONFORK is not supported on shareable memory"), "{error}");
}

#[test]
fn a_node_without_memory_has_no_shelf() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join("sys/devices/system").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("cpu/online", "0-1");
    write("node/online", "0-1");
    write("node/has_memory", "0");
    write("node/node0/cpulist", "0");
    write("node/node1/cpulist", "1");
    let builder = small(4).per_node().machine(Machine::at(root.path()));
    let pool = builder.ladder(&[Backing::Base]).build().unwrap();
    assert_eq!(pool.classes().next().unwrap().2.len(), 1);
    assert!(is_zero(&pool.take(1).unwrap()), "whichever CPU this runs on");
}
