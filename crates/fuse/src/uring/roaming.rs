//! Whether the owner of a ring stays on the CPU whose requests it gets. Pure.
//!
//! A caller that is alone gains from an owner elsewhere: the two run at the same time, and a RELEASE,
//! for which nobody waits, is served while the caller goes on. The scheduler finds the idle CPU for
//! the owner by itself. Where callers and owners together are more than there are CPUs, it leaves
//! owners on each other's CPUs, where they wait for the other's caller: a request then takes nearly
//! twice the time that it takes with each owner on its own CPU.

/// What the owner does about its CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Stay on the ring's CPU.
    Bind,
    /// Run on any.
    Release,
}

/// One owner's choice.
#[derive(Debug)]
pub(crate) struct Roaming {
    /// CPUs that owners and callers share.
    cpus: usize,
    /// Requests of each ring at the last look.
    seen: Vec<u64>,
    /// Looks in turn that found room for the owner elsewhere.
    roomy: u32,
    is_bound: bool,
}

impl Roaming {
    /// Requests between two looks.
    pub(crate) const LOOK_EVERY: u32 = 32;
    /// A ring with so many requests between two looks of another one has a caller of its own: one
    /// that the scheduler moved has few.
    const OF_ANOTHER: u64 = 8;
    /// Two callers that take turns.
    const IN_TURN: u32 = 8;
    /// Besides its owners a process that only serves uses less of a CPU.
    const BESIDES_PERMILLE: u64 = 200;
    /// Looks in turn before the owner leaves its CPU. Coming back takes one.
    const ROOMY: u32 = 4;

    /// An owner that is bound, of a session that may use `cpus` CPUs.
    pub(crate) fn new(cpus: usize) -> Self {
        Self { cpus, seen: Vec::new(), roomy: 0, is_bound: true }
    }

    /// Whether it is to stay on the ring's CPU.
    pub(crate) fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Looks at what came since the last look: how many `changes` of the ring's caller, how much of a
    /// CPU the process used besides this owner, in thousandths; and at how many requests each of the
    /// `others` has had since the session began.
    pub(crate) fn look(
        &mut self,
        changes: u32,
        besides_permille: u64,
        others: impl Iterator<Item = u64>,
    ) -> Option<Change> {
        let mut callers = 1 + usize::from(changes >= Self::IN_TURN);
        for (ring, requests) in others.enumerate() {
            match self.seen.get_mut(ring) {
                Some(seen) => {
                    let before = std::mem::replace(seen, requests);
                    callers += usize::from(requests.saturating_sub(before) >= Self::OF_ANOTHER);
                }
                None => self.seen.push(requests),
            }
        }
        // For each a CPU, and one for its owner. What the process does besides, as reading files
        // ahead and letting go of removed ones, has its own use for an idle CPU.
        let needed = 2_000 * callers as u64 + besides_permille;
        let has_room = needed <= 1_000 * self.cpus as u64 + Self::BESIDES_PERMILLE;
        self.roomy = if has_room { self.roomy.saturating_add(1) } else { 0 };
        match (has_room, self.is_bound) {
            (false, false) => {
                self.is_bound = true;
                Some(Change::Bind)
            }
            (true, true) if self.roomy >= Self::ROOMY => {
                self.is_bound = false;
                Some(Change::Release)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_leaves_its_cpu_while_its_caller_is_alone() {
        let mut roaming = Roaming::new(2);
        let looks =
            (0..Roaming::ROOMY).map(|_| roaming.look(0, 0, [7].into_iter())).collect::<Vec<_>>();
        assert_eq!(looks, [None, None, None, Some(Change::Release)]);
        assert_eq!(roaming.look(0, 0, [7].into_iter()), None);
        // A caller that moved between CPUs leaves a few requests at the other one.
        assert_eq!(roaming.look(0, 0, [7 + Roaming::OF_ANOTHER - 1].into_iter()), None);
        let many = 7 + 2 * Roaming::OF_ANOTHER;
        assert_eq!(roaming.look(0, 0, [many].into_iter()), Some(Change::Bind));
        assert_eq!(roaming.look(0, 0, [2 * many].into_iter()), None);
        let looks = (0..Roaming::ROOMY).map(|_| roaming.look(0, 0, [2 * many].into_iter()));
        assert_eq!(looks.last(), Some(Some(Change::Release)), "and again, once it is alone");
        assert_eq!(roaming.look(Roaming::IN_TURN - 1, 200, [2 * many].into_iter()), None);
        assert_eq!(roaming.look(Roaming::IN_TURN, 0, [2 * many].into_iter()), Some(Change::Bind));
    }

    #[test]
    fn an_owner_leaves_the_idle_cpu_to_other_threads_of_the_server() {
        let mut roaming = Roaming::new(2);
        let no_other = || [0].into_iter();
        assert!((0..10).all(|_| roaming.look(0, 201, no_other()).is_none()));
        assert!((0..10).any(|_| roaming.look(0, 200, no_other()).is_some()));
        assert_eq!(roaming.look(0, 900, no_other()), Some(Change::Bind));
    }

    #[test]
    fn callers_have_room_while_there_are_two_cpus_for_each() {
        let changes = |cpus: usize, callers: u64| {
            let mut roaming = Roaming::new(cpus);
            let rings = |round: u64| (1..cpus as u64).map(move |n| u64::from(n < callers) * round);
            (0..10).filter_map(|n| roaming.look(0, 0, rings(n * Roaming::OF_ANOTHER))).last()
        };
        assert_eq!((changes(8, 4), changes(8, 5)), (Some(Change::Release), None));
        assert_eq!((changes(1, 1), changes(2, 2)), (None, None));
    }
}
