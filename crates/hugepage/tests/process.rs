//! What holds for the whole process: limits, fork, THP switched off, reserved huge pages. Each test
//! that changes its process runs in one of its own: this test program, started again.
#![expect(unsafe_code, reason = "fork, setrlimit and prctl")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate_hugepage::{
    AtMaximum, Backing, Error, HUGE_1G, HUGE_2M, Machine, Pool, Prefault, Region, Thp, TouchAt,
};

const CHILD: &str = "TOLLGATE_HUGEPAGE_CHILD";

/// Runs `test` of this program again with [`CHILD`] set. `true` in the parent, when that is done.
fn in_own_process(test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return false;
    }
    run_again(test, &[]);
    true
}

/// Runs `test` of this program again with [`CHILD`] and `variables` set, and waits for it.
fn run_again(test: &str, variables: &[(&str, &str)]) {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn out_of_address_space_is_an_error_that_names_rlimit_as() {
    if in_own_process("out_of_address_space_is_an_error_that_names_rlimit_as") {
        return;
    }
    let limit = libc::rlimit { rlim_cur: 1 << 30, rlim_max: 1 << 30 };
    // SAFETY: passes a structure that lives through the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    for backing in [Backing::Thp, Backing::Base] {
        if backing == Backing::Thp && matches!(Machine::current().thp(), Thp::Never | Thp::Absent) {
            continue;
        }
        let error = Region::options(2 << 30).exactly(backing).map().unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert!(error.to_string().contains("RLIMIT_AS is 1073741824 bytes"), "{error}");
    }
    let pool = Pool::builder().class(HUGE_2M, 1024).prefault(Prefault::Lazy).build();
    assert!(matches!(pool.unwrap_err(), Error::OutOfMemory { .. }));
    // What fits still works.
    assert!(Region::options(64 << 20).map().is_ok());
}

#[test]
fn thp_switched_off_for_the_process_falls_back_and_says_so() {
    if in_own_process("thp_switched_off_for_the_process_falls_back_and_says_so") {
        return;
    }
    // SAFETY: sets a flag of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }, 0);
    let region = Region::options(2 * HUGE_2M).ladder(&[Backing::Thp, Backing::Base]).map().unwrap();
    assert_eq!((region.report().backing, region.huge_bytes().unwrap()), (Backing::Base, 0));
    if !matches!(Machine::current().thp(), Thp::Never | Thp::Absent) {
        let text = region.report().to_string();
        assert!(text.contains("a process with PR_SET_THP_DISABLE"), "{text}");
    }
}

/// It did not get the memory: what is at that address in the child belongs to something else.
#[test]
fn a_forked_child_may_drop_a_region_that_it_did_not_get() {
    if in_own_process("a_forked_child_may_drop_a_region_that_it_did_not_get") {
        return;
    }
    const LEN: usize = 4 << 20;
    let region = Region::options(LEN).exactly(Backing::Base).dont_fork(true).map().unwrap();
    let start = region.start().as_ptr();
    // SAFETY: the child makes system calls, touches memory that it has mapped, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a new mapping, at an address where there is none.
        let own = unsafe {
            let (access, kind) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            );
            libc::mmap(start.cast(), LEN, access, kind, -1, 0)
        };
        let byte = own.cast::<u8>();
        // SAFETY: the byte was mapped above. After `drop` it still has to be, or the child is killed.
        let is_kept = own != libc::MAP_FAILED
            && unsafe {
                byte.write(7);
                drop(region);
                byte.read() == 7
            };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!is_kept)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
}

#[test]
fn a_forked_child_finds_zeroes_in_a_secret_buffer() {
    if in_own_process("a_forked_child_finds_zeroes_in_a_secret_buffer") {
        return;
    }
    let pool = Pool::builder().class(HUGE_2M, 1).secret().build().unwrap();
    let mut buffer = pool.take(1).unwrap();
    buffer.fill(0x77);
    // SAFETY: the child only reads memory and ends with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let zero = buffer.iter().all(|byte| *byte == 0);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(if zero { 0 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY: waits for the child, and writes its status to a variable that lives through the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
    assert!(buffer.iter().all(|byte| *byte == 0x77), "the parent keeps its bytes");
}

/// A memory cgroup of its own for a child, with a limit. `None` where none can be made.
struct MemoryGroup {
    directory: PathBuf,
    limit_file: PathBuf,
}

impl MemoryGroup {
    fn new(test: &str, limit_bytes: usize) -> Option<Self> {
        let name = format!("tollgate-hugepage-{test}-{}", std::process::id());
        let (mount, file) = if Path::new("/sys/fs/cgroup/memory").is_dir() {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            ("/sys/fs/cgroup", "memory.max")
        };
        let directory = Path::new(mount).join(name);
        std::fs::create_dir(&directory).ok()?;
        let group = Self { limit_file: directory.join(file), directory };
        std::fs::write(&group.limit_file, limit_bytes.to_string()).ok()?;
        Some(group)
    }

