//! The socket of a session.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::namespaces::Namespaces;
use super::terms::Terms;
use crate::messages;
use crate::run::fence::session_directory;
use crate::run::wire::{Channel, Message};

/// Longest name: paths of sockets have at most 107 bytes.
const NAME_MAX: usize = 32;
/// How long one who joins waits for the first to have started its CMD.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often, and how far apart, one is looked for whose first `run` was killed and is not gone yet.
const LOOKS: u32 = 100;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// Those who join and wait.
const BACKLOG: i32 = 16;

/// A session that this process listens for.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) name: String,
    path: PathBuf,
    /// This process removes it.
    is_own: bool,
    listener: OwnedFd,
    /// Those who join are handed this, and the namespaces once there are some.
    terms: Option<OwnedFd>,
    namespaces: Option<Namespaces>,
    /// Those who were handed it and have not ended, as far as is known.
    joined: RefCell<Vec<OwnedFd>>,
}

/// What there is of a session.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing: this process is the first.
    First(Session),
    /// A fence to join.
    Joined(Box<Terms>, Namespaces),
}

/// Joins the session `name`, or begins to listen for it.
///
/// # Errors
/// When the name is none, or the directory is not private.
pub(crate) fn find(name: &str) -> anyhow::Result<Found> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    ensure!(
        !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(is_plain),
        "--session `{name}`: expected 1 to {NAME_MAX} letters, digits, `-`, `_` and `.`"
    );
    let directory = session_directory();
    directory.prepare()?;
    let path = directory.path().join(format!("{name}.sock"));
    for _ in 0..LOOKS {
        if let Some(found) = look(name, &path, &directory.path().join("lock"))? {
            return Ok(found);
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    bail!("session `{name}` is about to end; try again")
}

/// `None`: who had the session is about to end.
fn look(name: &str, path: &Path, lock: &Path) -> anyhow::Result<Option<Found>> {
    // Whoever finds a socket without a listener removes it: one at a time.
    let lock = File::create(lock).context("--session: no lock")?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).context("--session: no lock")?;
    if let Some(channel) = connect(path)? {
        drop(lock);
        return join(name, &channel);
    }
    let address = SocketAddrUnix::new(path)?;
    let listener = socket()?;
    rustix::net::bind(&listener, &address)
        .and_then(|()| rustix::net::listen(&listener, BACKLOG))
        .with_context(|| format!("--session: cannot listen at `{}`", path.display()))?;
    Ok(Some(Found::First(Session {
        name: name.to_owned(),
        path: path.to_owned(),
        is_own: true,
        listener,
        terms: None,
        namespaces: None,
        joined: RefCell::default(),
    })))
}

fn socket() -> anyhow::Result<OwnedFd> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).context("--session: no socket")
}

/// `None`: nobody listens, and there is no socket any more.
fn connect(path: &Path) -> anyhow::Result<Option<Channel>> {
    let socket = socket()?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(Some(Channel::of(socket))),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::CONNREFUSED) => {
            std::fs::remove_file(path).context("--session: cannot remove what is left of it")?;
            Ok(None)
        }
        Err(error) => Err(error).context("--session: cannot connect"),
    }
}

/// Waits until the first one has started its CMD. `None` if it ends instead.
fn join(name: &str, channel: &Channel) -> anyhow::Result<Option<Found>> {
    let received = channel.receive().with_context(|| {
        format!(
            "session `{name}` did not answer within {} s: is its first `tollgate run` stopped, as \
             by Ctrl-Z?",
            PATIENCE.as_secs()
        )
    })?;
    let Some(received) = received else { return Ok(None) };
    let is_session = received.message == Message::Session;
    let mut fds = received.fds();
    if !is_session || fds.is_empty() {
        bail!("session `{name}` sent what was not expected; is it of another version?");
    }
    let terms = Terms::of_file(fds.remove(0))
        .with_context(|| format!("session `{name}` is of another version"))?;
    Ok(Some(Found::Joined(Box::new(terms), Namespaces::received(fds)?)))
}

impl Session {
    /// What those who join are told. A server that has given up its rights makes no file for it.
    pub(crate) fn with(mut self, terms: &Terms) -> anyhow::Result<Self> {
        self.terms = Some(terms.to_file().context("--session: cannot hand on what holds in it")?);
        Ok(self)
    }

    /// From now on whoever connects is handed this.
    pub(crate) fn open(&mut self, namespaces: Namespaces) {
        self.namespaces = Some(namespaces);
    }

    /// Where it listens.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A child of this process removes it.
    pub(crate) fn leave_to_child(mut self) {
        self.is_own = false;
    }

    /// The listening socket, once there is something to hand out.
    pub(crate) fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.namespaces.as_ref().map(|_| self.listener.as_fd())
    }

    /// Answers who connected. Whoever is gone, or does not listen, is not waited for.
    pub(crate) fn answer(&self) {
        let Some((terms, namespaces)) = self.terms.as_ref().zip(self.namespaces.as_ref()) else {
            return;
        };
        let Ok(socket) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) else {
            return;
        };
        self.remember(&socket);
        let fds: Vec<_> = std::iter::once(terms.as_fd()).chain(namespaces.fds()).collect();
        if let Err(error) = Channel::of(socket).send_all(&Message::Session, &fds) {
            let why = messages::in_words(&error);
            messages::warn(&format!("session `{}`: nobody could join: {why}", self.name));
        }
    }

    fn remember(&self, socket: &OwnedFd) {
        let mut joined = self.joined.borrow_mut();
        joined.retain(|process| {
            let mut ended = [PollFd::new(process, PollFlags::IN)];
            !matches!(rustix::event::poll(&mut ended, Some(&Timespec::default())), Ok(1..))
        });
        let process = rustix::net::sockopt::socket_peercred(socket).map(|peer| peer.pid);
        let opened = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        joined.extend(opened);
    }

    /// The session ends. Whoever joined it and is stopped goes on: each of them has to take note that
    /// its CMD has ended, and the kernel keeps the process namespace until then.
    pub(crate) fn have_joined_go_on(&self) {
        for process in self.joined.borrow().iter() {
            // It may have ended by now.
            let _ = pidfd_send_signal(process, Signal::CONT);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // While it listens: nobody else has taken the place.
        if self.is_own {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
