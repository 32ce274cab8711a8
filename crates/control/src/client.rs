//! The client's side.

use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::peer::{Credentials, own_uid};
use crate::{ControlError, PATIENCE, REQUEST_MAX_BYTES, TIME_LIMIT};

/// The longest reply in bytes that a client takes: 64 MiB.
pub const REPLY_MAX_BYTES: u64 = 64 << 20;

/// Sends one request to the server at `path` and returns its reply, without the newline at its end.
///
/// # Errors
/// There is no socket; nobody listens; the server belongs to a third user (root asks anybody); the
/// request is no line of at most [`REQUEST_MAX_BYTES`]; the reply is not there as a whole within
/// [`PATIENCE`]; it is longer than [`REPLY_MAX_BYTES`].
pub fn ask(path: &Path, request: &str) -> Result<String, ControlError> {
    ask_until(path, request, Instant::now() + PATIENCE)
}

/// The same, for who waits until a time and no longer: for the connection, while the request is
/// sent, and for the whole reply.
///
/// # Errors
/// As [`ask`].
pub fn ask_until(path: &Path, request: &str, until: Instant) -> Result<String, ControlError> {
    ask_at_most(path, request, until, REPLY_MAX_BYTES)
}

/// The same, for who takes a reply of at most `max` bytes, and of at most [`REPLY_MAX_BYTES`].
///
/// # Errors
/// As [`ask`], and a reply is longer than `max`.
pub fn ask_at_most(
    path: &Path,
    request: &str,
    until: Instant,
    max: u64,
) -> Result<String, ControlError> {
    if request.len() > REQUEST_MAX_BYTES || request.contains('\n') {
        return Err(ControlError::Request);
    }
    let (stream, _) = connect(path, until)?;
    talk(&stream, request, until, max.min(REPLY_MAX_BYTES))
        .map_err(|source| ControlError::NoReply { path: path.to_owned(), source })
}

/// Connects, and makes sure that the server is one to talk to.
/// Waits at most [`TIME_LIMIT`] for a place in its backlog.
pub(crate) fn connect(
    path: &Path,
    until: Instant,
) -> Result<(UnixStream, Credentials), ControlError> {
    connect_by(path, path, until)
}

/// The same by another path to the socket, which errors name as `path`.
pub(crate) fn connect_by(
    address: &Path,
    path: &Path,
    until: Instant,
) -> Result<(UnixStream, Credentials), ControlError> {
    let stream = connected(address, until).map_err(|error| match error {
        Errno::CONNREFUSED => refused(address, path),
        // Its backlog is full, and it takes no connection from it.
        Errno::AGAIN => ControlError::NoReply {
            path: path.to_owned(),
            source: silence("it takes no connection"),
        },
        error => ControlError::system(path, error),
    })?;
    let server = Credentials::of(&stream).map_err(|error| ControlError::system(path, error))?;
    if !server.may_serve(own_uid()) {
        return Err(ControlError::Stranger { path: path.to_owned(), uid: server.uid });
    }
    Ok((stream, server))
}

fn connected(path: &Path, until: Instant) -> rustix::io::Result<UnixStream> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        // Before connect(2), which otherwise waits without limit for a place in a full backlog.
        let patience = left(until).unwrap_or(LEAST).min(TIME_LIMIT);
        set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        match rustix::net::connect(&socket, &address) {
            // As after SIGSTOP and SIGCONT: a wait with a limit is not taken up again.
            Err(Errno::INTR) => {}
            connected => return connected.map(|()| UnixStream::from(socket)),
        }
    }
}

/// The least time that a socket can be told to wait: none means for ever.
const LEAST: Duration = Duration::from_micros(1);

/// `None` when it is over.
fn left(until: Instant) -> Option<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    (!left.is_zero()).then(|| left.max(LEAST))
}

/// A stream of which each step ends in time: a limit for each read alone would let a server that
/// sends a byte now and then hold its client up for as long as it likes.
struct Timed<'s> {
    stream: &'s UnixStream,
    until: Instant,
}

impl Timed<'_> {
    fn wait_at_most(&self, which: Timeout) -> io::Result<()> {
        let left = left(self.until).ok_or(io::ErrorKind::WouldBlock)?;
        Ok(set_socket_timeout(self.stream, which, Some(left))?)
    }

    /// Sends without the signal that ends a process whose reader went away: programs that only
    /// print have that signal's default action, and would end here without a word.
    fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.wait_at_most(Timeout::Send)?;
            match rustix::net::send(self.stream, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.wait_at_most(Timeout::Recv)?;
        (&mut &*self.stream).read(bytes)
    }
}

fn talk(stream: &UnixStream, request: &str, until: Instant, max: u64) -> io::Result<String> {
    let timed = Timed { stream, until };
    // A server that refuses may reply and hang up before the request is sent: then its reply
    // counts.
    let sent = timed.send_all(format!("{request}\n").as_bytes());
    let mut reply = Vec::new();
    let received = timed.take(max + 2).read_to_end(&mut reply);
    if received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        return Err(silence(match reply.is_empty() {
            true => "nothing came in time",
            false => "its reply did not end in time",
        }));
    }
    if reply.is_empty() {
        sent.and(received)?;
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if reply.len() as u64 > max + 1 {
        let what = format!("its reply has more than {max} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    if reply.pop() != Some(b'\n') {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the reply is cut off"));
    }
    let not_utf8 = |_| io::Error::new(io::ErrorKind::InvalidData, "the reply is not UTF-8");
    String::from_utf8(reply).map_err(not_utf8)
}

fn silence(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

/// Why a connection was refused. The server may have removed its socket meanwhile.
fn refused(address: &Path, path: &Path) -> ControlError {
    match std::fs::metadata(address) {
        Ok(found) if found.file_type().is_socket() => ControlError::Gone { path: path.to_owned() },
        Ok(_) => ControlError::NotASocket { path: path.to_owned() },
        Err(error) => ControlError::system(path, error),
    }
}
