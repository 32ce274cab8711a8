//! The side of a FUSE server.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use crate::asking::decode_reply;
use crate::protocol::{MESSAGE_BYTES, Refusal, Request};
use crate::trusted::listening_user;

/// How long the broker may take to answer before the client does without it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the client does without a broker that was not there, before it tries again.
const BACK_OFF: Duration = Duration::from_millis(500);
/// Registrations to close when a broker is there again; beyond it they last as long as the FUSE
/// connection.
const MAX_OWED: usize = 4096;

/// Why a file is not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// By the broker's decision.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// There is no broker at the socket, or it does not answer.
    #[error("the broker cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
    /// Somebody else than root listens there, who would be handed the server's descriptors. Root
    /// outside of a user namespace that has no root appears as the overflow user (65534).
    #[error("a process of user {0} listens there, and only root's can be a broker")]
    NotOfRoot(u32),
}

/// Whether there is a broker of root at `path`, without asking it for anything.
///
/// # Errors
/// [`RegisterError::Unreachable`] and [`RegisterError::NotOfRoot`].
pub fn look(path: &Path) -> Result<(), RegisterError> {
    open(path).map(drop)
}

/// A connection to the broker for one FUSE connection. It is made when it is needed first, and
/// again when the broker was restarted. While the broker is late, it stays, and is not used.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Also of a broker that is late: with its connection, it closes what was registered there, and
    /// files are open by that.
    socket: Option<OwnedFd>,
    /// The reply to the last request there did not come in time.
    is_reply_due: bool,
    /// The last failure, and when it was; none since the broker answered.
    failed: Option<(Instant, String)>,
    /// Ids to close that could not be sent.
    owed: Vec<u32>,
    /// No connection is wanted any more.
    ended: bool,
}

