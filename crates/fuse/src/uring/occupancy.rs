//! Which entries of a ring are held by requests that wait, and when a queue needs a spare one. Pure.
//!
//! An entry is bound to its request until the reply is submitted. A request that waits, for a lock
//! above all, holds its entry for as long as that takes; when every entry of a queue is held so,
//! further requests of that CPU would wait in the kernel, among them the one that unlocks. So a
//! queue gets a spare entry as soon as fewer than [`LEAST_FREE`] of its entries are not held.
//!
//! The kernel gives a new entry only to requests that come after it. Requests that came while there
//! was no entry are taken up when a reply of the same queue is submitted, and at no other time: they
//! stay where they are while new entries lie idle beside them. An entry whose reply was submitted
//! was given the oldest of them, or there was none. So none is left behind as long as one entry that
//! was ever used is not held: it is idle, and then nothing waits, or its reply follows. Once all that
//! were ever used are held, the queue has to be *nudged*: a request has to be made in it, which a new
//! entry gets, and whose reply takes up the oldest one that waits.

/// Entries of a queue that are free, or with requests that do not wait, at least.
const LEAST_FREE: usize = 2;

/// What has to follow for a queue when a request begins to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// A spare entry.
    pub(crate) spare: bool,
    /// A nudge, after that.
    pub(crate) nudge: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Registered, and had no request since.
    New,
    /// With a request that does not wait, or idle after one.
    Used,
    Held,
    Lost,
}

/// One ring's entries by queue.
#[derive(Debug, Default)]
pub(crate) struct Occupancy {
    queues: Vec<Queue>,
    /// For each entry, which of `queues` it belongs to.
    entries: Vec<(usize, State)>,
}

#[derive(Debug)]
struct Queue {
    number: u16,
    /// Entries that are [`State::New`].
    new: usize,
    /// Entries that are [`State::Used`].
    used: usize,
}

