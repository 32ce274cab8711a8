//! The privileged process: it accepts connections and starts a process for each one. It never reads
//! a byte that a client sent.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};

use super::connection::{self, Peer};
use super::log::log;
use super::options::{Broker, Options};
use super::sandbox;
use crate::protocol::Refusal;

/// Connections of one user: one for each view that is served.
const MAX_CONNECTIONS_OF_USER: usize = 16;
/// Connections altogether.
const MAX_CONNECTIONS: usize = 1024;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// The number that the initial user namespace has in /proc (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: u64 = 0xefff_fffd;

/// A socket at `path` that everybody may connect to. One that a dead broker left is replaced.
///
/// # Errors
/// `EADDRINUSE` if a broker listens there, and the errors of the system.
pub fn listener(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = || rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    if rustix::net::connect(&socket()?, &address) == Err(Errno::CONNREFUSED) {
        rustix::fs::unlink(path)?;
    }
    let listener = socket()?;
    rustix::net::bind(&listener, &address)?;
    rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(0o666), AtFlags::empty())?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Serves `listener` until the process is ended. It must have one thread, of root; descriptors other
/// than the listener and the standard streams are closed.
///
/// # Errors
/// Before the first connection: when privilege is missing or the process cannot be confined.
pub fn serve(listener: OwnedFd, options: Options) -> io::Result<Infallible> {
    let broker = prepare(listener, options)?;
    let mut connections = HashMap::new();
    loop {
        // A child that ended interrupts the wait.
        match rustix::net::accept_with(&broker.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => accept(socket, &broker, &mut connections),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            // Out of descriptors or memory: nothing was accepted, and it may pass.
            Err(errno) => {
                log(format_args!("no connection can be accepted: {errno}"));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        while let Ok(Some((child, _))) = rustix::process::wait(WaitOptions::NOHANG) {
            connections.remove(&child);
        }
    }
}

fn prepare(listener: OwnedFd, options: Options) -> io::Result<Broker> {
    if std::fs::metadata("/proc/self/ns/user")?.ino() != INITIAL_USER_NAMESPACE {
        return Err(io::Error::other(
            "the kernel takes files from the initial user namespace only",
        ));
    }
    sandbox::close_all_but(&listener)?;
    sandbox::prepare_signals()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    Ok(Broker {
        options,
        listener,
        listening: rustix::process::getpid(),
        proc: rustix::fs::open("/proc", flags, Mode::empty())?,
        dev: rustix::fs::stat("/dev")?.st_dev,
        connections: sandbox::enter()?,
        connection_is_told: is_since_6_18(&release),
    })
}

fn is_since_6_18(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 18)
}

fn accept(socket: OwnedFd, broker: &Broker, connections: &mut HashMap<Pid, u32>) {
    let peer = match Peer::of(&socket) {
        Ok(peer) => peer,
        Err(error) => return log(format_args!("a caller cannot be told: {error}")),
    };
    let of_user = connections.values().filter(|uid| **uid == peer.uid).count();
    let refusal = if broker.options.group.is_some_and(|group| !peer.is_in(group)) {
        Refusal::NotAllowed
    } else if of_user >= MAX_CONNECTIONS_OF_USER || connections.len() >= MAX_CONNECTIONS {
        Refusal::TooManyConnections
    } else {
        return match sandbox::fork() {
            Ok(None) => connection::serve(socket, broker, &peer),
            Ok(Some(child)) => drop(connections.insert(child, peer.uid)),
            Err(error) => log(format_args!("{peer}: no process can be started: {error}")),
        };
    };
    log(format_args!("{peer}: refused: {refusal}"));
    // Before the first request: the client reads this as the answer.
    let _ = connection::send(&socket, Err(refusal));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_compared_by_its_numbers() {
        for (release, since) in
            [("6.18.44-x", true), ("6.9.0", false), ("7.0-rc1", true), ("6.18", true), ("", false)]
        {
            assert_eq!(is_since_6_18(release), since, "{release}");
        }
    }
}
