//! What a server promises its clients, and what each kind of bad client gets.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tollgate_control::{
    CLIENTS_MAX, ControlError, PATIENCE, REQUEST_MAX_BYTES, Server, TIME_LIMIT, ask,
};

/// A socket in a directory of its own.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("a.sock")
    }

    fn echo(&self) -> Server {
        Server::start(&self.path(), |_, request| format!("<{request}>")).unwrap()
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path()).unwrap()
    }

    /// What the server replies to these bytes, until it hangs up.
    fn reply_to(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        all(&stream)
    }
}

fn all(mut stream: &UnixStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn requests_get_replies_until_the_server_is_dropped() {
    let place = Place::new();
    let server = place.echo();
    assert_eq!(std::fs::metadata(place.path()).unwrap().mode() & 0o777, 0o600);
    assert_eq!(ask(&place.path(), "one").unwrap(), "<one>");
    assert_eq!(ask(&place.path(), "").unwrap(), "<>");
    drop(server);
    assert!(!place.path().exists());
    assert!(ask(&place.path(), "three").unwrap_err().is_gone());
}

#[test]
fn the_handler_learns_who_asks() {
    let place = Place::new();
    let (sender, peers) = mpsc::channel();
    let _server = Server::start(&place.path(), move |peer, _| {
        sender.send((peer.uid, peer.pid, peer.still_has_pid())).unwrap();
        String::new()
    })
    .unwrap();
    ask(&place.path(), "x").unwrap();
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(peers.recv().unwrap(), (own, Some(std::process::id()), true));
}

#[test]
fn a_leftover_is_replaced_and_nothing_else_is() {
    let place = Place::new();
    drop(UnixListener::bind(place.path()).unwrap());
    assert!(matches!(ask(&place.path(), "x"), Err(ControlError::Gone { .. })));
    let server = place.echo();
    let second = Server::start(&place.path(), |_, _| String::new());
    assert!(matches!(second, Err(ControlError::InUse { .. })), "{second:?}");
    assert_eq!(ask(&place.path(), "still").unwrap(), "<still>");
    drop(server);
    std::fs::write(place.path(), "a file").unwrap();
    let refused = Server::start(&place.path(), |_, _| String::new());
    assert!(matches!(refused, Err(ControlError::NotASocket { .. })), "{refused:?}");
    assert!(matches!(ask(&place.path(), "x"), Err(ControlError::NotASocket { .. })));
    assert_eq!(std::fs::read(place.path()).unwrap(), b"a file");
}

#[test]
fn a_dropped_server_does_not_remove_the_socket_of_its_successor() {
    let place = Place::new();
    let first = place.echo();
    std::fs::remove_file(place.path()).unwrap();
    let _second = place.echo();
    drop(first);
    assert_eq!(ask(&place.path(), "x").unwrap(), "<x>");
}

#[test]
fn of_many_that_start_at_one_path_one_wins() {
    let place = Place::new();
    drop(UnixListener::bind(place.path()).unwrap());
    let start = || Server::start(&place.path(), |_, _| "won".to_owned());
    let started: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(started.iter().filter(|started| started.is_ok()).count(), 1);
    assert_eq!(ask(&place.path(), "x").unwrap(), "won");
}

#[test]
fn bad_requests_get_an_error_reply() {
    let place = Place::new();
    let _server = place.echo();
    assert_eq!(place.reply_to(b"no newline"), "<no newline>\n");
    assert_eq!(place.reply_to(b"one\ntwo\n"), "<one>\n", "one request, what follows is ignored");
    assert_eq!(place.reply_to(b"\xff\n"), "{\"error\":\"a request that is not UTF-8\"}\n");
    assert_eq!(place.reply_to(b""), "", "nobody asked anything");
    let too_long = "{\"error\":\"a request longer than 4096 bytes\"}\n";
    assert_eq!(place.reply_to(&[b'x'; REQUEST_MAX_BYTES + 1]), too_long);
    // What is left unread does not take the reply away.
    assert_eq!(place.reply_to(&[b'x'; 60_000]), too_long);
}

#[test]
fn the_client_sends_no_request_that_is_no_line() {
    let path = Path::new("/nowhere");
    for request in ["two\nlines".to_owned(), "x".repeat(REQUEST_MAX_BYTES + 1)] {
        assert!(matches!(ask(path, &request), Err(ControlError::Request)));
    }
}

#[test]
fn a_silent_client_gets_an_error_and_delays_nobody() {
    let place = Place::new();
    let _server = place.echo();
    let begin = Instant::now();
    let mut silent = place.connect();
    silent.write_all(b"half a request").unwrap();
    for _ in 0..100 {
        assert_eq!(ask(&place.path(), "next").unwrap(), "<next>");
    }
    let error = "{\"error\":\"the request did not arrive within two seconds\"}\n";
    assert_eq!(all(&silent), error);
    assert!(begin.elapsed() >= TIME_LIMIT);
}

#[test]
fn more_clients_than_are_served_at_a_time_wait_their_turn() {
    let place = Place::new();
    let _server = place.echo();
    let silent: Vec<_> = (0..CLIENTS_MAX).map(|_| place.connect()).collect();
    let mut waiting = place.connect();
    waiting.write_all(b"late\n").unwrap();
    waiting.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(waiting.read(&mut [0]).is_err(), "there is no room yet");
    drop(silent);
    waiting.set_read_timeout(Some(TIME_LIMIT * 10)).unwrap();
    assert_eq!(all(&waiting), "<late>\n");
}

#[test]
fn a_client_that_takes_no_reply_delays_nobody_and_is_given_up() {
    let place = Place::new();
    let _server = Server::start(&place.path(), |_, request| request.repeat(16 << 20)).unwrap();
    let mut stuck = place.connect();
    stuck.write_all(b"x\n").unwrap();
    assert_eq!(ask(&place.path(), "y").unwrap().len(), 16 << 20);
    std::thread::sleep(TIME_LIMIT + Duration::from_secs(1));
    assert!(all(&stuck).len() < 16 << 20);
}

#[test]
fn a_panic_in_the_handler_is_an_error_reply_and_the_server_goes_on() {
    let place = Place::new();
    let _server = Server::start(&place.path(), |_, request| {
        assert_ne!(request, "bad", "as this test wants");
        "fine".to_owned()
    })
    .unwrap();
    assert!(ask(&place.path(), "bad").unwrap().starts_with("{\"error\":\"the server failed"));
    assert_eq!(ask(&place.path(), "good").unwrap(), "fine");
}

#[test]
fn a_server_that_is_dropped_still_delivers_the_reply_it_is_sending() {
    let place = Place::new();
    let (sender, called) = mpsc::channel();
    let server = Server::start(&place.path(), move |_, _| {
        sender.send(()).unwrap();
        "x".repeat(4 << 20)
    })
    .unwrap();
    let mut client = place.connect();
    client.write_all(b"x\n").unwrap();
    called.recv().unwrap();
    let reader = std::thread::spawn(move || all(&client));
    drop(server);
    assert_eq!(reader.join().unwrap().len(), (4 << 20) + 1);
}

#[test]
fn a_server_that_replies_nothing_is_given_up() {
    let place = Place::new();
    // Its backlog takes connections, as that of a stopped process does.
    let _listener = UnixListener::bind(place.path()).unwrap();
    let error = ask(&place.path(), "x").unwrap_err();
    let ControlError::NoReply { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.to_string(), "nothing came in time");
}

#[test]
fn a_server_that_sends_a_byte_now_and_then_is_given_up() {
    let place = Place::new();
    let listener = UnixListener::bind(place.path()).unwrap();
    let sender = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let begun = Instant::now();
        while client.write_all(b" ").is_ok() && begun.elapsed() < PATIENCE * 3 {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let begun = Instant::now();
    let error = ask(&place.path(), "x").unwrap_err();
    assert!(begun.elapsed() < PATIENCE * 2, "{:?}", begun.elapsed());
    assert!(error.is_silence(), "{error:?}");
    sender.join().unwrap();
}

#[test]
fn a_full_backlog_does_not_stop_a_client_for_ever() {
    let place = Place::new();
    let listener = UnixListener::bind(place.path()).unwrap();
    // The kernel takes one more than asked for.
    rustix::net::listen(&listener, 0).unwrap();
    let _first = place.connect();
    let error = ask(&place.path(), "x").unwrap_err();
    assert!(matches!(error, ControlError::NoReply { .. }), "{error:?}");
}

/// Runs `action` in a thread of another user.
fn as_user<T: Send + 'static>(
    uid: u32,
    action: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    std::thread::spawn(move || {
        let uid = rustix::process::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        action()
    })
}

/// Whether this test runs as root. `false` after saying so.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: not root");
    }
    root
}

