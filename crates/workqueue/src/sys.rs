//! The few things asked of the operating system.

#![expect(unsafe_code, reason = "scheduling calls on threads")]

use std::io;

use tollgate_topology::{CpuId, CpuSet};

/// The CPU that this thread is running on; `None` where the system does not say. Free of system
/// calls where the C library has rseq.
#[inline]
pub(crate) fn current_cpu() -> Option<CpuId> {
    #[cfg(miri)]
    return Some(CpuId(0));
    #[cfg(not(miri))]
    {
        // SAFETY: takes no arguments and has no preconditions.
        let cpu = unsafe { libc::sched_getcpu() };
        u32::try_from(cpu).ok().map(CpuId)
    }
}

/// Restricts the calling thread to these CPUs.
pub(crate) fn set_affinity(cpus: &CpuSet) -> io::Result<()> {
    let bits = u64::BITS as usize;
    let words = cpus.iter().last().map_or(1, |cpu| cpu.index() / bits + 1);
    let mut mask = vec![0_u64; words];
    for cpu in cpus {
        mask[cpu.index() / bits] |= 1 << (cpu.index() % bits);
    }
    if cfg!(miri) {
        return Ok(());
    }
    // SAFETY: pid 0 is the calling thread; the pointer and the size in bytes describe `mask`, which
    // the kernel only reads, during the call.
    let rc =
        unsafe { libc::sched_setaffinity(0, mask.len() * size_of::<u64>(), mask.as_ptr().cast()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The CPUs that the calling thread may run on; `None` where the kernel does not say.
pub(crate) fn affinity() -> Option<CpuSet> {
    if cfg!(miri) {
        return None;
    }
    let mut mask = [0_u64; tollgate_topology::MAX_CPUS.div_ceil(64) as usize];
    // SAFETY: pid 0 is the calling thread; the pointer and the size in bytes describe `mask`, which
    // the kernel writes during the call.
    let rc = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    let is_set = |cpu: &usize| mask[cpu / 64] >> (cpu % 64) & 1 == 1;
    (rc == 0).then(|| (0..64 * mask.len()).filter(is_set).map(CpuId::from_index).collect())
}

/// The nice level of the calling thread.
pub(crate) fn nice() -> i32 {
    if cfg!(miri) {
        return 0;
    }
    // SAFETY: no pointers; `who` 0 is the calling thread on Linux.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Sets the nice level of the calling thread.
pub(crate) fn set_nice(wanted: i32) -> io::Result<()> {
    if cfg!(miri) || nice() == wanted {
        return Ok(());
    }
    // SAFETY: as in `nice`.
    let rc = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, wanted) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A full memory barrier on every CPU that runs a thread of this process, as if each had executed
/// one at some moment during this call.
pub(crate) fn barrier_everywhere() {
    use std::sync::OnceLock;
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    if cfg!(miri) {
        return;
    }
    let command = |command: libc::c_int| {
        // SAFETY: takes two numbers and no pointers.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    };
    let registered =
        *REGISTERED.get_or_init(|| command(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED));
    if !registered || !command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // A store leaves its CPU within nanoseconds when nothing forces it to stay: a filter for
        // system calls that leaves membarrier(2) out costs this pause.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// The kernel's number of the calling thread. Under Miri, which has no such numbers, one for all:
/// zero would say that there is no thread.
pub(crate) fn thread_id() -> u32 {
    if cfg!(miri) {
        return 1;
    }
    // SAFETY: takes no arguments and has no preconditions.
    let id = unsafe { libc::gettid() };
    u32::try_from(id).unwrap_or(0)
}

/// CPU time used so far by a thread of this process, in nanoseconds; 0 when it is gone.
pub(crate) fn cpu_time_ns(thread_id: u32) -> u64 {
    if cfg!(miri) || thread_id == 0 {
        return 0;
    }
    // The kernel's encoding of a thread's CPU clock (CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED).
    let clock: libc::clockid_t = (!thread_id.cast_signed() << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing during the call; an unknown clock only yields an error.
    let rc = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if rc != 0 {
        return 0;
    }
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}
