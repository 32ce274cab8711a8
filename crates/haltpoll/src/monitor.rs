//! The monitor: the one thread that decides, begins and ends what keeps CPUs awake.
//!
//! Outside of bursts it sleeps without a timeout, so an idle process uses no CPU. In a burst it
//! wakes every [`TICK`] for a few microseconds. It is of the normal class, because the end of a
//! burst depends on it; pollers have leases in case it is late all the same.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::burst_state::Wake;
use crate::conditions::{CpuTimes, Roots};
use crate::hook::{Seen, Shared};
use crate::idleness::Idleness;
use crate::latency::Latency;
use crate::measure;
use crate::mode::{Means, Mode};
use crate::pollers::{MAX_POLLERS, Pollers};
use crate::status::State;
use crate::{TICK, latency, sys};

/// A wake-up below this is cheap: keeping a CPU awake would win less than a scheduler's noise. Bare
/// metal and guests that poll before halting are between 2 and 6 us.
const CHEAP_NS: u64 = 8_000;
/// Measured again when others kept the CPUs from halting meanwhile: so often, and so long after the
/// first time, four times as long after each further one (seven minutes in all).
const MEASURE_AGAIN: u32 = 7;
const MEASURE_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// While others compute on all CPUs, it is not measured, but looked at again: so long after the first
/// time, twice as long after each further one, up to the longest.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(200);
const LOOK_AGAIN_LONGEST: Duration = Duration::from_secs(10);
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

/// Requests in a row that begin a burst, at least and at most.
pub(crate) const NEEDED_MIN: u32 = 2;
const NEEDED_MAX: u32 = 64;
/// A burst of fewer requests has not paid for beginning it, one of more has.
const BURST_SHORT: u64 = 16;
const BURST_LONG: u64 = 64;

/// What the outside may know.
#[derive(Debug)]
pub(crate) struct Book {
    decision: Mutex<Decision>,
    pub(crate) bursts: AtomicU64,
    pub(crate) awake_ns: AtomicU64,
    pub(crate) cpu_ns: AtomicU64,
}

#[derive(Clone, Debug)]
pub(crate) struct Decision {
    pub(crate) state: State,
    pub(crate) reason: String,
    pub(crate) wake_ns: Option<u64>,
    pub(crate) held_ns: Option<u64>,
    pub(crate) lacks_permission: bool,
    pub(crate) suspended: u64,
    pub(crate) suspended_for: Option<String>,
}

impl Decision {
    /// Nothing is measured yet.
    pub(crate) fn new(state: State, reason: &str) -> Self {
        Self {
            state,
            reason: reason.to_owned(),
            wake_ns: None,
            held_ns: None,
            lacks_permission: false,
            suspended: 0,
            suspended_for: None,
        }
    }
}

impl Book {
    pub(crate) fn new(state: State, reason: &str) -> Self {
        let zero = || AtomicU64::new(0);
        let decision = Mutex::new(Decision::new(state, reason));
        Self { decision, bursts: zero(), awake_ns: zero(), cpu_ns: zero() }
    }

    pub(crate) fn decision(&self) -> MutexGuard<'_, Decision> {
        self.decision.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, state: State, reason: String) {
        let mut decision = self.decision();
        decision.state = state;
        decision.reason = reason;
    }
}

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

/// The means, ready to use.
enum Ready {
    Latency(Latency, Idleness),
    Pollers(Pollers),
}

/// What a measurement says.
enum Verdict {
    Use(Ready, String),
    Never(String),
    /// Cheap, but others kept the CPUs from halting.
    Unclear(String),
    /// Not measured: others compute on all CPUs, none halts, and measuring would take from them.
    Busy,
}

