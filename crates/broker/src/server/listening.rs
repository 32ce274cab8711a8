//! The privileged process: it accepts connections and starts a process for each one. It never reads
//! a byte that a client sent.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};

use super::check::Broker;
use super::connection;
use super::peer::{LOGGED, Peer};
use super::sandbox;
use crate::protocol::Refusal;

/// Connections of one user: one for each view that is served.
const MAX_CONNECTIONS_OF_USER: usize = 16;
/// Connections altogether.
const MAX_CONNECTIONS: usize = 1024;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The processes of connections, and their users.
type Connections = HashMap<Pid, u32>;

/// A socket at `path` that everybody may connect to. One that a dead broker left is replaced. The
/// directory has to be there: one that root made here would keep its user from it.
///
/// # Errors
/// `EADDRINUSE` if a broker listens there or something lies there that is no socket, which is left, and
/// the errors of the system.
pub fn listener(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = || rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
    let is_dead = rustix::net::connect(&socket()?, &address) == Err(Errno::CONNREFUSED);
    // A file that is no socket refuses connections, too.
    if is_dead && FileType::from_raw_mode(rustix::fs::lstat(path)?.st_mode) == FileType::Socket {
        rustix::fs::unlink(path)?;
    }
    let listener = socket()?;
    rustix::net::bind(&listener, &address)?;
    rustix::fs::chmod(path, Mode::from_raw_mode(0o666))?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Serves `listener` until the process is ended: members of `group` and root, or everybody, and
/// `max_files` files of each connection at a time. The process must have one thread, of root in the initial user
/// namespace, and no descriptors besides but the standard streams.
///
/// # Errors
/// Before the first connection: when privilege is missing or the process cannot be confined.
pub fn serve(listener: OwnedFd, group: Option<u32>, max_files: usize) -> io::Result<Infallible> {
    let broker = Broker::prepare(max_files)?;
    // Before the first fork.
    LazyLock::force(&LOGGED);
    sandbox::enter()?;
    eprintln!("tollgate broker: ready");
    let mut connections = Connections::new();
    loop {
        match accept(&listener, group, &mut connections) {
            Ok(Some((socket, peer))) => {
                drop(listener);
                connection::serve(socket, peer, broker)
            }
            Ok(None) => {}
            // Out of descriptors, memory or processes: it may pass.
            Err(error) => {
                eprintln!("tollgate broker: a caller cannot be served: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Waits for a caller that is welcome, and returns it in a process of its own.
fn accept(
    listener: &OwnedFd,
    group: Option<u32>,
    connections: &mut Connections,
) -> io::Result<Option<(OwnedFd, Peer)>> {
    let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?;
    // Processes that ended since the last caller: they wait for this, and do nothing else.
    while let Ok(Some((child, _))) = rustix::process::wait(WaitOptions::NOHANG) {
        connections.remove(&child);
    }
    let peer = Peer::of(&socket)?;
    if let Err(refusal) = welcome(&peer, group, connections) {
        peer.log(format_args!("refused: {refusal}"));
        // Before the first request: the client reads this as the answer.
        let _ = connection::send(&socket, Err(refusal));
        return Ok(None);
    }
    let Some(child) = sandbox::fork()? else { return Ok(Some((socket, peer))) };
    connections.insert(child, peer.uid);
    Ok(None)
}

/// Whether it may have one more connection.
fn welcome(peer: &Peer, group: Option<u32>, connections: &Connections) -> Result<(), Refusal> {
    if group.is_some_and(|group| !peer.is_in(group)) {
        return Err(Refusal::NotAllowed);
    }
    let of_user = connections.values().filter(|uid| **uid == peer.uid).count();
    if of_user >= MAX_CONNECTIONS_OF_USER || connections.len() >= MAX_CONNECTIONS {
        return Err(Refusal::TooManyConnections);
    }
    Ok(())
}
