//! System calls without a wrapper elsewhere, and the clock.
#![expect(
    unsafe_code,
    reason = "sched_setscheduler, sched_setattr and the clocks of threads have no wrapper"
)]

use std::io;

use rustix::thread::{CpuSet, Pid};
use rustix::time::ClockId;

/// Time in nanoseconds since the machine started. About 30 ns on a virtual machine.
pub(crate) fn now_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// CPU time of the calling thread in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

/// CPU time of the thread `tid` of this process in nanoseconds; `None` if there is none.
pub(crate) fn cpu_ns_of(tid: i32) -> Option<u64> {
    // The kernel's number for the CPU clock of one thread: the inverted id, CPUCLOCK_PERTHREAD_MASK (4)
    // and CPUCLOCK_SCHED (2), as `pthread_getcpuclockid` makes it. An id of 0 would be the caller.
    let clock = (!std::num::NonZeroI32::new(tid)?.get() << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes `time`, which lives until it returns.
    let rc = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (rc == 0).then(|| time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

fn clock_ns(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// CPUs that the calling thread may run on, ascending.
pub(crate) fn allowed_cpus() -> Vec<u16> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    cpus.filter_map(|cpu| u16::try_from(cpu).ok()).collect()
}

/// Binds a thread (`None`: the caller) to `cpus`.
pub(crate) fn bind(thread: Option<Pid>, cpus: &[u16]) -> io::Result<()> {
    let mut set = CpuSet::new();
    let known = cpus.iter().map(|&cpu| usize::from(cpu)).filter(|&cpu| cpu < CpuSet::MAX_CPU);
    known.for_each(|cpu| set.set(cpu));
    Ok(rustix::thread::sched_setaffinity(thread, &set)?)
}

/// The calling thread gives way to every thread of a normal class from here on, and is interrupted
/// early by its like. Never to be undone without privilege.
///
/// # Errors
/// Errors of the system; the class is unchanged then.
pub(crate) fn become_idle_class() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads `param`, which lives until it returns; 0 is the calling thread.
    let rc = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    take_short_slices();
    Ok(())
}

/// The calling thread, of the normal class, is let in early when it wakes.
pub(crate) fn be_let_in_early() {
    take_short_slices();
    // Refused or not, the thread sleeps; 50 us longer if refused.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// Thread `tid`, of the class SCHED_IDLE, becomes a normal one where that is permitted.
pub(crate) fn become_normal_class(tid: Pid) {
    let param = libc::sched_param { sched_priority: 0 };
    let tid = tid.as_raw_nonzero().get();
    // SAFETY: the call reads `param`, which lives until it returns. A refusal changes nothing, and
    // nothing depends on success.
    unsafe { libc::sched_setscheduler(tid, libc::SCHED_OTHER, &raw const param) };
}

/// Asks the scheduler for slices of 0.1 ms, the shortest there are, for the calling thread: one that
/// works for microseconds should not wait until another thread's slice of some milliseconds is over.
/// Class, nice value and share of the CPU stay the same. Kernels before 6.12 have one length for all
/// and ignore it.
pub fn take_short_slices() {
    /// `SCHED_FLAG_KEEP_POLICY`: only the parameters change.
    const KEEP_POLICY: u64 = 0x08;
    set_short_slices(libc::SCHED_OTHER, KEEP_POLICY);
}

/// Whether the calling thread takes the CPU from another one of a normal class when it wakes
/// (`SCHED_OTHER`), or is let in when that one sleeps or has had its slice (`SCHED_BATCH`). It takes
/// short slices in both. A thread of any other class keeps it.
pub fn preempt_when_woken(preempts: bool) {
    let (from, to) = match preempts {
        true => (libc::SCHED_BATCH, libc::SCHED_OTHER),
        false => (libc::SCHED_OTHER, libc::SCHED_BATCH),
    };
    // SAFETY: without memory arguments; 0 is the calling thread.
    if unsafe { libc::sched_getscheduler(0) } == from {
        set_short_slices(to, 0);
    }
}

/// Gives the calling thread the class `policy`, unless `flags` keep its own, and slices of 0.1 ms.
fn set_short_slices(policy: libc::c_int, flags: u64) {
    /// `struct sched_attr` in its first version (48 bytes), for fair classes: the runtime is the
    /// slice.
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }
    // The nice value is a parameter too, so it is read and set again.
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    let attr = SchedAttr {
        size: 48,
        policy: policy.unsigned_abs(),
        flags,
        nice,
        priority: 0,
        runtime_ns: 100_000,
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: the call reads `size` bytes of a structure of that size and layout, which lives until
    // it returns. A refusal changes nothing, and nothing depends on success.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "the clocks of threads")]
    fn the_clock_of_a_thread_is_its_own() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let before = thread_cpu_ns();
        let used = cpu_ns_of(tid).unwrap();
        assert!((before..=thread_cpu_ns()).contains(&used), "{before} {used}");
        assert_eq!((cpu_ns_of(0), cpu_ns_of(1)), (None, None), "not of this process");
    }

    #[test]
    #[cfg_attr(miri, ignore = "schedules")]
    fn a_thread_enters_the_idle_class_and_its_slice_is_short() {
        std::thread::spawn(|| {
            become_idle_class().unwrap();
            assert_eq!(class(), libc::SCHED_IDLE);
            let stat = std::fs::read_to_string("/proc/thread-self/sched").unwrap_or_default();
            if let Some(line) = stat.lines().find(|line| line.starts_with("se.slice")) {
                assert!(line.ends_with(" 100000"), "{line}");
            }
            preempt_when_woken(true);
            preempt_when_woken(false);
            assert_eq!(class(), libc::SCHED_IDLE, "it keeps its class");
        })
        .join()
        .unwrap();
    }

    fn class() -> libc::c_int {
        // SAFETY: without memory arguments.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    #[cfg_attr(miri, ignore = "schedules")]
    fn a_thread_changes_between_the_normal_classes_and_keeps_its_nice_value() {
        std::thread::spawn(|| {
            rustix::process::setpriority_process(None, 3).unwrap();
            for (preempts, wanted) in
                [(true, libc::SCHED_OTHER), (false, libc::SCHED_BATCH), (true, libc::SCHED_OTHER)]
            {
                preempt_when_woken(preempts);
                assert_eq!(class(), wanted);
                assert_eq!(rustix::process::getpriority_process(None), Ok(3));
            }
        })
        .join()
        .unwrap();
    }
}
