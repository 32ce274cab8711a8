//! Giving the memory of idle buffers back to the kernel.

use std::time::Duration;

use super::core::{Class, Core, Shelf};
use super::counters::Count;
use super::handle::Pool;
use super::lists::List;
use super::slot::{Origin, Slot};
use crate::error::Error;
use crate::plan::Cell;
use crate::sync::Ordering;

impl Pool {
    /// Gives back to the kernel the memory of every free buffer that nobody used for `idle`.
    /// Returns how many bytes. The buffers stay in the pool: one that is taken again gets memory
    /// then, which costs a page fault for each huge page, or [`Error::OutOfMemory`] where there is
    /// none.
    ///
    /// Looks at every free buffer once and works on one at a time, so it can run beside takers. A
    /// buffer that is a fraction of a huge page frees memory only together with its neighbours,
    /// once the kernel has split the page. A reserved (hugetlb) page is never split: buffers that
    /// are not whole pages of it keep their memory.
    ///
    /// Nothing after [`Pool::pieces`].
    ///
    /// # Errors
    /// [`Error::System`] when the kernel refuses; what was given back until then stays so.
    pub fn trim(&self, idle: Duration) -> Result<usize, Error> {
        let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        let mut bytes = 0;
        if self.core().pinned.load(Ordering::Relaxed) {
            return Ok(0);
        }
        for class in 0..self.core().classes.len() {
            for shelf in 0..self.core().classes[class].shelves.len() {
                for list in [List::Zeroed, List::Dirty] {
                    bytes += self.core().trim(class, shelf, list, idle_ns)?;
                }
            }
        }
        Ok(bytes)
    }
}

impl Core {
    fn trim(&self, class: usize, shelf: usize, list: List, idle_ns: u64) -> Result<usize, Error> {
        let Class { buffer_bytes, shelves, .. } = &self.classes[class];
        let Shelf { lists, records, region, .. } = &shelves[shelf];
        if !region.can_release(0, *buffer_bytes) {
            return Ok(0);
        }
        let mut bytes = 0;
        // What stays goes on the fresh stack. So each buffer is seen once, in two passes: what is
        // aged now, then what is fresh now.
        for _ in 0..2 {
            for _ in 0..records.len() {
                let Some(index) = lists.pop_aged(list) else { break };
                let idle = shelves[shelf].idle_ns(index) >= idle_ns;
                let slot = self.held(class, shelf, index);
                if idle {
                    bytes += self.release(slot)?;
                } else {
                    self.put_down(slot);
                }
            }
            lists.turn(list);
        }
        Ok(bytes)
    }

    fn release(&self, mut slot: Slot) -> Result<usize, Error> {
        let bytes = slot.capacity;
        if self.secret {
            let dirty = slot.dirty;
            crate::wipe::wipe_with(self.plan.at(Cell::Cold), slot.bytes_mut(0..dirty));
            slot.dirty = 0;
        }
        let Origin::Shelf { shelf, index } = slot.origin else {
            unreachable!("a buffer beyond the pool is on no list")
        };
        let region = &self.classes[slot.class].shelves[shelf].region;
        match region.release(index.index() * slot.capacity, slot.capacity) {
            Ok(()) => {
                slot.dirty = 0;
                self.count(Count::Released);
                self.put_on(slot, List::Released);
                Ok(bytes)
            }
            Err(error) => {
                self.put_down(slot);
                Err(error)
            }
        }
    }
}
