//! Why a queue may be reached by pointer: said here, and nowhere else.

#![expect(unsafe_code, reason = "an address may cross threads")]

use std::ptr::NonNull;

/// A queue, by address. What it points to is `core::QueueCore`, by `QueueRef::core`.
///
/// **A queue outlives its workers.** The runtime's registry holds every `QueueCore` from when it is
/// made until the registry itself is dropped: one that its users dropped stays on a list and is
/// used again for a later queue. The registry is part of `shared::Shared`. Each thread that uses a
/// `QueueRef` holds an `Arc<Shared>` while it does: workers, rescuers and the housekeeper from
/// their start, users through their `Queue`. Where a `QueueRef` lies in memory that outlasts such a
/// thread (a job in a shard, a worker's slot), whoever reads it there is again one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct QueueRef(NonNull<()>);

// SAFETY: it is an address. What it points to is `Sync`, and where it may be used is said above.
unsafe impl Send for QueueRef {}

impl QueueRef {
    /// The address of a `QueueCore`.
    pub(crate) fn from_address(address: NonNull<()>) -> Self {
        Self(address)
    }

    pub(crate) fn address(self) -> NonNull<()> {
        self.0
    }
}
