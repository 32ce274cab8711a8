//! Whether this process is a copy of another one: fork(2) copies the memory of a server and its
//! descriptors, but none of its threads. A copy must not end, or answer, anything for the server.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between this process and the first one that asked.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker(u32);

impl Maker {
    /// This process.
    #[expect(unsafe_code, reason = "the C library calls back after a fork")]
    pub(crate) fn this() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            if !cfg!(miri) {
                // SAFETY: the callback is a plain function that does what a copy of a program with
                // threads may do: it changes an atomic. Its failure (no memory) leaves forks unseen.
                unsafe { libc::pthread_atfork(None, None, Some(count)) };
            }
        });
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether the calling process is a copy of the one that made it.
    #[inline]
    pub(crate) fn was_copied(self) -> bool {
        GENERATION.load(Ordering::Relaxed) != self.0
    }
}

extern "C" fn count() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
