//! Caller affinity: a worker runs on the CPU of its caller.
//!
//! A caller that makes one request after the other waits for each reply: it and the server never
//! run at the same time, so they need one CPU, not two. The scheduler nevertheless wakes the server
//! on another CPU if that one is idle, and both directions then pay for waking an idle CPU (on
//! virtual machines with an exit to the host: an open and close took 14 us on one CPU and 40 to 100
//! us across two). FUSE gives the scheduler no hint. So when many requests in a row come from one
//! thread, the worker looks up the CPU that the caller runs on and binds itself to it while they go
//! on coming.
//!
//! With several callers at once the worker is bound to no CPU: then the scheduler chooses better.

use std::time::Duration;

use rustix::thread::CpuSet;
use rustix::time::ClockId;
use tollgate_haltpoll::cpu_of_thread;

/// Requests in a row from one thread before the worker binds itself to its CPU.
const IN_A_ROW: u32 = 6;
/// Requests from others, between two looks, after which the worker unbinds itself.
const OTHERS: u32 = 4;
/// How long a look is good for. A look costs about 10 us.
const LOOK_EVERY: Duration = Duration::from_millis(4);

/// One worker's caller, and the CPU that the worker is bound to.
#[derive(Debug)]
pub(crate) struct CallerAffinity {
    caller: u32,
    in_a_row: u32,
    others: u32,
    looked_at: Option<Duration>,
    /// The CPU that this thread is bound to, and those that it may use otherwise.
    bound: Option<(usize, CpuSet)>,
}

impl CallerAffinity {
    pub(crate) fn new() -> Self {
        Self { caller: 0, in_a_row: 0, others: 0, looked_at: None, bound: None }
    }

    /// A request came from thread `caller`.
    pub(crate) fn request_from(&mut self, caller: u32) {
        if caller == self.caller {
            self.in_a_row += 1;
            if self.in_a_row >= IN_A_ROW && self.look_is_due() {
                self.others = 0;
                self.bind_to_caller();
            }
            return;
        }
        self.others += 1;
        if self.others >= OTHERS || self.bound.is_none() {
            self.unbind();
            *self = Self { caller, looked_at: self.looked_at, ..Self::new() };
        }
    }

    /// Whether this thread shares its caller's CPU.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// Lets the scheduler choose the CPU again.
    pub(crate) fn unbind(&mut self) {
        if let Some((_, allowed)) = self.bound.take() {
            // On failure (the set of allowed CPUs shrank) the thread stays where it is.
            let _ = rustix::thread::sched_setaffinity(None, &allowed);
        }
    }

    fn look_is_due(&mut self) -> bool {
        let now = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.try_into().unwrap_or(0));
        let due = self.looked_at.is_none_or(|at| now.saturating_sub(at) >= LOOK_EVERY);
        if due {
            self.looked_at = Some(now);
        }
        due
    }

    fn bind_to_caller(&mut self) {
        let Some(cpu) = cpu_of_thread(self.caller) else { return };
        let allowed = match &self.bound {
            Some((bound, _)) if *bound == cpu => return,
            Some((_, allowed)) => *allowed,
            None => match rustix::thread::sched_getaffinity(None) {
                Ok(allowed) => allowed,
                Err(_) => return,
            },
        };
        if cpu >= CpuSet::MAX_CPU || !allowed.is_set(cpu) {
            return;
        }
        let mut there = CpuSet::new();
        there.set(cpu);
        if rustix::thread::sched_setaffinity(None, &there).is_ok() {
            self.bound = Some((cpu, allowed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc and binds to a CPU")]
    fn a_worker_binds_itself_to_a_single_caller_and_not_to_many() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mut affinity = CallerAffinity::new();
        affinity.request_from(me);
        assert_eq!(affinity.bound, None);
        for _ in 0..=IN_A_ROW {
            affinity.request_from(me);
        }
        let (cpu, _) = affinity.bound.expect("this thread has a CPU");
        let now = rustix::thread::sched_getaffinity(None).unwrap();
        assert!(now.is_set(cpu) && now.count() == 1);
        for other in 1..=OTHERS {
            affinity.request_from(me + other);
        }
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before);
    }
}
