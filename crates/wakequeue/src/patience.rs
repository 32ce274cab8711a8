//! Waiting without sleeping, within limits.

use std::time::{Duration, Instant};

use crate::sync::{spin_loop, yield_now};

/// Bounded busy waiting that gives way to others.
///
/// The first microsecond only pauses: what is awaited often comes then, and a system
/// call would delay seeing it. After that it yields once per microsecond, so that a runnable thread
/// never waits for a spinning one. Where yielding shows that another thread wants this CPU, waiting
/// ends early: the awaited thread may be the very one, and a sleeper is placed on an idle CPU when
/// it is woken, which a spinner never is.
#[derive(Debug)]
pub struct Patience {
    start: Instant,
    budget: Duration,
    turns: u32,
    shared: u32,
    /// How long it has lasted, as of the latest look at the clock.
    lasted: Duration,
}

impl Patience {
    const PAUSES_PER_TURN: u32 = 2;
    /// Turns between two looks at the clock, each with a yield: about a microsecond.
    const TURNS_PER_LOOK: u32 = 16;
    /// A yield without takers returns within about 0.4 us.
    const SHARED_YIELD: Duration = Duration::from_nanos(1200);
    /// Yields in a row that let somebody else run before waiting ends.
    const SHARED_MAX: u32 = 2;

    /// Starts the clock.
    #[must_use]
    pub fn new(budget: Duration) -> Self {
        Self { start: Instant::now(), budget, turns: 0, shared: 0, lasted: Duration::ZERO }
    }

    /// Waits a moment. False when the time is up; with no time, at once.
    #[inline]
    pub fn wait_a_little(&mut self) -> bool {
        if self.budget.is_zero() {
            return false;
        }
        self.turns += 1;
        for _ in 0..Self::PAUSES_PER_TURN {
            spin_loop();
        }
        !self.turns.is_multiple_of(Self::TURNS_PER_LOOK) || self.look_up()
    }

    /// Whether waiting has lasted this long, to within a microsecond.
    #[inline]
    pub(crate) fn has_lasted(&self, time: Duration) -> bool {
        self.lasted >= time
    }

    fn look_up(&mut self) -> bool {
        let before = Instant::now();
        yield_now();
        let shared = before.elapsed() > Self::SHARED_YIELD;
        self.shared = if shared { self.shared + 1 } else { 0 };
        self.lasted = self.start.elapsed();
        self.shared < Self::SHARED_MAX && self.lasted < self.budget
    }
}
