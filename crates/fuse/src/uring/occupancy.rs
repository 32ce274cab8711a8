//! Which entries of a ring are held by requests that wait, and when a queue needs a spare one. Pure.
//!
//! An entry is bound to its request until the reply is submitted. A request that waits, for a lock
//! above all, holds its entry for as long as that takes; when every entry of a queue is held so,
//! further requests of that CPU would wait in the kernel, among them the one that unlocks. So a
//! queue gets a spare entry as soon as fewer than [`LEAST_FREE`] of its entries are not held.
//!
//! The kernel gives a new entry only to requests that come after it. Requests that came while there
//! was no entry are taken up when a reply of the same queue is submitted. If none is to be expected,
//! because every entry is held, the queue has to be *nudged*: a request has to be made in it.

/// Entries of a queue that are free, or with requests that do not wait, at least.
const LEAST_FREE: usize = 2;

/// What has to follow when a request begins to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    /// A spare entry for `queue`; and a nudge, if every other entry is held.
    Spare {
        queue: u16,
        nudge: bool,
    },
}

/// One ring's entries by queue.
#[derive(Debug, Default)]
pub(crate) struct Occupancy {
    queues: Vec<Queue>,
    /// For each entry, which of `queues` it belongs to, and whether it is held.
    entries: Vec<(usize, bool)>,
}

#[derive(Debug)]
struct Queue {
    number: u16,
    in_service: usize,
    held: usize,
}

impl Occupancy {
    /// Entries of these queues; none is held.
    pub(crate) fn new(queues: impl Iterator<Item = u16>) -> Self {
        let mut occupancy = Self::default();
        queues.for_each(|queue| occupancy.add(queue));
        occupancy
    }

    /// A further entry.
    pub(crate) fn add(&mut self, queue: u16) {
        let known = self.queues.iter().position(|known| known.number == queue);
        let at = known.unwrap_or_else(|| {
            self.queues.push(Queue { number: queue, in_service: 0, held: 0 });
            self.queues.len() - 1
        });
        self.queues[at].in_service += 1;
        self.entries.push((at, false));
    }

    /// The request in entry `index` waits.
    pub(crate) fn hold(&mut self, index: usize) -> Need {
        let (at, held) = self.entries[index];
        if held {
            return Need::Nothing;
        }
        self.entries[index].1 = true;
        let queue = &mut self.queues[at];
        queue.held += 1;
        let free = queue.in_service.saturating_sub(queue.held);
        if free >= LEAST_FREE {
            return Need::Nothing;
        }
        Need::Spare { queue: queue.number, nudge: free == 0 }
    }

    /// The reply in entry `index` was submitted.
    pub(crate) fn release(&mut self, index: usize) {
        let (at, held) = self.entries[index];
        if held {
            self.entries[index].1 = false;
            self.queues[at].held -= 1;
        }
    }

    /// The kernel took entry `index`, which is not held, out of service.
    pub(crate) fn lost(&mut self, index: usize) {
        let queue = &mut self.queues[self.entries[index].0];
        queue.in_service = queue.in_service.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_spare_entry_is_asked_for_before_the_last_one_is_held() {
        let mut occupancy = Occupancy::new([3, 3, 3, 4].into_iter());
        assert_eq!(occupancy.hold(0), Need::Nothing);
        assert_eq!(occupancy.hold(1), Need::Spare { queue: 3, nudge: false });
        assert_eq!(occupancy.hold(1), Need::Nothing, "held already");
        occupancy.add(3);
        assert_eq!(occupancy.hold(2), Need::Spare { queue: 3, nudge: false });
        assert_eq!(occupancy.hold(4), Need::Spare { queue: 3, nudge: true });
        assert_eq!(occupancy.hold(3), Need::Spare { queue: 4, nudge: true });
        (0..3).for_each(|index| occupancy.release(index));
        assert_eq!(occupancy.hold(0), Need::Nothing);
    }

    proptest! {
        /// Whoever follows the advice always has an entry that is not held.
        #[test]
        fn with_the_spare_entries_a_queue_is_never_without_a_free_one(
            steps in proptest::collection::vec((any::<bool>(), 0usize..64), 0..200),
        ) {
            let mut occupancy = Occupancy::new([0, 0].into_iter());
            let mut held = vec![false; 2];
            for (begins, at) in steps {
                let at = at % held.len();
                if begins {
                    held[at] = true;
                    if let Need::Spare { queue, .. } = occupancy.hold(at) {
                        occupancy.add(queue);
                        held.push(false);
                    }
                } else {
                    held[at] = false;
                    occupancy.release(at);
                }
                prop_assert!(held.iter().any(|held| !held));
            }
        }
    }
}
