//! Where in the timer an item waits.
//!
//! Whoever has an item wait changes its state, adds an entry to the timer for the ticket that this
//! issued, and notes here where that is, all under one lock: what is noted is of the latest ticket.
//! Whoever ends the wait changes the state first and looks here then, so that the entry is known by
//! then. An entry of an older ticket is given back to be removed.

use tollgate_wakequeue::sync::Mutex;

use crate::item::{ItemState, Ticket};

/// A note for one item, of a ticket with its key in the timer.
pub(crate) struct Whereabouts<K>(Mutex<Option<(Ticket, K)>>);

impl<K: Copy> Whereabouts<K> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Has the item wait: `delay` changes the state, adds an entry to the timer, and says under which
    /// ticket and where, unless nothing came of it. It is told where an older entry is, if there is one. Gives
    /// back where that is, which has to go.
    ///
    /// The lock is held meanwhile, so `delay` runs no code of the item's owner.
    pub(crate) fn put<R, E>(
        &self,
        delay: impl FnOnce(Option<K>) -> Result<(Ticket, K, R), E>,
    ) -> Result<(Option<K>, R), E> {
        let mut noted = self.0.lock();
        let (ticket, key, result) = delay(noted.map(|(_, key)| key))?;
        Ok((noted.replace((ticket, key)).map(|(_, key)| key), result))
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

    /// The key of what is due.
    const NOW: u32 = 0;

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
            let put = self.whereabouts.put(|_| {
                let (ticket, _) = self.item.requeue(true).map_err(|_| ())?;
                self.timer.lock().push(key);
                Ok::<_, ()>((ticket, key, ()))
            });
            self.remove(put.unwrap().0);
        }

        /// As a flush that is refused: the key with which the item goes on waiting.
        fn hasten_in_vain(&self) -> Option<u32> {
            let ticket = self.item.promote()?;
            let key = self.whereabouts.leave(&self.item);
            self.remove(key);
            let put = self.whereabouts.put(|_| {
                let waits = self.item.delay_again(ticket).then_some(()).ok_or(())?;
                let key = key.unwrap_or(NOW);
                self.timer.lock().push(key);
                Ok::<_, ()>((ticket, key, waits))
            });
            self.remove(put.ok()?.0);
            key
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

    /// Two flushes are refused at once: the item goes on waiting for its time.
    #[test]
    fn an_item_that_two_hasten_in_vain_keeps_its_time() {
        model(|world| {
            world.delay(7);
            let other = {
                let world = Arc::clone(world);
                thread::spawn(move || world.hasten_in_vain())
            };
            world.hasten_in_vain();
            other.join().unwrap();
            assert_eq!(*world.timer.lock(), [7]);
        });
    }
}
