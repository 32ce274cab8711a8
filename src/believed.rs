//! Where control sockets are, and which are out of reach of every CMD of a `run`: what answers at others
//! may be anything, and may be something else at the next question.

use std::path::Path;

use tollgate_control::Directory;

/// The name of this user's directory of sockets. Programs with work queues put theirs there, too.
pub(crate) const DIRECTORY: &str = "tollgate";
/// Where servers of root have sockets for CMD's user, if that is another one (`run --user`).
pub(crate) const OF_GUESTS: &str = "/run/tollgate-users";

/// Where this user's sockets are.
pub(crate) fn directory() -> Directory {
    Directory::of_user(DIRECTORY)
}

/// Whether what answers at this socket is a server for certain, or something that has no server outside
/// of this process's `run` in its hands.
pub(crate) fn is_believed(socket: &Path) -> bool {
    is_believed_in(directory().path(), socket, &is_read_only)
}

/// The same, or a server that answers this process as a guest, in a directory of root's.
pub(crate) fn is_believed_or_guests(socket: &Path) -> bool {
    is_believed(socket) || socket.starts_with(OF_GUESTS)
}

/// Whether a socket lies in `top`, where no CMD of a `run` may have
/// sockets, or where this process would have its own, which is in a `run`, that has `top` read-only, the
/// directory below it that is not. The others are open to CMD of a `run`, which may answer there as a
/// server does.
pub(crate) fn is_believed_in(
    top: &Path,
    socket: &Path,
    is_read_only: &dyn Fn(&Path) -> bool,
) -> bool {
    let Some(directory) = socket.parent().filter(|it| it.starts_with(top)) else { return false };
    let is_own = || directory.parent().is_some_and(is_read_only) && !is_read_only(directory);
    directory == top || is_own()
}

pub(crate) fn is_read_only(directory: &Path) -> bool {
    let access = rustix::fs::access(directory, rustix::fs::Access::WRITE_OK);
    access == Err(rustix::io::Errno::ROFS)
}
