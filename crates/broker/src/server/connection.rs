//! One client: a process of its own, which lives as long as the connection. What it receives can
//! hang it (a file whose file system does not answer) or end it, and nobody else.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags};
use rustix::time::ClockId;

use super::check::{self, kernel};
use super::log::log;
use super::options::Broker;
use super::sandbox;
use crate::protocol::{MESSAGE_BYTES, Refusal, Reply, Request, VERSION, encode_reply};

/// How long a client may take to say HELLO, and a file system to tell what a file is. A process that
/// takes longer is ended.
const PATIENCE_S: i64 = 10;
/// Refusals that one connection has logged in [`LOG_WINDOW_S`]; the others are counted.
const MAX_LOGGED: u32 = 20;
const LOG_WINDOW_S: i64 = 60;

/// Who connected, as the kernel knew it at that moment, in the initial user namespace.
#[derive(Debug)]
pub(super) struct Peer {
    pid: i32,
    pub(super) uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Peer {
    pub(super) fn of(socket: &OwnedFd) -> io::Result<Self> {
        let (pid, uid, gid) = sandbox::peer(socket)?;
        Ok(Self { pid, uid, gid, groups: sandbox::peer_groups(socket)? })
    }

    /// Whether it is in `group`; root is in all.
    pub(super) fn is_in(&self, group: u32) -> bool {
        self.uid == 0 || self.gid == group || self.groups.contains(&group)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {} (process {})", self.uid, self.pid)
    }
}

/// Serves one client in the child of a fork.
pub(super) fn serve(socket: OwnedFd, broker: &Broker, peer: &Peer) -> ! {
    let ended = match confine(socket, broker, peer) {
        // Not dropped: the heap may not be given back any more.
        Ok(mut connection) => connection.run(broker),
        Err(error) => error,
    };
    if ended.kind() != io::ErrorKind::UnexpectedEof {
        log(format_args!("{peer}: connection ended: error {:?}", ended.raw_os_error()));
    }
    sandbox::exit()
}

/// Hears the first message, and gives up everything but what later ones need.
fn confine<'a>(socket: OwnedFd, broker: &Broker, peer: &'a Peer) -> io::Result<Connection<'a>> {
    sandbox::close_inherited(&broker.listener)?;
    // A client that says nothing is not waited for.
    sandbox::set_alarm(PATIENCE_S)?;
    let device = hello(&socket, broker, peer)?;
    sandbox::close_inherited(&broker.proc)?;
    sandbox::close_inherited(&broker.connections)?;
    sandbox::become_caller(peer.uid, peer.gid, &peer.groups)?;
    sandbox::die_with(broker.listening)?;
    let ids = Vec::with_capacity(broker.options.max_files);
    let (files, logged) = (Rate::new(), Rate::new());
    let connection = Connection { socket, device, peer, ids, files, logged, unlogged: 0 };
    sandbox::filter_system_calls()?;
    Ok(connection)
}

/// The first message.
fn hello(socket: &OwnedFd, broker: &Broker, peer: &Peer) -> io::Result<OwnedFd> {
    let checked = match receive(socket)? {
        (Ok(Request::Hello), Some(fd)) => check::device(fd.as_fd(), peer.uid, broker).map(|()| fd),
        (Ok(_), _) => Err(Refusal::OutOfTurn),
        (Err(refusal), _) => Err(refusal),
    };
    checked.map_err(|refusal| {
        log(format_args!("{peer}: refused: {refusal}"));
        let _ = send(socket, Err(refusal));
        io::ErrorKind::UnexpectedEof.into()
    })
}

struct Connection<'a> {
    socket: OwnedFd,
    device: OwnedFd,
    peer: &'a Peer,
    /// Registered and not closed yet. Never grows: its room is taken before the system calls that
    /// would get more are gone.
    ids: Vec<u32>,
    files: Rate,
    logged: Rate,
    unlogged: u64,
}

