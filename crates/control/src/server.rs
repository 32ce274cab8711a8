//! The server: one thread that serves its clients side by side, so that a slow one delays nobody.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::CWD;

use crate::lock::{Lock, remove_leftover_locked};
use crate::peer::{Credentials, Peer, own_uid};
use crate::request::{RequestReader, error_reply};
use crate::{ControlError, TIME_LIMIT};

/// The most clients that a server serves at a time. More wait in the kernel's backlog.
pub const CLIENTS_MAX: usize = 16;
/// How long a server that is out of descriptors or memory waits before it accepts again.
const RESPITE: Duration = Duration::from_millis(50);
/// The most bytes read away behind a request, so that hanging up does not discard the reply.
const DRAIN_MAX_BYTES: usize = 64 << 10;

/// A socket and the thread that serves it, until this is dropped.
///
/// Only root and the user that this process runs as are served, and the guest of
/// [`Server::start_for`]. Dropping it removes the socket,
/// lets replies that are on their way arrive, and ends the thread. A copy of the process (fork) has none of
/// it, and does nothing when it drops this.
#[derive(Debug)]
#[must_use = "dropping it ends the server"]
pub struct Server {
    socket: Socket,
    thread: Option<JoinHandle<()>>,
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    listener: UnixListener,
    /// Device and inode number of the socket's name.
    identity: (u64, u64),
    /// The process that made it.
    maker: u32,
    /// Whether another server may be given the same path.
    is_chosen: bool,
}

