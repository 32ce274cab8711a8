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
    /// So many may be moved though the ring has fewer places, for an item that must be found.
    /// 0 while the list is empty.
    reach: usize,
}

struct Aside<T> {
    item: T,
    moved: bool,
}

impl<T> List<T> {
    const fn new() -> Self {
        Self { items: VecDeque::new(), moved: 0, reach: 0 }
    }

    fn push(&mut self, item: T, moved: bool) {
        self.items.push_back(Aside { item, moved });
        self.moved += usize::from(moved);
    }

    fn remove(&mut self, position: usize) -> Option<T> {
        // The first one at no cost.
        let Aside { item, moved } = self.items.remove(position)?;
        self.moved -= usize::from(moved);
        if self.items.is_empty() {
            self.reach = 0;
        }
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

    /// Appends an item that [`take_if`](Self::take_if) finds, whatever else is pushed: while items
    /// lie in the overflow list it joins them. Where `most` of them do, it is pushed as any other.
    pub(crate) fn push_findable(&self, item: T, most: usize) -> Result<(), PushError<T>> {
        let mut cell = ItemCell::of(item);
        let pushed = if self.overflow.is_empty() {
            self.push_within_reach(&mut cell)
        } else {
            self.push_aside(&mut cell, most)
        };
        let Err(error) = pushed else { return Ok(()) };
        // An item that was not pushed is still there.
        cell.take().map_or(Ok(()), |item| Err(error.map(|()| item)))
    }

    #[cold]
    fn push_aside(&self, cell: &mut ItemCell<T>, most: usize) -> Result<(), PushError<()>> {
        let mut list = self.overflow.list.lock();
        if list.items.is_empty() {
            drop(list);
            return self.push_within_reach(cell);
        }
        if list.items.len() >= most {
            return self.push_from(cell);
        }
        if self.ring.is_closed() {
            return Err(PushError::Closed(()));
        }
        cell.take().into_iter().for_each(|item| list.push(item, false));
        self.overflow.note(&list);
        Ok(())
    }

    /// For an item that must be found, after a look that saw nothing in the overflow list.
    fn push_within_reach(&self, cell: &mut ItemCell<T>) -> Result<(), PushError<()>> {
        self.push_from(cell)?;
        // While nothing lies there, everything in the ring is within its capacity.
        if !self.overflow.is_empty() {
            self.reach_to_the_end();
        }
        Ok(())
    }

    fn push_from(&self, cell: &mut ItemCell<T>) -> Result<(), PushError<()>> {
        // Called at most once, by the contract of `push_with`, so the item is still there.
        self.ring.push_with(|| cell.take().expect("an item is pushed once"))
    }

    /// Items were moved while one was pushed that must be found: it may lie behind as many as are
    /// moved at most. Each pusher of that moment adds a ring's capacity to those at most.
    #[cold]
    fn reach_to_the_end(&self) {
        let mut list = self.overflow.list.lock();
        if !list.items.is_empty() {
            list.reach = list.reach.max(list.moved + self.ring.len());
        }
    }

    /// Appends an item though the ring may be full. [`take_if`](Self::take_if) finds it.
    pub(crate) fn push_unbounded(&self, item: T) -> Result<(), Closed<T>> {
        let mut cell = ItemCell::of(item);
        if self.overflow.is_empty() {
            // Refused, it goes to the list.
            let _ = self.push_within_reach(&mut cell);
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

    /// Takes the first item that `wanted` accepts. The others stay in their order. To get at the
    /// middle of the ring, items are moved to the overflow list, where up to the ring's capacity of
    /// them may lie, and more only before one of [`push_findable`](Self::push_findable); the caller
    /// must then wake somebody for them.
    pub(crate) fn take_if(&self, wanted: &mut impl FnMut(&T) -> bool) -> Option<T> {
        let mut list = self.overflow.list.lock();
        if let Some(position) = list.items.iter().position(|aside| wanted(&aside.item)) {
            let found = list.remove(position);
            self.overflow.note(&list);
            return found;
        }
        let mut cell = ItemCell::empty();
        // Not more, or pushes beside this would find room again and again.
        while list.moved < self.ring.capacity().max(list.reach) {
            // Before the pop: whoever pushes to the place that becomes free sees that some are moved.
            self.overflow.note_one_more(&list);
            if !self.ring.pop_into(&mut cell) {
                break;
            }
            // Safe in the list before it is looked at, which is code of the caller's.
            cell.take().into_iter().for_each(|item| list.push(item, true));
            if list.items.back().is_some_and(|aside| wanted(&aside.item)) {
                let last = list.items.len() - 1;
                let found = list.remove(last);
                self.overflow.note(&list);
                return found;
            }
        }
        self.overflow.note(&list);
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

    fn note_one_more(&self, list: &MutexGuard<'_, List<T>>) {
        self.len.store(list.items.len() + 1, Ordering::SeqCst);
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
    fn what_must_be_found_is_found_behind_a_ring_that_was_moved_aside() {
        let shard = Shard::new(2, PodIndex(0));
        for round in 0..5 {
            for item in 0..2 {
                let _ = shard.push_with(|| item);
            }
            assert_eq!(shard.take_if(&mut |&item| item == 9), None);
            shard.push_findable(9, 100).unwrap();
            assert_eq!(shard.take_if(&mut |&item| item == 9), Some(9), "round {round}");
        }
        // A full list sends it where all others go.
        assert_eq!(shard.push_findable(8, 2), Err(PushError::Full(8)));
        assert_eq!(all(&shard), [0, 1, 0, 1]);
        shard.push_findable(8, 2).unwrap();
        shard.close();
        assert_eq!(shard.push_findable(9, 2), Err(PushError::Closed(9)));
        assert_eq!(all(&shard), [8]);
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

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(body);
    }

    /// One looks for an item while that is pushed, and moves a ring's worth of others: it is found
    /// now, or by the next look.
    #[test]
    fn what_must_be_found_is_found_whatever_was_moved_meanwhile() {
        for unbounded in [false, true] {
            model(move || {
                let shard = Arc::new(Shard::new(2, PodIndex(0)));
                (0..2).for_each(|item| shard.push_with(|| item).unwrap());
                let pusher = {
                    let shard = Arc::clone(&shard);
                    thread::spawn(move || {
                        if unbounded {
                            return shard.push_unbounded(9).is_ok();
                        }
                        shard.push_findable(9, 100).is_ok()
                    })
                };
                let mut found = shard.take_if(&mut |&item| item == 9);
                let pushed = pusher.join().unwrap();
                found = found.or_else(|| shard.take_if(&mut |&item| item == 9));
                assert_eq!(found.is_some(), pushed, "hidden behind what was moved");
            });
        }
    }
}
