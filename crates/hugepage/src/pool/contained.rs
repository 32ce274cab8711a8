//! Code of the program's of which no panic may come out.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `body`. `None` when it panicked, which the standard library's message has told.
///
/// What it panicked with may panic when it is dropped, and so may the payload of that panic,
/// without end: the second one is kept for ever.
#[expect(clippy::mem_forget, reason = "dropping it may panic again")]
pub(super) fn call<T>(body: impl FnOnce() -> T) -> Option<T> {
    // The caller's code may leave its own state half changed; nothing of ours is.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(done) => Some(done),
        Err(payload) => {
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(again);
            }
            None
        }
    }
}