    /// Moves the calling process in.
    fn enter(directory: &str) {
        let file = Path::new(directory).join("cgroup.procs");
        std::fs::write(file, std::process::id().to_string()).unwrap();
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The child has ended; a group that stays would be an error of this test alone.
        std::fs::remove_dir(&self.directory).unwrap();
    }
}

const GROUP: &str = "TOLLGATE_HUGEPAGE_GROUP";

/// Runs `test` again, in a process and a memory cgroup of its own. `true` in the parent.
fn in_memory_group(test: &str, limit_bytes: usize) -> bool {
    if let Some(directory) = std::env::var_os(GROUP) {
        MemoryGroup::enter(directory.to_str().unwrap());
        return false;
    }
    let Some(group) = MemoryGroup::new(test, limit_bytes) else {
        eprintln!("not tested: this process may not make a memory cgroup");
        return true;
    };
    run_again(test, &[(GROUP, group.directory.to_str().unwrap())]);
    true
}

#[test]
fn at_the_limit_of_the_cgroup_a_pool_is_an_error_and_not_the_oom_killer() {
    let test = "at_the_limit_of_the_cgroup_a_pool_is_an_error_and_not_the_oom_killer";
    if in_memory_group(test, 96 << 20) {
        return;
    }
    let mut in_use = vec![0u8; 40 << 20];
    in_use.fill(1);
    for backing in [Backing::Base, Backing::Thp] {
        let builder = || Pool::builder().ladder(&[backing]);
        // Less than the limit, more than what is left of it.
        let error = builder().class(4 << 20, 16).build().unwrap_err().to_string();
        assert!(error.contains("memory.") && error.contains(" leaves "), "{error}");
        // Memory that comes as it is used is an error of the take, and what was taken stays.
        let pool = builder().class(4 << 20, 16).backed_at_start(1).build().unwrap();
        let mut held = Vec::new();
        let error = loop {
            match pool.take(4 << 20) {
                Ok(mut buffer) => buffer.fill(3),
                Err(error) => break error,
            }
            held.push(pool.take(4 << 20));
            if let Some(Err(error)) = held.last() {
                break error.clone();
            }
        };
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert!(held.len() > 4, "{} buffers", held.len());
        // Given back, it can be had elsewhere.
        drop(held);
        assert!(pool.trim(Duration::ZERO).unwrap() >= 4 * (4 << 20));
        assert!(builder().class(4 << 20, 4).build().is_ok());
    }
    assert!(in_use.iter().all(|byte| *byte == 1));
    let error = Pool::builder().class(4 << 20, 25).ladder(&[Backing::Base]).build().unwrap_err();
    assert!(matches!(error, Error::TooLarge { what: "a pool", .. }), "{error}");
}

#[test]
fn hugetlb_is_not_held_against_the_memory_limit() {
    let _alone = RESERVATION.lock().unwrap_or_else(PoisonError::into_inner);
    let in_child = std::env::var_os(GROUP).is_some();
    let _reserved = if in_child { None } else { Reserved::more(HUGE_2M, 24) };
    if !in_child && _reserved.is_none() {
        eprintln!("not tested: this process may not reserve huge pages");
        return;
    }
    if in_memory_group("hugetlb_is_not_held_against_the_memory_limit", 32 << 20) {
        return;
    }
    let pool = Pool::builder().class(HUGE_2M, 24).build().unwrap();
    let backing = pool.classes().next().unwrap().2[0].backing;
    assert_eq!(backing, Backing::Hugetlb { page_bytes: HUGE_2M });
}

#[test]
fn the_secret_pool_of_the_readme_fits_the_default_limit_of_locked_memory() {
    let test = "the_secret_pool_of_the_readme_fits_the_default_limit_of_locked_memory";
    if in_own_process(test) {
        return;
    }
    let limit = libc::rlimit { rlim_cur: 8 << 20, rlim_max: 8 << 20 };
    // SAFETY: passes a structure that lives through the call; then gives up the capability that
    // would lift the limit.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        if libc::geteuid() == 0 {
            assert_eq!(libc::setuid(65534), 0);
        }
    }
    let secret = |count| Pool::builder().class(HUGE_2M, count).secret().build();
    let pool = secret(3).unwrap();
    pool.take(HUGE_2M).unwrap().fill(1);
    let error = secret(8).unwrap_err();
    assert!(matches!(error, Error::LockLimit { limit_bytes: 8_388_608, .. }), "{error}");
    assert!(error.to_string().contains("ask for less"), "{error}");
}

/// Two tests must not count each other's pages.
static RESERVATION: Mutex<()> = Mutex::new(());

/// Reserves huge pages for a test, gives them back at its end.
struct Reserved {
    file: String,
    before: String,
}

