//! Room for one item on a worker's stack.

#![expect(unsafe_code, reason = "an item is run where it lies")]

use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Room for one item. A worker that takes its items into a cell of its own moves each of them once,
/// out of the shard; an `Option` on its way through several functions is moved at every return, and
/// in pieces that cost a dozen cycles each when they do not match those it was written in.
pub struct ItemCell<T> {
    item: MaybeUninit<T>,
    full: bool,
}

impl<T> ItemCell<T> {
    /// An empty cell.
    #[must_use]
    pub const fn empty() -> Self {
        Self { item: MaybeUninit::uninit(), full: false }
    }

    /// A cell with this item in it.
    #[must_use]
    pub const fn of(item: T) -> Self {
        Self { item: MaybeUninit::new(item), full: true }
    }

    /// The item, if there is one.
    #[must_use]
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: `full` says that there is an item.
        self.full.then(|| unsafe { self.item.assume_init_ref() })
    }

    /// Moves the item out.
    pub fn take(&mut self) -> Option<T> {
        // SAFETY: `full` said that there is an item, and does so no longer.
        std::mem::take(&mut self.full).then(|| unsafe { self.item.assume_init_read() })
    }

    /// Gives the item up without moving it: the cell is empty, and the item is the caller's, to be
    /// used or dropped through the pointer, once, before anything else is done with the cell.
    #[inline]
    pub fn release(&mut self) -> Option<NonNull<T>> {
        let item = NonNull::from(&mut self.item).cast();
        std::mem::take(&mut self.full).then_some(item)
    }

    /// Copies an item from elsewhere; what was in the cell is dropped.
    ///
    /// # Safety
    /// `item` is valid for reads, and is not used again: the cell owns it from here on.
    #[inline]
    pub unsafe fn fill(&mut self, item: *const T) {
        if self.full {
            drop(self.take());
        }
        // SAFETY: by contract; a cell is no part of a shard, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(item, self.item.as_mut_ptr(), 1) };
        self.full = true;
    }
}

impl<T> Drop for ItemCell<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> std::fmt::Debug for ItemCell<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ItemCell").field("full", &self.full).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn an_item_is_dropped_once_whatever_becomes_of_it() {
        let item = Rc::new(());
        drop(ItemCell::of(Rc::clone(&item)));
        assert_eq!(Rc::strong_count(&item), 1, "dropped with the cell");

        let mut cell = ItemCell::of(Rc::clone(&item));
        drop(cell.take());
        assert!(cell.take().is_none() && cell.get().is_none());
        assert_eq!(Rc::strong_count(&item), 1, "taken");

        let mut cell = ItemCell::of(Rc::clone(&item));
        let released = cell.release().unwrap();
        // SAFETY: nothing was done with the cell since.
        unsafe { released.drop_in_place() };
        assert!(cell.release().is_none());
        drop(cell);
        assert_eq!(Rc::strong_count(&item), 1, "released");

        let mut cell = ItemCell::of(Rc::clone(&item));
        let other = std::mem::ManuallyDrop::new(Rc::clone(&item));
        // SAFETY: `other` is not used again.
        unsafe { cell.fill(&raw const *other) };
        assert_eq!(Rc::strong_count(&item), 2, "the first one was dropped");
        drop(cell);
        assert_eq!(Rc::strong_count(&item), 1);
    }
}
