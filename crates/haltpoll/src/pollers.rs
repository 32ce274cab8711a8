//! The pollers of a process: how many, and on which CPUs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::Pid;

use crate::occupancy::Occupancy;
use crate::poller::Post;
use crate::sys;

/// Most pollers of a process. A caller and its server need two; more of them would burn more CPU
/// time than two busy clients can win back.
pub(crate) const MAX_POLLERS: usize = 4;

/// How long a lease runs without being renewed: more than two ticks, so that a monitor that is late
/// by one does not interrupt it.
const LEASE_NS: u64 = 900_000;
/// After being crowded out, a CPU is left alone for so long, and twice as long each time again.
const LEAVE_ALONE_NS: u64 = 20_000_000;
const LEAVE_ALONE_MAX_NS: u64 = 640_000_000;

/// CPU time of the pollers of a [`KeepAwake`](crate::KeepAwake), for who reckons with the CPU time of the
/// whole process: a poller gives way to every other thread, so that its time is no load.
#[derive(Clone, Debug, Default)]
pub struct PollingTime {
    /// Ids of the threads; 0: none, or none yet.
    tids: Arc<[AtomicI32; MAX_POLLERS]>,
}

impl PollingTime {
    /// Up to now. A fraction of a microsecond for each poller.
    #[must_use]
    pub fn read(&self) -> Duration {
        let used = |tid: &AtomicI32| sys::cpu_ns_of(tid.load(Ordering::Relaxed));
        Duration::from_nanos(self.tids.iter().filter_map(used).sum())
    }
}

/// CPUs that poll, at most [`MAX_POLLERS`].
#[derive(Debug)]
pub(crate) struct Pollers {
    pollers: Vec<Poller>,
    allowed: Vec<u16>,
    /// CPUs of the same core as each of `allowed`. Read once: the kernel's files cost 20 us each time.
    siblings: Vec<Vec<u16>>,
    crowded: Vec<Crowded>,
    occupancy: Occupancy,
    time: PollingTime,
}

#[derive(Debug)]
struct Poller {
    post: Arc<Post>,
    /// Where its thread id is in `time`.
    index: usize,
    time: PollingTime,
    cpu: Option<u16>,
    /// Since when it has had leases without a pause, on this CPU.
    leased_ns: Option<u64>,
    thread: JoinHandle<()>,
}

/// A CPU on which others compute.
#[derive(Debug)]
struct Crowded {
    cpu: u16,
    until_ns: u64,
    alone_ns: u64,
}

impl Pollers {
    /// None yet; they may use `allowed`. `siblings` are the CPUs of a CPU's core. `time` is theirs alone.
    pub(crate) fn new(
        allowed: Vec<u16>,
        siblings: impl Fn(u16) -> Vec<u16>,
        time: PollingTime,
        occupancy: Occupancy,
    ) -> Self {
        let siblings = allowed.iter().map(|&cpu| siblings(cpu)).collect();
        let (pollers, crowded) = (Vec::new(), Vec::new());
        Self { pollers, allowed, siblings, crowded, occupancy, time }
    }

    /// CPUs to keep awake: both of two, because the kernel chooses between them for every wake-up;
    /// of more, those in `seen`, the most important first, at most [`MAX_POLLERS`]. Of a core, only
    /// one: a CPU that polls slows its sibling.
    pub(crate) fn choose(&self, seen: &[u16]) -> Vec<u16> {
        let candidates = if self.needs_seen() { seen } else { &self.allowed };
        let mut chosen: Vec<u16> = Vec::new();
        for &cpu in candidates {
            let Some(at) = self.allowed.iter().position(|&allowed| allowed == cpu) else {
                continue;
            };
            let same_core = |other: &u16| *other == cpu || self.siblings[at].contains(other);
            if chosen.len() < MAX_POLLERS && !chosen.iter().any(same_core) {
                chosen.push(cpu);
            }
        }
        chosen
    }

    /// Whether it matters where requests were seen.
    pub(crate) fn needs_seen(&self) -> bool {
        self.allowed.len() > 2
    }

