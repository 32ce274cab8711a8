//! Waiting without sleeping, within limits.

use std::time::{Duration, Instant};

use crate::pause;
use crate::sync::{spin_loop, yield_now};

/// Bounded busy waiting that gives way to others.
///
/// The first microsecond only pauses: what is awaited often comes then, and a system
/// call would delay seeing it. After that it yields once per microsecond, so that a runnable thread
/// never waits for a spinning one. How many pauses that is, is measured once for the process: their
/// length differs tenfold between CPU models. Where yielding shows that another thread wants this CPU, waiting
/// ends early: the awaited thread may be the very one, and a sleeper is placed on an idle CPU when
/// it is woken, which a spinner never is.
#[derive(Debug)]
pub struct Patience {
    start: Instant,
    budget: Duration,
    /// Turns between two looks at the clock, each with a yield: about a microsecond.
    turns_per_look: u32,
    /// Turns until the next of them.
    turns: u32,
    /// Whether there was one.
    has_looked: bool,
    sharing: Sharing,
    /// How long it has lasted, as of the latest look at the clock.
    lasted: Duration,
}

/// What a thread's waits tell the next one about the CPU that it waits on.
///
/// Two threads that wait for each other in turn, and got the same CPU, let each other run by
/// yielding: none of their waits becomes long, each takes two switches between threads, and the
/// kernel may leave them together for 100 ms. So yields that let somebody else run are counted
/// over several waits, until one ends without them. A thread that sleeps then is woken on another
/// CPU, if one is idle. If none is, sleeping is dearer than yielding, so it is tried ever less
/// often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Yields in a row that let somebody else run.
    yields: u32,
    /// How many of them end a wait.
    longest: u32,
}

impl Sharing {
    /// Before the first wait of a thread.
    pub const NONE: Self = Self { yields: 0, longest: 2 };
    /// So that sleeps without use cost a hundredth of what the yields do.
    const LONGEST: u32 = 256;

    fn note(&mut self, shared: bool) {
        *self = if shared { Self { yields: self.yields + 1, ..*self } } else { Self::NONE };
    }

    fn is_enough(self) -> bool {
        self.yields >= self.longest
    }

    fn after_sleep(self) -> Self {
        let longest = if self.is_enough() { self.longest * 2 } else { self.longest };
        Self { yields: 0, longest: longest.min(Self::LONGEST) }
    }
}

impl Patience {
    const PAUSES_PER_TURN: u32 = 2;
    /// A yield without takers returns within about 0.4 us.
    const SHARED_YIELD: Duration = Duration::from_nanos(1200);

    /// Starts the clock.
    #[must_use]
    pub fn new(budget: Duration) -> Self {
        Self::after(Sharing::NONE, budget)
    }

    /// Starts the clock for a thread whose waits before ended with this: see
    /// [`sharing`](Self::sharing).
    #[must_use]
    pub fn after(sharing: Sharing, budget: Duration) -> Self {
        let turns = (pause::per_microsecond() / Self::PAUSES_PER_TURN).max(1);
        Self {
            start: Instant::now(),
            budget,
            turns_per_look: turns,
            turns,
            has_looked: false,
            sharing,
            lasted: Duration::ZERO,
        }
    }

    /// For the next wait of this thread, which now goes on with what it waited for, or sleeps.
    #[must_use]
    pub fn sharing(&self, sleeps: bool) -> Sharing {
        if sleeps {
            self.sharing.after_sleep()
        } else if self.has_looked {
            self.sharing
        } else {
            // It came from another CPU.
            Sharing::NONE
        }
    }

    /// Waits a moment. False when the time is up; with no time, at once.
    #[inline]
    pub fn wait_a_little(&mut self) -> bool {
        if self.budget.is_zero() {
            return false;
        }
        for _ in 0..Self::PAUSES_PER_TURN {
            spin_loop();
        }
        self.turns -= 1;
        self.turns > 0 || self.look_up()
    }

    /// Whether waiting has lasted this long, to within a microsecond.
    #[inline]
    pub(crate) fn has_lasted(&self, time: Duration) -> bool {
        self.lasted >= time
    }

    fn look_up(&mut self) -> bool {
        (self.turns, self.has_looked) = (self.turns_per_look, true);
        if self.sharing.is_enough() {
            return false;
        }
        let before = Instant::now();
        yield_now();
        self.sharing.note(before.elapsed() > Self::SHARED_YIELD);
        self.lasted = self.start.elapsed();
        !self.sharing.is_enough() && self.lasted < self.budget
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// How many waits of one shared yield each there are before each of some sleeps.
    fn waits_before_sleeps(sleeps: usize) -> Vec<u32> {
        let mut sharing = Sharing::NONE;
        let count = |_| {
            let mut waits = 0;
            while !sharing.is_enough() {
                sharing.note(true);
                waits += 1;
            }
            sharing = sharing.after_sleep();
            waits
        };
        (0..sleeps).map(count).collect()
    }

    #[test]
    fn threads_that_share_a_cpu_sleep_soon_and_then_ever_less_often() {
        let waits = waits_before_sleeps(10);
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
    }

    #[test]
    fn what_waits_on_its_own_cpu_forgets_that_it_shared_one() {
        let mut sharing = Sharing { yields: 1, longest: 64 };
        sharing.note(false);
        assert_eq!(sharing, Sharing::NONE);
        let busy = Sharing { yields: 1, longest: 64 };
        let answered_at_once = Patience::after(busy, Duration::from_secs(1));
        assert_eq!(answered_at_once.sharing(false), Sharing::NONE);
    }

    #[test]
    fn a_wait_after_enough_shared_ones_ends_without_another_yield() {
        let enough = Sharing { yields: 2, longest: 2 };
        let mut patience = Patience::after(enough, Duration::from_secs(3600));
        while patience.wait_a_little() {}
        assert_eq!(patience.sharing(true), Sharing { yields: 0, longest: 4 });
    }
}
