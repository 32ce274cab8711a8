//! Which means is used to keep CPUs awake, if any: by what waking one costs here.

use std::thread;
use std::time::Duration;

use crate::book::Book;
use crate::conditions::Roots;
use crate::hook::Shared;
use crate::idleness::Idleness;
use crate::latency::{self, Latency};
use crate::mode::Mode;
use crate::occupancy::{Occupancy, Runnable};
use crate::pollers::Pollers;
use crate::ready::{Ready, note};
use crate::status::State;
use crate::{measure, sys};

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

/// What a measurement says.
enum Verdict {
    Use(Ready, String),
    Never(String),
    /// Cheap, but others kept the CPUs from halting.
    Unclear(String),
    /// Not measured: others compute on all CPUs, none halts, and measuring would take from them.
    Busy,
}

/// What the choice goes by.
pub(crate) struct Chooser<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) book: &'a Book,
    pub(crate) roots: &'a Roots,
    pub(crate) mode: Mode,
}

impl Chooser<'_> {
    /// The means for this machine, once that is known; `None` where none pays.
    pub(crate) fn decide(&self) -> Option<Ready> {
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
        if auto && let Some(why) = quota(self.roots) {
            return Verdict::Never(why);
        }
        // The thread that asks is one of them.
        let cpus = self.roots.online_cpus().max(allowed.len());
        let runnable = || Runnable::open(self.roots)?.count();
        let all_compute = |runnable| runnable > cpus + 1;
        if auto && runnable().is_some_and(all_compute) {
            return Verdict::Busy;
        }
        let disturbed = || {
            runnable().is_some_and(|runnable| runnable > 2)
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
                let polling = self.shared.polling.clone();
                let siblings = |cpu| self.roots.siblings(cpu);
                let cpus = self.roots.online_cpus().max(allowed.len());
                let occupancy = Occupancy::of_machine(self.roots, cpus);
                let pollers = Pollers::new(allowed.to_vec(), siblings, polling, occupancy);
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
}

/// Why the CPU time of this process is not to be spent on it, by its control group's quota.
pub(crate) fn quota(roots: &Roots) -> Option<String> {
    let quota = roots.cpu_quota(sys::allowed_cpus().len())?;
    let (cpus, file) = (quota.cpus, quota.file.display());
    Some(format!("the control group has a quota of {cpus:.2} CPUs (`{file}`)"))
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

fn micros(ns: u64) -> String {
    format!("{}.{} us", ns / 1_000, ns % 1_000 / 100)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_microseconds() {
        assert_eq!(micros(22_650), "22.6 us");
    }
}
