//! Items that wait for their time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Instant;

use tollgate_topology::CpuId;

use crate::error::SubmitError;
use crate::item::Ticket;
use crate::observation::Observation;
use crate::queue_ref::QueueRef;
use crate::run;

/// The most items that wait for their time; more are refused.
pub const MAX_DELAYED: usize = 65_536;

/// What the timer needs of an item.
pub(crate) trait Delayed: Send + Sync {
    /// Whether the item still waits under this ticket.
    fn awaits_timer(&self, ticket: Ticket) -> bool;

    /// The time has come. Called on the housekeeper's thread: must not wait or run anybody's code,
    /// not even that of a destructor. What cannot be delivered comes back, to be dropped elsewhere.
    fn due(self: Arc<Self>, ticket: Ticket, near: CpuId, seen: Seen) -> Option<Leftover>;

    /// The runtime goes away before the time has come. No panic of a destructor comes out.
    fn give_up(self: Arc<Self>, ticket: Ticket);
}

/// What is noted of the run to come.
pub(crate) type Seen = Option<Box<Observation>>;

/// What the housekeeper must not drop, of an item of this queue.
pub(crate) struct Leftover {
    pub(crate) queue: QueueRef,
    pub(crate) owned: Box<dyn Send>,
}

/// Where in the timer an item waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey(Instant, u64);

pub(crate) struct Entry {
    pub(crate) item: Arc<dyn Delayed>,
    pub(crate) ticket: Ticket,
    /// Where the item was delayed: it runs there.
    pub(crate) near: CpuId,
    pub(crate) seen: Seen,
}

/// What waits, by time.
#[derive(Default)]
pub(crate) struct Timer(StdMutex<Waiting>);

#[derive(Default)]
struct Waiting {
    entries: BTreeMap<TimerKey, Entry>,
    next: u64,
    leftovers: Vec<Leftover>,
}

/// What a look at the clock found.
pub(crate) enum Due {
    Now(Entry),
    /// Nothing before then.
    At(Instant),
    Never,
}

impl Waiting {
    /// A key that no other entry has.
    fn key(&mut self, when: Instant) -> TimerKey {
        self.next += 1;
        TimerKey(when, self.next)
    }

    /// True when the entry is the first that will be due.
    fn insert(&mut self, key: TimerKey, entry: Entry) -> bool {
        let first = self.entries.first_key_value().is_none_or(|(first, _)| key < *first);
        self.entries.insert(key, entry);
        first
    }
}

impl Timer {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry, in the place of an older one of the same item if there is one, which is given back. True
    /// with its key when it is the first that will be due.
    pub(crate) fn add(
        &self,
        when: Instant,
        entry: Entry,
        instead_of: Option<TimerKey>,
    ) -> (Result<(TimerKey, bool), SubmitError>, Option<Entry>) {
        let mut waiting = self.waiting();
        let older = instead_of.and_then(|key| waiting.entries.remove(&key));
        if waiting.entries.len() >= MAX_DELAYED {
            return (Err(SubmitError::TooManyDelayed(waiting.entries.len())), older);
        }
        let key = waiting.key(when);
        (Ok((key, waiting.insert(key, entry))), older)
    }

    /// Puts an entry back that was there a moment ago. True when it is the first that will be due.
    /// It needs no room: it had a place until now.
    pub(crate) fn put_back(&self, key: TimerKey, entry: Entry) -> bool {
        self.waiting().insert(key, entry)
    }

    /// A key of its own for an entry that is due then.
    pub(crate) fn key_for(&self, when: Instant) -> TimerKey {
        self.waiting().key(when)
    }

    /// Lets go of an entry. The caller drops it, which may run code of the item's owner.
    pub(crate) fn remove(&self, key: TimerKey) -> Option<Entry> {
        self.waiting().entries.remove(&key)
    }

    /// Takes the first entry whose time has come.
    pub(crate) fn take_due(&self) -> Due {
        let mut waiting = self.waiting();
        match waiting.entries.first_entry() {
            None => Due::Never,
            Some(first) if first.key().0 > Instant::now() => Due::At(first.key().0),
            Some(first) => Due::Now(first.remove()),
        }
    }

    /// Keeps what the housekeeper must not drop, until [`clear`](Self::clear).
    pub(crate) fn keep(&self, leftover: Leftover) {
        self.waiting().leftovers.push(leftover);
    }

    /// Gives up all entries: the runtime is going away. Runs destructors of their owners, whose
    /// panics count as those of the items.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.waiting());
        for Leftover { queue, owned } in all.leftovers {
            run::drop_inside(queue.core(), owned);
        }
        for entry in all.entries.into_values() {
            entry.item.give_up(entry.ticket);
        }
    }

    /// Items now waiting.
    pub(crate) fn len(&self) -> usize {
        let waiting = self.waiting();
        waiting.entries.values().filter(|entry| entry.item.awaits_timer(entry.ticket)).count()
    }
}
