//! Has the owner of a ring run on the CPUs that `roaming.rs` chooses.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::thread::CpuSet;
use rustix::time::{ClockId, clock_gettime};

use tollgate_haltpoll::PollingTime;

use crate::uring::roaming::{Change, Roaming};
use crate::uring::shared::RingShared;

/// The owner's CPUs.
#[derive(Debug)]
pub(crate) struct Place {
    roaming: Roaming,
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
        let roaming = Roaming::new(usize::try_from(all.count()).unwrap_or(1));
        let (left, clocks) = (Roaming::LOOK_EVERY, Clocks::read(&polling));
        Some(Self { roaming, requests: 0, left, own, all, polling, clocks })
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
        let cpus = match change {
            Some(Change::Bind) => &self.own,
            Some(Change::Release) => &self.all,
            None => return,
        };
        // A set that shrank meanwhile leaves the thread where it is.
        let _ = rustix::thread::sched_setaffinity(None, cpus);
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
}
