//! The client's side.

use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::peer::{Peer, own_uid};
use crate::{ControlError, PATIENCE, REQUEST_MAX_BYTES, TIME_LIMIT};

/// The longest reply in bytes that a client takes: 64 MiB.
pub const REPLY_MAX_BYTES: u64 = 64 << 20;

/// Sends one request to the server at `path` and returns its reply, without the newline at its end.
///
/// # Errors
/// There is no socket; nobody listens; the server belongs to a third user (root asks anybody); the
/// request is no line of at most [`REQUEST_MAX_BYTES`]; nothing of the reply arrives within
/// [`PATIENCE`]; the reply is longer than [`REPLY_MAX_BYTES`].
pub fn ask(path: &Path, request: &str) -> Result<String, ControlError> {
    if request.len() > REQUEST_MAX_BYTES || request.contains('\n') {
        return Err(ControlError::Request);
    }
    let (stream, _) = connect(path)?;
    talk(&stream, request).map_err(|source| ControlError::NoReply { path: path.to_owned(), source })
}

/// Connects, and makes sure that the server is one to talk to.
pub(crate) fn connect(path: &Path) -> Result<(UnixStream, Peer), ControlError> {
    let stream = connected(path).map_err(|error| match error {
        Errno::CONNREFUSED => refused(path),
        // Its backlog is full, and it takes no connection from it.
        Errno::AGAIN => ControlError::NoReply { path: path.to_owned(), source: silence() },
        error => ControlError::system(path, error),
    })?;
    let server = Peer::of(&stream).map_err(|error| ControlError::system(path, error))?;
    if !server.may_serve(own_uid()) {
        return Err(ControlError::Stranger { path: path.to_owned(), uid: server.uid });
    }
    Ok((stream, server))
}

fn connected(path: &Path) -> rustix::io::Result<UnixStream> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Before connect(2), which otherwise waits without limit for a place in a full backlog.
    set_socket_timeout(&socket, Timeout::Send, Some(TIME_LIMIT))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn talk(stream: &UnixStream, request: &str) -> io::Result<String> {
    // A server that refuses may reply and hang up before the request is sent: then its reply
    // counts.
    let sent = send_all(stream, format!("{request}\n").as_bytes());
    let mut reply = Vec::new();
    let received = stream.take(REPLY_MAX_BYTES + 2).read_to_end(&mut reply);
    if reply.is_empty() {
        sent.and(received).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => silence(),
            _ => error,
        })?;
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if reply.pop() != Some(b'\n') || reply.len() as u64 > REPLY_MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the reply is cut off"));
    }
    let not_utf8 = |_| io::Error::new(io::ErrorKind::InvalidData, "the reply is not UTF-8");
    String::from_utf8(reply).map_err(not_utf8)
}

/// Sends without the signal that ends a process whose reader went away: programs that only print
/// have that signal's default action, and would end here without a word.
fn send_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(stream, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn silence() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "nothing came within ten seconds")
}

/// Why a connection to `path` was refused. The server may have removed its socket meanwhile.
fn refused(path: &Path) -> ControlError {
    match std::fs::metadata(path) {
        Ok(found) if found.file_type().is_socket() => ControlError::Gone { path: path.to_owned() },
        Ok(_) => ControlError::NotASocket { path: path.to_owned() },
        Err(error) => ControlError::system(path, error),
    }
}
