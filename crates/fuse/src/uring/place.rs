//! Has the owner of a ring run on the CPUs that `roaming.rs` chooses, and leave one that it shares by
//! `sharing.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::thread::CpuSet;
use rustix::time::{ClockId, clock_gettime};

use tollgate_haltpoll::{PollingTime, Roots, Runnable};

use crate::uring::roaming::{Change, Roaming};
use crate::uring::shared::RingShared;
use crate::uring::sharing::Sharing;
use crate::uring::switches::Switches;

/// The owner's CPUs.
#[derive(Debug)]
pub(crate) struct Place {
    roaming: Roaming,
    sharing: Sharing,
    /// How often others ran in this thread's place, up to the last look.
    let_in: u64,
    /// What wants to run; `None`: not known.
    runnable: Option<Runnable>,
    /// Requests so far.
    requests: u64,
    /// Until the next look.
    left: u32,
    /// The CPU of the ring, and all that the session may use.
    own: CpuSet,
    all: CpuSet,
    polling: PollingTime,
    clocks: Clocks,
}

/// The time, and the CPU time of the process, of this thread, and of what is no load.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    time: Duration,
    process: Duration,
    thread: Duration,
    polling: Duration,
}

impl Clocks {
    fn read(polling: &PollingTime) -> Self {
        let read = |clock| {
            let now = clock_gettime(clock);
            Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.try_into().unwrap_or(0))
        };
        Self {
            time: read(ClockId::Monotonic),
            process: read(ClockId::ProcessCPUTime),
            thread: read(ClockId::ThreadCPUTime),
            polling: polling.read(),
        }
    }

    /// How much of a CPU the process's other threads have used since `before`, in thousandths. What
    /// pollers use is there for whoever needs it.
    fn besides_permille(&self, before: &Self) -> u64 {
        let process = self.process.saturating_sub(before.process);
        let own = self.thread.saturating_sub(before.thread);
        let polling = self.polling.saturating_sub(before.polling);
        let besides = process.saturating_sub(own + polling);
        let took = self.time.saturating_sub(before.time).as_nanos().max(1);
        u64::try_from(1_000 * besides.as_nanos() / took).unwrap_or(u64::MAX)
    }

    /// How many pollers have spun since `before`, most of the time.
    fn spinning(&self, before: &Self) -> usize {
        let took = self.time.saturating_sub(before.time).as_nanos().max(1);
        let polling = self.polling.saturating_sub(before.polling).as_nanos();
        usize::try_from((polling + took / 2) / took).unwrap_or(0)
    }
}

