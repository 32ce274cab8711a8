//! What an owner that may run anywhere does on a CPU that it shares: it leaves, or it sleeps between
//! requests. Pure.
//!
//! Between requests an owner asks for the next one, and lets others run meanwhile. On the CPU of its
//! caller the two take turns so, and neither sleeps for long: the scheduler has no occasion to place
//! one of them anew, and an idle CPU fetches one by chance, late, or never while a thread of the
//! class SCHED_IDLE keeps that CPU awake. Each on a CPU of its own, they work at the same time:
//! reading 6,000 files took 171 to 200 ms so, and 184 to 326 ms as the scheduler left them (Zen 1, two
//! CPUs). Where others compute on all CPUs there is none to go to, and it is better left to the
//! scheduler: an owner that went took `tar` half as long again. Nor does it ask for requests there: it
//! would have to wait for its turn each time, where who wakes from sleep is let in soon.

use crate::uring::roaming::Roaming;

/// One owner's choice.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// Looks until it may leave again, and how many follow the next time.
    left: u32,
    pause: u32,
    /// Looks until it asks for requests again.
    sleeps: u32,
}

impl Sharing {
    /// Of the requests between two looks, so many for which somebody else was let in.
    const SHARED: u64 = Roaming::LOOK_EVERY as u64 / 2;
    /// Where it finds others wherever it goes, as on a machine that computes, it stays for so many
    /// looks. Leaving takes some 10 us.
    const LONGEST_PAUSE: u32 = 64;

    pub(crate) fn new() -> Self {
        Self { left: 0, pause: 1, sleeps: 0 }
    }

    /// Whether to ask for requests before it sleeps.
    pub(crate) fn asks(&self) -> bool {
        self.sleeps == 0
    }

    /// Looks at how often others ran in the owner's place since the last look. `is_free` says whether
    /// there is a CPU that nobody uses, and is asked only when it matters. Where there is none, it does
    /// not ask for requests for a while.
    pub(crate) fn leaves(&mut self, let_in: u64, is_free: impl FnOnce() -> bool) -> bool {
        if self.sleeps > 0 {
            // Who sleeps is not seen to let others in.
            self.sleeps -= 1;
            return false;
        }
        if let_in < Self::SHARED {
            *self = Self::new();
            return false;
        }
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        if !is_free() {
            self.sleeps = Self::LONGEST_PAUSE;
            return false;
        }
        self.left = self.pause;
        self.pause = (2 * self.pause).min(Self::LONGEST_PAUSE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: u64 = Sharing::SHARED;

    #[test]
    fn an_owner_leaves_a_cpu_that_it_shares_and_stays_on_one_of_its_own() {
        let mut sharing = Sharing::new();
        let mut leaves = |let_in| sharing.leaves(let_in, || true);
        assert!(!leaves(0) && !leaves(SHARED - 1));
        assert!(leaves(SHARED));
        assert!(!leaves(1), "it has one of its own now");
        assert!(leaves(SHARED), "and somebody came");
    }

    #[test]
    fn while_no_cpu_is_free_an_owner_sleeps_and_looks_again_now_and_then() {
        let mut sharing = Sharing::new();
        let mut asked = 0;
        for _ in 0..1_000 {
            asked += u32::from(sharing.asks());
            // It lets nobody in while it sleeps.
            let let_in = if sharing.asks() { SHARED } else { 0 };
            assert!(!sharing.leaves(let_in, || false));
        }
        assert!((1_000 / (Sharing::LONGEST_PAUSE + 1)..=20).contains(&asked), "{asked}");
        while !sharing.asks() {
            sharing.leaves(0, || panic!("not asked without need"));
        }
        assert!(sharing.leaves(SHARED, || true));
        assert!(sharing.asks());
        assert!(!sharing.leaves(0, || panic!("not asked without need")));
    }

    #[test]
    fn where_others_are_everywhere_it_leaves_less_and_less_often() {
        let mut sharing = Sharing::new();
        let all = u64::from(Roaming::LOOK_EVERY);
        let looks: Vec<_> = (0..1_000).filter(|_| sharing.leaves(all, || true)).collect();
        assert_eq!(looks[..4], [0, 2, 5, 10]);
        let pauses = looks.windows(2).map(|pair| pair[1] - pair[0] - 1);
        assert_eq!(pauses.max(), Some(Sharing::LONGEST_PAUSE as usize));
        assert!(!sharing.leaves(0, || true));
        assert!(sharing.leaves(SHARED, || true), "at once, after a look without others");
    }
}
