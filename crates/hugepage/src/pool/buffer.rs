//! The life of a buffer, in its type.
#![expect(unsafe_code, reason = "holds the pool by a count of its own instead of by an Arc")]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::core::Core;
use super::counters::Count;
use super::slot::Slot;
use crate::engine::Clearer;
use crate::error::Error;
use crate::plan::{Heat, Situation};

/// States of a [`Buffer`].
pub mod state {
    mod sealed {
        pub trait Sealed {}
    }
    use sealed::Sealed;

    /// A state that a buffer can be in.
    pub trait State: Sealed {}

    macro_rules! state {
        ($name:ident, $text:literal) => {
            #[doc = $text]
            #[derive(Debug)]
            pub enum $name {}
            impl Sealed for $name {}
            impl State for $name {}
        };
    }
    state!(Dirty, "Given back, with its owner's bytes in it. Nobody may read or take it.");
    state!(Clearing, "Being cleared. Dropped half-way, it counts as dirty.");
    state!(Zeroed, "All bytes are zero. May be taken.");
    state!(Taken, "Belongs to an owner, who alone reads and writes it.");
}

use state::{Clearing, Dirty, State, Taken, Zeroed};

/// A buffer of a pool. Only a [`Zeroed`] one can be taken, and only
/// [`Clearing::finish`](Buffer::finish) makes one, after writing every byte.
///
/// Dropped in whatever state, it goes back to its pool: as zeroed when it is, else as dirty.
///
/// ```
/// # use tollgate_hugepage::{Pool, Situation};
/// # fn main() -> Result<(), tollgate_hugepage::Error> {
/// let pool = Pool::builder().class(4096, 2).build()?;
/// let mut taken = pool.take(4096)?;
/// taken[0] = 42;
/// drop(taken);
/// let dirty = pool.dirty(4096)?.expect("the buffer just given back");
/// let zeroed = dirty.begin().finish(pool.plan().clearer(Situation::hot(4096)));
/// assert_eq!(zeroed.take()[0], 0);
/// # Ok(()) }
/// ```
///
/// A dirty buffer cannot be taken:
///
/// ```compile_fail,E0599
/// # use tollgate_hugepage::Pool;
/// # fn main() -> Result<(), tollgate_hugepage::Error> {
/// let pool = Pool::builder().class(4096, 2).build()?;
/// let dirty = pool.dirty(4096)?.expect("a buffer");
/// let taken = dirty.take();
/// # Ok(()) }
/// ```
///
/// nor one whose clearing has only begun:
///
/// ```compile_fail,E0599
/// # use tollgate_hugepage::Pool;
/// # fn main() -> Result<(), tollgate_hugepage::Error> {
/// let pool = Pool::builder().class(4096, 2).build()?;
/// let clearing = pool.dirty(4096)?.expect("a buffer").begin();
/// let taken = clearing.take();
/// # Ok(()) }
/// ```
///
/// its bytes cannot be read:
///
/// ```compile_fail,E0608
/// # use tollgate_hugepage::Pool;
/// # fn main() -> Result<(), tollgate_hugepage::Error> {
/// let pool = Pool::builder().class(4096, 2).build()?;
/// let dirty = pool.dirty(4096)?.expect("a buffer");
/// let byte = dirty[0];
/// # Ok(()) }
/// ```
///
/// and a buffer that was given back cannot be used any more:
///
/// ```compile_fail,E0382
/// # use tollgate_hugepage::Pool;
/// # fn main() -> Result<(), tollgate_hugepage::Error> {
/// let pool = Pool::builder().class(4096, 2).build()?;
/// let taken = pool.take(4096)?;
/// taken.give_back();
/// let byte = taken[0];
/// # Ok(()) }
/// ```
#[must_use = "a buffer that is dropped goes back to its pool"]
pub struct Buffer<S: State> {
    /// `None` only while a transition moves it into the next state.
    parts: Option<Parts>,
    state: PhantomData<S>,
}

/// A slot with the hold on its pool.
pub(super) struct Parts {
    pub(super) slot: Slot,
    /// Bytes that the owner sees.
    pub(super) len: usize,
    /// Bytes at the start that the owner may have written.
    pub(super) written: usize,
    /// Others may write to any byte of it, whatever the owner sees: its descriptor was given out.
    pub(super) shared: bool,
    /// Dropped last: it keeps the memory mapped.
    pub(super) pool: CoreRef,
}

