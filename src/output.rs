//! Standard output: what cannot be written is an error of the command, not a panic.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::Mutex;

/// The first error of [`print()`], until [`finish`] tells of it.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// In the place of that of the standard library, which panics.
macro_rules! print {
    ($($what:tt)*) => { $crate::output::print(format_args!($($what)*), "") };
}

/// In the place of that of the standard library, which panics.
macro_rules! println {
    () => { $crate::output::print(format_args!(""), "\n") };
    ($($what:tt)*) => { $crate::output::print(format_args!($($what)*), "\n") };
}

/// Prints, unless it failed before. Commands go on to clean up; [`finish`] says what went wrong.
pub(crate) fn print(what: Arguments<'_>, end: &str) {
    let mut failed = FAILED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if failed.is_some() {
        return;
    }
    let mut out = io::stdout().lock();
    *failed = out.write_fmt(what).and_then(|()| out.write_all(end.as_bytes())).err();
}

/// Writes what is held back.
///
/// # Errors
/// The first error of anything that was printed.
pub(crate) fn finish() -> anyhow::Result<()> {
    let failed = FAILED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    let result = failed.map_or_else(|| io::stdout().flush(), Err);
    result.map_err(|error| anyhow::anyhow!("the output cannot be written: {error}"))
}