    /// Lets one poller spin on each of `wanted` for a while, and no other. If others compute on all
    /// of them, or would if they were let: until when there is nothing to do.
    pub(crate) fn keep_awake(&mut self, wanted: &[u16], now_ns: u64) -> Option<u64> {
        self.note_crowded(now_ns);
        let spinning = self.pollers.iter().filter(|poller| poller.leased_ns.is_some()).count();
        if self.occupancy.is_full(spinning) {
            wanted.iter().for_each(|&cpu| self.leave_alone(cpu, now_ns));
        }
        let crowded = |cpu: u16| self.crowded.iter().find(|c| c.cpu == cpu && now_ns < c.until_ns);
        let free = |cpu: &u16| crowded(*cpu).is_none();
        let cpus: Vec<u16> = wanted.iter().copied().filter(free).take(MAX_POLLERS).collect();
        let first_free = wanted.iter().filter_map(|&cpu| crowded(cpu)).map(|c| c.until_ns).min();
        for &cpu in &cpus {
            if !self.pollers.iter().any(|poller| poller.cpu == Some(cpu)) {
                self.place(cpu, &cpus);
            }
        }
        for poller in &mut self.pollers {
            if poller.cpu.is_some_and(|cpu| cpus.contains(&cpu)) {
                poller.leased_ns.get_or_insert(now_ns);
                poller.post.lease(now_ns + LEASE_NS);
                poller.thread.thread().unpark();
            } else {
                poller.end();
            }
        }
        // Of many CPUs callers may choose others meanwhile.
        let most_ns = if self.needs_seen() { LEAVE_ALONE_NS } else { LEAVE_ALONE_MAX_NS };
        first_free.filter(|_| cpus.is_empty()).map(|until_ns| until_ns.min(now_ns + most_ns))
    }

    /// Gets a poller to `cpu`: one that is on no CPU in `keep`, else a new one.
    fn place(&mut self, cpu: u16, keep: &[u16]) {
        let unused =
            self.pollers.iter_mut().find(|p| p.cpu.is_none_or(|there| !keep.contains(&there)));
        if let Some(poller) = unused {
            let tid = poller.tid();
            // Without its thread id yet, or when the CPU has gone: tried again at the next tick.
            let moved = tid.is_some_and(|tid| sys::bind(Some(tid), &[cpu]).is_ok());
            poller.cpu = moved.then_some(cpu);
            poller.leased_ns = None;
            return;
        }
        if self.pollers.len() < MAX_POLLERS {
            match Poller::start(self.pollers.len(), cpu, &self.time) {
                Ok(poller) => self.pollers.push(poller),
                Err(error) => tracing::debug!(%error, "a poller could not be started"),
            }
        }
    }

    fn note_crowded(&mut self, now_ns: u64) {
        let mut crowded = Vec::new();
        for poller in self.pollers.iter_mut().filter(|poller| poller.is_crowded(now_ns)) {
            if let Some(cpu) = poller.cpu {
                poller.end();
                crowded.push(cpu);
            }
        }
        crowded.into_iter().for_each(|cpu| self.leave_alone(cpu, now_ns));
    }

    /// Others need `cpu`.
    fn leave_alone(&mut self, cpu: u16, now_ns: u64) {
        let known = self.crowded.iter_mut().find(|crowded| crowded.cpu == cpu);
        if let Some(known) = known {
            // Crowded out again soon after: it was too early.
            let soon = now_ns < known.until_ns + known.alone_ns;
            known.alone_ns =
                if soon { (known.alone_ns * 2).min(LEAVE_ALONE_MAX_NS) } else { LEAVE_ALONE_NS };
            known.until_ns = now_ns + known.alone_ns;
        } else {
            let (alone_ns, until_ns) = (LEAVE_ALONE_NS, now_ns + LEAVE_ALONE_NS);
            self.crowded.push(Crowded { cpu, until_ns, alone_ns });
        }
    }

    /// Ends all leases.
    pub(crate) fn rest(&mut self) {
        self.occupancy.forget();
        self.pollers.iter_mut().for_each(Poller::end);
    }

    /// CPU time that pollers have used, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> u64 {
        u64::try_from(self.time.read().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        for poller in &self.pollers {
            poller.post.stop();
            // Where others compute, a thread of its class could take a second to notice.
            if let Some(tid) = poller.tid() {
                let _ = sys::bind(Some(tid), &self.allowed);
                sys::become_normal_class(tid);
            }
            poller.thread.thread().unpark();
        }
        for poller in self.pollers.drain(..) {
            // A poller has nothing to report; a panic in it was printed.
            let _ = poller.thread.join();
        }
    }
}

impl Poller {
    /// Small: the loop calls nothing deep.
    const STACK_BYTES: usize = 64 << 10;

    fn start(index: usize, cpu: u16, time: &PollingTime) -> io::Result<Self> {
        let post = Arc::new(Post::default());
        let life = (Arc::clone(&post), time.clone());
        let name = format!("haltpoll-{index}");
        let thread = std::thread::Builder::new().name(name).stack_size(Self::STACK_BYTES).spawn(
            move || {
                let (post, time) = life;
                let tid = &time.tids[index];
                poll(cpu, &post, tid);
                tid.store(0, Ordering::Relaxed);
            },
        )?;
        Ok(Self { post, index, time: time.clone(), cpu: Some(cpu), leased_ns: None, thread })
    }

