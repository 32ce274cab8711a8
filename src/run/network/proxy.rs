//! The proxy: a process outside, without privilege, that takes connections from inside and makes
//! those that `--allow-host` names.
//!
//! The socket that it listens on was made in CMD's network namespace, where it is the only way out:
//! a socket belongs to the namespace that it was made in, whoever holds it. Those that the proxy
//! makes belong outside.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::head::{self, Asked, HEAD_MAX_BYTES};
use super::hosts::{Hosts, Target};
use super::relay::{STACK_BYTES, relay};

const LIMITS: Limits = Limits { connections: 256, refusals: 256, leaving: Duration::from_secs(5) };
/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a connection of which one side has ended may be silent. The kernel forgets one that
/// nobody has open after as long (`tcp_fin_timeout`).
const HALF_CLOSED_IDLE: Duration = Duration::from_secs(60);
/// For how many bytes a client that was refused is listened to.
const LEAVING_MAX_BYTES: usize = 1 << 20;

/// What all clients together get, each by a thread.
#[derive(Clone, Copy)]
struct Limits {
    /// Connections at a time; further ones are answered with 503.
    connections: usize,
    /// Such answers at a time; further connections are closed without one.
    refusals: usize,
    /// How long a client that was refused is listened to, altogether.
    leaving: Duration,
}

/// Hears which target was refused.
pub(super) type OnRefused = Arc<dyn Fn(&Target) + Send + Sync>;

/// Serves until the process is ended.
pub(super) fn serve(listener: &TcpListener, hosts: &Hosts, on_refused: &OnRefused) {
    serve_within(LIMITS, listener, hosts, on_refused);
}

fn serve_within(limits: Limits, listener: &TcpListener, hosts: &Hosts, on_refused: &OnRefused) {
    let (open, refused) = (Arc::default(), Arc::default());
    loop {
        let Ok((client, _)) = listener.accept() else {
            // Out of descriptors or memory: it may pass.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let place = Place::take(&open, limits.connections);
        let is_served = place.is_some();
        let Some(place) = place.or_else(|| Place::take(&refused, limits.refusals)) else {
            continue;
        };
        let (hosts, on_refused) = (hosts.clone(), Arc::clone(on_refused));
        let work = move || {
            if is_served {
                serve_one(client, &hosts, &on_refused);
            } else {
                let why = "too many connections at a time";
                say_no_within(limits.leaving, client, "503 Service Unavailable", why);
            }
            drop(place);
        };
        // Without a thread the client finds its connection closed.
        let _ = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
    }
}

/// One of so many at a time.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let place = Self(Arc::clone(taken));
        (taken.fetch_add(1, Ordering::Relaxed) < max).then_some(place)
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
    let begin = Instant::now();
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
            "{target} leads to {}, which is this machine or not on the internet; `tollgate run \
             --allow-host {near}` allows that, too",
            near.ip()
        )),
        None => NotConnected::Failed(format!("{target} has no address")),
    }))
}

fn say_no(client: TcpStream, status: &str, why: &str) {
    say_no_within(LIMITS.leaving, client, status, why);
}

fn say_no_within(leaving: Duration, mut client: TcpStream, status: &str, why: &str) {
    let until = Instant::now() + leaving;
    let body = format!("tollgate: {why}\n");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    // A client that left, or takes nothing, does not hear it.
    let _ = client.set_write_timeout(Some(leaving));
    let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(body.as_bytes()));
    let _ = client.shutdown(Shutdown::Write);
    // A socket that is closed with unread bytes takes back what it has sent.
    let _ = listen_until(until, &client);
}

/// Reads, for nothing, up to the end, a moment, or a number of bytes.
fn listen_until(moment: Instant, mut client: &TcpStream) -> io::Result<()> {
    let (mut part, mut heard) = ([0; 4096], 0);
    while heard < LEAVING_MAX_BYTES {
        // When none is left, it is an error.
        let left = moment.saturating_duration_since(Instant::now());
        client.set_read_timeout(Some(left))?;
        match client.read(&mut part) {
            Ok(0) => break,
            Ok(read) => heard += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest wait for anything.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// One that is told no, as long as the proxy listens to it.
    fn refused(address: std::net::SocketAddr) -> Option<(TcpStream, String)> {
        let mut client = TcpStream::connect(address).unwrap();
        let mut answer = [0; 4096];
        let read = client.read(&mut answer).unwrap_or(0);
        let text = String::from_utf8_lossy(&answer[..read]).into_owned();
        (read > 0).then_some((client, text))
    }

    #[test]
    fn who_sends_on_after_a_no_is_not_listened_to_for_ever() {
        const LEAVING: Duration = Duration::from_secs(1);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (proxy, _) = listener.accept().unwrap();
        let begin = Instant::now();
        let no = std::thread::spawn(move || say_no_within(LEAVING, proxy, "400 Bad Request", "no"));
        while !no.is_finished() {
            assert!(begin.elapsed() < PATIENCE, "it is still listened to");
            // Never silent for long, and nothing much.
            let _ = client.write_all(b"x");
            std::thread::sleep(LEAVING / 10);
        }
    }

    #[test]
    fn who_comes_when_too_many_are_refused_is_not_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { connections: 1, refusals: 2, leaving: PATIENCE * 3 };
        std::thread::spawn(move || {
            let on_refused: OnRefused = Arc::new(|_| {});
            serve_within(limits, &listener, &Hosts::default(), &on_refused);
        });
        // It says nothing yet, and has the one place.
        let _served = TcpStream::connect(address).unwrap();
        let mut told: Vec<_> = std::iter::repeat_with(|| refused(address)).take(4).collect();
        let answers: Vec<bool> = told.iter().map(Option::is_some).collect();
        assert_eq!(answers, [true, true, false, false]);
        assert!(told.iter().flatten().all(|(_, text)| text.starts_with("HTTP/1.1 503 ")));
        // Who leaves makes room.
        told.clear();
        let begin = Instant::now();
        while refused(address).is_none() {
            assert!(begin.elapsed() < PATIENCE, "nobody is answered any more");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
