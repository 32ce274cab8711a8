//! Whether somebody made a file in the view one that runs with the rights of another: whatever has
//! no effect in the view has one where others execute the file outside of it.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The set-user-ID and set-group-ID bits of a mode.
const SET_ID: u32 = 0o6000;

/// Set once, and never cleared: who wants to know which files these are looks at them.
#[derive(Debug, Default)]
pub(crate) struct Raised(AtomicBool);

impl Raised {
    /// A file got this mode.
    pub(crate) fn by_mode(&self, mode: u32) {
        if mode & SET_ID != 0 {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A file got this extended attribute.
    pub(crate) fn by_attribute(&self, name: &CStr) {
        if name == c"security.capability" {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
