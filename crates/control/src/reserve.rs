//! A socket in reserve.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::ControlError;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket without a name, for a server that may start later in a process that will not be allowed
/// to make sockets then: nobody finds it, and dropping it leaves nothing.
#[derive(Debug)]
pub struct Reserve(OwnedFd);

impl Reserve {
    /// Makes the socket. [`Directory::serve_later`](crate::Directory::serve_later) gives it a name,
    /// with bind(2) and listen(2).
    ///
    /// # Errors
    /// The process, or the system, has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        Ok(Self(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?))
    }

    /// Listens at a path where nothing is. A socket has one name in its life.
    pub(crate) fn listen(&self, path: &Path) -> Result<UnixListener, ControlError> {
        let listener = || {
            rustix::net::bind(&self.0, &SocketAddrUnix::new(path)?)?;
            rustix::net::listen(&self.0, BACKLOG)?;
            self.0.try_clone().map(UnixListener::from)
        };
        listener().map_err(|error: io::Error| match Errno::from_io_error(&error) {
            Some(Errno::ADDRINUSE) => ControlError::InUse { path: path.to_owned() },
            _ => ControlError::system(path, error),
        })
    }
}
