//! The log, on standard error.

use std::io;

/// One line on standard error, in one write and without the heap, which a connection's process
/// must not ask the system for. A longer line is cut.
pub(super) fn log(what: std::fmt::Arguments<'_>) {
    let mut line = io::Cursor::new([0_u8; 256]);
    let _ = io::Write::write_fmt(&mut line, format_args!("tollgate broker: {what}"));
    let len = usize::try_from(line.position()).unwrap_or(0).min(255);
    let mut bytes = line.into_inner();
    bytes[len] = b'\n';
    let _ = rustix::io::write(rustix::stdio::stderr(), &bytes[..=len]);
}
