//! Whether the process is a copy: fork(2) copies a runtime's memory, but none of its threads.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between this process and the first runtime's.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The generation of this process. Call it when a runtime is built.
#[expect(unsafe_code, reason = "the C library calls back after a fork")]
pub(crate) fn generation() -> u32 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        if !cfg!(miri) {
            // SAFETY: the callback is a plain function that does what a child of a program with
            // threads may do: it changes an atomic. Its failure (no memory) leaves forks unseen.
            unsafe { libc::pthread_atfork(None, None, Some(count)) };
        }
    });
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn count() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Panics when a runtime of this generation belongs to the parent process.
#[inline]
pub(crate) fn check(generation: u32) {
    if GENERATION.load(Ordering::Relaxed) != generation {
        is_a_copy();
    }
}

/// Whether a runtime of this generation belongs to the parent process.
pub(crate) fn is_copy(generation: u32) -> bool {
    GENERATION.load(Ordering::Relaxed) != generation
}

#[cold]
fn is_a_copy() -> ! {
    panic!(
        "this process was forked from one with a tollgate_workqueue::Runtime, whose threads were not \
         copied: build a new Runtime after fork(), or call exec() first"
    );
}
