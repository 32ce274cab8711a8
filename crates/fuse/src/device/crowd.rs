//! Several callers at once: each of two workers stays active, on a CPU of its own.
//!
//! A request wakes both workers. The caller waits for its reply, so that the worker of its CPU runs at
//! once and receives the request. The other one, whose CPU another program has, does not preempt it
//! ([`Member`](super::queue::Member) gives workers that are bound to a CPU the class SCHED_BATCH), and
//! is let in when that program sleeps, most often for a request of its own: it is awake for it then.
//! With one worker for two callers, the CPU of a caller that waits for a worker on the other CPU is
//! idle, and the program there is interrupted.
//!
//! Only where there are two CPUs: how it does with more, where each request would wake them all, was
//! not measured.

use rustix::thread::CpuSet;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Where it pays.
const CPUS: usize = 2;
/// Requests in a row from one thread, whoever received them, after which it is alone: more than a
/// compiler makes for the files that it reads, while another one computes.
const ALONE: u32 = 512;

/// What the workers of one connection know of their callers.
#[derive(Debug)]
pub(crate) struct Callers {
    /// Who made the latest request.
    latest: AtomicU64,
    /// How many requests in a row that thread has made; [`ALONE`] at most.
    in_a_row: AtomicU32,
    /// A bit for each CPU that a worker has for its own.
    taken: AtomicU64,
}

impl Callers {
    pub(crate) fn new() -> Self {
        Self {
            latest: AtomicU64::new(0),
            in_a_row: AtomicU32::new(ALONE),
            taken: AtomicU64::new(0),
        }
    }

    /// A worker received a request of thread `caller`. Requests that two workers receive at the same
    /// time may be counted as one: the count is a hint.
    fn request_from(&self, caller: u32) {
        let caller = u64::from(caller);
        let in_a_row = self.in_a_row.load(Ordering::Relaxed);
        // Most often one thread calls: then nobody writes, and each CPU keeps its copy.
        if self.latest.load(Ordering::Relaxed) != caller {
            self.latest.store(caller, Ordering::Relaxed);
            self.in_a_row.store(0, Ordering::Relaxed);
        } else if in_a_row < ALONE {
            self.in_a_row.store(in_a_row + 1, Ordering::Relaxed);
        }
    }

    /// Whether several threads call.
    fn are_several(&self) -> bool {
        self.in_a_row.load(Ordering::Relaxed) < ALONE
    }

    /// Takes the first of `cpus` that is free.
    fn take(&self, mut cpus: impl Iterator<Item = usize>) -> Option<usize> {
        cpus.find(|&cpu| {
            let Some(bit) = bit(cpu) else { return false };
            self.taken.fetch_or(bit, Ordering::Relaxed) & bit == 0
        })
    }

    fn all_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed).count_ones() as usize >= CPUS
    }

    fn give_back(&self, cpu: usize) {
        self.taken.fetch_and(!bit(cpu).unwrap_or(0), Ordering::Relaxed);
    }
}

/// The bit of a CPU. Those of high numbers cannot be taken.
fn bit(cpu: usize) -> Option<u64> {
    1_u64.checked_shl(u32::try_from(cpu).ok()?)
}

/// One worker's part.
#[derive(Debug)]
pub(crate) struct Crowd {
    is_possible: bool,
    /// The CPU that this thread has for its own, and those that it may use otherwise.
    own: Option<(usize, CpuSet)>,
}

impl Crowd {
    /// Of a server that may use so many `cpus`.
    pub(crate) fn new(cpus: usize) -> Self {
        Self { is_possible: cpus == CPUS, own: None }
    }

    /// This worker received a request of thread `caller`.
    pub(crate) fn request_from(&self, callers: &Callers, caller: u32) {
        if self.is_possible {
            callers.request_from(caller);
        }
    }

    /// Whether several threads call.
    pub(crate) fn is_there(&self, callers: &Callers) -> bool {
        self.is_possible && callers.are_several()
    }

    /// Whether this thread has a CPU for its own.
    pub(crate) fn has_own_cpu(&self) -> bool {
        self.own.is_some()
    }

    /// Whether this thread may have a CPU for its own.
    pub(crate) fn may_take_cpu(&self, callers: &Callers) -> bool {
        self.is_there(callers) && !callers.all_taken()
    }

