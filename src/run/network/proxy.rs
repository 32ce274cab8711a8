//! The proxy: a process outside, without privilege, that takes connections from inside and makes
//! those that `--allow-host` names.
//!
//! The socket that it listens on was made in CMD's network namespace, where it is the only way out:
//! a socket belongs to the namespace that it was made in, whoever holds it. Those that the proxy
//! makes belong outside.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::head::{self, Asked, HEAD_MAX_BYTES};
use super::hosts::{Hosts, Target};

/// Connections at a time; further ones are answered with 503.
const CONNECTIONS_MAX: usize = 256;
/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a connection of which one direction has ended may be silent. The kernel forgets one that nobody
/// has open after as long (`tcp_fin_timeout`).
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(60);
/// How long, and for how many bytes, a client that was refused is listened to.
const LEAVING_TIMEOUT: Duration = Duration::from_secs(2);
const LEAVING_MAX_BYTES: u64 = 1 << 20;
/// Stack of a thread that copies bytes, or looks a name up.
const STACK_BYTES: usize = 512 << 10;

/// Hears which target was refused.
pub(super) type OnRefused = Arc<dyn Fn(&Target) + Send + Sync>;

/// Serves until the process is ended.
pub(super) fn serve(listener: &TcpListener, hosts: &Hosts, on_refused: &OnRefused) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((client, _)) = listener.accept() else {
            // Out of descriptors or memory: it may pass.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let place = Place::take(&open);
        let (hosts, on_refused) = (hosts.clone(), Arc::clone(on_refused));
        let work = move || match place {
            Some(place) => {
                serve_one(client, &hosts, &on_refused);
                drop(place);
            }
            None => say_no(client, "503 Service Unavailable", "too many connections at a time"),
        };
        // Without a thread the client finds its connection closed.
        let _ = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
    }
}

/// One of [`CONNECTIONS_MAX`].
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(Arc::clone(open));
        (open.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve_one(mut client: TcpStream, hosts: &Hosts, on_refused: &OnRefused) {
    let (asked, rest) = match read_head(&mut client) {
        Ok(Some(asked)) => asked,
        Ok(None) => return,
        Err(why) => return say_no(client, "400 Bad Request", why),
    };
    let (target, first) = match asked {
        Asked::Tunnel(target) => (target, None),
        Asked::Request(target, head) => (target, Some(head)),
    };
    let server = match connect(&target, hosts) {
        Ok(server) => server,
        Err(NotConnected::Refused(why)) => {
            on_refused(&target);
            return say_no(client, "403 Forbidden", &why);
        }
        Err(NotConnected::Failed(why)) => return say_no(client, "502 Bad Gateway", &why),
    };
    let sent = match first {
        Some(head) => (&server).write_all(&head),
        None => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n"),
    };
    if sent.and_then(|()| (&server).write_all(&rest)).is_ok() {
        relay(&client, &server, HALF_CLOSED_IDLE);
    }
}

/// The head, and what came after it. `None` where the client left.
fn read_head(client: &mut TcpStream) -> Result<Option<(Asked, Vec<u8>)>, &'static str> {
    let slow = "the request takes too long";
    client.set_read_timeout(Some(HEAD_TIMEOUT)).map_err(|_| slow)?;
    let begin = std::time::Instant::now();
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let read = match client.read(&mut part) {
            Ok(0) => return Ok(None),
            Ok(read) if begin.elapsed() < HEAD_TIMEOUT => read,
            _ => return Err(slow),
        };
        bytes.extend_from_slice(&part[..read]);
        if let Some((asked, length)) = head::parse(&bytes[..bytes.len().min(HEAD_MAX_BYTES)])? {
            client.set_read_timeout(None).map_err(|_| slow)?;
            return Ok(Some((asked, bytes.split_off(length))));
        }
    }
}

enum NotConnected {
    Refused(String),
    Failed(String),
}

