//! Where in the timer an item waits.
//!
//! Whoever delays an item adds an entry to the timer for the ticket that the state issued, and then
//! notes here where that is. Several threads may do so at once. The item waits under the ticket that
//! was issued last, whoever comes here last: only that is noted, and entries of other tickets are
//! given back to be removed. Whoever cancels changes the state first and looks here then. So the
//! note is here already, or whoever comes to write it finds that the item does not wait any more.

use tollgate_wakequeue::sync::Mutex;

use crate::item::{ItemState, Ticket};

/// A note for one item, of a ticket with its key in the timer.
pub(crate) struct Whereabouts<K>(Mutex<Option<(Ticket, K)>>);

impl<K> Whereabouts<K> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The entry of the ticket is in the timer, at `key`. Gives back where an entry is that has to
    /// go: that of an older ticket, or this one if the item does not wait under it any more.
    #[must_use]
    pub(crate) fn note(&self, item: &ItemState, ticket: Ticket, key: K) -> Option<K> {
        let mut noted = self.0.lock();
        if !item.awaits_timer(ticket) {
            return Some(key);
        }
        noted.replace((ticket, key)).map(|(_, key)| key)
    }

    /// Where an entry is that has to go, because the item does not wait under its ticket any more.
    #[must_use]
    pub(crate) fn leave(&self, item: &ItemState) -> Option<K> {
        let mut noted = self.0.lock();
        noted.take_if(|(ticket, _)| !item.awaits_timer(*ticket)).map(|(_, key)| key)
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use tollgate_wakequeue::sync::Arc;

    fn model(body: impl Fn(&Arc<World>) + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(move || {
            let (item, whereabouts) = (ItemState::new(), Whereabouts::new());
            body(&Arc::new(World { item, whereabouts, timer: Mutex::new(Vec::new()) }));
        });
    }

    /// An item, and a timer with the keys of its entries.
    struct World {
        item: ItemState,
        whereabouts: Whereabouts<u32>,
        timer: Mutex<Vec<u32>>,
    }

    impl World {
        fn remove(&self, key: Option<u32>) {
            self.timer.lock().retain(|entry| Some(*entry) != key);
        }

        fn delay(&self, key: u32) {
            let (ticket, _) = self.item.requeue(true).unwrap();
            self.remove(self.whereabouts.leave(&self.item));
            self.timer.lock().push(key);
            self.remove(self.whereabouts.note(&self.item, ticket, key));
        }

        fn cancel(&self) {
            self.item.cancel();
            self.remove(self.whereabouts.leave(&self.item));
        }
    }

    /// Two delay an item at once: one entry is left, which goes when the item is cancelled.
    #[test]
    fn whoever_is_last_the_entry_is_known() {
        model(|world| {
            let other = {
                let world = Arc::clone(world);
                thread::spawn(move || world.delay(1))
            };
            world.delay(2);
            other.join().unwrap();
            assert_eq!(world.timer.lock().len(), 1);
            world.cancel();
            assert!(world.timer.lock().is_empty(), "nobody knows of an entry");
        });
    }

    /// One delays an item that another one cancels: an entry is left if the item waits.
    #[test]
    fn what_is_cancelled_leaves_the_timer() {
        model(|world| {
            world.delay(1);
            let other = {
                let world = Arc::clone(world);
                thread::spawn(move || world.delay(2))
            };
            world.cancel();
            other.join().unwrap();
            assert_eq!(world.timer.lock().len(), usize::from(world.item.is_pending()));
        });
    }
}
