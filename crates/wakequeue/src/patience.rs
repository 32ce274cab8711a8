//! Waiting without sleeping, within limits.

use std::time::{Duration, Instant};

use crate::sync::{spin_loop, yield_now};

/// Bounded busy waiting that gives way to others.
///
/// The first microseconds only pause: an answer that comes at all soon comes then, and a system
/// call would delay seeing it. After that each turn also yields, so that a runnable thread never
/// waits for a spinning one.
#[derive(Debug)]
pub struct Patience {
    start: Instant,
    budget: Duration,
    turns: u32,
}

impl Patience {
    const PAUSES_PER_TURN: u32 = 4;
    /// Looks at the clock are spread out: reading it costs more than a turn.
    const TURNS_PER_LOOK: u32 = 8;
    /// Turns before the first yield, about 4 us.
    const EAGER_TURNS: u32 = 64;

    /// Starts the clock.
    #[must_use]
    pub fn new(budget: Duration) -> Self {
        Self { start: Instant::now(), budget, turns: 0 }
    }

    /// Waits a moment. False when the time is up.
    #[inline]
    pub fn wait_a_little(&mut self) -> bool {
        self.turns += 1;
        for _ in 0..Self::PAUSES_PER_TURN {
            spin_loop();
        }
        if !self.turns.is_multiple_of(Self::TURNS_PER_LOOK) {
            return true;
        }
        if self.turns > Self::EAGER_TURNS {
            yield_now();
        }
        self.start.elapsed() < self.budget
    }
}
