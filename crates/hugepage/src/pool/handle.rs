//! The handle of a pool: taking buffers.
#![expect(unsafe_code, reason = "gives up the count that the buffers of a pool share")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::buffer::{
    Buffer, CoreRef, Parts, check_len,
    state::{Dirty, Taken},
};
use super::core::{Core, Want};
use super::counters::{Count, PoolStats};
use super::filling::Filling;
use super::leak;
use super::lists::List;
use super::slot::Slot;
use crate::error::Error;
use crate::plan::{ClearPlan, Heat, Situation};
use crate::region::Report;

/// A pool. Clones share it. Its memory is unmapped when the last clone and the last buffer are
/// gone.
#[derive(Clone)]
pub struct Pool {
    pub(super) handle: Arc<Handle>,
}

/// What all clones of a [`Pool`] share.
pub(super) struct Handle {
    pub(super) core: Arc<Core>,
}

impl Handle {
    pub(super) fn new(core: Core) -> Self {
        let core = Arc::new(core);
        // A count for all buffers together: given up by whoever is last, see `Refs`.
        let _ = Arc::into_raw(core.clone());
        Self { core }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.core.refs.close() {
            let core = NonNull::new(Arc::as_ptr(&self.core).cast_mut());
            // SAFETY: `close` has just said that no buffer is left; `new` set the count aside.
            unsafe { CoreRef::last_of_all(core.expect("an Arc points somewhere")) }
        }
    }
}

impl Pool {
    /// Takes a buffer of the smallest class that holds `bytes`, and lends exactly so many. Every
    /// byte of it is zero.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::NoSuchClass`]; at the maximum what [`super::AtMaximum`] says,
    /// which may be [`Error::Exhausted`]; [`Error::OutOfMemory`] where the buffer has no memory yet
    /// and there is none; with the leak check [`Error::Leak`].
    pub fn take(&self, bytes: usize) -> Result<Buffer<Taken>, Error> {
        self.take_with(bytes, None)
    }

    /// As [`take`](Self::take), for an owner who uses the bytes round offset `target` first: should
    /// the buffer have to be cleared, these are left in the cache.
    ///
    /// # Errors
    /// As [`take`](Self::take), and [`Error::TargetOutside`].
    pub fn take_towards(&self, bytes: usize, target: usize) -> Result<Buffer<Taken>, Error> {
        self.take_with(bytes, Some(target))
    }

    /// As [`take`](Self::take), but only a buffer that was cleared before: `None` where that would
    /// take time. Never waits, clears or asks the kernel for memory.
    ///
    /// # Errors
    /// [`Error::Zero`] and [`Error::NoSuchClass`]; with the leak check [`Error::Leak`].
    pub fn take_cleared(&self, bytes: usize) -> Result<Option<Buffer<Taken>>, Error> {
        let class = self.class_for(bytes)?;
        let Some(slot) = self.core().find_cleared(class) else { return Ok(None) };
        self.core().count(Count::PreCleared);
        self.lend(slot, bytes).map(Some)
    }

    /// Takes a buffer that its owner fills from the start before he reads it, with at most `bytes`
    /// bytes: nothing has to be cleared. See [`Filling`].
    ///
    /// # Errors
    /// As [`take`](Self::take), without the leak check.
    pub fn take_to_fill(&self, bytes: usize) -> Result<Filling, Error> {
        let slot = self.find(bytes, Want::Anything)?;
        self.core().count(Count::Uncleared);
        let pool = CoreRef::new(&self.handle.core);
        Ok(Filling::new(Parts { slot, len: bytes, written: 0, shared: false, pool }))
    }

    /// Takes a buffer and copies `bytes` into it; its length is theirs. Nothing is cleared.
    ///
    /// # Errors
    /// As [`take_to_fill`](Self::take_to_fill).
    pub fn take_filled(&self, bytes: &[u8]) -> Result<Buffer<Taken>, Error> {
        let mut filling = self.take_to_fill(bytes.len())?;
        filling.append(bytes)?;
        filling.finish()
    }

