//! The life of a buffer, in its type.
#![expect(unsafe_code, reason = "a buffer is a slice of its pool's region")]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::lists::{Index, List};
use super::{Inner, counters::Count};
use crate::engine::Clearer;
use crate::plan::{Heat, Situation};
use crate::region::Region;

/// States of a [`Buffer`].
pub mod state {
    use super::List;

    mod sealed {
        pub trait Sealed {
            /// The list that a buffer dropped in this state goes to.
            #[doc(hidden)]
            const RETURNS_TO: super::Home;
        }
    }
    use sealed::Sealed;

    /// Where a dropped buffer goes. Opaque.
    #[derive(Clone, Copy, Debug)]
    #[doc(hidden)]
    pub struct Home(pub(super) List);

    /// A state that a buffer can be in.
    pub trait State: Sealed {}

    macro_rules! state {
        ($name:ident, $list:ident, $text:literal) => {
            #[doc = $text]
            #[derive(Debug)]
            pub enum $name {}
            impl Sealed for $name {
                const RETURNS_TO: Home = Home(List::$list);
            }
            impl State for $name {}
        };
    }
    state!(Dirty, Dirty, "Given back, with its owner's bytes in it. Nobody may read or take it.");
    state!(Clearing, Dirty, "Being cleared. Dropped half-way, it counts as dirty.");
    state!(Zeroed, Zeroed, "All bytes are zero. May be taken.");
    state!(Taken, Dirty, "Belongs to an owner, who alone reads and writes it.");
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
    place: Option<Place>,
    state: PhantomData<S>,
}

/// A buffer's memory and where it came from.
pub(super) struct Place {
    pub(super) pool: Arc<Inner>,
    pub(super) class: usize,
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    pub(super) origin: Origin,
    /// On a dirty buffer what the pool reckons; on a taken one what its owner says.
    pub(super) heat: Heat,
}

pub(super) enum Origin {
    Shelf {
        shelf: usize,
        index: Index,
    },
    /// Base pages beyond the pool, unmapped when given back.
    Extra(Region),
}

impl<S: State> Buffer<S> {
    pub(super) fn new(place: Place) -> Self {
        Self { place: Some(place), state: PhantomData }
    }

    /// Length in bytes: that of the class, which may be more than was asked for.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.place.as_ref().map_or(0, |place| place.len)
    }

    fn become_state<T: State>(mut self) -> Buffer<T> {
        Buffer { place: self.place.take(), state: PhantomData }
    }

    /// The bytes, for whoever is alone with them: the owner, or the engine.
    fn bytes(&mut self) -> &mut [u8] {
        match &self.place {
            // SAFETY: `start` and `len` are a buffer of a region that the pool in `place` keeps
            // mapped. Its index was popped from a list and is on none, so this value is the only
            // way to the bytes, and it is borrowed exclusively. The kernel initialised them.
            Some(place) => unsafe {
                std::slice::from_raw_parts_mut(place.start.as_ptr(), place.len)
            },
            None => &mut [],
        }
    }
}

impl Buffer<Dirty> {
    /// Starts clearing.
    pub fn begin(self) -> Buffer<Clearing> {
        self.become_state()
    }
}

impl Buffer<Clearing> {
    /// Clears every byte with `clearer`, which fences before the buffer can reach anyone else.
    pub fn finish(self, clearer: &Clearer) -> Buffer<Zeroed> {
        self.finish_as(clearer, None, Count::Background)
    }

    pub(super) fn finish_as(
        mut self,
        clearer: &Clearer,
        target: Option<usize>,
        count: Count,
    ) -> Buffer<Zeroed> {
        let bytes = self.bytes();
        match target {
            Some(target) if clearer.clear_towards(bytes, target).is_ok() => {}
            _ => clearer.clear(bytes),
        }
        if let Some(place) = &self.place {
            place.pool.note_clear(place, clearer.spec().store, count);
        }
        self.become_state()
    }

    pub(super) fn situation(&self, target: Option<usize>) -> Situation {
        let heat = self.place.as_ref().map_or(Heat::Cold, |place| place.heat);
        Situation { heat, target, ..Situation::cold(self.len()) }
    }
}

impl Buffer<Zeroed> {
    /// Hands the buffer to an owner.
    pub fn take(mut self) -> Buffer<Taken> {
        if let Some(place) = &mut self.place {
            // Unless the owner says otherwise when giving it back.
            place.heat = Heat::Hot;
        }
        self.become_state()
    }

    pub(super) fn peek(&mut self) -> &mut [u8] {
        self.bytes()
    }

    /// Takes the buffer out of use for good, because its bytes are not what they must be.
    pub(super) fn withdraw(mut self) {
        drop(self.place.take());
    }
}

impl Buffer<Taken> {
    /// Gives the buffer back, as dropping it does.
    pub fn give_back(self) {
        drop(self);
    }

    /// Gives the buffer back and says whether most of it is in the cache. Without a word the pool
    /// reckons by how many bytes went through it since.
    pub fn give_back_as(mut self, heat: Heat) {
        if let Some(place) = &mut self.place {
            place.heat = heat;
        }
        drop(self);
    }
}

impl Deref for Buffer<Taken> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.place {
            // SAFETY: as in `bytes`; the slice borrows the owner's buffer, so nobody writes.
            Some(place) => unsafe { std::slice::from_raw_parts(place.start.as_ptr(), place.len) },
            None => &[],
        }
    }
}

impl DerefMut for Buffer<Taken> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes()
    }
}

impl<S: State> Drop for Buffer<S> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let pool = place.pool.clone();
            pool.put_back(place, S::RETURNS_TO.list());
        }
    }
}

impl state::Home {
    fn list(self) -> List {
        self.0
    }
}

impl<S: State> fmt::Debug for Buffer<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = std::any::type_name::<S>().rsplit("::").next().unwrap_or_default();
        write!(out, "Buffer<{state}>({} bytes)", self.len())
    }
}

// SAFETY: a buffer is the only way to its bytes, which belong to no thread; the pool it returns to
// is shared behind an `Arc` and thread-safe.
unsafe impl<S: State> Send for Buffer<S> {}
// SAFETY: through a shared buffer its bytes are only read.
unsafe impl<S: State> Sync for Buffer<S> {}
