//! Ctrl-C ends the measuring, not the program: what was measured so far is printed, and whatever
//! was mounted is unmounted by the usual way out. A second Ctrl-C ends the program at once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Takes SIGINT and SIGTERM over. Call once, at start.
///
/// # Errors
/// If the kernel refuses the handler.
pub fn install() -> io::Result<()> {
    let flag = Arc::clone(FLAG.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        // Registered first, so that it sees the flag as the *earlier* signal left it.
        flag::register_conditional_default(signal, Arc::clone(&flag))?;
        flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(())
}

/// Whether the user asked to end. Long loops ask between samples.
pub fn requested() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}