/// Keeps a pool's memory mapped. Counts on the CPU at hand, see [`super::refs`].
pub(super) struct CoreRef(NonNull<Core>);

impl CoreRef {
    /// The caller's reference shows that the pool has a handle.
    pub(super) fn new(core: &Arc<Core>) -> Self {
        core.refs.up(core.here().0);
        // Not by `&**core`: this pointer may have to give up a count of the Arc.
        Self(NonNull::new(Arc::as_ptr(core).cast_mut()).expect("an Arc points somewhere"))
    }

    /// Gives up the count that all buffers of a pool have together.
    ///
    /// # Safety
    /// [`super::refs::Refs`] has just said that no handle and no buffer is left, which it says
    /// once, and a count of the Arc was set aside for this when the pool was made.
    pub(super) unsafe fn last_of_all(core: NonNull<Core>) {
        // SAFETY: the pointer comes from `Arc::as_ptr`, and the count was set aside, says the
        // caller.
        unsafe { Arc::decrement_strong_count(core.as_ptr()) }
    }
}

impl Deref for CoreRef {
    type Target = Core;

    fn deref(&self) -> &Core {
        // SAFETY: counted in `refs`, so the count that was set aside for buffers is still there.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for CoreRef {
    fn drop(&mut self) {
        let cpu = self.here().0;
        if self.refs.down(cpu) {
            // SAFETY: `down` has just said that this was the last; the pool set a count aside.
            unsafe { Self::last_of_all(self.0) }
        }
    }
}

// SAFETY: the core is shared by all threads (it is Sync), and counting works from any.
unsafe impl Send for CoreRef {}
// SAFETY: as above; through a shared reference only the core is reached.
unsafe impl Sync for CoreRef {}

impl<S: State> Buffer<S> {
    pub(super) fn new(pool: CoreRef, slot: Slot) -> Self {
        let len = slot.capacity;
        Self::from_parts(Parts { slot, len, written: 0, shared: false, pool })
    }

    pub(super) fn from_parts(parts: Parts) -> Self {
        debug_assert!(parts.written <= parts.len && parts.len <= parts.slot.capacity);
        Self { parts: Some(parts), state: PhantomData }
    }

    /// Length in bytes: what was asked for, or for a buffer that has no owner the size of its
    /// class.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts().len
    }

    /// Size of the buffer in bytes, which may be more than its owner asked for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.parts().slot.capacity
    }

    pub(super) fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("only a transition takes the parts out")
    }

    fn parts_mut(&mut self) -> &mut Parts {
        self.parts.as_mut().expect("only a transition takes the parts out")
    }

    pub(super) fn into_parts(mut self) -> Parts {
        self.parts.take().expect("only a transition takes the parts out")
    }

    fn become_state<T: State>(mut self) -> Buffer<T> {
        Buffer { parts: self.parts.take(), state: PhantomData }
    }
}

impl Buffer<Dirty> {
    /// Starts clearing.
    pub fn begin(self) -> Buffer<Clearing> {
        self.become_state()
    }
}

impl Buffer<Clearing> {
    /// Clears every byte that may be other than zero with `clearer`, which fences before the buffer
    /// can reach anyone else.
    pub fn finish(mut self, clearer: &Clearer) -> Buffer<Zeroed> {
        let Parts { slot, pool, .. } = self.parts_mut();
        clear(slot, pool, clearer, Count::Background);
        self.become_state()
    }
}

/// Clears a whole buffer, as far as it may be other than zero. Returns how many bytes that were.
pub(super) fn clear(slot: &mut Slot, pool: &Core, clearer: &Clearer, count: Count) -> usize {
    let bytes = slot.dirty;
    clearer.clear(slot.bytes_mut(0..bytes));
    slot.dirty = 0;
    pool.note_clear(clearer.spec().store, bytes, count);
    bytes
}

impl Buffer<Zeroed> {
    /// Hands the whole buffer to an owner.
    pub fn take(mut self) -> Buffer<Taken> {
        let slot = &mut self.parts_mut().slot;
        assert!(slot.is_zero(), "a zeroed buffer is not");
        // Unless the owner says otherwise when giving it back.
        slot.heat = Heat::Hot;
        self.become_state()
    }
}