    /// Binds this thread, which is bound to no CPU, to one that no other worker has.
    pub(crate) fn take_cpu(&mut self, callers: &Callers) -> bool {
        let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return false };
        // The one where it is, if it can be had: then nothing has to move.
        let here = rustix::thread::sched_getcpu();
        let all = std::iter::once(here).chain(0..CpuSet::MAX_CPU);
        let all = all.filter(|&cpu| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu));
        let Some(cpu) = callers.take(all) else { return false };
        let mut there = CpuSet::new();
        there.set(cpu);
        if rustix::thread::sched_setaffinity(None, &there).is_err() {
            callers.give_back(cpu);
            return false;
        }
        self.own = Some((cpu, allowed));
        true
    }

    /// Lets the scheduler choose the CPU again.
    pub(crate) fn leave(&mut self, callers: &Callers) {
        if let Some((cpu, allowed)) = self.own.take() {
            // On failure (the set of allowed CPUs shrank) the thread stays where it is.
            let _ = rustix::thread::sched_setaffinity(None, &allowed);
            callers.give_back(cpu);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn callers_that_alternate_are_a_crowd_whoever_serves_them() {
        let callers = Callers::new();
        let [one, two] = [Crowd::new(CPUS), Crowd::new(CPUS)];
        assert!(!one.is_there(&callers));
        // Each worker serves one caller, and yet knows that there are two.
        for _ in 0..100 {
            one.request_from(&callers, 7);
            two.request_from(&callers, 8);
            assert!(one.is_there(&callers) && two.is_there(&callers));
        }
        for _ in 0..ALONE {
            assert!(one.is_there(&callers));
            one.request_from(&callers, 8);
        }
        assert!(!one.is_there(&callers), "the other caller is alone now");
        assert!(!two.is_there(&callers), "a worker that receives nothing knows it too");
    }

    #[test]
    fn where_it_was_not_measured_there_is_no_crowd() {
        let callers = Callers::new();
        for cpus in [1, 3, 64] {
            let crowd = Crowd::new(cpus);
            (0..100).for_each(|caller| crowd.request_from(&callers, caller));
            assert!(!crowd.is_there(&callers), "{cpus} CPUs");
        }
    }

    #[test]
    fn cpus_that_have_no_bit_are_not_taken() {
        let callers = Callers::new();
        assert_eq!(callers.take([64, 1_000].into_iter()), None);
        assert_eq!(callers.take([64, 63].into_iter()), Some(63));
        assert_eq!(callers.take([63].into_iter()), None);
        assert!(!callers.all_taken());
        assert_eq!(callers.take([63, 0].into_iter()), Some(0));
        assert!(callers.all_taken());
    }

    #[test]
    #[cfg_attr(miri, ignore = "binds to a CPU")]
    fn workers_take_different_cpus_and_give_them_back() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let callers = Callers::new();
        let [mut one, mut two] = [Crowd::new(CPUS), Crowd::new(CPUS)];
        assert!(one.take_cpu(&callers) && one.has_own_cpu());
        let bound = rustix::thread::sched_getaffinity(None).unwrap();
        assert_eq!(bound.count(), 1);
        // This thread is bound to the CPU that `one` has: there is no other for `two`.
        assert!(!two.take_cpu(&callers) && !two.has_own_cpu());
        one.leave(&callers);
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before);
        assert!(two.take_cpu(&callers));
        two.leave(&callers);
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before);
        assert_eq!(callers.taken.load(Ordering::Relaxed), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::model::{Arc, check, run};

    /// Two workers look for a CPU while a third one gives one back: no CPU has two of them.
    #[test]
    fn loom_no_cpu_is_taken_twice() {
        check(|| {
            let callers = Arc::new(Callers::new());
            assert_eq!(callers.take([1].into_iter()), Some(1));
            let other = run(&callers, |callers| callers.take(0..2));
            let third = run(&callers, |callers| callers.give_back(1));
            let mine = callers.take(0..2);
            let taken = [mine, other.join().unwrap()];
            third.join().unwrap();
            assert!(taken[0].is_some() || taken[1].is_some(), "one was free all the time");
            assert!(taken[0] != taken[1], "{taken:?}");
        });
    }
}