impl Server {
    /// Listens at `path`, with mode 600. The socket of a dead server is replaced. `handler` is
    /// called with each client and its request, without the newline, one at a time; it returns the
    /// reply. Should it panic, the client gets an error reply.
    ///
    /// # Errors
    /// A server listens there; there is a file of another type; no socket or thread can be had.
    pub fn start(
        path: &Path,
        handler: impl Fn(&Peer<'_>, &str) -> String + Send + 'static,
    ) -> Result<Self, ControlError> {
        Socket::at_chosen(path)?.serving(None, handler)
    }

    /// As [`Server::start`], for one more user: `guest` is served besides root and the user that this
    /// process runs as. The socket is the guest's, so that nobody else connects. What a guest may
    /// ask for is up to `handler`.
    ///
    /// # Errors
    /// As [`Server::start`]; the socket cannot be given to `guest`, as to `u32::MAX`, which is no user.
    pub fn start_for(
        path: &Path,
        guest: u32,
        handler: impl Fn(&Peer<'_>, &str) -> String + Send + 'static,
    ) -> Result<Self, ControlError> {
        if guest == u32::MAX {
            // For chown(2) it means that nothing changes.
            return Err(ControlError::system(path, rustix::io::Errno::INVAL));
        }
        let socket = Socket::at_chosen(path)?;
        std::os::unix::fs::chown(path, Some(guest), None)
            .map_err(|error| ControlError::system(path, error))?;
        socket.serving(Some(guest), handler)
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.socket.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.socket.maker != std::process::id() {
            // The thread is in that process alone, and nothing is to be told of it here.
            let _ = std::mem::ManuallyDrop::new(self.thread.take());
            return;
        }
        self.socket.remove();
        // Wakes the thread.
        let _ = rustix::net::shutdown(&self.socket.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // The handler may drop its own server: the reply goes out, and then the thread ends.
            if thread.thread().id() == thread::current().id() {
                return;
            }
            // It catches panics of the handler, and has nothing to return.
            drop(thread.join());
        }
    }
}

impl Socket {
    /// At a path that its user has chosen.
    fn at_chosen(path: &Path) -> Result<Self, ControlError> {
        let _lock = Lock::of_parent(path)?;
        remove_leftover_locked(path, Instant::now() + TIME_LIMIT)?;
        let listener = listen_as_new(path)?;
        let failed = |error| ControlError::system(path, error);
        // Whoever connects before this is still asked who it is.
        Self::of(path, listener, true).map_err(failed)
    }

    /// At a path that is nobody else's, ever. The socket is made at the path `new`, and gets its name
    /// when it listens: what has such a name and refuses connections is a leftover.
    pub(crate) fn at_own(
        path: &Path,
        new: &Path,
        listen: impl Fn(&Path) -> Result<UnixListener, ControlError>,
    ) -> Result<Self, ControlError> {
        let listener = listen(new)?;
        let named = Self::of(new, listener, false).and_then(|socket| {
            rustix::fs::renameat(CWD, new, CWD, path)?;
            Ok(Self { path: path.to_owned(), ..socket })
        });
        named.map_err(|error| {
            drop(std::fs::remove_file(new));
            ControlError::system(path, error)
        })
    }

    fn of(path: &Path, listener: UnixListener, is_chosen: bool) -> io::Result<Self> {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let (identity, maker) = (identity(path)?, std::process::id());
        Ok(Self { path: path.to_owned(), listener, identity, maker, is_chosen })
    }

    pub(crate) fn serving(
        self,
        guest: Option<u32>,
        handler: impl Fn(&Peer<'_>, &str) -> String + Send + 'static,
    ) -> Result<Server, ControlError> {
        let failed = |error| ControlError::system(&self.path, error);
        let listener = self.listener.try_clone().map_err(failed)?;
        let thread = thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || Service { listener, guest, handler, clients: Vec::new() }.run())
            .map_err(failed)?;
        Ok(Server { socket: self, thread: Some(thread) })
    }

    /// Removes the name, unless it belongs to another server by now.
    fn remove(&self) {
        // Without the lock, another server could take the name between the two steps.
        let lock = self.is_chosen.then(|| Lock::of_parent(&self.path)).transpose();
        if lock.is_ok() && identity(&self.path).is_ok_and(|found| found == self.identity) {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Listens at a path where nothing is.
pub(crate) fn listen_as_new(path: &Path) -> Result<UnixListener, ControlError> {
    UnixListener::bind(path).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => ControlError::InUse { path: path.to_owned() },
        _ => ControlError::system(path, error),
    })
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok((found.dev(), found.ino()))
}

/// What the thread owns.
struct Service<H> {
    listener: UnixListener,
    /// Who is served besides root and this process's user.
    guest: Option<u32>,
    handler: H,
    /// At most [`CLIENTS_MAX`].
    clients: Vec<Client>,
}

impl<H: Fn(&Peer<'_>, &str) -> String> Service<H> {
    fn run(mut self) {
        let mut accepting = Accepting::Now;
        while accepting != Accepting::Never || !self.clients.is_empty() {
            self.wait(accepting);
            // accept(2) says nothing of it on a socket that does not block.
            accepting = if is_shut_down(&self.listener) { Accepting::Never } else { self.accept() };
            let stopping = accepting == Accepting::Never;
            let Self { clients, handler, .. } = &mut self;
            clients.retain_mut(|client| client.advance(handler, stopping));
        }
    }

    /// Waits until there is something to do, or a time limit has passed.
    fn wait(&self, accepting: Accepting) {
        let now = Instant::now();
        let mut until = self.clients.iter().map(|client| client.deadline).min();
        // That the listener is shut down is reported whatever is asked for.
        let room = self.clients.len() < CLIENTS_MAX;
        let wanted = match accepting {
            Accepting::Now if room => PollFlags::IN,
            Accepting::After(time) => {
                until = Some(until.map_or(time, |until| until.min(time)));
                PollFlags::empty()
            }
            Accepting::Now | Accepting::Never => PollFlags::empty(),
        };
        let mut fds = Vec::with_capacity(1 + CLIENTS_MAX);
        if accepting != Accepting::Never {
            fds.push(PollFd::new(&self.listener, wanted));
        }
        fds.extend(self.clients.iter().map(|client| client.interest()));
        let timeout = until.map(|until| until.saturating_duration_since(now));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An interrupted wait leads to a look at everything, which does no harm.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    }

    /// Takes the connections that are there, as far as there is room.
    fn accept(&mut self) -> Accepting {
        while self.clients.len() < CLIENTS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => self.clients.extend(Client::new(stream, self.guest)),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Accepting::Now,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    // Out of descriptors or memory.
                    _ => return Accepting::After(Instant::now() + RESPITE),
                },
            }
        }
        Accepting::Now
    }
}

/// Whether connections are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accepting {
    Now,
    After(Instant),
    /// The server was dropped.
    Never,
}