impl Buffer<Taken> {
    /// The first `bytes` of the buffer, to write. What the owner does not write needs no clearing
    /// afterwards: an owner who writes a few bytes of a large buffer uses this instead of the whole
    /// slice, which counts as written when it is borrowed mutably.
    ///
    /// # Panics
    /// When the buffer is shorter.
    pub fn first_mut(&mut self, bytes: usize) -> &mut [u8] {
        let Parts { slot, len, written, .. } = self.parts_mut();
        assert!(bytes <= *len, "the first {bytes} of {len} bytes");
        *written = (*written).max(bytes);
        slot.bytes_mut(0..bytes)
    }

    /// Changes the length, up to the size of the buffer. Bytes that come into sight are zero.
    ///
    /// # Errors
    /// [`Error::Zero`] and [`Error::TooLong`], with the buffer as it was.
    pub fn resize(&mut self, len: usize) -> Result<(), Error> {
        let Parts { slot, len: old, written, shared, pool } = self.parts_mut();
        check_len(len, slot.capacity)?;
        if len > *old && slot.dirty > *old {
            let end = len.min(slot.dirty);
            let heat = slot.heat;
            let clearer = pool.plan.clearer(Situation { heat, ..Situation::cold(end - *old) });
            clearer.clear(slot.bytes_mut(*old..end));
            pool.note_clear(clearer.spec().store, end - *old, Count::Inline);
            if end == slot.dirty && !*shared {
                // What is in sight is accounted for by `written`.
                slot.dirty = 0;
            }
        }
        if len < *old {
            slot.written(*written);
            *written = (*written).min(len);
        }
        *old = len;
        Ok(())
    }

    /// For a buffer of a [shareable](super::PoolBuilder::shareable) pool the file that holds it,
    /// and the offset in bytes at which it starts there. `None` for private memory.
    ///
    /// # Safety
    /// The descriptor is that of all buffers beside this one too. Whoever gets it, or a copy of it,
    /// in this process or another, can read every owner's bytes as long as he keeps it: give it to
    /// those you trust with them. He writes only to this buffer, up to its
    /// [capacity](Self::capacity), not while a Rust reference to its bytes exists here, not while
    /// [`resize`](Self::resize) runs, and not after it was given back.
    ///
    /// From this call on all of the buffer counts as written, also what its owner does not see: it
    /// is cleared before `resize` shows it, and before anybody else gets it.
    #[must_use]
    pub unsafe fn descriptor(&mut self) -> Option<(BorrowedFd<'_>, u64)> {
        let Parts { slot, pool, shared, .. } = self.parts_mut();
        // Whoever has it may write to all of the buffer, at any time until that is given back.
        *shared = true;
        slot.dirty = slot.capacity;
        let (region, offset) = pool.region_of(slot);
        // SAFETY: as the caller says.
        let file = unsafe { region.descriptor() }?;
        Some((file, u64::try_from(offset).expect("offsets fit in 64 bits")))
    }

    /// Gives the buffer back, as dropping it does.
    pub fn give_back(self) {
        drop(self);
    }

    /// Gives the buffer back and says whether most of it is in the cache. Without a word the pool
    /// reckons by time and by how many bytes went through it since.
    pub fn give_back_as(mut self, heat: Heat) {
        self.parts_mut().slot.heat = heat;
        drop(self);
    }
}

pub(super) fn check_len(len: usize, capacity: usize) -> Result<(), Error> {
    match len {
        0 => Err(Error::Zero { what: "a buffer", least_bytes: 1 }),
        _ if len > capacity => Err(Error::TooLong { bytes: len, capacity }),
        _ => Ok(()),
    }
}

impl Deref for Buffer<Taken> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Parts { slot, len, .. } = self.parts();
        slot.bytes(0..*len)
    }
}

/// Borrowing the whole slice mutably counts as writing all of it, see [`Buffer::first_mut`].
impl DerefMut for Buffer<Taken> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len();
        self.first_mut(len)
    }
}

impl<S: State> Drop for Buffer<S> {
    fn drop(&mut self) {
        if let Some(Parts { mut slot, len, written, pool, .. }) = self.parts.take() {
            slot.written(written);
            pool.put_back(slot, len);
        }
    }
}

impl<S: State> fmt::Debug for Buffer<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = std::any::type_name::<S>();
        let state = path.rsplit_once("::").map_or(path, |(_, name)| name);
        write!(out, "Buffer<{state}>({} bytes)", self.len())
    }
}
