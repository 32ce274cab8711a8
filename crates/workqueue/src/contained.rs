//! Code of the program's of which no panic may come out: hooks and destructors, those of the
//! panics' own payloads included.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `body`. What it panicked with, if it did, is for [`discard`].
pub(crate) fn call(body: impl FnOnce()) -> Result<(), Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(body))
}

/// Calls `body`. A panic has been told by the standard library's message, and that is all.
pub(crate) fn call_quietly(body: impl FnOnce()) {
    if let Err(payload) = call(body) {
        discard(payload);
    }
}

/// Drops what somebody panicked with. A payload may panic when it is dropped, and so may the payload
/// of that panic, without end: the second one is kept for ever.
#[expect(clippy::mem_forget, reason = "dropping it may panic again")]
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = call(|| drop(payload)) {
        std::mem::forget(again);
    }
}
