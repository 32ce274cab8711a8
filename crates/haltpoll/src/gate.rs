//! How a burst begins and ends: between the hooks, which see requests, and the keeper.
//!
//! One word, read by every request and written only when a burst begins or ends:
//!
//! ```text
//!            open                  begin (a hook)
//!   SHUT ───────────▶ PARKED ─────────────────────▶ BURST
//!    ▲                  │ ▲                           │
//!    └──── shut ────────┘ └────────── end (keeper) ───┘
//! ```
//!
//! 1. *Of all hooks that see PARKED, one begins the burst* (compare and exchange), and it alone wakes the
//!    keeper. The keeper sleeps by `park`, whose token is not lost when it comes early.
//! 2. *A burst that nobody serves does not exist*: BURST is left only by the keeper, which ends it a bounded
//!    number of ticks after the last request, or at once when it is told to stop.
//! 3. *A request may be missed, but not two.* A hook counts its request and reads the word without a
//!    fence between, so it may still read BURST while the keeper parks. Its next request reads PARKED.
//!    A fence in each request would cost more than the one burst that begins later.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicBool, AtomicU32, Ordering, Thread, park};

const SHUT: u32 = 0;
const PARKED: u32 = 1;
const BURST: u32 = 2;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Read by every request, so alone on its cache line.
    state: CachePadded<AtomicU32>,
    stop: AtomicBool,
    keeper: OnceLock<Thread>,
}

/// Why the keeper goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Burst,
    Stop,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            state: CachePadded::new(AtomicU32::new(SHUT)),
            stop: AtomicBool::new(false),
            keeper: OnceLock::new(),
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
        if begun && let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
        begun
    }

    /// The keeper (`thread`) is ready for bursts.
    pub(crate) fn open(&self, thread: Thread) {
        // There is one keeper, so the first value is the right one.
        let _ = self.keeper.set(thread);
        self.state.store(PARKED, Ordering::SeqCst);
    }

    /// The keeper sleeps until there is something to do.
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

    /// The keeper ends a burst.
    pub(crate) fn end(&self) {
        self.state.store(PARKED, Ordering::SeqCst);
    }

    /// The keeper goes: no burst begins any more.
    pub(crate) fn shut(&self) {
        self.state.store(SHUT, Ordering::SeqCst);
    }

    /// Tells the keeper, whose thread is `keeper`, to go.
    pub(crate) fn stop(&self, keeper: &Thread) {
        self.stop.store(true, Ordering::SeqCst);
        keeper.unpark();
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
        let gate = Gate::new();
        assert!(!gate.is_parked() && !gate.begin());
        gate.open(std::thread::current());
        assert!(gate.is_parked());
        assert!(gate.begin());
        assert!(!gate.begin());
        assert_eq!(gate.wait(), Wake::Burst);
        gate.end();
        assert!(gate.is_parked());
        gate.shut();
        assert!(!gate.begin());
        gate.stop(&std::thread::current());
        assert_eq!(gate.wait(), Wake::Stop);
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
    fn request(gate: &Gate, count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
        if gate.is_parked() {
            gate.begin();
        }
    }

    /// Serves bursts until told to stop; a burst ends at the first look that sees nothing new.
    fn keeper(gate: &Gate, count: &AtomicU64) -> u32 {
        gate.open(thread::current());
        let mut bursts = 0;
        while gate.wait() == Wake::Burst {
            bursts += 1;
            let mut seen = count.load(Ordering::Relaxed);
            while !gate.is_stopped() {
                thread::yield_now();
                let now = count.load(Ordering::Relaxed);
                if now == seen {
                    break;
                }
                seen = now;
            }
            gate.end();
        }
        gate.shut();
        bursts
    }

    /// Two hooks, a keeper, a stop: everybody ends, and at the end no burst is left open.
    #[test]
    fn loom_every_burst_ends_and_the_keeper_goes() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let gate = Arc::new(Gate::new());
            let count = Arc::new(AtomicU64::new(0));
            let served = {
                let (gate, count) = (Arc::clone(&gate), Arc::clone(&count));
                thread::spawn(move || keeper(&gate, &count))
            };
            let hook = {
                let (gate, count) = (Arc::clone(&gate), Arc::clone(&count));
                thread::spawn(move || request(&gate, &count))
            };
            request(&gate, &count);
            hook.join().unwrap();
            gate.stop(served.thread());
            let bursts = served.join().unwrap();
            assert!(bursts <= 2);
            assert!(!gate.in_burst() && !gate.is_parked());
        });
    }

    /// A burst that a hook began is served, however the keeper's falling asleep comes between: without a
    /// stop, the keeper must come back from `wait`. Loom reports a deadlock if it does not.
    #[test]
    fn loom_a_begun_burst_is_served() {
        loom::model(|| {
            let gate = Arc::new(Gate::new());
            let keeper = {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    gate.open(thread::current());
                    assert_eq!(gate.wait(), Wake::Burst);
                    gate.end();
                    assert_eq!(gate.wait(), Wake::Burst);
                    gate.shut();
                })
            };
            let mut begun = 0;
            while begun < 2 {
                begun += u32::from(gate.is_parked() && gate.begin());
                thread::yield_now();
            }
            keeper.join().unwrap();
        });
    }

    /// A request that misses the end of a burst is followed by one that does not.
    #[test]
    fn loom_the_request_after_a_missed_one_begins_a_burst() {
        loom::model(|| {
            let gate = Arc::new(Gate::new());
            gate.open(thread::current());
            assert!(gate.begin());
            let ender = {
                let gate = Arc::clone(&gate);
                thread::spawn(move || gate.end())
            };
            // May read BURST or PARKED.
            let first = gate.is_parked() && gate.begin();
            ender.join().unwrap();
            assert!(first || (gate.is_parked() && gate.begin()));
        });
    }
}
