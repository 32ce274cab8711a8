//! One thread that keeps one CPU awake: it executes PAUSE while its lease runs.
//!
//! The monitor grants a lease (an end in time) and unparks the poller, at every tick anew. The
//! poller reads the clock about once a microsecond and parks when the lease is over.
//!
//! * *It always parks*: the clock advances, a lease is a fixed time, and without the monitor nobody
//!   renews it. So spinning ends even if the monitor is late or gone.
//! * *No lease is lost*: the lease is stored before `unpark`, whose token makes the next `park`
//!   return.
//! * *It holds no lock*, so that nobody waits for it while others compute on its CPU.
//!
//! A poller that was off its CPU for longer than a request takes is *crowded out*: somebody
//! computes there, that CPU does not halt, and spinning would only take turns from others. (Between
//! control groups, and between the groups that the kernel makes of sessions, SCHED_IDLE does not
//! count: there the poller would get as much as any thread.) It parks at once and leaves it to the
//! monitor when to try again. Who is crowded out is let in late to notice that, so the monitor looks
//! as well when the poller last ran.

use crate::sync::{AtomicBool, AtomicU64, Ordering, park};

/// Off the CPU for so long: crowded out.
pub(crate) const CROWDED_NS: u64 = 300_000;

/// What monitor and poller share.
#[derive(Debug, Default)]
pub(crate) struct Post {
    /// End of the lease; 0 ends it at once.
    lease_ns: AtomicU64,
    /// When the poller last read the clock.
    ran_ns: AtomicU64,
    crowded: AtomicBool,
    stop: AtomicBool,
}

impl Post {
    /// The poller's life; `now_ns` reads the clock, `pause` spends about a microsecond, `rest` runs
    /// before it parks.
    pub(crate) fn poll(&self, now_ns: impl Fn() -> u64, pause: impl Fn(), rest: impl Fn()) {
        while !self.stop.load(Ordering::SeqCst) {
            self.spin(&now_ns, &pause);
            rest();
            park();
        }
    }

    fn spin(&self, now_ns: &impl Fn() -> u64, pause: &impl Fn()) {
        let mut before = now_ns();
        while before < self.lease_ns.load(Ordering::SeqCst) {
            pause();
            let now = now_ns();
            self.ran_ns.store(now, Ordering::Relaxed);
            if now - before > CROWDED_NS {
                // Without a lease: the monitor has noticed.
                if self.lease_ns.load(Ordering::SeqCst) != 0 {
                    self.crowd();
                }
                return;
            }
            before = now;
        }
    }

    pub(crate) fn crowd(&self) {
        self.crowded.store(true, Ordering::SeqCst);
    }

    /// Whether a poller that has had leases since `since_ns` is kept from running.
    pub(crate) fn is_kept_out(&self, since_ns: u64, now_ns: u64) -> bool {
        let ran_ns = self.ran_ns.load(Ordering::Relaxed).max(since_ns);
        now_ns.saturating_sub(ran_ns) > CROWDED_NS
    }

    /// The poller may spin until `until_ns`, when it is next unparked.
    pub(crate) fn lease(&self, until_ns: u64) {
        self.lease_ns.store(until_ns, Ordering::SeqCst);
    }

    /// Ends the lease.
    pub(crate) fn end(&self) {
        self.lease(0);
    }

    /// Whether the poller was crowded out since the last call.
    pub(crate) fn take_crowded(&self) -> bool {
        self.crowded.load(Ordering::SeqCst) && self.crowded.swap(false, Ordering::SeqCst)
    }

    /// The poller ends as soon as it runs; unpark it after this.
    pub(crate) fn stop(&self) {
        self.end();
        self.stop.store(true, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A clock that a closure advances.
    fn run(post: &Post, step_ns: impl Fn(u64) -> u64) -> u64 {
        let clock = Cell::new(0);
        post.spin(&|| clock.get(), &|| clock.set(clock.get() + step_ns(clock.get())));
        clock.get()
    }

    #[test]
    fn it_spins_until_the_end_of_its_lease() {
        let post = Post::default();
        assert_eq!(run(&post, |_| 1_000), 0);
        post.lease(500_500);
        assert_eq!(run(&post, |_| 1_000), 501_000);
        assert!(!post.take_crowded());
        post.end();
        assert_eq!(run(&post, |_| 1_000), 0);
    }

    #[test]
    fn who_is_crowded_out_without_a_lease_says_nothing() {
        let post = Post::default();
        post.lease(u64::MAX);
        let clock = Cell::new(0);
        let late = || {
            post.end();
            clock.set(clock.get() + CROWDED_NS + 1);
        };
        post.spin(&|| clock.get(), &late);
        assert!(!post.take_crowded());
    }

    #[test]
    fn the_monitor_sees_when_the_poller_last_ran() {
        let post = Post::default();
        post.lease(500_000);
        assert!(!post.is_kept_out(1_000_000, 1_000_000 + CROWDED_NS));
        assert!(post.is_kept_out(1_000_000, 1_000_001 + CROWDED_NS), "it has not run");
        let end = run(&post, |_| 1_000);
        assert!(!post.is_kept_out(0, end + CROWDED_NS), "it ran until {end}");
        assert!(post.is_kept_out(0, end + CROWDED_NS + 1));
    }

    #[test]
    fn it_leaves_a_cpu_on_which_others_compute() {
        let post = Post::default();
        post.lease(u64::MAX);
        let end = run(&post, |now| if now < 10_000 { 1_000 } else { CROWDED_NS + 1 });
        assert_eq!(end, 10_000 + CROWDED_NS + 1);
        assert!(post.take_crowded());
        assert!(!post.take_crowded());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A clock that advances whenever it is read, as a real one does.
    fn clock(time: &AtomicU64) -> u64 {
        time.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The monitor grants two leases and stops; the poller serves and ends. A lost wake-up is a
    /// deadlock, a poller that never parks exceeds loom's branches: both fail.
    #[test]
    fn loom_a_poller_parks_and_ends() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let (post, time) = (Arc::new(Post::default()), Arc::new(AtomicU64::new(0)));
            let poller = {
                let (post, time) = (Arc::clone(&post), Arc::clone(&time));
                thread::spawn(move || post.poll(|| clock(&time), thread::yield_now, || ()))
            };
            for _ in 0..2 {
                post.lease(clock(&time) + 2);
                poller.thread().unpark();
            }
            post.stop();
            poller.thread().unpark();
            poller.join().unwrap();
        });
    }

    /// The monitor grants a lease and never comes back: the lease is served, however granting and
    /// falling asleep come together, and the poller parks all the same.
    #[test]
    fn loom_a_lease_is_served_and_runs_out_without_the_keeper() {
        loom::model(|| {
            let (post, time) = (Arc::new(Post::default()), Arc::new(AtomicU64::new(0)));
            let (served, rested) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let poller = {
                let (post, time) = (Arc::clone(&post), Arc::clone(&time));
                let (served, rested) = (Arc::clone(&served), Arc::clone(&rested));
                thread::spawn(move || {
                    let pause = || served.store(1, Ordering::SeqCst);
                    let rest = || rested.store(served.load(Ordering::SeqCst), Ordering::SeqCst);
                    post.poll(|| clock(&time), pause, rest);
                })
            };
            // The clock is read at most twice before the poller sees this, so it is not over then.
            post.lease(clock(&time) + 4);
            poller.thread().unpark();
            while rested.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            post.stop();
            poller.thread().unpark();
            poller.join().unwrap();
        });
    }
}