impl Connection<'_> {
    /// Until the client closes the connection; what it had registered is closed then.
    fn run(&mut self, broker: &Broker) -> io::Error {
        let mut next = send(&self.socket, Ok(u32::from(VERSION)));
        let ended = loop {
            match next {
                Ok(()) => next = self.serve_one(broker),
                Err(error) => break error,
            }
        };
        while let Some(id) = self.ids.pop() {
            let _ = sandbox::close_backing(self.device.as_fd(), id);
        }
        ended
    }

    fn serve_one(&mut self, broker: &Broker) -> io::Result<()> {
        sandbox::set_alarm(0)?;
        let (request, fd) = receive(&self.socket)?;
        sandbox::set_alarm(PATIENCE_S)?;
        let reply = match request {
            Ok(Request::Register) => self.register(fd, broker),
            Ok(Request::Close(id)) => {
                self.close(id);
                return Ok(());
            }
            Ok(Request::Hello) => Err(Refusal::OutOfTurn),
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = reply {
            self.log(refusal);
        }
        send(&self.socket, reply)
    }

    fn register(&mut self, file: Option<OwnedFd>, broker: &Broker) -> Reply {
        let file = file.ok_or(Refusal::Descriptors)?;
        if self.ids.len() == self.ids.capacity() {
            return Err(Refusal::TooManyFiles);
        }
        if !self.files.take(broker.options.max_files_per_second, 1) {
            return Err(Refusal::TooFast);
        }
        check::lower(file.as_fd(), broker)?;
        // Registered by a descriptor that only names the file: the kernel would keep one that can
        // write, and nobody could execute the file meanwhile (ETXTBSY).
        let flags = OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let named = rustix::mount::open_tree(&file, c"", flags).map_err(kernel)?;
        let id = sandbox::open_backing(self.device.as_fd(), named.as_fd()).map_err(kernel)?;
        self.ids.push(id);
        Ok(id)
    }

    /// Any id of the caller's own FUSE connection: one that an earlier broker registered, too.
    fn close(&mut self, id: u32) {
        if let Some(at) = self.ids.iter().position(|known| *known == id) {
            self.ids.swap_remove(at);
        }
        // An id that is not there is as good as closed.
        let _ = sandbox::close_backing(self.device.as_fd(), id);
    }

    fn log(&mut self, refusal: Refusal) {
        if !self.logged.take(MAX_LOGGED, LOG_WINDOW_S) {
            self.unlogged += 1;
            return;
        }
        match std::mem::take(&mut self.unlogged) {
            0 => log(format_args!("{}: refused: {refusal}", self.peer)),
            more => log(format_args!("{}: refused: {refusal}; {more} more before", self.peer)),
        }
    }
}

/// The next request and its descriptor. Descriptors that do not belong to it are closed.
fn receive(socket: &OwnedFd) -> io::Result<(Result<Request, Refusal>, Option<OwnedFd>)> {
    // A byte more than a request has: a longer message is told apart.
    let mut bytes = [0; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let (mut count, mut last) = (0, None);
    for fd in rights.flatten() {
        count += 1;
        last = Some(fd);
    }
    if received.bytes == 0 && count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let request = Request::decode(&bytes[..received.bytes]).and_then(|request| {
        let truncated = received.flags.contains(ReturnFlags::CTRUNC);
        let as_it_should = count == request.descriptors() && !truncated;
        if as_it_should { Ok(request) } else { Err(Refusal::Descriptors) }
    });
    Ok((request, last))
}

/// Does not wait: a client has one request under way, so there is room for the reply.
pub(super) fn send(socket: &OwnedFd, reply: Reply) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::send(socket, &encode_reply(reply), flags)?;
    Ok(())
}

/// What was used since a moment, in seconds.
struct Rate {
    used: u32,
    since: i64,
}

impl Rate {
    /// Asks for the time: the first who does looks for the kernel's vDSO, by system calls that are
    /// gone later.
    fn new() -> Self {
        Self { used: 0, since: rustix::time::clock_gettime(ClockId::Monotonic).tv_sec }
    }

    /// One more, of at most `most` in `seconds`.
    fn take(&mut self, most: u32, seconds: i64) -> bool {
        let now = rustix::time::clock_gettime(ClockId::Monotonic).tv_sec;
        if now - self.since >= seconds {
            (self.used, self.since) = (0, now);
        }
        self.used = self.used.saturating_add(1);
        self.used <= most
    }
}