    /// A dirty buffer of the class that holds `bytes`, for a caller who clears on its own time.
    /// `None` when there is none on this node. Until it is cleared or dropped nobody else gets it.
    ///
    /// # Errors
    /// [`Error::Zero`] and [`Error::NoSuchClass`].
    pub fn dirty(&self, bytes: usize) -> Result<Option<Buffer<Dirty>>, Error> {
        let class = self.class_for(bytes)?;
        let core = &self.handle.core;
        let slot = core.pop_from(class, core.home_shelf(class), List::Dirty);
        Ok(slot.map(|slot| Buffer::new(CoreRef::new(core), slot)))
    }

    /// The plan that the pool clears by.
    #[must_use]
    pub fn plan(&self) -> &ClearPlan {
        &self.core().plan
    }

    /// What the pool has done so far.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let mut stats = PoolStats::default();
        self.core().counters.iter().for_each(|counters| counters.add_to(&mut stats));
        stats
    }

    /// For each class its buffer size in bytes, number of buffers, and what backs each shelf.
    pub fn classes(&self) -> impl Iterator<Item = (usize, usize, Vec<&Report>)> {
        self.core().classes.iter().map(|class| {
            let reports = class.shelves.iter().map(|shelf| shelf.region.report()).collect();
            (class.buffer_bytes, class.count, reports)
        })
    }

    pub(super) fn core(&self) -> &Core {
        &self.handle.core
    }

    pub(super) fn class_for(&self, bytes: usize) -> Result<usize, Error> {
        let classes = &self.core().classes;
        let largest = classes.last().map_or(0, |class| class.buffer_bytes);
        check_len(bytes, usize::MAX)?;
        let found = classes.iter().position(|class| class.buffer_bytes >= bytes);
        found.ok_or(Error::NoSuchClass { bytes, largest })
    }

    fn find(&self, bytes: usize, want: Want) -> Result<Slot, Error> {
        let class = self.class_for(bytes)?;
        match self.core().find(class, want)? {
            Some(slot) => Ok(slot),
            None => self.core().find_at_maximum(class, want),
        }
    }

    fn take_with(&self, bytes: usize, target: Option<usize>) -> Result<Buffer<Taken>, Error> {
        if let Some(target) = target.filter(|target| *target >= bytes.max(1)) {
            return Err(Error::TargetOutside { target, len: bytes });
        }
        self.cleared(self.find(bytes, Want::Zeroes)?, bytes, target)
    }

    /// Lends a slot, cleared as far as its owner sees it.
    pub(super) fn cleared(
        &self,
        mut slot: Slot,
        bytes: usize,
        target: Option<usize>,
    ) -> Result<Buffer<Taken>, Error> {
        if slot.is_zero() {
            self.core().count(Count::PreCleared);
        } else {
            self.clear_for(&mut slot, bytes, target);
        }
        self.lend(slot, bytes)
    }

    /// Clears as much of a dirty buffer as an owner of `bytes` bytes sees.
    fn clear_for(&self, slot: &mut Slot, bytes: usize, target: Option<usize>) {
        let seen = bytes.min(slot.dirty);
        let target = target.filter(|target| *target < seen);
        let situation = Situation { heat: slot.heat, target, ..Situation::cold(seen) };
        let clearer = self.plan().clearer(situation);
        match target {
            Some(target) => clearer
                .clear_towards(slot.bytes_mut(0..seen), target)
                .expect("the target is among the bytes seen"),
            None => clearer.clear(slot.bytes_mut(0..seen)),
        }
        if seen == slot.dirty {
            slot.dirty = 0;
        }
        self.core().note_clear(clearer.spec().store, seen, Count::Inline);
    }

    /// Lends the first `len` bytes of a slot, which are zero.
    fn lend(&self, mut slot: Slot, len: usize) -> Result<Buffer<Taken>, Error> {
        if self.core().leak_check {
            // A buffer that counts as zero must be so as a whole.
            let checked = if slot.is_zero() { slot.capacity } else { len };
            if let Some(leak) = leak::scan(slot.bytes(0..checked)) {
                self.core().count(Count::Leaks);
                self.core().withdraw(&slot);
                return Err(leak);
            }
        }
        // Unless the owner says otherwise when giving it back.
        slot.heat = Heat::Hot;
        let pool = CoreRef::new(&self.handle.core);
        Ok(Buffer::from_parts(Parts { slot, len, written: 0, shared: false, pool }))
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes: Vec<(usize, usize)> =
            self.classes().map(|(bytes, count, _)| (bytes, count)).collect();
        out.debug_struct("Pool").field("classes", &classes).field("stats", &self.stats()).finish()
    }
}
