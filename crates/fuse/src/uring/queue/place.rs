//! Which CPUs the owner of a ring runs on: see `roaming.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::thread::CpuSet;
use rustix::time::{ClockId, clock_gettime};

use super::RingQueue;
use crate::uring::roaming::{Change, Roaming};

/// The owner's CPUs.
#[derive(Debug)]
pub(super) struct Place {
    roaming: Roaming,
    /// Until the next look.
    left: u32,
    /// The CPU of the ring, and all that the session may use.
    own: CpuSet,
    all: CpuSet,
    clocks: Clocks,
}

/// The time, and the CPU time of the process and of this thread.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    time: Duration,
    process: Duration,
    thread: Duration,
}

impl Clocks {
    fn read() -> Self {
        let read = |clock| {
            let now = clock_gettime(clock);
            Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.try_into().unwrap_or(0))
        };
        Self {
            time: read(ClockId::Monotonic),
            process: read(ClockId::ProcessCPUTime),
            thread: read(ClockId::ThreadCPUTime),
        }
    }

    /// How much of a CPU the process's other threads have used since `before`, in thousandths.
    fn besides_permille(&self, before: &Self) -> u64 {
        let process = self.process.saturating_sub(before.process);
        let besides = process.saturating_sub(self.thread.saturating_sub(before.thread));
        let took = self.time.saturating_sub(before.time).as_nanos().max(1);
        u64::try_from(1_000 * besides.as_nanos() / took).unwrap_or(u64::MAX)
    }
}

impl RingQueue {
    /// Binds the calling thread, the owner, to the CPUs of its ring.
    pub(super) fn bind_to_cpus(&mut self) {
        self.observer.may_move = self.cpus.len() > 1;
        let mut own = CpuSet::new();
        for &cpu in self.cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
            own.set(cpu);
        }
        let all = rustix::thread::sched_getaffinity(None);
        // The kernel still delivers the queue's requests wherever the thread runs.
        if let Err(error) = rustix::thread::sched_setaffinity(None, &own) {
            tracing::warn!(cpus = ?self.cpus, %error, "the thread of a ring runs on other CPUs");
            return;
        }
        // An owner of several CPUs follows its caller between them instead.
        self.place = all.ok().filter(|_| self.cpus.len() == 1).map(|all| {
            let cpus = usize::try_from(all.count()).unwrap_or(1);
            let (roaming, left) = (Roaming::new(cpus), Roaming::LOOK_EVERY);
            Place { roaming, left, own, all, clocks: Clocks::read() }
        });
    }

    /// A request came.
    pub(super) fn count_request(&mut self) {
        let Some(place) = &mut self.place else { return };
        self.requests += 1;
        self.shared.requests.store(self.requests, Ordering::Relaxed);
        place.left -= 1;
        if place.left > 0 {
            return;
        }
        place.left = Roaming::LOOK_EVERY;
        let others = self.rings.iter().filter(|ring| !Arc::ptr_eq(ring, &self.shared));
        let others = others.map(|ring| ring.requests.load(Ordering::Relaxed));
        let before = std::mem::replace(&mut place.clocks, Clocks::read());
        let besides = place.clocks.besides_permille(&before);
        let changes = std::mem::take(&mut self.observer.changes);
        let change = place.roaming.look(changes, besides, others);
        let cpus = match change {
            Some(Change::Bind) => &place.own,
            Some(Change::Release) => &place.all,
            None => return,
        };
        // A set that shrank meanwhile leaves the thread where it is.
        let _ = rustix::thread::sched_setaffinity(None, cpus);
    }
}
