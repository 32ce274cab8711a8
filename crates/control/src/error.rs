//! What can go wrong with a control socket.

use std::io;
use std::path::{Path, PathBuf};

/// A socket that cannot be made, or cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The directory of sockets is not private to this user.
    #[error("`{}` {why}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong, and what would be right.
        why: &'static str,
    },
    /// It is part of a file's name.
    #[error("`{}` is no kind of server: it has letters, digits, `-` and `_`, from 1 to 32 of them", .0.escape_debug())]
    Kind(String),
    /// Another process holds the lock of the directory, which is only ever held for a moment.
    #[error("the directory `{}` is locked by another process", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// A server listens there already.
    #[error("`{}` is in use by a process that runs: choose another path", path.display())]
    InUse {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The process that made the socket is gone.
    #[error("nobody listens at `{}`: the process that made it is gone", path.display())]
    Gone {
        /// The socket that it left.
        path: PathBuf,
    },
    /// There is a file of another type.
    #[error("`{}` is not a socket", path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The server accepts the connection and sends no reply: it may be stopped, or just ending.
    #[error("the process at `{}` does not answer", path.display())]
    NoReply {
        /// The server's socket.
        path: PathBuf,
        /// Why, as far as it is known.
        #[source]
        source: io::Error,
    },
    /// The server belongs to a third user, who could reply anything.
    #[error(
        "`{}` belongs to a process of user {uid}: only one's own and root's are asked",
        path.display()
    )]
    Stranger {
        /// The server's socket.
        path: PathBuf,
        /// The server's user id.
        uid: u32,
    },
    /// The request is no line, or is too long.
    #[error("a request must be one line of at most {max} bytes", max = crate::REQUEST_MAX_BYTES)]
    Request,
    /// More sockets than a discovery looks at.
    #[error("`{}` holds more than {max} sockets; the rest is left out", path.display(),
            max = crate::SERVERS_MAX)]
    TooMany {
        /// The directory.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("control socket `{}`", path.display())]
    System {
        /// The socket or directory.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
}

impl ControlError {
    pub(crate) fn system(path: &Path, source: impl Into<io::Error>) -> Self {
        Self::System { path: path.to_owned(), source: source.into() }
    }

    /// Whether the server listens and gave no reply in time. It may be stopped, or hang.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::NoReply { source, .. } if source.kind() == io::ErrorKind::TimedOut)
    }

    /// Whether the server is gone: it ended before or while it was asked, or was never there.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, NotFound, UnexpectedEof};
        match self {
            Self::Gone { .. } => true,
            Self::System { source, .. } => source.kind() == NotFound,
            Self::NoReply { source, .. } => {
                matches!(source.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
            }
            _ => false,
        }
    }
}