impl Client {
    /// A client of the broker that listens at `path`; connects to nothing yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), state: Mutex::default() }
    }

    /// Where the broker listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connects for the FUSE connection of `device`, unless that is done.
    ///
    /// # Errors
    /// When there is no broker, or it does not serve this caller or this connection.
    pub fn connect(&self, device: BorrowedFd<'_>) -> Result<(), RegisterError> {
        self.connected(&mut self.state(), device)
    }

    /// Registers the file of `lower`, which must be open for reading and writing, and returns its
    /// id for the kernel.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(
        &self,
        device: BorrowedFd<'_>,
        lower: BorrowedFd<'_>,
    ) -> Result<u32, RegisterError> {
        let mut state = self.state();
        self.connected(&mut state, device)?;
        // There the broker answers soonest: this thread is about to give it up.
        let cpu = u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(0);
        state.ask(Request::Register(cpu), lower).inspect_err(|error| state.lost(error))
    }

    /// Drops the registration `id`; later, if there is no broker now.
    pub fn close(&self, id: u32) {
        self.state().close(id);
    }

    /// Why there is no broker, if there was none when it was asked last.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.state().failed.as_ref().map(|(_, reason)| reason.clone())
    }

    /// Closes the connection for ever: the broker holds the server's end of the FUSE connection
    /// meanwhile, and lets go of it then.
    pub fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        state.disconnect();
    }

    fn connected(
        &self,
        state: &mut MutexGuard<'_, State>,
        device: BorrowedFd<'_>,
    ) -> Result<(), RegisterError> {
        if state.is_usable() {
            return Ok(());
        }
        if state.ended {
            return Err(io::Error::from(Errno::SHUTDOWN).into());
        }
        if let Some((at, reason)) = &state.failed
            && at.elapsed() < BACK_OFF
        {
            return Err(io::Error::other(reason.clone()).into());
        }
        match state.take_late_reply().and_then(|()| self.reconnect(state, device)) {
            Ok(()) => {
                state.failed = None;
                let owed = std::mem::take(&mut state.owed);
                owed.into_iter().for_each(|id| state.close(id));
                Ok(())
            }
            Err(error) => {
                let reason = match &error {
                    RegisterError::Unreachable(error) => error.to_string(),
                    other => other.to_string(),
                };
                state.failed = Some((Instant::now(), reason));
                Err(error)
            }
        }
    }

    /// Makes the connection, where there is none.
    fn reconnect(&self, state: &mut State, device: BorrowedFd<'_>) -> Result<(), RegisterError> {
        if state.socket.is_some() {
            return Ok(());
        }
        state.socket = Some(open(&self.path)?);
        // Nothing is registered on it that could be lost with it.
        state.ask(Request::Hello, device).map(drop).inspect_err(|_| state.disconnect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves a state that is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether there is a connection, at which the broker is not late.
    fn is_usable(&self) -> bool {
        self.socket.is_some() && self.failed.is_none()
    }

    fn disconnect(&mut self) {
        (self.socket, self.is_reply_due) = (None, false);
    }

    /// Takes the reply that was not there in time, if it is by now: until then, nobody could tell
    /// which request a reply is to.
    fn take_late_reply(&mut self) -> Result<(), RegisterError> {
        let Some(socket) = self.socket.as_ref().filter(|_| self.is_reply_due) else {
            return Ok(());
        };
        let mut bytes = [0; MESSAGE_BYTES + 1];
        match receive(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return Err(io::Error::from(Errno::TIMEDOUT).into()),
            Ok(len) if len > 0 => {
                self.is_reply_due = false;
                if let Ok(Ok(id)) = decode_reply(&bytes[..len]) {
                    // The file was opened without it.
                    self.owe(id);
                }
            }
            // The broker ended the connection.
            Ok(_) | Err(_) => self.disconnect(),
        }
        Ok(())
    }

    /// Sends a request with a descriptor, and waits for the reply.
    fn ask(&self, request: Request, fd: BorrowedFd<'_>) -> Result<u32, RegisterError> {
        let socket = self.socket.as_ref().ok_or_else(|| io::Error::from(Errno::NOTCONN))?;
        // What was not sent has no reply.
        let ended = match send(socket, request, &[fd]).map_err(unsent) {
            Ok(()) => Errno::PIPE.into(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error.into()),
            Err(error) => error,
        };
        let mut bytes = [0; MESSAGE_BYTES + 1];
        // A broker that refuses a connection says so and closes it before it is asked.
        let mut receive = || receive(socket, &mut bytes, RecvFlags::empty());
        let received = match receive() {
            // The kernel tells first that what was sent was not read.
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        let received = match received {
            Ok(0) => return Err(ended.into()),
            Ok(len) => len,
            Err(Errno::AGAIN) => return Err(io::Error::from(Errno::TIMEDOUT).into()),
            Err(errno) => return Err(io::Error::from(errno).into()),
        };
        Ok(decode_reply(&bytes[..received])??)
    }

    fn close(&mut self, id: u32) {
        // A broker that is late may take nothing, and is not waited for.
        let socket = self.socket.as_ref().filter(|_| self.is_usable());
        match socket.map(|socket| send(socket, Request::Close(id), &[])) {
            Some(Ok(())) => return,
            Some(Err(errno)) => self.lost(&unsent(errno).into()),
            None => {}
        }
        self.owe(id);
    }

    fn owe(&mut self, id: u32) {
        if self.owed.len() < MAX_OWED && !self.ended {
            self.owed.push(id);
        }
    }

    /// After a failure that is not about one file, the connection is of no use: for ever, or until
    /// the broker, which is late, answers.
    fn lost(&mut self, error: &RegisterError) {
        let RegisterError::Unreachable(error) = error else { return };
        match error.kind() {
            io::ErrorKind::TimedOut => self.is_reply_due = true,
            // Nothing was sent.
            io::ErrorKind::WouldBlock => {}
            _ => self.disconnect(),
        }
        self.failed = Some((Instant::now(), error.to_string()));
    }
}

/// Why a request was not sent. Unless the connection has ended it is as good as before, and this is
/// `WouldBlock`: the broker takes nothing, memory is missing, or too many descriptors of this user
/// are on their way (`ETOOMANYREFS`).
fn unsent(errno: Errno) -> io::Error {
    match errno {
        Errno::PIPE | Errno::CONNRESET => errno.into(),
        errno => io::Error::new(io::ErrorKind::WouldBlock, io::Error::from(errno)),
    }
}

/// Connects, and makes sure of who listens before anything is sent.
fn open(path: &Path) -> Result<OwnedFd, RegisterError> {
    let socket = connect(path)?;
    match listening_user(&socket)? {
        0 => Ok(socket),
        uid => Err(RegisterError::NotOfRoot(uid)),
    }
}

fn connect(path: &Path) -> io::Result<OwnedFd> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    for timeout in [Timeout::Recv, Timeout::Send] {
        rustix::net::sockopt::set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
    }
    let address = SocketAddrUnix::new(path)?;
    while let Err(errno) = rustix::net::connect(&socket, &address) {
        if errno != Errno::INTR {
            return Err(errno.into());
        }
    }
    Ok(socket)
}

/// The length of the next message; 0 at the end of the connection.
fn receive(socket: &OwnedFd, bytes: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    loop {
        match rustix::net::recv(socket, &mut *bytes, flags) {
            // A wait with a time limit is not taken up again after SIGSTOP and SIGCONT, nor after a
            // freeze of the control group, although no handler ran.
            Err(Errno::INTR) => {}
            received => return received.map(|(len, _)| len),
        }
    }
}

fn send(socket: &OwnedFd, request: Request, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    let bytes = request.encode();
    loop {
        let parts = [IoSlice::new(&bytes)];
        match rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop),
        }
    }
}