impl Monitor {
    /// The thread's life.
    pub(crate) fn run(mut self) {
        sys::be_let_in_early();
        if let Some(mut ready) = self.lives_on().then(|| self.decide()).flatten() {
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

    fn decide(&self) -> Option<Ready> {
        let (mut pause, mut look) = (MEASURE_AGAIN_AFTER, LOOK_AGAIN_AFTER);
        let mut again = MEASURE_AGAIN;
        while !self.shared.state.is_stopped() {
            match self.measure() {
                Verdict::Use(ready, reason) => {
                    self.book.set(State::Ready(ready.means()), reason);
                    return Some(ready);
                }
                Verdict::Unclear(reason) if again > 0 => {
                    self.book.set(State::Measuring, reason);
                    thread::park_timeout(pause);
                    (again, pause) = (again - 1, pause * 4);
                }
                Verdict::Busy => {
                    let reason = "others compute on all CPUs, so that none halts";
                    self.book.set(State::Measuring, reason.to_owned());
                    thread::park_timeout(look);
                    look = (2 * look).min(LOOK_AGAIN_LONGEST);
                }
                Verdict::Never(reason) | Verdict::Unclear(reason) => {
                    self.book.set(State::Off, reason);
                    return None;
                }
            }
        }
        None
    }

    fn measure(&self) -> Verdict {
        let allowed = sys::allowed_cpus();
        let [first, .., last] = allowed[..] else {
            return Verdict::Never("there is one CPU, so none to wake".to_owned());
        };
        let auto = self.mode == Mode::Auto;
        if auto && let Some(why) = self.quota() {
            return Verdict::Never(why);
        }
        // The thread that asks is one of them.
        let cpus = self.roots.online_cpus().max(allowed.len());
        let all_compute = |runnable| runnable > cpus as u64 + 1;
        if auto && self.roots.runnable().is_some_and(all_compute) {
            return Verdict::Busy;
        }
        let disturbed = || {
            self.roots.runnable().is_some_and(|runnable| runnable > 2)
                || Latency::held_by_others(&self.roots.dev)
        };
        let before = disturbed();
        let wake = least_of_some(|| measure::wake_ns(first, last), |wake| wake < CHEAP_NS);
        let disturbed = before || disturbed();
        self.book.decision().wake_ns = wake;
        if auto && wake.is_none_or(|wake| wake < CHEAP_NS) {
            return match wake {
                Some(wake) if disturbed => Verdict::Unclear(format!(
                    "waking a CPU costs {}, measured while others ran or kept CPUs awake",
                    micros(wake)
                )),
                Some(wake) => {
                    Verdict::Never(format!("waking a CPU is cheap here: {}", micros(wake)))
                }
                None => Verdict::Unclear("the cost of waking a CPU was not measured".to_owned()),
            };
        }
        self.choose(&allowed, wake)
    }

    /// Latency where it is permitted, else pollers, which win less.
    fn choose(&self, allowed: &[u16], wake: Option<u64>) -> Verdict {
        let cost = wake.map_or("not measured".to_owned(), micros);
        match self.latency() {
            Ok(latency) => {
                let held = least_of_some(|| held_wake_ns(&latency, allowed), |ns| ns < CHEAP_NS);
                self.book.decision().held_ns = held;
                let held = held.map_or("not measured".to_owned(), micros);
                let reason =
                    format!("waking a CPU costs {cost}, and {held} while it is kept awake");
                Verdict::Use(Ready::Latency(latency, Idleness::default()), reason)
            }
            Err(why_not) => {
                let pollers = Pollers::new(allowed.to_vec(), |cpu| self.roots.siblings(cpu));
                Verdict::Use(
                    Ready::Pollers(pollers),
                    format!("waking a CPU costs {cost}; {why_not}"),
                )
            }
        }
    }

    fn latency(&self) -> Result<Latency, String> {
        let cpus = self.roots.online_cpus();
        if cpus > latency::MAX_CPUS {
            let most = latency::MAX_CPUS;
            return Err(format!("cpu_dma_latency would keep all {cpus} CPUs awake, over {most}"));
        }
        if !self.roots.idle_can_poll() {
            return Err("the kernel's idle loop cannot poll (no cpuidle driver)".to_owned());
        }
        Latency::open(&self.roots.dev).map_err(|error| {
            // Not EPERM: that is a container's, and the file's mode would not change it.
            let lacks = error.raw_os_error() == Some(libc::EACCES);
            self.book.decision().lacks_permission = lacks;
            format!("cpu_dma_latency: {error}")
        })
    }

    /// From the first request seen until it is quiet, or until there is no CPU to keep awake.
    fn burst(&mut self, ready: &mut Ready) {
        let begun_ns = sys::now_ns();
        let mut requests = self.seen.look(&self.shared);
        let mut rest = ready.hold(&self.seen, &self.roots, begun_ns);
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
        }
        ready.release();
        self.account(ready, begun_ns);
        if let Some(until_ns) = rest {
            self.shared.not_before_ns.store(until_ns, Relaxed);
        } else {
            let needed = next_needed(self.shared.needed.load(Relaxed), requests);
            self.shared.needed.store(needed, Relaxed);
        }
        self.shared.state.end();
    }

    fn account(&self, ready: &Ready, begun_ns: u64) {
        let cpu_ns = sys::thread_cpu_ns() + ready.cpu_ns();
        self.book.cpu_ns.store(cpu_ns, Ordering::Relaxed);
        self.book.bursts.fetch_add(1, Ordering::Relaxed);
        self.book.awake_ns.fetch_add(sys::now_ns() - begun_ns, Ordering::Relaxed);
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
        self.quota().or_else(|| self.steal(now_ns))
    }

    fn quota(&self) -> Option<String> {
        let quota = self.roots.cpu_quota(sys::allowed_cpus().len())?;
        let (cpus, file) = (quota.cpus, quota.file.display());
        Some(format!("the control group has a quota of {cpus:.2} CPUs (`{file}`)"))
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

impl Ready {
    fn means(&self) -> Means {
        match self {
            Self::Latency(..) => Means::Latency,
            Self::Pollers(_) => Means::Pollers,
        }
    }

    /// Begins; or says until when there is nothing to do, because no CPU is idle.
    fn hold(&mut self, seen: &Seen, roots: &Roots, now_ns: u64) -> Option<u64> {
        let rest = self.renew(seen, roots, now_ns);
        if let (Self::Latency(latency, _), None) = (self, rest) {
            note(latency.hold());
        }
        rest
    }

    /// Goes on; or says until when there is nothing to do.
    fn renew(&mut self, seen: &Seen, roots: &Roots, now_ns: u64) -> Option<u64> {
        match self {
            Self::Latency(_, idleness) => idleness.look(now_ns, || roots.cpu_times()),
            Self::Pollers(pollers) => {
                // Callers first: where they wait, they are woken.
                let mut cpus: Vec<u16> = Vec::new();
                if pollers.needs_seen() {
                    let callers = seen.callers.iter().take(MAX_POLLERS);
                    cpus.extend(callers.filter_map(|&caller| roots.cpu_of(caller)));
                    cpus.extend(&seen.servers);
                }
                let cpus = pollers.choose(&cpus);
                pollers.keep_awake(&cpus, now_ns)
            }
        }
    }

    fn release(&mut self) {
        match self {
            Self::Latency(latency, _) => note(latency.release()),
            Self::Pollers(pollers) => pollers.rest(),
        }
    }

    fn cpu_ns(&self) -> u64 {
        match self {
            Self::Latency(..) => 0,
            Self::Pollers(pollers) => pollers.cpu_ns(),
        }
    }
}

/// A request that the kernel refuses after it took others changes nothing.
fn note(outcome: std::io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "cpu_dma_latency");
    }
}

/// The least of up to three measurements, fewer once `enough`: other work on the machine makes some
/// of them longer, and none shorter.
fn least_of_some(measure: impl Fn() -> Option<u64>, enough: impl Fn(u64) -> bool) -> Option<u64> {
    let mut least = None;
    for _ in 0..3 {
        least = measure().into_iter().chain(least).min();
        if least.is_some_and(&enough) {
            break;
        }
    }
    least
}

fn held_wake_ns(latency: &Latency, allowed: &[u16]) -> Option<u64> {
    let [first, .., last] = allowed[..] else { return None };
    note(latency.hold());
    let wake = measure::wake_ns(first, last);
    note(latency.release());
    wake
}

/// After bursts that did not pay, it takes more requests to begin one; a long one makes up for it.
fn next_needed(needed: u32, requests: u64) -> u32 {
    match requests {
        0..BURST_SHORT => (needed * 2).min(NEEDED_MAX),
        BURST_SHORT..BURST_LONG => needed,
        _ => NEEDED_MIN,
    }
}

fn micros(ns: u64) -> String {
    format!("{}.{} us", ns / 1_000, ns % 1_000 / 100)
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

    #[test]
    fn times_are_shown_in_microseconds() {
        assert_eq!(micros(22_650), "22.6 us");
    }
}