#[test]
fn a_stranger_gets_the_reason_and_is_no_server_to_trust() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let _server = place.echo();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(place.0.path(), 0o777);
    open(&place.path(), 0o666);
    let path = place.path();
    let reply = as_user(4321, move || ask(&path, "x")).join().unwrap().unwrap();
    assert_eq!(reply, "{\"error\":\"this server serves user 0 and root, not user 4321\"}");

    let theirs = place.0.path().join("b.sock");
    let listening = theirs.clone();
    let listener = as_user(4321, move || UnixListener::bind(listening).unwrap()).join().unwrap();
    open(&theirs, 0o666);
    let path = theirs.clone();
    let error = as_user(1234, move || ask(&path, "x")).join().unwrap().unwrap_err();
    assert!(matches!(error, ControlError::Stranger { uid: 4321, .. }), "{error:?}");
    drop(listener);
}

#[test]
fn a_handler_may_drop_its_own_server() {
    let place = Place::new();
    let slot = std::sync::Arc::new(std::sync::Mutex::new(None::<Server>));
    let own = std::sync::Arc::clone(&slot);
    let server = Server::start(&place.path(), move |_, _| {
        drop(own.lock().unwrap().take());
        "bye".to_owned()
    })
    .unwrap();
    *slot.lock().unwrap() = Some(server);
    assert_eq!(ask(&place.path(), "x").unwrap(), "bye");
    assert!(!place.path().exists());
}

#[test]
fn a_kind_is_a_part_of_a_name() {
    let place = Place::new();
    let directory = tollgate_control::Directory::at(place.0.path().join("own"));
    for kind in ["../x", "a/b", "", " ", "a.b", "0123456789abcdef0123456789abcdef0"] {
        let refused = directory.serve(kind, |_, _| String::new()).unwrap_err();
        assert!(matches!(refused, ControlError::Kind(_)), "{kind}: {refused}");
        assert!(matches!(directory.path_for_another(kind), Err(ControlError::Kind(_))), "{kind}");
    }
    let _server = directory.serve("a-Kind_2", |_, _| "here".to_owned()).unwrap();
    assert_eq!(directory.servers("a-Kind_2").unwrap().found.len(), 1);
}

/// chown(2) takes the number for "no change": the socket would stay root's.
#[test]
fn a_socket_is_for_a_guest_who_can_be() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let refused = Server::start_for(&path, u32::MAX, |_, _| String::new());
    assert!(refused.is_err() && !path.exists());
}
