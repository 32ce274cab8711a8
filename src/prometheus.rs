//! A server's counters as Prometheus text (exposition format 0.0.4), and a listener for it on the
//! loopback interface.

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::requests::{Operation, Requests};

/// The longest HTTP request in bytes; a longer one is refused.
const REQUEST_MAX_BYTES: usize = 4096;
/// How long a client may take for its request and the response.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Connections that are served side by side; one more ends the oldest.
const CLIENTS_MAX: usize = 32;
/// How long it waits where there is no descriptor or no memory for a further one.
const PAUSE: Duration = Duration::from_millis(50);
/// Bounds of the buckets that are published: powers of two from 1 us to 16 s.
const BOUNDS_NS: std::ops::RangeInclusive<u32> = 10..=34;

/// The text for one server.
pub(crate) fn text(requests: &Requests) -> String {
    let mut text = String::new();
    histogram(&requests.operations, &mut text);
    head("tollgate_uptime_seconds", "gauge", "Time since the start of the server.", &mut text);
    say(&mut text, "tollgate_uptime_seconds", "", seconds(requests.uptime_ns));
    if let Some(waiting) = requests.waiting {
        let help = "Requests without a reply, as the kernel counts them.";
        head("tollgate_requests_waiting", "gauge", help, &mut text);
        say(&mut text, "tollgate_requests_waiting", "", waiting);
    }
    let help = "CPU time of each thread of the server.";
    head("tollgate_thread_cpu_seconds_total", "counter", help, &mut text);
    for thread in &requests.threads {
        let labels = format!("{{tid=\"{}\",name=\"{}\"}}", thread.tid, escaped(&thread.name));
        let seconds = seconds(thread.cpu_ns);
        say(&mut text, "tollgate_thread_cpu_seconds_total", &labels, seconds);
    }
    text
}

fn histogram(operations: &[Operation], text: &mut String) {
    const NAME: &str = "tollgate_request_duration_seconds";
    head(NAME, "histogram", "Requests by operation and decision, and how long they took.", text);
    for one in operations {
        let labels = format!("operation=\"{}\",decision=\"{}\"", one.operation, one.decision);
        for power in BOUNDS_NS {
            let bound = 1_u64 << power;
            let within = one.buckets.iter().filter(|b| b.below_ns.is_some_and(|ns| ns <= bound));
            let count: u64 = within.map(|bucket| bucket.count).sum();
            let labels = format!("{{{labels},le=\"{}\"}}", seconds(bound));
            say(text, "tollgate_request_duration_seconds_bucket", &labels, count);
        }
        let infinite = format!("{{{labels},le=\"+Inf\"}}");
        say(text, "tollgate_request_duration_seconds_bucket", &infinite, one.count());
        let labels = format!("{{{labels}}}");
        say(text, "tollgate_request_duration_seconds_sum", &labels, seconds(one.total_ns));
        say(text, "tollgate_request_duration_seconds_count", &labels, one.count());
    }
}

fn head(name: &str, kind: &str, help: &str, to: &mut String) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(to, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn say(to: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(to, "{name}{labels} {value}");
}

/// Nanoseconds as seconds, exact.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Serves `GET /metrics` at `port` of 127.0.0.1, [`CLIENTS_MAX`] clients side by side, until the process
/// ends. Returns the address; with port 0 the kernel chooses one.
///
/// # Errors
/// The port is taken; no thread can be started.
pub(crate) fn serve(
    port: u16,
    text: Arc<dyn Fn() -> String + Send + Sync>,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let address = listener.local_addr()?;
    rustix::fs::fcntl_setfl(&listener, OFlags::NONBLOCK)?;
    let mut clients = Vec::new();
    std::thread::Builder::new().name("tollgate-metrics".to_owned()).spawn(move || {
        loop {
            if serve_once(&listener, &mut clients, &*text).is_err() {
                // Out of memory.
                std::thread::sleep(PAUSE);
            }
        }
    })?;
    Ok(address)
}

/// Waits until there is something to do, and does it.
fn serve_once(
    listener: &TcpListener,
    clients: &mut Vec<Client>,
    text: &dyn Fn() -> String,
) -> io::Result<()> {
    let mut waiting: Vec<_> = clients.iter().map(Client::awaited).collect();
    waiting.push(PollFd::new(listener, PollFlags::IN));
    let left = clients.first().map(|oldest| TIME_LIMIT.saturating_sub(oldest.since.elapsed()));
    let left = left.map(|left| Timespec::try_from(left).expect("a few seconds"));
    match rustix::event::poll(&mut waiting, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    drop(waiting);
    // A client that goes away, or takes too long, gets nothing more.
    clients.retain_mut(|client| client.go_on(text) && client.since.elapsed() < TIME_LIMIT);
    match listener.accept() {
        Ok((stream, _)) => {
            if clients.len() == CLIENTS_MAX {
                // Who asks at once is answered, whoever else holds connections.
                clients.remove(0);
            }
            let (request, response) = (Vec::new(), None);
            clients.push(Client { stream, since: Instant::now(), request, response });
        }
        // Out of descriptors, or of memory.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
        Err(_) => {}
    }
    Ok(())
}

/// A connection.
struct Client {
    stream: TcpStream,
    since: Instant,
    request: Vec<u8>,
    /// What is left to be sent, once the request is there.
    response: Option<Vec<u8>>,
}

impl Client {
    fn awaited(&self) -> PollFd<'_> {
        let flags = if self.response.is_some() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(&self.stream, flags)
    }

    /// Reads and writes what can be at once. False when the connection is over.
    fn go_on(&mut self, text: &dyn Fn() -> String) -> bool {
        let (mut piece, is_over) = ([0; 512], |error| error != Errno::AGAIN);
        while self.response.is_none() {
            match rustix::net::recv(&self.stream, &mut piece, RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.response = Some(response(&self.request, text)),
                Ok((len, _)) => self.request.extend(&piece[..len]),
                Err(error) => return !is_over(error),
            }
            let is_whole = self.request.windows(4).any(|window| window == b"\r\n\r\n");
            if is_whole || self.request.len() > REQUEST_MAX_BYTES {
                self.response = Some(response(&self.request, text));
            }
        }
        let left = self.response.get_or_insert_default();
        while !left.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.stream, left, flags) {
                Ok(sent) => drop(left.drain(..sent)),
                Err(error) => return !is_over(error),
            }
        }
        false
    }
}

