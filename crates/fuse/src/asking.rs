//! Whether a worker asks for the next request for a while before it sleeps.

use std::time::Duration;

/// Learns from the times before. A caller that was answered often comes back at once, and then
/// finds the worker awake. Where others compute on that CPU it does not, and asking takes from the
/// worker's share of the CPU, so that it is let in late for the next request: beside two computing
/// processes `tar` took twice the time with a worker that always asked.
///
/// Between two questions the worker yields the CPU. If it gets it back late, others compute there:
/// a request that came meanwhile has waited for them, where the wake-up of a worker that sleeps
/// would have come before them.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    /// Grows by one each time that something came, shrinks by [`Asking::PRICE`] when nothing did.
    credit: u32,
    /// How many more times to sleep at once, while there is no credit.
    pause: u32,
    /// How long the next pause is if the CPU comes back late again.
    next_pause: u32,
}

impl Asking {
    const MOST: u32 = 16;
    const PRICE: u32 = 4;
    const PAUSE: u32 = 32;
    /// Late once in so many requests costs each a microsecond or two.
    const LONGEST_PAUSE: u32 = 2_048;
    /// Less than what a process that computes has the CPU for (from 0.7 ms on, Linux 6.18), more
    /// than most callers take from an answer to their next request.
    const LATE: Duration = Duration::from_micros(300);

    /// Whether to ask before this sleep.
    pub(crate) fn pays(&mut self) -> bool {
        if self.credit > 0 || self.pause == 0 {
            return true;
        }
        self.pause -= 1;
        false
    }

    /// It asked for so long, and a request came meanwhile, or none.
    pub(crate) fn asked(&mut self, took: Duration, came: bool) {
        if took >= Self::LATE {
            self.credit = 0;
            self.pause = self.next_pause.max(Self::PAUSE);
            self.next_pause = (2 * self.pause).min(Self::LONGEST_PAUSE);
        } else if came {
            self.credit = (self.credit + 1).min(Self::MOST);
            if self.credit == Self::MOST {
                self.next_pause = Self::PAUSE;
            }
        } else {
            self.credit = self.credit.saturating_sub(Self::PRICE);
            self.pause = Self::PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(20);

    #[test]
    fn who_never_finds_anything_asks_once_in_a_while() {
        let mut asking = Asking::default();
        let asked = (0..10 * (Asking::PAUSE + 1)).filter(|_| {
            let pays = asking.pays();
            if pays {
                asking.asked(SOON, false);
            }
            pays
        });
        assert_eq!(asked.count(), 10);
    }

    #[test]
    fn who_mostly_finds_something_always_asks() {
        let mut asking = Asking::default();
        for round in 0..1000 {
            assert!(asking.pays(), "round {round}");
            asking.asked(SOON, round % 6 != 5);
        }
    }

    #[test]
    fn credit_is_used_up() {
        let mut asking = Asking::default();
        (0..1000).for_each(|_| asking.asked(SOON, true));
        let tries = (0..1000).take_while(|_| {
            let pays = asking.pays();
            asking.asked(SOON, false);
            pays
        });
        assert_eq!(tries.count(), (Asking::MOST / Asking::PRICE) as usize);
    }

    #[test]
    fn who_gets_the_cpu_back_late_asks_ever_more_seldom() {
        let mut asking = Asking::default();
        (0..1000).for_each(|_| asking.asked(SOON, true));
        let mut asked = |times: usize| {
            let asks = |asking: &mut Asking| {
                let pays = asking.pays();
                if pays {
                    asking.asked(Asking::LATE, true);
                }
                pays
            };
            (0..times).filter(|_| asks(&mut asking)).count()
        };
        assert_eq!(asked(32 + 64 + 128 + 4), 4);
        asked(10_000);
        assert!(asked(10 * Asking::LONGEST_PAUSE as usize) <= 10);
        // Once nobody computes there, it soon asks always.
        while !asking.pays() {}
        assert!(asking.pays());
        asking.asked(SOON, true);
        assert!((0..1000).all(|_| {
            asking.asked(SOON, true);
            asking.pays()
        }));
    }
}
