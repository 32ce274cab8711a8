//! Threads that belong to a runtime, for what they run outside of items: hooks and destructors.

use std::cell::Cell;

use crate::runtime_id::RuntimeId;

thread_local! {
    static OWNER: Cell<Option<RuntimeId>> = const { Cell::new(None) };
}

/// The calling thread is one of this runtime from now on.
pub(crate) fn mark(runtime: RuntimeId) {
    OWNER.set(Some(runtime));
}

/// Whether the calling thread is one of this runtime.
pub(crate) fn is_of(runtime: RuntimeId) -> bool {
    OWNER.get() == Some(runtime)
}
