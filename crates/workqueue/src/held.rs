//! Whose count it is when a waiter runs an item and the item's job arrives meanwhile.
//!
//! The job has been counted in, and is through as soon as it finds the closure taken; the closure
//! is not. So the job leaves its count to the waiter, if that has not ended yet: exactly one of the
//! two counts out, after the closure has run.

use tollgate_wakequeue::sync::{AtomicU32, Ordering};

const NOT: u32 = 0;
const OVER: u32 = u32::MAX;

/// The count that a waiter holds: none yet, or that of a phase, or none any more.
pub(crate) struct HeldCount(AtomicU32);

impl HeldCount {
    pub(crate) fn none() -> Self {
        Self(AtomicU32::new(NOT))
    }

    /// The job leaves its count, under this phase, to the waiter. False when that is through: then
    /// the count stays with the job.
    pub(crate) fn leave(&self, phase: u8) -> bool {
        let mark = u32::from(phase) + 1;
        self.0.compare_exchange(NOT, mark, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The waiter is through. The phase under which it has to count out, if a job left its count.
    pub(crate) fn end(&self) -> Option<u8> {
        match self.0.swap(OVER, Ordering::AcqRel) {
            NOT => None,
            mark => Some(u8::from(mark == 2)),
        }
    }
}
