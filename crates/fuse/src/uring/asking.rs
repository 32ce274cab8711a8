//! Whether a ring's owner asks for the next request for a while before it sleeps.

/// Learns from the times before. A caller that was answered often comes back at once, and then
/// finds the owner awake. Where others compute on that CPU it does not, and asking takes from the
/// owner's share of the CPU, so that it is let in late for the next request: beside two computing
/// processes `tar` took twice the time with an owner that always asked.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// Grows by one each time that something came, shrinks by [`Asking::PRICE`] when nothing did.
    credit: u32,
    /// How many more times to sleep at once, while there is no credit.
    pause: u32,
}

impl Asking {
    const MOST: u32 = 16;
    const PRICE: u32 = 4;
    const PAUSE: u32 = 32;

    /// Whether to ask before this sleep.
    pub(super) fn pays(&mut self) -> bool {
        if self.credit > 0 || self.pause == 0 {
            return true;
        }
        self.pause -= 1;
        false
    }

    /// It asked, and a request came meanwhile, or none.
    pub(super) fn asked(&mut self, came: bool) {
        if came {
            self.credit = (self.credit + 1).min(Self::MOST);
        } else {
            self.credit = self.credit.saturating_sub(Self::PRICE);
            self.pause = Self::PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_finds_anything_asks_once_in_a_while() {
        let mut asking = Asking::default();
        let asked = (0..10 * (Asking::PAUSE + 1)).filter(|_| {
            let pays = asking.pays();
            if pays {
                asking.asked(false);
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
            asking.asked(round % 6 != 5);
        }
    }

    #[test]
    fn credit_is_used_up() {
        let mut asking = Asking::default();
        (0..1000).for_each(|_| asking.asked(true));
        let tries = (0..1000).take_while(|_| {
            let pays = asking.pays();
            asking.asked(false);
            pays
        });
        assert_eq!(tries.count(), (Asking::MOST / Asking::PRICE) as usize);
    }
}
