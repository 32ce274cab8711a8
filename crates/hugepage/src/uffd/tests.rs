use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::machine::Machine;
use crate::thp::Thp;

const PAGES: usize = 12;
const THREADS: usize = 4;

fn thp_is_on() -> bool {
    !matches!(Machine::current().thp(), Thp::Never | Thp::Absent)
}

/// Four threads touch every page, all in another order and so often the same page at once, while
/// one serves. Each finds zeroes or what another wrote, never anything else.
fn fault_from_threads(memory: Memory, method: Method) -> (DemandRange, ServerStats) {
    let (mut range, mut server) = on_demand(PAGES * HUGE_2M, memory, method, 8).unwrap();
    let bytes = range.as_mut_slice();
    let cells: Vec<&[std::sync::atomic::AtomicU8]> = bytes
        .chunks_exact_mut(HUGE_2M)
        // SAFETY: an atomic byte has the layout of a byte, and the borrow is exclusive.
        .map(|page| unsafe { &*(std::ptr::from_mut(page) as *const [std::sync::atomic::AtomicU8]) })
        .collect();
    let cells = &cells;
    let done = AtomicBool::new(false);
    let stats = thread::scope(|scope| {
        let done = &done;
        let serving = scope.spawn(move || {
            while !done.load(Ordering::Acquire) {
                server.serve(Duration::from_millis(5)).unwrap();
                server.refill(2).unwrap();
            }
            server.stats()
        });
        let toucher = |thread: usize| {
            move || {
                for step in 0..PAGES {
                    let page = cells[(step * (2 * thread + 1) + thread) % PAGES];
                    let own = thread * 4096 + 17;
                    assert_eq!(page[own].swap(7, Ordering::Relaxed), 0);
                    assert_eq!(page[HUGE_2M - 1 - thread].load(Ordering::Relaxed), 0);
                    assert_eq!(page[own].load(Ordering::Relaxed), 7);
                }
            }
        };
        // An odd step and 12 pages share a factor of 3: thread 1 would miss pages.
        let threads: Vec<_> = [0, 2, 3, 5].map(|t| scope.spawn(toucher(t))).into_iter().collect();
        assert_eq!(threads.len(), THREADS);
        let results: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Release);
        results.into_iter().for_each(|result| result.unwrap());
        serving.join().unwrap()
    });
    let bytes = range.as_slice();
    for thread in [0, 2, 3, 5] {
        assert!(bytes.chunks_exact(HUGE_2M).all(|page| page[thread * 4096 + 17] == 7));
    }
    (range, stats)
}

#[test]
fn moved_pages_are_huge_and_shared_by_threads() {
    if !thp_is_on() {
        return;
    }
    let _alone = no_fork_meanwhile();
    let (range, stats) = fault_from_threads(Memory::Thp, Method::Move);
    assert_eq!(stats.ready + stats.made, PAGES as u64, "{stats:?}");
    assert!(stats.ready > 0);
    assert_eq!(range.huge_bytes().unwrap(), PAGES * HUGE_2M);
}

#[test]
fn copies_and_zero_pages_work_on_anonymous_memory() {
    if !thp_is_on() {
        return;
    }
    for method in [Method::Copy, Method::ZeroPage] {
        let (_, stats) = fault_from_threads(Memory::Thp, method);
        assert_eq!(stats.ready, PAGES as u64, "{method:?} {stats:?}");
    }
}

/// Held by tests that fork and by those that count huge pages: a page that a child shares is copied
/// piece by piece when it is written, and is then no huge page any more.
static FORKS: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn no_fork_meanwhile() -> std::sync::MutexGuard<'static, ()> {
    FORKS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const RESERVATION: &str = "/proc/sys/vm/nr_hugepages";

/// Puts the reservation back, though the test fail.
struct Before(String);

impl Drop for Before {
    fn drop(&mut self) {
        std::fs::write(RESERVATION, self.0.trim()).unwrap();
    }
}

/// Reserves pages for the tests below, where the process may, and gives them back.
fn with_hugetlb(run: impl FnOnce()) {
    let alone = &crate::region::tests::HUGETLB;
    let _alone = alone.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = std::fs::read_to_string(RESERVATION).unwrap();
    let wanted = before.trim().parse::<usize>().unwrap() + 2 * PAGES;
    if std::fs::write(RESERVATION, wanted.to_string()).is_err() {
        eprintln!("not tested: this process may not reserve huge pages");
        return;
    }
    let _before = Before(before);
    let available = Machine::current().reserved(HUGE_2M).map_or(0, |pool| pool.available());
    if available < 2 * PAGES {
        eprintln!("not tested: the memory is too fragmented to reserve huge pages");
        return;
    }
    run();
}

#[test]
fn hugetlb_pages_are_continued_and_copied() {
    with_hugetlb(|| {
        let (_, stats) = fault_from_threads(Memory::Hugetlb, Method::Continue);
        assert_eq!(stats.ready + stats.made, PAGES as u64, "{stats:?}");
        let (_, stats) = fault_from_threads(Memory::Hugetlb, Method::Copy);
        assert_eq!(stats.ready, PAGES as u64, "{stats:?}");
    });
}

