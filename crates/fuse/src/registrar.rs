//! Somebody else who registers backing files.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

/// Registers backing files on behalf of a server that has no `CAP_SYS_ADMIN`: a privileged process
/// that is handed descriptors. `device` is the server's own descriptor of `/dev/fuse`.
pub trait Registrar: Debug + Send + Sync + 'static {
    /// Makes sure that somebody is there to register files for the connection of `device`.
    ///
    /// # Errors
    /// Why nobody does.
    fn connect(&self, device: BorrowedFd<'_>) -> io::Result<()>;

    /// Registers `lower`, which must be open for reading and writing: that is how the registrar
    /// knows that the server may let others read and write it. Returns the id.
    ///
    /// # Errors
    /// When it refuses, or cannot be reached. That says nothing about the next file.
    fn register(&self, device: BorrowedFd<'_>, lower: BorrowedFd<'_>) -> io::Result<u32>;

    /// Drops a registration, also one that was made before the registrar was started again.
    fn release(&self, id: u32);

    /// The session is over: lets go of `device`.
    fn end(&self);
}
