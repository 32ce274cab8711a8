//! The bytes of a connection, in both directions.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle};

/// Stack of a thread that copies bytes, or looks a name up.
pub(super) const STACK_BYTES: usize = 512 << 10;

/// What each direction has to know of the other one.
#[derive(Default)]
struct Both {
    /// The first of them is at its end.
    ended: AtomicBool,
    /// Pieces that somebody took, of either.
    moved: AtomicUsize,
}

/// Copies in both directions until both are at their end. Once one is, the other one ends when
/// nothing has come, or the server has taken nothing, for `idle`, twice that at most: whether who
/// has sent the end still listens is not to be seen. A client that takes nothing is waited for: its
/// end is noticed, and what the server sent before it left is the client's to read when it likes.
pub(super) fn relay(client: &TcpStream, server: &TcpStream, idle: Duration) {
    let (Ok(from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else { return };
    // Of a client that ends with a full buffer the end does not come, as it is behind what nobody
    // reads. The kernel gives such a buffer up after three to six minutes; from then on it answers
    // a probe with a reset.
    let _ = set_socket_keepalive(client, true);
    let _ = set_tcp_keepidle(client, idle);
    if to_server.set_write_timeout(Some(idle)).is_err() {
        return;
    }
    let both = Arc::new(Both::default());
    let there = std::thread::Builder::new().stack_size(STACK_BYTES).spawn({
        let both = Arc::clone(&both);
        move || copy(&from_client, &to_server, &both, idle)
    });
    copy(server, client, &both, idle);
    if let Ok(there) = there {
        let _ = there.join();
    }
}

fn copy(from: &TcpStream, to: &TcpStream, both: &Both, idle: Duration) {
    let copied = copy_until_idle(from, to, both, idle);
    both.ended.store(true, Ordering::Relaxed);
    let _ = to.shutdown(Shutdown::Write);
    if copied.is_err() {
        // Whoever cannot be written to, or sends nothing, is not waited for.
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

fn copy_until_idle(
    mut from: &TcpStream,
    to: &TcpStream,
    both: &Both,
    idle: Duration,
) -> io::Result<()> {
    from.set_read_timeout(Some(idle))?;
    let mut part = [0; 16 << 10];
    let mut was_ended = false;
    loop {
        match from.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                write_until_idle(&part[..read], from, to, both)?;
                was_ended = false;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && !was_ended => {
                was_ended = both.ended.load(Ordering::Relaxed);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Writes all of `part`, with the time limit of `to` for each step, if it has one. One that passes
/// is an error where a side has ended and nothing has moved since the last one: whoever is slow, or
/// takes nothing for hours, is no reason to cut off those who are there.
fn write_until_idle(
    mut part: &[u8],
    from: &TcpStream,
    mut to: &TcpStream,
    both: &Both,
) -> io::Result<()> {
    let mut silent_since = None;
    while !part.is_empty() {
        match to.write(part) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => {
                both.moved.fetch_add(1, Ordering::Relaxed);
                part = &part[written..];
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let moved = Some(both.moved.load(Ordering::Relaxed));
                let ended = both.ended.load(Ordering::Relaxed) || has_ended(from);
                if ended && silent_since == moved {
                    return Err(error);
                }
                silent_since = moved.filter(|_| ended);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the other side of `stream` sends nothing more, behind what is still unread.
fn has_ended(stream: &TcpStream) -> bool {
    let mut ends = [PollFd::new(stream, PollFlags::RDHUP)];
    matches!(rustix::event::poll(&mut ends, Some(&Timespec::default())), Ok(1..))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::JoinHandle;
    use std::time::Instant;

    use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

    use super::*;

    /// Longest wait for anything.
    const PATIENCE: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(50);
    /// The kernel makes it as much as it must.
    const LEAST: usize = 1;

    /// Two ends of a connection.
    fn connection() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [one, listener.accept().unwrap().0]
    }

    /// The same, with little room on the way to the second.
    fn narrow_connection(bytes: usize) -> [TcpStream; 2] {
        let [one, other] = connection();
        set_socket_send_buffer_size(&one, bytes).unwrap();
        set_socket_recv_buffer_size(&other, bytes).unwrap();
        [one, other]
    }

    fn start(client: TcpStream, server: TcpStream) -> JoinHandle<()> {
        std::thread::spawn(move || relay(&client, &server, SHORT))
    }

    /// Fills the connection, until nothing of it has moved for a while.
    fn fill(mut one: &TcpStream) {
        one.set_write_timeout(Some(SHORT * 10)).unwrap();
        while one.write(&[0; 4096]).is_ok() {}
    }

    fn ends(relay: &JoinHandle<()>, what: &str) {
        let begin = Instant::now();
        while !relay.is_finished() {
            assert!(begin.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(SHORT);
        }
    }

    #[test]
    fn who_has_left_is_not_waited_for() {
        for leaves_first in [true, false] {
            let ([client, to_client], [to_server, server]) = (connection(), connection());
            let (left, stays) = if leaves_first { (client, server) } else { (server, client) };
            drop(left);
            // It ends, though one side stays.
            relay(&to_client, &to_server, SHORT);
            drop(stays);
        }
    }

    #[test]
    fn a_server_that_reads_nothing_is_not_waited_for_once_its_client_has_left() {
        let ([mut client, to_client], [to_server, server]) =
            (connection(), narrow_connection(LEAST));
        let relay = start(to_client, to_server);
        // More than goes on to the server, and little enough for the client's end to follow.
        client.write_all(&[0; 48 << 10]).unwrap();
        drop(client);
        ends(&relay, "the server is waited for");
        drop(server);
    }

    #[test]
    fn a_server_that_has_sent_its_end_and_reads_nothing_is_not_waited_for() {
        let ([client, to_client], [to_server, server]) = (connection(), narrow_connection(LEAST));
        let relay = start(to_client, to_server);
        fill(&client);
        server.shutdown(Shutdown::Write).unwrap();
        ends(&relay, "the server is waited for");
        drop((client, server));
    }

    #[test]
    fn who_takes_nothing_for_long_and_is_there_is_waited_for() {
        // More than all buffers on the way hold.
        const BYTES: usize = 16 << 20;
        for client_sends in [true, false] {
            let (wide, narrow) = (connection(), narrow_connection(64 << 10));
            let (relay, mut from, mut to) = if client_sends {
                let ([client, to_client], [to_server, server]) = (wide, narrow);
                (start(to_client, to_server), client, server)
            } else {
                let ([server, to_server], [to_client, client]) = (wide, narrow);
                (start(to_client, to_server), server, client)
            };
            let sending = std::thread::spawn(move || {
                from.write_all(&vec![1; BYTES]).unwrap();
                // A server may end with that, though its client reads later.
                client_sends.then_some(from)
            });
            std::thread::sleep(SHORT * 20);
            let mut received = vec![0; BYTES];
            to.read_exact(&mut received).unwrap();
            assert!(received.iter().all(|byte| *byte == 1));
            drop((to, sending.join().unwrap()));
            ends(&relay, "it does not end");
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