#[test]
fn impossible_pairs_say_so() {
    let pairs = [
        (Memory::Hugetlb, Method::ZeroPage, "UFFDIO_ZEROPAGE is not supported on hugetlb"),
        (Memory::Hugetlb, Method::Move, "UFFDIO_MOVE is not supported on hugetlb"),
        (Memory::Thp, Method::Continue, "UFFDIO_CONTINUE is not supported on anonymous memory"),
    ];
    for (memory, method, text) in pairs {
        let error = on_demand(HUGE_2M, memory, method, 1).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
    assert!(matches!(on_demand(0, Memory::Thp, Method::Move, 1), Err(Error::Zero { .. })));
    assert!(matches!(on_demand(4096, Memory::Thp, Method::Move, 1), Err(Error::Unaligned { .. })));
}

#[test]
fn the_kernel_itself_refuses_zeropage_on_hugetlb() {
    with_hugetlb(|| {
        let region = anonymous(HUGE_2M, Memory::Hugetlb).unwrap();
        let (uffd, _) = Uffd::open(features(Method::ZeroPage)).unwrap();
        assert!(!uffd.register(region.start(), HUGE_2M, false, Call::ZeroPage).unwrap());
        // SAFETY: the range is this test's, and nothing relies on its bytes.
        let (done, refused) =
            unsafe { uffd.resolve(Call::ZeroPage, region.start(), region.start(), HUGE_2M) };
        assert_eq!((done, refused.unwrap_err()), (0, Errno(libc::EINVAL)));
    });
}

#[test]
fn without_a_server_pages_come_from_the_kernel() {
    if !thp_is_on() {
        return;
    }
    let (mut range, server) = on_demand(2 * HUGE_2M, Memory::Thp, Method::Move, 1).unwrap();
    drop(server);
    range.as_mut_slice()[HUGE_2M] = 1;
    assert_eq!(range.as_slice()[HUGE_2M + 1], 0);
}

/// Touches one byte of each of the first `pages` pages, each in a thread of its own, while this one
/// serves. Returns the errors of the server, and what it did.
fn touch_each(
    range: &mut DemandRange,
    mut server: PageServer,
    pages: usize,
) -> (Vec<Error>, ServerStats) {
    let touched = &std::sync::atomic::AtomicUsize::new(0);
    let started = std::time::Instant::now();
    let mut errors = Vec::new();
    let errors_of = &mut errors;
    let (in_time, stats) = thread::scope(move |scope| {
        for page in range.as_mut_slice().chunks_exact_mut(HUGE_2M).take(pages) {
            scope.spawn(move || {
                page[77] = 5;
                assert!(page.iter().enumerate().all(|(at, byte)| (*byte == 5) == (at == 77)));
                touched.fetch_add(1, Ordering::Release);
            });
        }
        while touched.load(Ordering::Acquire) < pages {
            if started.elapsed() > Duration::from_secs(10) {
                // Threads that wait are released by the end of the server, when this closure
                // returns.
                return (false, server.stats());
            }
            errors_of.extend(server.serve(Duration::from_millis(5)).err());
        }
        let stats = server.stats();
        drop(server);
        (true, stats)
    });
    assert!(in_time, "a thread waits for ever: {:?}", errors.last());
    (errors, stats)
}

#[test]
fn a_failed_supply_loses_no_other_fault_and_is_made_good() {
    if !thp_is_on() {
        return;
    }
    let (mut range, mut server) = on_demand(4 * HUGE_2M, Memory::Thp, Method::Move, 4).unwrap();
    server.failures = 2;
    // All four faults are there before the first call, so one read brings them together.
    let (errors, stats) = touch_each(&mut range, server, 4);
    assert!((1..=2).contains(&errors.len()), "{errors:?}");
    assert_eq!(stats.ready, 4, "{stats:?}");
}

#[test]
fn pages_move_after_a_fork() {
    if !thp_is_on() {
        return;
    }
    let _alone = no_fork_meanwhile();
    let (mut range, server) = on_demand(4 * HUGE_2M, Memory::Thp, Method::Move, 4).unwrap();
    // SAFETY: the child only waits and is killed below.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        loop {
            // SAFETY: takes no pointer; the parent ends this process.
            unsafe { libc::pause() };
        }
    }
    let (errors, stats) = touch_each(&mut range, server, 4);
    // SAFETY: ends and waits for the child of this test.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!((errors.len(), stats.ready), (0, 4), "{errors:?} {stats:?}");
}

#[test]
fn a_page_that_moves_in_parts_arrives_whole() {
    if !thp_is_on() {
        return;
    }
    let (mut range, server) = on_demand(HUGE_2M, Memory::Thp, Method::Move, 1).unwrap();
    let Source::Stock { pages, .. } = &server.source else { panic!("a stock") };
    // The kernel takes a part out of the middle of the ready page: a move stops there, having moved
    // what lies before it.
    pages.release(HUGE_2M / 2, 64 << 10).unwrap();
    let (errors, stats) = touch_each(&mut range, server, 1);
    assert_eq!((errors.len(), stats.ready), (0, 1), "{errors:?}");
}

#[test]
fn a_child_does_not_share_hugetlb_pages() {
    with_hugetlb(|| {
        let (mut range, server) =
            on_demand(2 * HUGE_2M, Memory::Hugetlb, Method::Continue, 2).unwrap();
        let _alone = no_fork_meanwhile();
        let start = range.as_mut_slice().as_mut_ptr();
        // SAFETY: the child only asks whether a page is mapped, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut there = 0u8;
            // SAFETY: reads no memory of the range; writes one byte of this frame.
            let absent = unsafe { libc::mincore(start.cast(), 4096, &raw mut there) } != 0;
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(if absent { 0 } else { 1 }) }
        }
        let mut status = 0;
        // SAFETY: waits for the child, and writes to a variable that lives through the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
        drop(server);
    });
}

#[test]
fn it_is_said_whose_faults_are_served() {
    if !thp_is_on() {
        return;
    }
    let (_, server) = on_demand(HUGE_2M, Memory::Thp, Method::Move, 1).unwrap();
    // SAFETY: takes no pointer.
    let root = unsafe { libc::geteuid() } == 0;
    let unprivileged = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let allowed = root || unprivileged.is_ok_and(|text| text.trim() == "1");
    assert_eq!(server.serves_kernel_faults(), allowed);
}
