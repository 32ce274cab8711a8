//! A shard: the ring that every push and pull uses, and a list for what must not be refused.

use std::collections::VecDeque;

use crossbeam_utils::CachePadded;

use crate::config::{Closed, PushError};
use crate::item_cell::ItemCell;
use crate::placement::PodIndex;
use crate::ring::Ring;
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};

/// Room for so many items stays when the overflow list has become empty. Growing to more again costs
/// less than taking them out did.
const KEPT_ROOM: usize = 1024;

/// A FIFO. Items of the overflow list are taken before those of the ring.
pub(crate) struct Shard<T> {
    /// Beside the ring's constant parts, in a line that a push reads anyway.
    pod: PodIndex,
    ring: Ring<T>,
    overflow: Overflow<T>,
}

/// Items that found the ring full and could not be refused. Nearly always empty: then it costs a
/// pull one load of a line that nobody writes.
struct Overflow<T> {
    /// Length of `list`, changed under its lock.
    len: CachePadded<AtomicUsize>,
    list: Mutex<List<T>>,
}

struct List<T> {
    items: VecDeque<Aside<T>>,
    /// How many of them were moved here from the ring.
    moved: usize,
}

struct Aside<T> {
    item: T,
    moved: bool,
}

impl<T> List<T> {
    const fn new() -> Self {
        Self { items: VecDeque::new(), moved: 0 }
    }

    fn push(&mut self, item: T, moved: bool) {
        self.items.push_back(Aside { item, moved });
        self.moved += usize::from(moved);
    }

    fn remove(&mut self, position: usize) -> Option<T> {
        // The first one at no cost.
        let Aside { item, moved } = self.items.remove(position)?;
        self.moved -= usize::from(moved);
        Some(item)
    }
}

impl<T> Shard<T> {
    pub(crate) fn new(capacity: usize, pod: PodIndex) -> Self {
        let overflow =
            Overflow { len: CachePadded::new(AtomicUsize::new(0)), list: Mutex::new(List::new()) };
        Self { pod, ring: Ring::new(capacity), overflow }
    }

    #[inline]
    pub(crate) fn pod(&self) -> PodIndex {
        self.pod
    }

    /// As [`Ring::push_with`].
    #[inline]
    pub(crate) fn push_with(&self, make: impl FnOnce() -> T) -> Result<(), PushError<()>> {
        self.ring.push_with(make)
    }

    /// Appends an item though the ring may be full.
    pub(crate) fn push_unbounded(&self, item: T) -> Result<(), Closed<T>> {
        let mut cell = ItemCell::of(item);
        if self.overflow.is_empty() {
            // Called at most once, by the contract of `push_with`, so the item is still there.
            let _ = self.ring.push_with(|| cell.take().expect("an item is pushed once"));
        }
        let Some(item) = cell.take() else { return Ok(()) };
        let mut list = self.overflow.list.lock();
        // Under the lock, which the last look of a leaving worker takes too.
        if self.ring.is_closed() {
            return Err(Closed(item));
        }
        list.push(item, false);
        self.overflow.note(&list);
        Ok(())
    }

    /// Takes the oldest item. False when there is none.
    #[inline]
    pub(crate) fn pop_into(&self, cell: &mut ItemCell<T>) -> bool {
        if !self.overflow.is_empty() && self.pop_overflow(cell) {
            return true;
        }
        self.ring.pop_into(cell)
    }

    #[cold]
    fn pop_overflow(&self, cell: &mut ItemCell<T>) -> bool {
        let mut list = self.overflow.list.lock();
        let Some(item) = list.remove(0) else { return false };
        self.overflow.note(&list);
        // Freed after the lock is.
        let is_large = list.items.is_empty() && list.items.capacity() > KEPT_ROOM;
        let unused = is_large.then(|| std::mem::take(&mut list.items));
        drop(list);
        drop(unused);
        *cell = ItemCell::of(item);
        true
    }