fn is_shut_down(listener: &UnixListener) -> bool {
    let mut fds = [PollFd::new(listener, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// One connection.
struct Client {
    stream: UnixStream,
    peer: io::Result<Credentials>,
    is_guest: bool,
    phase: Phase,
    /// When the phase must be over.
    deadline: Instant,
}

enum Phase {
    /// The request arrives.
    Request(RequestReader),
    /// The reply is sent.
    Reply { text: Vec<u8>, sent: usize },
    /// What the client sent beside the request is read away until it hangs up.
    Drain { left: usize },
}

impl Client {
    /// `None` for a connection that is lost already.
    fn new(stream: UnixStream, guest: Option<u32>) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        let peer = Credentials::of(&stream);
        let is_guest = peer.as_ref().is_ok_and(|peer| Some(peer.uid) == guest);
        let phase = Phase::Request(RequestReader::default());
        Some(Self { stream, peer, is_guest, phase, deadline: Instant::now() + TIME_LIMIT })
    }

    fn interest(&self) -> PollFd<'_> {
        let flags = match self.phase {
            Phase::Reply { .. } => PollFlags::OUT,
            Phase::Request(_) | Phase::Drain { .. } => PollFlags::IN,
        };
        PollFd::new(&self.stream, flags)
    }

    /// Does what can be done without waiting. False when the connection is over.
    fn advance(&mut self, handler: &impl Fn(&Peer<'_>, &str) -> String, stopping: bool) -> bool {
        loop {
            let step = match &mut self.phase {
                Phase::Request(_) | Phase::Drain { .. } if stopping => return false,
                Phase::Request(_) => self.receive(handler),
                Phase::Reply { .. } => self.send(),
                Phase::Drain { .. } => self.drain(),
            };
            match step {
                Ok(Step::Next) => {}
                Ok(Step::Over) => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Instant::now() < self.deadline || self.is_told_of_its_delay();
                }
                // The client is gone.
                Err(_) => return false,
            }
        }
    }

    /// A request that is late gets an error; a client that takes no reply gets nothing more.
    fn is_told_of_its_delay(&mut self) -> bool {
        let late = matches!(self.phase, Phase::Request(_));
        if late {
            self.reply(&error_reply("the request did not arrive within two seconds"));
        }
        late
    }

    fn receive(&mut self, handler: &impl Fn(&Peer<'_>, &str) -> String) -> io::Result<Step> {
        let peer = match &self.peer {
            Ok(peer) if self.is_guest || peer.may_ask(own_uid()) => *peer,
            refused => {
                let text = error_reply(&refusal(refused));
                self.reply(&text);
                return Ok(Step::Next);
            }
        };
        let Phase::Request(reader) = &mut self.phase else { unreachable!("checked by `advance`") };
        let mut piece = [0; 1024];
        let request = match self.stream.read(&mut piece)? {
            0 => match reader.end() {
                None => return Ok(Step::Over),
                request => request,
            },
            len => reader.push(&piece[..len]),
        };
        match request {
            None => {}
            Some(Ok(request)) => {
                let reply = answer(handler, &Peer::new(peer, &self.stream), &request);
                self.reply(&reply);
            }
            Some(Err(malformed)) => self.reply(&error_reply(&malformed.to_string())),
        }
        Ok(Step::Next)
    }

    fn reply(&mut self, text: &str) {
        let mut text = text.as_bytes().to_vec();
        text.push(b'\n');
        self.phase = Phase::Reply { text, sent: 0 };
        self.deadline = Instant::now() + TIME_LIMIT;
    }

    fn send(&mut self) -> io::Result<Step> {
        let Phase::Reply { text, sent } = &mut self.phase else {
            unreachable!("checked by `advance`")
        };
        *sent += self.stream.write(&text[*sent..])?;
        assert!(*sent <= text.len(), "no more is sent than there is");
        if *sent == text.len() {
            self.stream.shutdown(Shutdown::Write)?;
            self.phase = Phase::Drain { left: DRAIN_MAX_BYTES };
        }
        Ok(Step::Next)
    }

    fn drain(&mut self) -> io::Result<Step> {
        let Phase::Drain { left } = &mut self.phase else { unreachable!("checked by `advance`") };
        let len = self.stream.read(&mut [0; 4096])?;
        *left = left.saturating_sub(len);
        Ok(if len == 0 || *left == 0 { Step::Over } else { Step::Next })
    }
}

enum Step {
    /// There may be more to do at once.
    Next,
    Over,
}

fn refusal(peer: &io::Result<Credentials>) -> String {
    match peer {
        Ok(peer) => {
            let own = own_uid();
            format!("this server serves user {own} and root, not user {}", peer.uid)
        }
        Err(error) => format!("this server cannot tell who asks: {error}"),
    }
}

fn answer(handler: &impl Fn(&Peer<'_>, &str) -> String, peer: &Peer<'_>, request: &str) -> String {
    // The handler gives nothing to the next call that a panic could leave broken.
    catch_unwind(AssertUnwindSafe(|| handler(peer, request)))
        .unwrap_or_else(|_| error_reply("the server failed while it carried out the request"))
}