    /// Of its thread; `None` before it has begun and after it has ended.
    fn tid(&self) -> Option<Pid> {
        Pid::from_raw(self.time.tids[self.index].load(Ordering::Relaxed))
    }

    /// Ends its lease.
    fn end(&mut self) {
        self.leased_ns = None;
        self.post.end();
    }

    /// Whether others compute on its CPU: it says so, or has a lease and does not run.
    fn is_crowded(&self, now_ns: u64) -> bool {
        let started = self.tid().is_some();
        let kept_out = |since_ns| started && self.post.is_kept_out(since_ns, now_ns);
        self.post.take_crowded() || self.leased_ns.is_some_and(kept_out)
    }
}

fn poll(cpu: u16, post: &Post, tid: &AtomicI32) {
    // In any other class it would take time from others: then there is no poller.
    if let Err(error) = sys::bind(None, &[cpu]).and_then(|()| sys::become_idle_class()) {
        tracing::debug!(%error, cpu, "no poller");
        return;
    }
    tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    post.poll(sys::now_ns, pause_a_while, || ());
}

/// About a microsecond: 32 times PAUSE, which takes 40 to 65 cycles on AMD Zen and on Intel before
/// Skylake, and 140 since.
fn pause_a_while() {
    for _ in 0..32 {
        std::hint::spin_loop();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn alone(_: u16) -> Vec<u16> {
        Vec::new()
    }

    #[test]
    fn both_of_two_cpus_are_chosen_and_of_many_those_seen() {
        let two = Pollers::new(vec![0, 1], alone, PollingTime::default(), Occupancy::default());
        assert_eq!(two.choose(&[1]), [0, 1]);
        let many =
            Pollers::new((0..64).collect(), alone, PollingTime::default(), Occupancy::default());
        assert_eq!(many.choose(&[9, 40, 9]), [9, 40]);
        let seen: Vec<u16> = (0..64).collect();
        assert_eq!(many.choose(&seen).len(), MAX_POLLERS);
        assert_eq!(many.choose(&[99]), [] as [u16; 0]);
    }

    #[test]
    fn of_two_siblings_of_a_core_the_first_is_polled() {
        let many = Pollers::new(
            (0..8).collect(),
            |cpu| vec![cpu, cpu ^ 1],
            PollingTime::default(),
            Occupancy::default(),
        );
        assert_eq!(many.choose(&[5, 4, 2]), [5, 2]);
    }

    #[test]
    fn where_others_compute_on_all_cpus_there_is_nothing_to_do_for_a_while() {
        for (allowed, most_ns) in [(2, LEAVE_ALONE_MAX_NS), (64, LEAVE_ALONE_NS)] {
            let mut pollers = Pollers::new(
                (0..allowed).collect(),
                alone,
                PollingTime::default(),
                Occupancy::default(),
            );
            let mut now = sys::now_ns();
            let mut longest = 0;
            for _ in 0..8 {
                assert_eq!(pollers.keep_awake(&[0, 1], now), None);
                pollers.pollers[0].post.crowd();
                assert_eq!(pollers.keep_awake(&[0], now + 1).map(|until| until > now), Some(true));
                pollers.pollers[1].post.crowd();
                let until = pollers.keep_awake(&[0, 1], now + 1).expect("both are crowded");
                let rest = until - (now + 1);
                assert!(rest >= longest && rest <= most_ns, "{rest} after {longest}");
                (longest, now) = (rest, now + 2 * LEAVE_ALONE_MAX_NS);
                now = now.min(pollers.crowded.iter().map(|c| c.until_ns).max().unwrap_or(now) + 1);
            }
            assert_eq!(longest, most_ns);
        }
    }

    #[test]
    fn a_crowded_cpu_is_left_alone_for_longer_each_time() {
        let mut pollers =
            Pollers::new(vec![0, 1], alone, PollingTime::default(), Occupancy::default());
        pollers.keep_awake(&[0], sys::now_ns());
        assert_eq!(pollers.pollers.len(), 1);
        let mut now = sys::now_ns();
        let mut last = 0;
        for _ in 0..8 {
            pollers.pollers[0].post.crowd();
            pollers.note_crowded(now);
            let crowded = &pollers.crowded[0];
            assert!(crowded.alone_ns >= last && crowded.alone_ns <= LEAVE_ALONE_MAX_NS);
            last = crowded.alone_ns;
            now = crowded.until_ns + 1;
        }
        assert_eq!(last, LEAVE_ALONE_MAX_NS);
    }
}