    /// Takes the first item that `wanted` accepts, wherever it lies. The others stay in their
    /// order. To get at the middle of the ring, items are moved to the overflow list, where up to the
    /// ring's capacity of them may lie; the caller must then wake somebody for them.
    pub(crate) fn take_if(&self, wanted: &mut impl FnMut(&T) -> bool) -> Option<T> {
        let mut list = self.overflow.list.lock();
        if let Some(position) = list.items.iter().position(|aside| wanted(&aside.item)) {
            let found = list.remove(position);
            self.overflow.note(&list);
            return found;
        }
        let mut cell = ItemCell::empty();
        // Not more, or pushes beside this would find room again and again.
        while list.moved < self.ring.capacity() && self.ring.pop_into(&mut cell) {
            // Safe in the list before it is looked at, which is code of the caller's.
            list.push(cell.take()?, true);
            self.overflow.note(&list);
            let last = list.items.len() - 1;
            if wanted(&list.items[last].item) {
                let found = list.remove(last);
                self.overflow.note(&list);
                return found;
            }
        }
        None
    }

    /// Whether a pop would find nothing. Writes nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.overflow.is_empty() && self.ring.is_empty()
    }

    /// How many items are queued or being queued: exact when nobody else is at work.
    pub(crate) fn len(&self) -> usize {
        self.overflow.len.load(Ordering::SeqCst) + self.ring.len()
    }

    /// Refuses pushes from now on.
    pub(crate) fn close(&self) {
        self.ring.close();
        // Whoever is adding to the list has done so before this returns, or will be refused.
        drop(self.overflow.list.lock());
    }

    pub(crate) fn ring(&self) -> &Ring<T> {
        &self.ring
    }
}

impl<T> Overflow<T> {
    /// In the order of `SeqCst` accesses, as the ring's.
    #[inline]
    fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    fn note(&self, list: &MutexGuard<'_, List<T>>) {
        self.len.store(list.items.len(), Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn all(shard: &Shard<u32>) -> Vec<u32> {
        let mut cell = ItemCell::empty();
        std::iter::from_fn(|| shard.pop_into(&mut cell).then(|| cell.take().unwrap())).collect()
    }

    #[test]
    fn what_cannot_be_refused_finds_room() {
        let shard = Shard::new(2, PodIndex(0));
        for item in 0..6 {
            shard.push_unbounded(item).unwrap();
        }
        assert_eq!(shard.len(), 6);
        assert_eq!(shard.push_with(|| 9), Err(PushError::Full(())));
        let mut taken = all(&shard);
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5]);
        assert!(shard.is_empty());
    }

    #[test]
    fn one_is_taken_from_the_middle_and_the_others_keep_their_order() {
        let shard = Shard::new(8, PodIndex(0));
        (0..8).for_each(|item| shard.push_with(|| item).unwrap());
        assert_eq!(shard.take_if(&mut |&item| item == 5), Some(5));
        assert_eq!(shard.take_if(&mut |&item| item == 2), Some(2));
        assert_eq!(shard.take_if(&mut |&item| item == 2), None);
        assert_eq!(all(&shard), [0, 1, 3, 4, 6, 7]);
    }

    #[test]
    fn one_is_taken_from_behind_a_full_ring_and_what_lies_beside_it() {
        let shard = Shard::new(2, PodIndex(0));
        (0..2).for_each(|item| shard.push_with(|| item).unwrap());
        (7..12).for_each(|item| shard.push_unbounded(item).unwrap());
        assert_eq!(shard.take_if(&mut |&item| item == 1), Some(1));
        assert_eq!(shard.take_if(&mut |&item| item == 5), None);
        assert_eq!(all(&shard), [7, 8, 9, 10, 11, 0]);
        // As many as the ring holds are moved, whatever is pushed meanwhile.
        for item in 0..20 {
            let _ = shard.push_with(|| item);
            assert_eq!(shard.take_if(&mut |&item| item == 99), None);
        }
        assert_eq!(all(&shard), [0, 1, 2, 3]);
        (0..2).for_each(|item| shard.push_with(|| item).unwrap());
        assert_eq!(shard.take_if(&mut |&item| item == 1), Some(1), "room for moves is back");
    }

    #[test]
    fn a_closed_shard_takes_nothing_and_keeps_what_it_has() {
        let shard = Shard::new(2, PodIndex(0));
        shard.push_with(|| 1).unwrap();
        shard.close();
        assert_eq!(shard.push_with(|| 2), Err(PushError::Closed(())));
        assert_eq!(shard.push_unbounded(3).unwrap_err().0, 3);
        assert_eq!(shard.len(), 1);
        assert_eq!(all(&shard), [1]);
    }
}
