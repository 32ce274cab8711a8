//! The entries of one ring: those that it begins with, and spare ones made while it serves.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::uring::entry::Entry;

/// Entries by number. A number stays valid, and an entry in its place, as long as the ring lives.
#[derive(Debug)]
pub(crate) struct Entries {
    slots: Box<[OnceLock<Box<Entry>>]>,
    /// Slots that are filled, from the first one on.
    made: AtomicUsize,
}

impl Entries {
    /// `first`, with room for `spares` more.
    pub(crate) fn new(first: Vec<Entry>, spares: usize) -> Self {
        let made = first.len();
        let filled = first.into_iter().map(|entry| OnceLock::from(Box::new(entry)));
        let slots = filled.chain((0..spares).map(|_| OnceLock::new())).collect();
        Self { slots, made: AtomicUsize::new(made) }
    }

    /// Most entries there can be.
    pub(crate) fn most(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.made.load(Ordering::Acquire)
    }

    /// Entry `index`.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn get(&self, index: usize) -> &Entry {
        let Some(entry) = self.slots[index].get() else { panic!("there is no entry {index}") };
        entry
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.slots[..self.len()].iter().filter_map(|slot| slot.get().map(|entry| &**entry))
    }

    /// Adds an entry and returns its number; `None` if there is no room. For the ring's owner.
    pub(crate) fn add(&self, entry: Entry) -> Option<usize> {
        let index = self.len();
        self.slots.get(index)?.set(Box::new(entry)).ok()?;
        self.made.store(index + 1, Ordering::Release);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_added_until_there_is_no_room() {
        let entry = |queue| Entry::new(queue, 4096).unwrap();
        let entries = Entries::new(vec![entry(0), entry(1)], 1);
        assert_eq!((entries.len(), entries.most()), (2, 3));
        assert_eq!(entries.add(entry(7)), Some(2));
        assert_eq!(entries.add(entry(8)), None);
        assert_eq!(entries.iter().map(|entry| entry.queue).collect::<Vec<_>>(), [0, 1, 7]);
        assert_eq!(entries.get(2).queue, 7);
    }
}
