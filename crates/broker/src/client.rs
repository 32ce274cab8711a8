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
/// again when the broker was restarted.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    socket: Option<OwnedFd>,
    /// The last failure to connect, and when it was.
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
        state.socket = None;
    }

    fn connected(
        &self,
        state: &mut MutexGuard<'_, State>,
        device: BorrowedFd<'_>,
    ) -> Result<(), RegisterError> {
        if state.socket.is_some() {
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
        let connected = open(&self.path).and_then(|socket| {
            state.socket = Some(socket);
            state.ask(Request::Hello, device)
        });
        match connected {
            Ok(_) => {
                state.failed = None;
                let owed = std::mem::take(&mut state.owed);
                owed.into_iter().for_each(|id| state.close(id));
                Ok(())
            }
            Err(error) => {
                state.socket = None;
                let reason = match &error {
                    RegisterError::Unreachable(error) => error.to_string(),
                    other => other.to_string(),
                };
                state.failed = Some((Instant::now(), reason));
                Err(error)
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves a state that is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Sends a request with a descriptor, and waits for the reply.
    fn ask(&self, request: Request, fd: BorrowedFd<'_>) -> Result<u32, RegisterError> {
        let socket = self.socket.as_ref().ok_or_else(|| io::Error::from(Errno::NOTCONN))?;
        let sent = send(socket, request, &[fd]);
        let mut bytes = [0; MESSAGE_BYTES + 1];
        // A broker that refuses a connection says so and closes it before it is asked.
        let mut receive = || {
            loop {
                match rustix::net::recv(socket, &mut bytes[..], RecvFlags::empty()) {
                    // A wait with a time limit is not taken up again after SIGSTOP and SIGCONT,
                    // nor after a freeze of the control group, although no handler ran.
                    Err(Errno::INTR) => {}
                    received => return received,
                }
            }
        };
        let received = match receive() {
            // The kernel tells first that what was sent was not read.
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        let received = match received {
            Ok((0, _)) => return Err(io::Error::from(sent.err().unwrap_or(Errno::PIPE)).into()),
            Ok((len, _)) => len,
            Err(Errno::AGAIN) => return Err(io::Error::from(Errno::TIMEDOUT).into()),
            Err(errno) => return Err(io::Error::from(errno).into()),
        };
        Ok(decode_reply(&bytes[..received])??)
    }

    fn close(&mut self, id: u32) {
        match self.socket.as_ref().map(|socket| send(socket, Request::Close(id), &[])) {
            Some(Ok(())) => return,
            Some(Err(errno)) => self.lost(&io::Error::from(errno).into()),
            None => {}
        }
        if self.owed.len() < MAX_OWED && !self.ended {
            self.owed.push(id);
        }
    }

    /// After a failure that is not about one file, the connection is of no use.
    fn lost(&mut self, error: &RegisterError) {
        if let RegisterError::Unreachable(error) = error {
            self.socket = None;
            self.failed = Some((Instant::now(), error.to_string()));
        }
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