impl Place {
    /// Binds the calling thread, an owner, to `cpus`. `None` where it stays there, or follows its
    /// caller between several. `polling` is no load.
    pub(crate) fn bind(cpus: &[usize], polling: PollingTime) -> Option<Self> {
        let mut own = CpuSet::new();
        for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
            own.set(cpu);
        }
        let all = rustix::thread::sched_getaffinity(None);
        // The kernel still delivers the queue's requests wherever the thread runs.
        if let Err(error) = rustix::thread::sched_setaffinity(None, &own) {
            tracing::warn!(?cpus, %error, "the thread of a ring runs on other CPUs");
            return None;
        }
        let all = all.ok().filter(|_| cpus.len() == 1)?;
        tollgate_haltpoll::preempt_when_woken(false);
        let roaming = Roaming::new(usize::try_from(all.count()).unwrap_or(1));
        let (left, clocks) = (Roaming::LOOK_EVERY, Clocks::read(&polling));
        let (sharing, let_in) = (Sharing::new(), Switches::of_this_thread().involuntary);
        let runnable = Runnable::open(&Roots::default());
        Some(Self {
            roaming,
            sharing,
            let_in,
            runnable,
            requests: 0,
            left,
            own,
            all,
            polling,
            clocks,
        })
    }

    /// Whether the owner stays on the ring's CPU. It does not preempt who runs there: a caller sleeps at
    /// once, to wait for its reply, and nobody waits for the RELEASE of a file that was closed.
    fn is_bound(&self) -> bool {
        self.roaming.is_bound()
    }

    /// Whether the owner asks for the next request for a while before it sleeps. Bound to the ring's CPU,
    /// or where others compute everywhere, it would take time from who needs that CPU.
    pub(crate) fn asks(&self) -> bool {
        !self.is_bound() && self.sharing.asks()
    }

    /// A request came to the ring `own`, one of `rings`, whose caller has changed so often since the
    /// last look: `changes` is reset by a look.
    pub(crate) fn request(
        &mut self,
        own: &Arc<RingShared>,
        rings: &[Arc<RingShared>],
        changes: &mut u32,
    ) {
        self.requests += 1;
        own.requests.store(self.requests, Ordering::Relaxed);
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        self.left = Roaming::LOOK_EVERY;
        let others = rings.iter().filter(|ring| !Arc::ptr_eq(ring, own));
        let others = others.map(|ring| ring.requests.load(Ordering::Relaxed));
        let before = std::mem::replace(&mut self.clocks, Clocks::read(&self.polling));
        let besides = self.clocks.besides_permille(&before);
        let change = self.roaming.look(std::mem::take(changes), besides, others);
        match change {
            Some(change) => self.follow(change),
            None => {
                let now = Switches::of_this_thread().involuntary;
                let let_in = now.saturating_sub(std::mem::replace(&mut self.let_in, now));
                let spinning = self.clocks.spinning(&before);
                let (cpus, runnable) = (self.all.count() as usize, self.runnable.as_ref());
                let is_free = || {
                    let runnable = runnable.and_then(Runnable::count);
                    runnable.is_some_and(|runnable| runnable <= cpus + spinning)
                };
                if !self.roaming.is_bound() && self.sharing.leaves(let_in, is_free) {
                    self.leave_this_cpu();
                }
            }
        }
    }

    /// The thread is to serve something else than the ring.
    pub(crate) fn give_up(&self) {
        self.follow(Change::Release);
    }

    fn follow(&self, change: Change) {
        let (cpus, preempts) = match change {
            Change::Bind => (&self.own, false),
            Change::Release => (&self.all, true),
        };
        // Fails when the set of the process shrank meanwhile: the thread stays then.
        let _ = rustix::thread::sched_setaffinity(None, cpus);
        tollgate_haltpoll::preempt_when_woken(preempts);
    }

    /// Moves to another CPU, and may be moved on from there.
    fn leave_this_cpu(&self) {
        let mut elsewhere = self.all;
        let here = rustix::thread::sched_getcpu();
        if here < CpuSet::MAX_CPU {
            elsewhere.unset(here);
        }
        // Moves it at once.
        if rustix::thread::sched_setaffinity(None, &elsewhere).is_ok() {
            let _ = rustix::thread::sched_setaffinity(None, &self.all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_cpus_awake_is_no_load() {
        let [start, then] = [0u64, 1].map(|n| {
            let ms = |ms| Duration::from_millis(n * ms);
            Clocks { time: ms(10), process: ms(19), thread: ms(5), polling: ms(12) }
        });
        assert_eq!(then.besides_permille(&start), 200);
        assert_eq!(start.besides_permille(&then), 0, "clocks of threads that have ended");
    }

    #[test]
    fn pollers_are_counted_by_what_they_used() {
        let start = Clocks {
            time: Duration::ZERO,
            process: Duration::ZERO,
            thread: Duration::ZERO,
            polling: Duration::ZERO,
        };
        let after = |polling| {
            let (time, polling) = (Duration::from_millis(10), Duration::from_millis(polling));
            Clocks { time, polling, ..start }.spinning(&start)
        };
        assert_eq!([0, 4, 5, 14, 15, 20].map(after), [0, 0, 1, 1, 2, 2]);
        assert_eq!(start.spinning(&start), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "moves between CPUs")]
    fn an_owner_that_leaves_may_be_moved_on() {
        let owner = std::thread::spawn(|| {
            let before = rustix::thread::sched_getaffinity(None).unwrap();
            let here = rustix::thread::sched_getcpu();
            let place = Place::bind(&[here], PollingTime::default()).expect("one CPU");
            let bound = rustix::thread::sched_getaffinity(None).unwrap();
            assert!(bound.count() == 1 && bound.is_set(here) && place.is_bound());
            assert_eq!(class(), libc::SCHED_BATCH);
            place.leave_this_cpu();
            if before.count() > 1 {
                assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before);
            }
        });
        owner.join().unwrap();
    }

    fn class() -> libc::c_int {
        #[expect(unsafe_code, reason = "sched_getscheduler has no wrapper")]
        // SAFETY: without memory arguments.
        unsafe {
            libc::sched_getscheduler(0)
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "moves between CPUs")]
    fn an_owner_preempts_while_it_is_not_bound() {
        let owner = std::thread::spawn(|| {
            let here = rustix::thread::sched_getcpu();
            let place = Place::bind(&[here], PollingTime::default()).expect("one CPU");
            for (change, wanted) in
                [(Change::Release, libc::SCHED_OTHER), (Change::Bind, libc::SCHED_BATCH)]
            {
                place.follow(change);
                assert_eq!(class(), wanted);
            }
        });
        owner.join().unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "binds to a CPU")]
    fn who_shares_a_cpu_lets_others_in() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let over = AtomicBool::new(false);
        let here = rustix::thread::sched_getcpu();
        let bind = || {
            let mut only = CpuSet::new();
            only.set(here);
            rustix::thread::sched_setaffinity(None, &only).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                bind();
                while !over.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            });
            let sharer = scope.spawn(|| {
                bind();
                let before = Switches::of_this_thread().involuntary;
                let start = std::time::Instant::now();
                while Switches::of_this_thread().involuntary < before + 100 {
                    assert!(start.elapsed() < Duration::from_secs(30));
                    std::thread::yield_now();
                }
            });
            let ended = sharer.join();
            over.store(true, Ordering::Relaxed);
            ended.unwrap();
        });
    }
}