impl Queue {
    fn count(&mut self, state: State) -> Option<&mut usize> {
        match state {
            State::New => Some(&mut self.new),
            State::Used => Some(&mut self.used),
            State::Held | State::Lost => None,
        }
    }
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
            self.queues.push(Queue { number: queue, new: 0, used: 0 });
            self.queues.len() - 1
        });
        self.queues[at].new += 1;
        self.entries.push((at, State::New));
    }

    fn set(&mut self, index: usize, state: State) {
        let (at, before) = self.entries[index];
        self.entries[index].1 = state;
        let queue = &mut self.queues[at];
        if let Some(count) = queue.count(before) {
            *count -= 1;
        }
        if let Some(count) = queue.count(state) {
            *count += 1;
        }
    }

    /// Entry `index` holds a request.
    pub(crate) fn received(&mut self, index: usize) {
        if self.entries[index].1 == State::New {
            self.set(index, State::Used);
        }
    }

    /// The request in entry `index` waits.
    pub(crate) fn hold(&mut self, index: usize) -> Need {
        let (at, state) = self.entries[index];
        if state == State::Held {
            return Need::default();
        }
        self.set(index, State::Held);
        let Queue { new, used, .. } = self.queues[at];
        Need { spare: new + used < LEAST_FREE, nudge: used == 0 }
    }

    pub(crate) fn is_held(&self, index: usize) -> bool {
        self.entries[index].1 == State::Held
    }

    /// The reply in entry `index` was submitted.
    pub(crate) fn release(&mut self, index: usize) {
        if self.entries[index].1 == State::Held {
            self.set(index, State::Used);
        }
    }

    /// Entry `index`, whose reply was refused, is registered anew. A nudge has to follow: the refused
    /// reply took up nothing.
    pub(crate) fn renewed(&mut self, index: usize) {
        self.set(index, State::New);
    }

    /// The kernel took entry `index` out of service.
    pub(crate) fn lost(&mut self, index: usize) {
        self.set(index, State::Lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const NOTHING: Need = Need { spare: false, nudge: false };
    const SPARE: Need = Need { spare: true, nudge: false };
    const NUDGE: Need = Need { spare: false, nudge: true };
    const BOTH: Need = Need { spare: true, nudge: true };

    #[test]
    fn a_spare_entry_is_asked_for_before_the_last_one_is_held() {
        let mut occupancy = Occupancy::new([3, 3, 3, 4].into_iter());
        (0..4).for_each(|index| occupancy.received(index));
        assert_eq!(occupancy.hold(0), NOTHING);
        assert_eq!(occupancy.hold(1), SPARE);
        assert_eq!(occupancy.hold(1), NOTHING, "held already");
        occupancy.add(3);
        assert_eq!(occupancy.hold(2), BOTH, "the spare entry is not given what waits already");
        occupancy.add(3);
        occupancy.received(4);
        assert_eq!(occupancy.hold(4), BOTH);
        assert_eq!(occupancy.hold(3), BOTH, "another queue");
        (0..3).for_each(|index| occupancy.release(index));
        assert_eq!(occupancy.hold(0), NOTHING);
    }

    #[test]
    fn a_request_that_waits_while_no_other_entry_was_ever_used_asks_for_a_nudge() {
        let mut occupancy = Occupancy::new([0, 0, 0, 0].into_iter());
        occupancy.received(2);
        assert_eq!(occupancy.hold(2), NUDGE);
        occupancy.received(1);
        occupancy.received(0);
        assert_eq!(occupancy.hold(0), NOTHING);
        occupancy.renewed(1);
        occupancy.lost(3);
        occupancy.release(0);
        assert_eq!(occupancy.hold(0), BOTH);
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Asked {
        Quick,
        Waits,
        Nudge,
    }

    /// One queue of the kernel, which knows as little of entries and requests as it really does.
    #[derive(Default)]
    struct Kernel {
        idle: Vec<usize>,
        waiting: VecDeque<Asked>,
        sent: VecDeque<(usize, Asked)>,
    }

    impl Kernel {
        fn request(&mut self, asked: Asked) {
            match self.idle.pop() {
                Some(entry) => self.sent.push_back((entry, asked)),
                None => self.waiting.push_back(asked),
            }
        }

        fn register(&mut self, entry: usize) {
            self.idle.push(entry);
        }

        fn commit(&mut self, entry: usize) {
            match self.waiting.pop_front() {
                Some(asked) => self.sent.push_back((entry, asked)),
                None => self.idle.push(entry),
            }
        }
    }

    /// A ring's owner that follows the advice, with requests that wait until they are released.
    struct Owner {
        kernel: Kernel,
        occupancy: Occupancy,
        held: Vec<usize>,
        entries: usize,
        nudges: usize,
    }

    impl Owner {
        fn new(entries: usize) -> Self {
            let mut kernel = Kernel::default();
            (0..entries).for_each(|entry| kernel.register(entry));
            let occupancy = Occupancy::new(std::iter::repeat_n(7, entries));
            Self { kernel, occupancy, held: Vec::new(), entries, nudges: 0 }
        }

        /// Serves one request, and returns whether there was one.
        fn serve(&mut self) -> bool {
            let Some((entry, asked)) = self.kernel.sent.pop_front() else { return false };
            self.occupancy.received(entry);
            if asked != Asked::Waits {
                self.kernel.commit(entry);
                return true;
            }
            self.held.push(entry);
            let need = self.occupancy.hold(entry);
            if need.spare {
                self.occupancy.add(7);
                self.kernel.register(self.entries);
                self.entries += 1;
            }
            if need.nudge {
                self.kernel.request(Asked::Nudge);
                self.nudges += 1;
            }
            true
        }

        fn release(&mut self, at: usize) {
            if !self.held.is_empty() {
                let entry = self.held.swap_remove(at % self.held.len());
                self.occupancy.release(entry);
                self.kernel.commit(entry);
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Request(Asked),
        Serve,
        Release(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Request(Asked::Waits)),
            2 => Just(Step::Request(Asked::Quick)),
            3 => Just(Step::Serve),
            1 => (0usize..64).prop_map(Step::Release),
        ]
    }

    proptest! {
        /// Whoever follows the advice leaves no request behind in the kernel, in whatever order
        /// requests come, are served and end.
        #[test]
        fn no_request_waits_in_the_kernel_behind_those_that_are_held(
            depth in 1usize..5,
            steps in proptest::collection::vec(step(), 0..120),
        ) {
            let mut owner = Owner::new(depth);
            for step in steps {
                match step {
                    Step::Request(asked) => owner.kernel.request(asked),
                    Step::Serve => drop(owner.serve()),
                    Step::Release(at) => owner.release(at),
                }
            }
            while owner.serve() {}
            prop_assert!(owner.kernel.waiting.is_empty(), "{:?}", owner.kernel.waiting);
            prop_assert!(!owner.kernel.idle.is_empty(), "the next request would wait");
        }

        /// Entries and nudges stay in proportion to the requests that wait.
        #[test]
        fn who_holds_n_entries_needs_no_more_than_n_spares_and_nudges(
            depth in 1usize..5,
            waits in 0usize..80,
        ) {
            let mut owner = Owner::new(depth);
            for _ in 0..waits {
                owner.kernel.request(Asked::Waits);
                while owner.serve() {}
            }
            prop_assert!(owner.nudges <= waits);
            prop_assert!(owner.entries <= depth + waits);
        }
    }
}
