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
        let uffd = Uffd::open(features(Method::ZeroPage)).unwrap();
        assert!(!uffd.register(region.start(), HUGE_2M, false, Call::ZeroPage).unwrap());
        // SAFETY: the range is this test's, and nothing relies on its bytes.
        let refused =
            unsafe { uffd.answer(Call::ZeroPage, region.start(), region.start(), HUGE_2M) };
        assert_eq!(refused.unwrap_err(), Errno(libc::EINVAL));
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