impl Reserved {
    /// `None` where the process may not, or the memory is fragmented.
    fn more(page_bytes: usize, pages: usize) -> Option<Self> {
        let kib = page_bytes / 1024;
        let file = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages");
        let before = std::fs::read_to_string(&file).ok()?;
        let wanted = before.trim().parse::<usize>().ok()? + pages;
        std::fs::write(&file, wanted.to_string()).ok()?;
        let reserved = Self { file, before };
        let pool = Machine::current().reserved(page_bytes).ok()?;
        (pool.available() >= pages).then_some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        std::fs::write(&self.file, self.before.trim()).unwrap();
    }
}

#[test]
fn reserved_huge_pages_are_taken_first_and_run_out() {
    let _alone = RESERVATION.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(_reserved) = Reserved::more(HUGE_2M, 4) else {
        eprintln!("not tested: this process may not reserve huge pages");
        return;
    };
    let hugetlb = Backing::Hugetlb { page_bytes: HUGE_2M };
    for prefault in
        [Prefault::Touch(TouchAt::First), Prefault::Touch(TouchAt::Last), Prefault::Populate]
    {
        let mut region = Region::options(3 * HUGE_2M).prefault(prefault).map().unwrap();
        assert_eq!(region.report().backing, hugetlb, "{}", region.report());
        assert_eq!(region.huge_bytes().unwrap(), 3 * HUGE_2M);
        assert!(region.as_slice().iter().all(|byte| *byte == 0));
        region.as_mut_slice().fill(9);
    }
    let held = Region::options(3 * HUGE_2M).map().unwrap();
    let available = Machine::current().reserved(HUGE_2M).unwrap().available();
    let error = Region::options((available + 1) * HUGE_2M).exactly(hugetlb).map().unwrap_err();
    assert!(matches!(error, Error::NotReserved { free, .. } if free == available), "{error}");
    let next = Region::options((available + 1) * HUGE_2M).map().unwrap();
    assert_ne!(next.report().backing, hugetlb);
    drop(held);

    let error = Region::options(HUGE_2M + 4096).exactly(hugetlb).map().unwrap_err();
    assert!(matches!(error, Error::Unaligned { next, .. } if next == 2 * HUGE_2M), "{error}");
    let pool = Pool::builder().class(HUGE_2M, 2).at_maximum(AtMaximum::BasePages { most: 1 });
    let pool = pool.build().unwrap();
    assert_eq!(pool.classes().next().unwrap().2[0].backing, hugetlb);
    let held: Vec<_> = (0..3).map(|_| pool.take(1).unwrap()).collect();
    assert!(held.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0)));
}

/// The kernel takes a reserved page back as a whole only. A buffer that shares one keeps its bytes
/// then, and must not count as zero.
#[test]
fn a_trim_of_buffers_that_share_reserved_pages_leaves_nobody_elses_bytes() {
    let _alone = RESERVATION.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(_reserved) = Reserved::more(HUGE_2M, 3) else {
        eprintln!("not tested: this process may not reserve huge pages");
        return;
    };
    for (bytes, trimmed) in [(1 << 20, 0), (3 << 20, 0), (HUGE_2M, HUGE_2M)] {
        for held in [0, 1] {
            let pool = Pool::builder().class(bytes, 2).build().unwrap();
            let backing = pool.classes().next().unwrap().2[0].backing;
            assert_eq!(backing, Backing::Hugetlb { page_bytes: HUGE_2M });
            // In either place, at the start of a page and within one.
            let mut buffers = [pool.take(bytes).unwrap(), pool.take(bytes).unwrap()];
            buffers.iter_mut().for_each(|buffer| buffer.fill(7));
            let [first, second] = buffers;
            let (held, free) = if held == 0 { (first, second) } else { (second, first) };
            drop(free);
            assert_eq!(pool.trim(Duration::ZERO).unwrap(), trimmed, "buffers of {bytes} bytes");
            let taken = pool.take(bytes).unwrap();
            let other = taken.iter().filter(|byte| **byte != 0).count();
            assert_eq!(other, 0, "bytes of another owner in a buffer of {bytes} bytes");
            assert!(held.iter().all(|byte| *byte == 7), "the neighbour keeps its bytes");
        }
    }
}

#[test]
fn a_page_of_a_gibibyte_is_taken_where_reserved() {
    let _alone = RESERVATION.lock().unwrap_or_else(PoisonError::into_inner);
    let exactly = Region::options(HUGE_1G).exactly(Backing::Hugetlb { page_bytes: HUGE_1G });
    if let Err(error) = exactly.map() {
        let text = error.to_string();
        let way_out = "> /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages` reserves them";
        assert!(text.contains(way_out) || text.contains("are not available here"), "{text}");
    }
    let Some(_reserved) = Reserved::more(HUGE_1G, 1) else {
        eprintln!("not tested: no page of a gibibyte can be reserved");
        return;
    };
    let region = Region::options(HUGE_1G).map().unwrap();
    assert_eq!(region.report().backing, Backing::Hugetlb { page_bytes: HUGE_1G });
    assert_eq!((region.as_slice()[0], region.as_slice()[HUGE_1G - 1]), (0, 0));
    assert_eq!(region.huge_bytes().unwrap(), HUGE_1G);
}
