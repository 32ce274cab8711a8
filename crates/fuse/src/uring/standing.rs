//! Which entries of a ring are in service. Pure.
//!
//! A kernel that accepted an entry may refuse it later. An entry whose reply was refused is
//! registered anew, once; if that is refused as well, the entry is lost. A queue whose entries are
//! all lost would keep its callers waiting for ever, so that the session has to end.

/// One ring's entries.
#[derive(Debug)]
pub(crate) struct Standing {
    entries: Vec<(u16, State)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InService,
    /// Registered anew after a refusal.
    OnTrial,
    Lost,
}

/// What follows from a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Register the entry anew.
    Again,
    /// The entry is lost; its queue has `left` others.
    Lost { queue: u16, left: usize },
    /// The queue has no entry left.
    QueueLost { queue: u16 },
}

impl Standing {
    /// Entries in service, of these queues.
    pub(crate) fn new(queues: impl Iterator<Item = u16>) -> Self {
        Self { entries: queues.map(|queue| (queue, State::InService)).collect() }
    }

    /// A further entry of `queue`. The kernel has not accepted it yet, so that one refusal is enough.
    pub(crate) fn add_spare(&mut self, queue: u16) {
        self.entries.push((queue, State::OnTrial));
    }

    /// The entry holds a request.
    pub(crate) fn received(&mut self, index: usize) {
        self.entries[index].1 = State::InService;
    }

    /// The entry was refused when the ring was made.
    pub(crate) fn refused_at_first(&mut self, index: usize) {
        self.entries[index].1 = State::Lost;
    }

    /// The entry, or its reply, was refused.
    pub(crate) fn refused(&mut self, index: usize) -> Refused {
        let (queue, state) = self.entries[index];
        if state == State::InService {
            self.entries[index].1 = State::OnTrial;
            return Refused::Again;
        }
        self.entries[index].1 = State::Lost;
        let others = self.entries.iter().filter(|entry| entry.0 == queue);
        match others.filter(|entry| entry.1 != State::Lost).count() {
            0 => Refused::QueueLost { queue },
            left => Refused::Lost { queue, left },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_tried_once_more_and_a_queue_without_entries_is_lost() {
        let mut standing = Standing::new([0, 0, 1].into_iter());
        assert_eq!(standing.refused(0), Refused::Again);
        assert_eq!(standing.refused(0), Refused::Lost { queue: 0, left: 1 });
        assert_eq!(standing.refused(1), Refused::Again);
        standing.received(1);
        assert_eq!(standing.refused(1), Refused::Again, "it served in between");
        assert_eq!(standing.refused(1), Refused::QueueLost { queue: 0 });
        assert_eq!(standing.refused(2), Refused::Again);
    }

    #[test]
    fn entries_that_were_refused_at_first_do_not_count() {
        let mut standing = Standing::new([0, 0].into_iter());
        standing.refused_at_first(1);
        assert_eq!(standing.refused(0), Refused::Again);
        assert_eq!(standing.refused(0), Refused::QueueLost { queue: 0 });
    }
}