/// The answer to the head of a request, up to the empty line that ends it.
fn response(request: &[u8], text: &dyn Fn() -> String) -> Vec<u8> {
    let (status, kind, body) = match route(request) {
        Ok(()) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", text()),
        Err(status) => (status, "text/plain; charset=utf-8", "try GET /metrics\n".to_owned()),
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

fn route(request: &[u8]) -> Result<(), &'static str> {
    if request.len() > REQUEST_MAX_BYTES {
        return Err("431 Request Header Fields Too Large");
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    // Parameters are left aside.
    let path = |target: &[u8]| target.split(|byte| *byte == b'?').next() == Some(b"/metrics");
    match (words.next(), words.next(), words.next()) {
        (Some(b"GET"), Some(target), Some(b"HTTP/1.1" | b"HTTP/1.0")) if path(target) => Ok(()),
        (Some(b"GET"), Some(_), Some(b"HTTP/1.1" | b"HTTP/1.0")) => Err("404 Not Found"),
        (Some(_), Some(_), Some(b"HTTP/1.1" | b"HTTP/1.0")) => Err("405 Method Not Allowed"),
        _ => Err("400 Bad Request"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::requests::{Bucket, Thread, VERSION};

    fn requests() -> Requests {
        let bucket = |below_ns, count| Bucket { below_ns, count };
        Requests {
            version: VERSION,
            pid: 1,
            kind: "mount".to_owned(),
            dir: "/d".to_owned(),
            dir_hex: None,
            mount_point: "/m".to_owned(),
            mount_point_hex: None,
            uptime_ns: 1_500_000_000,
            waiting: Some(3),
            operations: vec![Operation {
                operation: "open".to_owned(),
                decision: "passthrough".to_owned(),
                total_ns: 5_000,
                buckets: vec![bucket(Some(896), 2), bucket(Some(2048), 1), bucket(None, 1)],
            }],
            threads: vec![Thread {
                tid: 9,
                name: "a\"b".to_owned(),
                state: "S".to_owned(),
                cpu: 0,
                cpu_ns: 250_000_000,
            }],
            busiest: None,
        }
    }

    #[test]
    fn buckets_are_cumulative_and_end_with_everything() {
        let text = text(&requests());
        let of = |le: &str| {
            let labels = "operation=\"open\",decision=\"passthrough\"";
            let start =
                format!("tollgate_request_duration_seconds_bucket{{{labels},le=\"{le}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
        };
        assert_eq!(of("0.000001024").as_deref(), Some("2"));
        assert_eq!(of("0.000002048").as_deref(), Some("3"));
        assert_eq!(of("17.179869184").as_deref(), Some("3"));
        assert_eq!(of("+Inf").as_deref(), Some("4"));
        for line in [
            "tollgate_uptime_seconds 1.5",
            "tollgate_requests_waiting 3",
            "tollgate_thread_cpu_seconds_total{tid=\"9\",name=\"a\\\"b\"} 0.25",
            "# TYPE tollgate_request_duration_seconds histogram",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in:\n{text}");
        }
    }

    #[test]
    fn only_a_get_of_metrics_gets_them() {
        let address = serve(0, Arc::new(|| "up 1\n".to_owned())).unwrap();
        let ask = |request: &[u8]| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request).unwrap();
            let mut text = Vec::new();
            // A refusal may come with a reset, as the request was not read to its end.
            let _ = stream.read_to_end(&mut text);
            String::from_utf8(text).unwrap()
        };
        let good = ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\nup 1\n"),
            "{good}"
        );
        assert!(ask(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(ask(b"nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert!(ask(b"GET /metrics?x=1 HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
        assert!(ask(b"GET /metric HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(address.ip().is_loopback());
    }

    /// Some send nothing, some a part of a request, and some do not read.
    #[test]
    fn connections_that_are_held_keep_nobody_waiting() {
        let body = "x".repeat(16 << 20);
        let address = serve(0, Arc::new(move || body.clone())).unwrap();
        let whole = b"GET /metrics HTTP/1.1\r\n\r\n";
        let mut held = Vec::new();
        let begun = Instant::now();
        for number in 0..100 {
            let mut stream = TcpStream::connect(address).unwrap();
            let sent = [&b""[..], b"GET /met", whole][number % 3];
            // It may be over already.
            let _ = stream.write_all(sent);
            held.push(stream);
        }
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(whole).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 ") && answer.len() > 16 << 20);
        assert!(begun.elapsed() < TIME_LIMIT * 30, "they are served one after the other");
    }
}
