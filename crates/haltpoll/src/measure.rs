//! What it costs to wake a thread on another CPU that has nothing to do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::sys;

/// Wake-ups that are measured.
const WAKES: usize = 32;
/// How long the other CPU idles before each. Not longer, because between the requests of a burst it
/// is not longer either, and idle governors choose their state by what they saw last.
const IDLE_NS: u64 = 60_000;
/// A thread that is not up after so long will not be waited for.
const PATIENCE_NS: u64 = 20_000_000;

/// The lower quartile of some wake-ups from `waker` to `sleeper` in nanoseconds, from before the
/// call that wakes until the other thread runs; `None` if it could not be measured. Takes 2 to 4
/// ms, most of them computing on `waker`. The quartile, since other work on the machine makes some
/// slower.
pub(crate) fn wake_ns(waker: u16, sleeper: u16) -> Option<u64> {
    let run = &Run::default();
    let mut times = thread::scope(|scope| {
        let named = || thread::Builder::new().name("haltpoll-measure".to_owned());
        let asleep = named().spawn_scoped(scope, move || run.sleep(sleeper)).ok()?;
        let thread = asleep.thread().clone();
        let awake = named().spawn_scoped(scope, move || run.wake(waker, &thread));
        let ok = awake.is_ok_and(|awake| awake.join().is_ok_and(|ok| ok));
        run.end(asleep.thread());
        let times = asleep.join().ok()?;
        ok.then_some(times)
    })?;
    times.sort_unstable();
    times.get(times.len() / 4).copied()
}

#[derive(Debug, Default)]
struct Run {
    /// Number and time of the last wake-up.
    round: AtomicU64,
    sent_ns: AtomicU64,
    seen: AtomicU64,
    over: AtomicBool,
}

impl Run {
    /// The thread that is woken: how long each took.
    fn sleep(&self, cpu: u16) -> Vec<u64> {
        let mut times = Vec::with_capacity(WAKES);
        if sys::bind(None, &[cpu]).is_err() {
            return times;
        }
        for round in 1..=WAKES as u64 {
            self.seen.store(round, Ordering::Release);
            while self.round.load(Ordering::Acquire) < round {
                if self.over.load(Ordering::Acquire) {
                    return times;
                }
                thread::park();
            }
            // Later than now where this thread stood still for so long that the other one gave up
            // and sent the next: what was measured is left then.
            times.push(sys::now_ns().saturating_sub(self.sent_ns.load(Ordering::Acquire)));
        }
        times
    }

    /// The thread that wakes; false if the other one did not come.
    fn wake(&self, cpu: u16, asleep: &thread::Thread) -> bool {
        let bound = sys::bind(None, &[cpu]).is_ok();
        bound
            && (1..=WAKES as u64).all(|round| {
                let ready = self.wait_for(round);
                self.sent_ns.store(sys::now_ns(), Ordering::Release);
                self.round.store(round, Ordering::Release);
                asleep.unpark();
                ready
            })
    }

    /// Lets the thread that is woken go.
    fn end(&self, asleep: &thread::Thread) {
        self.over.store(true, Ordering::Release);
        asleep.unpark();
    }

    /// Computes until the other one has been asleep for a while.
    fn wait_for(&self, round: u64) -> bool {
        let start = sys::now_ns();
        let spin_until = |done: &dyn Fn(u64) -> bool| {
            loop {
                let now = sys::now_ns();
                if done(now) || now - start > PATIENCE_NS {
                    return now - start <= PATIENCE_NS;
                }
                std::hint::spin_loop();
            }
        };
        let came = spin_until(&|_| self.seen.load(Ordering::Acquire) == round);
        let from = sys::now_ns();
        came && spin_until(&|now| now - from > IDLE_NS)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "binds to CPUs")]
    fn a_wake_up_takes_some_time() {
        let cpus = sys::allowed_cpus();
        let [first, .., last] = cpus[..] else { return };
        // A busy machine may fail to measure, which is no error.
        if let Some(ns) = wake_ns(first, last) {
            assert!(ns > 50, "{ns}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "binds to CPUs")]
    fn a_cpu_that_does_not_exist_measures_nothing() {
        assert_eq!(wake_ns(sys::allowed_cpus()[0], 1_000), None);
    }
}