/// Connects to what was named; the address is the one that was judged.
fn connect(target: &Target, hosts: &Hosts) -> Result<TcpStream, NotConnected> {
    if !hosts.allow(target) {
        let why =
            format!("{target} is not allowed; `tollgate run --allow-host {target}` allows it");
        return Err(NotConnected::Refused(why));
    }
    let failed = |error: io::Error| NotConnected::Failed(format!("{target}: {error}"));
    let addresses = (target.host.as_str(), target.port).to_socket_addrs().map_err(failed)?;
    let (near, public): (Vec<_>, Vec<_>) =
        addresses.partition(|address| !hosts.allow_address(target, address.ip()));
    let mut last = None;
    for address in public {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(failed(error)),
        }
    }
    Err(last.unwrap_or_else(|| match near.first() {
        Some(near) => NotConnected::Refused(format!(
            "{target} leads to {}, which is not on the internet; `tollgate run --allow-host \
             {near}` allows that, too",
            near.ip()
        )),
        None => NotConnected::Failed(format!("{target} has no address")),
    }))
}

fn say_no(mut client: TcpStream, status: &str, why: &str) {
    let body = format!("tollgate: {why}\n");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    // A client that left does not hear it.
    let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(body.as_bytes()));
    let _ = client.shutdown(Shutdown::Write);
    // A socket that is closed with unread bytes takes back what it has sent.
    let _ = client.set_read_timeout(Some(LEAVING_TIMEOUT));
    let _ = io::copy(&mut client.take(LEAVING_MAX_BYTES), &mut io::sink());
}

/// Copies in both directions until both are at their end. Once one is, the other one ends when nothing has come for
/// `idle`, twice that at most: whether who has sent the end still listens is not to be seen.
fn relay(client: &TcpStream, server: &TcpStream, idle: Duration) {
    let (Ok(from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else { return };
    let ended = Arc::new(AtomicBool::new(false));
    let there = std::thread::Builder::new().stack_size(STACK_BYTES).spawn({
        let ended = Arc::clone(&ended);
        move || copy(&from_client, &to_server, &ended, idle)
    });
    copy(server, client, &ended, idle);
    if let Ok(there) = there {
        let _ = there.join();
    }
}

/// `ended` is set by the first of two directions that is at its end.
fn copy(from: &TcpStream, to: &TcpStream, ended: &AtomicBool, idle: Duration) {
    let copied = copy_until_idle(from, to, ended, idle);
    ended.store(true, Ordering::Relaxed);
    let _ = to.shutdown(Shutdown::Write);
    if copied.is_err() {
        // Whoever cannot be written to, or sends nothing, is not waited for.
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

fn copy_until_idle(
    mut from: &TcpStream,
    mut to: &TcpStream,
    ended: &AtomicBool,
    idle: Duration,
) -> io::Result<()> {
    from.set_read_timeout(Some(idle))?;
    let mut part = [0; 16 << 10];
    let mut was_ended = false;
    loop {
        match from.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                to.write_all(&part[..read])?;
                was_ended = false;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && !was_ended => {
                was_ended = ended.load(Ordering::Relaxed);
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends of a connection.
    fn connection() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [one, listener.accept().unwrap().0]
    }

    #[test]
    fn who_has_left_is_not_waited_for() {
        for leaves_first in [true, false] {
            let ([client, to_client], [to_server, server]) = (connection(), connection());
            let (left, stays) = if leaves_first { (client, server) } else { (server, client) };
            drop(left);
            // It ends, though one side stays.
            relay(&to_client, &to_server, Duration::from_millis(50));
            drop(stays);
        }
    }

    #[test]
    fn who_listens_after_the_end_hears_all() {
        const IDLE: Duration = Duration::from_secs(1);
        let ([mut client, to_client], [to_server, mut server]) = (connection(), connection());
        let relay = std::thread::spawn(move || relay(&to_client, &to_server, IDLE));
        client.write_all(b"asked").unwrap();
        // Before the end nobody is hurried.
        std::thread::sleep(IDLE * 5 / 2);
        client.shutdown(Shutdown::Write).unwrap();
        let mut asked = String::new();
        server.read_to_string(&mut asked).unwrap();
        for _ in 0..10 {
            std::thread::sleep(IDLE / 5);
            server.write_all(b"answer").unwrap();
        }
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        relay.join().unwrap();
        assert_eq!((asked.as_str(), answer), ("asked", "answer".repeat(10)));
    }
}
