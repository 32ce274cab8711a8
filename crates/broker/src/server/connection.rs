//! One client: a process of its own, which lives as long as the connection. What it receives can
//! hang it (a file whose file system does not answer) or end it, and nobody else.

use std::convert::Infallible;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::mount::OpenTreeFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags};
use rustix::thread::CpuSet;

use super::check::{self, Broker};
use super::peer::{Peer, WINDOW_S};
use super::sandbox;
use crate::protocol::{MESSAGE_BYTES, Refusal, Reply, Request, VERSION, encode_reply};

/// How long a client may take to say HELLO, and a file system to tell what a file is. A process that
/// takes longer is ended.
const PATIENCE_S: i64 = 10;
/// Files that it registers in a window, for each one that it may have at a time.
const TURNS: usize = 15;

/// Serves one client in the child of a fork.
pub(super) fn serve(socket: OwnedFd, peer: Peer, broker: Broker) -> ! {
    let (dev, since, ids) = (broker.dev, Instant::now(), Vec::with_capacity(broker.max_files));
    let cpus = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let (cpu, registered) = ((u32::MAX, 0), 0);
    let mut client = Connection { socket, peer, dev, ids, cpus, cpu, since, registered };
    // Nothing is dropped after this: the heap may not be given back any more.
    let Err(ended) = client.begin(broker).and_then(|device| client.run(&device));
    if ended.kind() != io::ErrorKind::UnexpectedEof {
        client.peer.log(format_args!("connection ended: error {:?}", ended.raw_os_error()));
    }
    sandbox::exit()
}

struct Connection {
    socket: OwnedFd,
    peer: Peer,
    dev: u64,
    /// Registered and not closed yet. Never grows: its room is taken before the system calls that
    /// would get more are gone.
    ids: Vec<u32>,
    /// The CPUs that the broker was started with, and the one that the client named last, so often
    /// again in turn.
    cpus: CpuSet,
    cpu: (u32, u32),
    /// When the window began, and what was registered in it.
    since: Instant,
    registered: usize,
}

impl Connection {
    /// Hears the first message, and gives up everything but what later ones need.
    fn begin(&mut self, broker: Broker) -> io::Result<OwnedFd> {
        // A client that says nothing is not waited for.
        sandbox::set_alarm(PATIENCE_S)?;
        let hello = receive(&self.socket)?.and_then(|message| match message {
            (Request::Hello, Some(device)) => check::device(device, self.peer.uid, &broker),
            _ => Err(Refusal::Malformed),
        });
        let device = hello.or_else(|refusal| {
            self.answer(Err(refusal))?;
            Err(io::Error::from(io::ErrorKind::UnexpectedEof))
        })?;
        sandbox::become_caller(&self.peer)?;
        sandbox::die_with(broker.listening)?;
        drop(broker);
        sandbox::filter_system_calls().map_err(io::Error::other)?;
        self.answer(Ok(VERSION.into()))?;
        Ok(device)
    }

    /// Until the client closes the connection; what it had registered is closed then.
    fn run(&mut self, device: &OwnedFd) -> io::Result<Infallible> {
        let ended = self.serve_all(device);
        self.ids.iter().for_each(|id| sandbox::close_backing(device, *id));
        ended
    }

    fn serve_all(&mut self, device: &OwnedFd) -> io::Result<Infallible> {
        loop {
            sandbox::set_alarm(0)?;
            let received = receive(&self.socket)?;
            sandbox::set_alarm(PATIENCE_S)?;
            if self.since.elapsed().as_secs() >= WINDOW_S {
                (self.since, self.registered) = (Instant::now(), 0);
            }
            let reply = match received {
                Ok((Request::Register(cpu), Some(file))) => self.register(device, &file, cpu),
                Ok((Request::Close(id), None)) => {
                    self.close(device, id);
                    continue;
                }
                other => Err(other.err().unwrap_or(Refusal::Malformed)),
            };
            self.answer(reply)?;
        }
    }

    fn answer(&mut self, reply: Reply) -> io::Result<()> {
        if let Err(refusal) = reply {
            self.peer.log(format_args!("refused: {refusal}"));
        }
        send(&self.socket, reply)
    }

    fn register(&mut self, device: &OwnedFd, file: &OwnedFd, cpu: u32) -> Reply {
        self.follow(cpu);
        let most = self.ids.capacity();
        self.registered += 1;
        if self.ids.len() == most || self.registered > most * TURNS {
            return Err(Refusal::TooManyFiles);
        }
        check::lower(file, self.dev)?;
        // Registered by a descriptor that only names the file: the kernel would keep one that can
        // write, and nobody could execute the file meanwhile (ETXTBSY).
        let flags = OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let named = rustix::mount::open_tree(file, c"", flags)?;
        let id = sandbox::open_backing(device, &named)?;
        self.ids.push(id);
        Ok(id)
    }

    /// Goes to `cpu` if the client names it for the second time in turn. There it runs as soon as the
    /// client sleeps; on another one, which may have halted, it would have to be woken, and the
    /// client again.
    fn follow(&mut self, cpu: u32) {
        let ((named, times), at) = (self.cpu, cpu as usize);
        self.cpu = (cpu, if named == cpu { times.saturating_add(1) } else { 0 });
        if self.cpu.1 == 1 && at < CpuSet::MAX_CPU && self.cpus.is_set(at) {
            let mut only = CpuSet::new();
            only.set(at);
            let _ = rustix::thread::sched_setaffinity(None, &only);
        }
    }

    /// Any id of the caller's own FUSE connection: one that an earlier broker registered, too.
    fn close(&mut self, device: &OwnedFd, id: u32) {
        self.ids.retain(|known| *known != id);
        sandbox::close_backing(device, id);
    }
}

/// The next message and its descriptor. Descriptors that do not belong to it are closed.
fn receive(socket: &OwnedFd) -> io::Result<Result<(Request, Option<OwnedFd>), Refusal>> {
    // A byte more than a request has: a longer message is told apart.
    let mut bytes = [0; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut fds = rights.flatten();
    let (fd, second) = (fds.next(), fds.next());
    if received.bytes == 0 && fd.is_none() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if second.is_some() || received.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(Err(Refusal::Malformed));
    }
    Ok(Request::decode(&bytes[..received.bytes]).map(|request| (request, fd)))
}

/// Does not wait: a client has one request under way, so there is room for the reply.
pub(super) fn send(socket: &OwnedFd, reply: Reply) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(rustix::net::send(socket, &encode_reply(reply), flags).map(drop)?)
}
