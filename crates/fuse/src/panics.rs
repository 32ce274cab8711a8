//! Panics of a file system and its hooks, which end neither a worker nor who waits for it.

use std::mem::ManuallyDrop;
use std::panic::{self, AssertUnwindSafe};

/// What `f` returns; `None` if it panics. The message was printed by then, and what the panic carries
/// is dropped, or forgotten if that panics, too.
pub(crate) fn caught<T>(f: impl FnOnce() -> T) -> Option<T> {
    match panic::catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => Some(value),
        Err(payload) => {
            if let Err(another) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                let _kept = ManuallyDrop::new(another);
            }
            None
        }
    }
}
