//! The monitor: the one thread that decides, begins and ends what keeps CPUs awake.
//!
//! Outside of bursts it sleeps without a timeout, so an idle process uses no CPU. In a burst it
//! wakes every [`TICK`] for a few microseconds. It is of the normal class, because the end of a
//! burst depends on it; pollers have leases in case it is late all the same.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::book::Book;
use crate::burst_state::Wake;
use crate::choosing::{Chooser, quota};
use crate::conditions::{CpuTimes, Roots};
use crate::hook::{Seen, Shared};
use crate::mode::Mode;
use crate::ready::Ready;
use crate::{TICK, sys};

/// How long a program has to live before anything is measured. A measurement takes up to 25 ms, for which
/// the end of a program that lives for a moment would wait.
const BEFORE_MEASURING: Duration = Duration::from_millis(150);

/// How often the machine is looked at during bursts.
const CHECK_EVERY_NS: u64 = 2_000_000_000;
/// What is known of stolen time is old after this.
const STEAL_OLD_NS: u64 = 60_000_000_000;
/// From this share of stolen time on, the host needs the CPUs for others.
const STEAL_PERMILLE: u64 = 30;
/// How long nothing is done after such a look.
const SUSPEND_NS: u64 = 10_000_000_000;

/// How often a burst that goes on books what it spends, for who looks meanwhile.
const BOOK_EVERY_NS: u64 = 100_000_000;

/// Requests in a row that begin a burst, at least and at most.
pub(crate) const NEEDED_MIN: u32 = 2;
const NEEDED_MAX: u32 = 64;
/// A burst of fewer requests has not paid for beginning it, one of more has.
const BURST_SHORT: u64 = 16;
const BURST_LONG: u64 = 64;

/// See the module's text.
pub(crate) struct Monitor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) book: Arc<Book>,
    pub(crate) roots: Roots,
    pub(crate) mode: Mode,
    pub(crate) seen: Seen,
    pub(crate) checked_ns: u64,
    pub(crate) times: Option<(u64, CpuTimes)>,
}

impl Monitor {
    /// The thread's life.
    pub(crate) fn run(mut self) {
        sys::be_let_in_early();
        if let Some(mut ready) = self.lives_on().then(|| self.chooser().decide()).flatten() {
            self.shared.state.open(crate::sync::current());
            while self.shared.state.wait() == Wake::Burst {
                self.burst(&mut ready);
            }
            self.shared.state.shut();
        }
    }

    /// Waits for [`BEFORE_MEASURING`]; false if it was stopped meanwhile.
    fn lives_on(&self) -> bool {
        let end = Instant::now() + BEFORE_MEASURING;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.shared.state.is_stopped() || left.is_zero() {
                return left.is_zero();
            }
            thread::park_timeout(left);
        }
    }

    fn chooser(&self) -> Chooser<'_> {
        let Self { shared, book, roots, mode, .. } = self;
        Chooser { shared, book, roots, mode: *mode }
    }

    /// From the first request seen until it is quiet, or until there is no CPU to keep awake.
    fn burst(&mut self, ready: &mut Ready) {
        let mut booked_ns = sys::now_ns();
        self.book.bursts.fetch_add(1, Relaxed);
        let mut requests = self.seen.look(&self.shared);
        let mut rest = ready.hold(&self.seen, &self.roots, booked_ns);
        while rest.is_none() && !self.shared.state.is_stopped() {
            thread::sleep(TICK);
            let now_ns = sys::now_ns();
            let new = self.seen.look(&self.shared);
            if new == 0 {
                break;
            }
            requests += new;
            rest = ready.renew(&self.seen, &self.roots, now_ns);
            if let Some(why) = self.unfit(now_ns) {
                rest = Some(now_ns + SUSPEND_NS);
                self.suspend(why);
            }
            if now_ns >= booked_ns + BOOK_EVERY_NS {
                booked_ns = self.account(ready, booked_ns);
            }
        }
        ready.release();
        self.account(ready, booked_ns);
        if let Some(until_ns) = rest {
            self.shared.not_before_ns.store(until_ns, Relaxed);
        } else {
            let needed = next_needed(self.shared.needed.load(Relaxed), requests);
            self.shared.needed.store(needed, Relaxed);
        }
        self.shared.state.end();
    }

    /// Books what was spent since `booked_ns`; returns up to when.
    fn account(&self, ready: &Ready, booked_ns: u64) -> u64 {
        let cpu_ns = sys::thread_cpu_ns() + ready.cpu_ns();
        self.book.cpu_ns.store(cpu_ns, Relaxed);
        let now_ns = sys::now_ns();
        self.book.awake_ns.fetch_add(now_ns - booked_ns, Relaxed);
        now_ns
    }

    /// Why CPUs should not be kept awake just now; looks at the machine from time to time.
    fn unfit(&mut self, now_ns: u64) -> Option<String> {
        if self.mode != Mode::Auto || now_ns < self.checked_ns + CHECK_EVERY_NS {
            return None;
        }
        self.checked_ns = now_ns;
        if self.roots.on_battery() {
            return Some("battery".to_owned());
        }
        quota(&self.roots).or_else(|| self.steal(now_ns))
    }

    fn steal(&mut self, now_ns: u64) -> Option<String> {
        let now = self.roots.cpu_times()?;
        let before = self.times.replace((now_ns, now));
        let (at_ns, before) = before.filter(|(at_ns, _)| now_ns - at_ns < STEAL_OLD_NS)?;
        let permille = now.steal_permille_since(before);
        let seconds = (now_ns - at_ns) / 1_000_000_000;
        (permille >= STEAL_PERMILLE)
            .then(|| format!("{permille}/1000 of the CPU time stolen by the host in {seconds} s"))
    }

    fn suspend(&self, why: String) {
        let mut decision = self.book.decision();
        decision.suspended += 1;
        decision.suspended_for = Some(why);
    }
}

/// After bursts that did not pay, it takes more requests to begin one; a long one makes up for it.
fn next_needed(needed: u32, requests: u64) -> u32 {
    match requests {
        0..BURST_SHORT => (needed * 2).min(NEEDED_MAX),
        BURST_SHORT..BURST_LONG => needed,
        _ => NEEDED_MIN,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bursts_that_do_not_pay_begin_later() {
        let mut needed = NEEDED_MIN;
        for _ in 0..20 {
            needed = next_needed(needed, BURST_SHORT - 1);
        }
        assert_eq!(needed, NEEDED_MAX);
        assert_eq!(next_needed(needed, BURST_SHORT), NEEDED_MAX);
        assert_eq!(next_needed(needed, BURST_LONG), NEEDED_MIN);
    }
}
