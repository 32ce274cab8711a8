//! How a burst begins and ends: between the hooks, which see requests, and the monitor.
//!
//! One word, read by every request and written only when a burst begins or ends:
//!
//! ```text
//!            open                  begin (a hook)
//!   SHUT ───────────▶ PARKED ─────────────────────▶ BURST
//!    ▲                  │ ▲                           │
//!    └──── shut ────────┘ └────────── end (monitor) ───┘
//! ```
//!
//! 1. *Of all hooks that see PARKED, one begins the burst* (compare and exchange), and it alone
//!    wakes the monitor. The monitor sleeps by `park`, whose token is not lost when it comes early.
//! 2. *A burst that nobody serves does not exist*: BURST is left only by the monitor, which ends it
//!    a bounded number of ticks after the last request, or at once when it is told to stop.
//! 3. *A request may be missed, but not two.* A hook counts its request and reads the word without
//!    a fence between, so it may still read BURST while the monitor parks. Its next request reads
//!    PARKED. A fence in each request would cost more than the one burst that begins later.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicBool, AtomicU32, Ordering, Thread, park};

const SHUT: u32 = 0;
const PARKED: u32 = 1;
const BURST: u32 = 2;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct BurstState {
    /// Read by every request, so alone on its cache line.
    state: CachePadded<AtomicU32>,
    stop: AtomicBool,
    monitor: OnceLock<Thread>,
}

/// Why the monitor goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Burst,
    Stop,
}

impl BurstState {
    pub(crate) fn new() -> Self {
        Self {
            state: CachePadded::new(AtomicU32::new(SHUT)),
            stop: AtomicBool::new(false),
            monitor: OnceLock::new(),
        }
    }

    /// Whether a hook has to look closer. One load, for the hot path.
    #[inline]
    pub(crate) fn is_parked(&self) -> bool {
        self.state.load(Ordering::Relaxed) == PARKED
    }

    /// A hook begins a burst; false if another one did.
    #[cold]
    pub(crate) fn begin(&self) -> bool {
        let begun =
            self.state.compare_exchange(PARKED, BURST, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if begun && let Some(monitor) = self.monitor.get() {
            monitor.unpark();
        }
        begun
    }

    /// The monitor (`thread`) is ready for bursts.
    pub(crate) fn open(&self, thread: Thread) {
        // There is one monitor, so the first value is the right one.
        let _ = self.monitor.set(thread);
        self.state.store(PARKED, Ordering::SeqCst);
    }

    /// The monitor sleeps until there is something to do.
    pub(crate) fn wait(&self) -> Wake {
        loop {
            if self.is_stopped() {
                return Wake::Stop;
            }
            if self.in_burst() {
                return Wake::Burst;
            }
            park();
        }
    }

    pub(crate) fn in_burst(&self) -> bool {
        self.state.load(Ordering::SeqCst) == BURST
    }

    /// The monitor ends a burst.
    pub(crate) fn end(&self) {
        self.state.store(PARKED, Ordering::SeqCst);
    }

    /// The monitor goes: no burst begins any more.
    pub(crate) fn shut(&self) {
        self.state.store(SHUT, Ordering::SeqCst);
    }

    /// Tells the monitor, whose thread is `monitor`, to go.
    pub(crate) fn stop(&self, monitor: &Thread) {
        self.stop.store(true, Ordering::SeqCst);
        monitor.unpark();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_burst_begins_once_and_only_while_the_gate_is_open() {
        let state = BurstState::new();
        assert!(!state.is_parked() && !state.begin());
        state.open(std::thread::current());
        assert!(state.is_parked());
        assert!(state.begin());
        assert!(!state.begin());
        assert_eq!(state.wait(), Wake::Burst);
        state.end();
        assert!(state.is_parked());
        state.shut();
        assert!(!state.begin());
        state.stop(&std::thread::current());
        assert_eq!(state.wait(), Wake::Stop);
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test --release -p tollgate-haltpoll --lib loom`
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicU64;
    use loom::sync::Arc;
    use loom::thread;

    /// What a hook does for each request.
    fn request(state: &BurstState, count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
        if state.is_parked() {
            state.begin();
        }
    }

    /// Serves bursts until told to stop; a burst ends at the first look that sees nothing new.
    fn monitor(state: &BurstState, count: &AtomicU64) -> u32 {
        state.open(thread::current());
        let mut bursts = 0;
        while state.wait() == Wake::Burst {
            bursts += 1;
            let mut seen = count.load(Ordering::Relaxed);
            while !state.is_stopped() {
                thread::yield_now();
                let now = count.load(Ordering::Relaxed);
                if now == seen {
                    break;
                }
                seen = now;
            }
            state.end();
        }
        state.shut();
        bursts
    }

    /// Two hooks, a monitor, a stop: everybody ends, and at the end no burst is left open.
    #[test]
    fn loom_every_burst_ends_and_the_keeper_goes() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let state = Arc::new(BurstState::new());
            let count = Arc::new(AtomicU64::new(0));
            let served = {
                let (state, count) = (Arc::clone(&state), Arc::clone(&count));
                thread::spawn(move || monitor(&state, &count))
            };
            let hook = {
                let (state, count) = (Arc::clone(&state), Arc::clone(&count));
                thread::spawn(move || request(&state, &count))
            };
            request(&state, &count);
            hook.join().unwrap();
            state.stop(served.thread());
            let bursts = served.join().unwrap();
            assert!(bursts <= 2);
            assert!(!state.in_burst() && !state.is_parked());
        });
    }

    /// A burst that a hook began is served, however the monitor's falling asleep comes between:
    /// without a stop, the monitor must come back from `wait`. Loom reports a deadlock if it does
    /// not.
    #[test]
    fn loom_a_begun_burst_is_served() {
        loom::model(|| {
            let state = Arc::new(BurstState::new());
            let monitor = {
                let state = Arc::clone(&state);
                thread::spawn(move || {
                    state.open(thread::current());
                    assert_eq!(state.wait(), Wake::Burst);
                    state.end();
                    assert_eq!(state.wait(), Wake::Burst);
                    state.shut();
                })
            };
            let mut begun = 0;
            while begun < 2 {
                begun += u32::from(state.is_parked() && state.begin());
                thread::yield_now();
            }
            monitor.join().unwrap();
        });
    }

    /// A request that misses the end of a burst is followed by one that does not.
    #[test]
    fn loom_the_request_after_a_missed_one_begins_a_burst() {
        loom::model(|| {
            let state = Arc::new(BurstState::new());
            state.open(thread::current());
            assert!(state.begin());
            let ender = {
                let state = Arc::clone(&state);
                thread::spawn(move || state.end())
            };
            // May read BURST or PARKED.
            let first = state.is_parked() && state.begin();
            ender.join().unwrap();
            assert!(first || (state.is_parked() && state.begin()));
        });
    }
}
