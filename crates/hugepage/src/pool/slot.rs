//! A buffer off the lists: its memory, and what is known of its bytes.
#![expect(unsafe_code, reason = "a buffer is a slice of its pool's region")]

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;

use super::lists::Index;
use crate::plan::Heat;
use crate::region::Region;

/// A buffer that somebody holds. Whoever has the value is alone with the bytes, and must bring it
/// back with [`super::core::Core::put_back`].
///
/// The bytes `[dirty, capacity)` are zero, whoever held the buffer before. Of the bytes below
/// `dirty`, those that belong to the holder are what he made them; the others may be an earlier
/// owner's.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) class: usize,
    pub(super) origin: Origin,
    pub(super) start: NonNull<u8>,
    /// Size of the buffer in bytes.
    pub(super) capacity: usize,
    /// Bytes at the start that may be other than zero.
    pub(super) dirty: usize,
    /// On a buffer off a list what the pool reckons; on a taken one what its owner says.
    pub(super) heat: Heat,
}

#[derive(Debug)]
pub(super) enum Origin {
    Shelf {
        shelf: usize,
        index: Index,
    },
    /// Base pages beyond the pool, unmapped when given back.
    Extra(Region),
}

impl Slot {
    /// Notes that the first `bytes` may be other than zero.
    pub(super) fn written(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.capacity, "{bytes} of {} bytes written", self.capacity);
        self.dirty = self.dirty.max(bytes);
    }

    pub(super) fn is_zero(&self) -> bool {
        self.dirty == 0
    }

    /// Bytes of the buffer, to write or to clear.
    ///
    /// # Panics
    /// When the range is not in the buffer.
    pub(super) fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let start = self.at(&range);
        // SAFETY: `at` checked that the range lies in the buffer. That is part of a region which
        // the pool keeps mapped while a slot of it exists, and whose bytes the kernel initialised.
        // This value is the only way to them, for its index is on no list, and it is borrowed
        // exclusively.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), range.len()) }
    }

    /// Bytes of the buffer, to read.
    ///
    /// # Panics
    /// When the range is not in the buffer.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        let start = self.at(&range);
        // SAFETY: as in `bytes_mut`; the slice borrows the slot, so nobody writes.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), range.len()) }
    }

    /// Bytes of the buffer that nobody may read before they are written.
    ///
    /// # Panics
    /// When the range is not in the buffer.
    pub(super) fn spare_mut(&mut self, range: Range<usize>) -> &mut [MaybeUninit<u8>] {
        let start = self.at(&range);
        // SAFETY: as in `bytes_mut`; initialised bytes are a special case of those that need not
        // be.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast(), range.len()) }
    }

    fn at(&self, range: &Range<usize>) -> NonNull<u8> {
        let inside = range.start <= range.end && range.end <= self.capacity;
        assert!(inside, "bytes {range:?} of a buffer of {} bytes", self.capacity);
        // SAFETY: the offset lies in the buffer, by the line above.
        unsafe { self.start.add(range.start) }
    }
}

// SAFETY: the bytes belong to no thread, and a slot is the only way to them.
unsafe impl Send for Slot {}
// SAFETY: through a shared slot its bytes are only read.
unsafe impl Sync for Slot {}
