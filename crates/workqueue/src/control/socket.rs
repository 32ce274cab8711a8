//! A Unix socket that takes one line and gives one line, and nothing to strangers.

use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The longest request in bytes; a longer one is answered with an error.
pub const REQUEST_MAX_BYTES: usize = 4096;
/// The longest answer in bytes that a client takes.
pub const ANSWER_MAX_BYTES: u64 = 64 << 20;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(2);

/// A socket that cannot be had, or asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Something is wrong with the directory.
    #[error("`{}` {why}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// What is wrong, and what would be right.
        why: &'static str,
    },
    /// Another process, or another runtime of this one, listens there.
    #[error("`{}` is in use by a process that runs: choose another path", path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// Nobody listens there.
    #[error("nobody listens at `{}`: the process that made it is gone", path.display())]
    Gone {
        /// Where.
        path: PathBuf,
    },
    /// It is something else.
    #[error("`{}` is not a socket", path.display())]
    NotASocket {
        /// What.
        path: PathBuf,
    },
    /// The process is there and says nothing, or hangs up: it may be stopped, or of another user.
    #[error("the process at `{}` does not answer", path.display())]
    NoAnswer {
        /// Where.
        path: PathBuf,
        /// Why, if the system knows.
        #[source]
        source: io::Error,
    },
    /// The process that listens there belongs to somebody else, who could answer anything.
    #[error("`{}` belongs to a process of user {uid}: only one's own and root's are asked", path.display())]
    Stranger {
        /// Where.
        path: PathBuf,
        /// Whose.
        uid: u32,
    },
    /// The operating system refused.
    #[error("control socket `{}`", path.display())]
    System {
        /// Which.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

/// The thread that answers, and its socket, which is removed when this is dropped.
///
/// A client sends one line, gets one line, and is hung up on. Only this process's own user and root
/// are answered. One client is served at a time; one that says nothing costs two seconds.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`, with mode 600. What a dead process left there is replaced. `answer` is
    /// called with each request that fits [`REQUEST_MAX_BYTES`], without its end of line.
    ///
    /// # Errors
    /// A live process listens there; there is something else; no socket or thread can be had.
    pub fn start(
        path: &Path,
        answer: impl Fn(&str) -> String + Send + 'static,
    ) -> Result<Self, ControlError> {
        let failed = |source| ControlError::System { path: path.to_owned(), source };
        remove_leftover(path)?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        // Whoever connects before this is still asked who it is.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let accepting = listener.try_clone().map_err(failed)?;
        let thread = thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || serve(&accepting, &answer))
            .map_err(failed)?;
        Ok(Self { path: path.to_owned(), listener, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Somebody may have removed it before; there is nobody to tell.
        drop(std::fs::remove_file(&self.path));
        // Ends a waiting accept(2).
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn remove_leftover(path: &Path) -> Result<(), ControlError> {
    let failed = |source| ControlError::System { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ControlError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(_) => Err(ControlError::InUse { path: path.to_owned() }),
    }
}

fn serve(listener: &UnixListener, answer: &impl Fn(&str) -> String) {
    loop {
        match listener.accept() {
            // A client that goes away is its own business.
            Ok((client, _)) => drop(serve_one(&client, answer)),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            // Out of descriptors or memory: they come back.
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn serve_one(client: &UnixStream, answer: &impl Fn(&str) -> String) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(client)?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    let mut text = match read_request(client) {
        Ok(request) => answer(&request),
        Err(error) => serde_json::json!({ "error": error.to_string() }).to_string(),
    };
    text.push('\n');
    client.set_write_timeout(Some(PATIENCE))?;
    (&*client).write_all(text.as_bytes())
}

fn read_request(mut client: &UnixStream) -> io::Result<String> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text);
    let end = Instant::now() + PATIENCE;
    let (mut line, mut piece) = (Vec::new(), [0; 512]);
    while !line.contains(&b'\n') {
        if line.len() > REQUEST_MAX_BYTES {
            discard(client);
            return Err(invalid(&format!("a request longer than {REQUEST_MAX_BYTES} bytes")));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut piece)? {
            0 => break,
            len => line.extend(&piece[..len]),
        }
    }
    let len = line.iter().position(|&byte| byte == b'\n').unwrap_or(line.len());
    line.truncate(len);
    String::from_utf8(line).map_err(|_| invalid("a request that is not UTF-8"))
}

/// Reads away what has come already: hanging up on unread bytes would take the answer from the client.
fn discard(mut client: &UnixStream) {
    let mut piece = [0; 4096];
    if client.set_nonblocking(true).is_ok() {
        while client.read(&mut piece).is_ok_and(|len| len > 0) {}
        // The answer is written with a time limit, which needs a blocking socket.
        drop(client.set_nonblocking(false));
    }
}

/// Sends one request to the process that listens at `path` and returns its answer, without the end of
/// line. Waits two seconds for it.
///
/// # Errors
/// There is no socket; nobody listens; the listener is of another user (root asks anybody); the answer
/// does not come or is longer than [`ANSWER_MAX_BYTES`].
pub fn ask(path: &Path, request: &str) -> Result<String, ControlError> {
    let here = || path.to_owned();
    let mut server = UnixStream::connect(path).map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused if is_socket(path) => ControlError::Gone { path: here() },
        io::ErrorKind::ConnectionRefused => ControlError::NotASocket { path: here() },
        _ => ControlError::System { path: here(), source },
    })?;
    check_server(path, &server)?;
    let mut talk = || {
        server.set_read_timeout(Some(PATIENCE))?;
        server.set_write_timeout(Some(PATIENCE))?;
        server.write_all(format!("{request}\n").as_bytes())?;
        let mut text = String::new();
        (&server).take(ANSWER_MAX_BYTES + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let no_answer = |source: io::Error| {
        let late = source.kind() == io::ErrorKind::WouldBlock;
        let silent = || io::Error::new(io::ErrorKind::TimedOut, "nothing came within two seconds");
        ControlError::NoAnswer { path: here(), source: if late { silent() } else { source } }
    };
    let mut text = talk().map_err(no_answer)?;
    if text.is_empty() {
        return Err(no_answer(io::Error::from(io::ErrorKind::UnexpectedEof)));
    }
    if text.pop() != Some('\n') || text.len() as u64 > ANSWER_MAX_BYTES {
        let cut = io::Error::new(io::ErrorKind::InvalidData, "the answer is cut off");
        return Err(no_answer(cut));
    }
    Ok(text)
}

fn check_server(path: &Path, server: &UnixStream) -> Result<(), ControlError> {
    let failed = |source: rustix::io::Errno| ControlError::System {
        path: path.to_owned(),
        source: source.into(),
    };
    let owner = rustix::net::sockopt::socket_peercred(server).map_err(failed)?.uid;
    let me = rustix::process::geteuid();
    if me.is_root() || owner.is_root() || owner == me {
        return Ok(());
    }
    Err(ControlError::Stranger { path: path.to_owned(), uid: owner.as_raw() })
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Where this user's processes have their sockets: `/run/tollgate` for root, `tollgate` in
/// `$XDG_RUNTIME_DIR`, else `/tmp/tollgate-UID`.
#[must_use]
pub fn directory() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return "/run/tollgate".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if Path::new(&directory).is_absolute() => {
            Path::new(&directory).join("tollgate")
        }
        _ => format!("/tmp/tollgate-{}", user.as_raw()).into(),
    }
}

/// Makes the directory, or checks that it is this user's alone.
///
/// # Errors
/// It cannot be made; somebody else made it, or it is open to others.
pub fn prepare(directory: &Path) -> Result<(), ControlError> {
    let failed = |source| ControlError::System { path: directory.to_owned(), source };
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(error)),
        _ => check_directory(directory),
    }
}

/// Checks that a directory of sockets is this user's alone, so that nobody else put one there.
///
/// # Errors
/// It is not there; somebody else made it, or it is open to others.
pub fn check_directory(directory: &Path) -> Result<(), ControlError> {
    let failed = |source| ControlError::System { path: directory.to_owned(), source };
    let found = std::fs::symlink_metadata(directory).map_err(failed)?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_dir() || !ours || found.mode() & 0o077 != 0 {
        let why = "is not a directory that belongs to this user alone (mode 700)";
        return Err(ControlError::Directory { path: directory.to_owned(), why });
    }
    Ok(())
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    fn echo(path: &Path) -> Server {
        Server::start(path, |request| format!("<{request}>")).unwrap()
    }

    #[test]
    fn a_line_is_answered_until_the_server_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let server = echo(&path);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(ask(&path, "one").unwrap(), "<one>");
        assert_eq!(ask(&path, "two").unwrap(), "<two>");
        drop(server);
        assert!(!path.exists());
        let gone = ask(&path, "three").unwrap_err();
        assert!(matches!(gone, ControlError::System { .. }), "{gone:?}");
    }

    #[test]
    fn a_leftover_is_replaced_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(matches!(ask(&path, "x"), Err(ControlError::Gone { .. })));
        let server = echo(&path);
        let second = Server::start(&path, |_| String::new());
        assert!(matches!(second, Err(ControlError::InUse { .. })), "{second:?}");
        assert_eq!(ask(&path, "still").unwrap(), "<still>");
        drop(server);
        std::fs::write(&path, "a file").unwrap();
        let refused = Server::start(&path, |_| String::new());
        assert!(matches!(refused, Err(ControlError::NotASocket { .. })), "{refused:?}");
        assert!(matches!(ask(&path, "x"), Err(ControlError::NotASocket { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    }

    #[test]
    fn a_server_that_says_nothing_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        // Connections are taken by the backlog, as those of a stopped process are.
        let _listener = UnixListener::bind(&path).unwrap();
        let error = ask(&path, "x").unwrap_err();
        let ControlError::NoAnswer { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.to_string(), "nothing came within two seconds");
    }

    #[test]
    fn requests_without_end_and_too_long_ones_are_told_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let _server = echo(&path);
        let long = ask(&path, &"x".repeat(REQUEST_MAX_BYTES + 600)).unwrap();
        assert!(long.contains("longer than 4096 bytes"), "{long}");
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"no end of line").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "<no end of line>\n");
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"\xff\n").unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.contains("not UTF-8"), "{text}");
    }

    #[test]
    fn a_silent_client_does_not_keep_others_out_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let _server = echo(&path);
        let mut silent = UnixStream::connect(&path).unwrap();
        // Drop by drop does not help it either: the time is for the whole request.
        silent.write_all(b"x").unwrap();
        let begin = Instant::now();
        let answer = loop {
            match ask(&path, "next") {
                Ok(answer) => break answer,
                Err(error) => {
                    assert!(begin.elapsed() < Duration::from_secs(60), "{error}");
                }
            }
        };
        assert_eq!(answer, "<next>");
    }

    #[test]
    fn a_directory_open_to_others_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("tollgate");
        prepare(&directory).unwrap();
        prepare(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(prepare(&directory).unwrap_err().to_string().contains("mode 700"));
        assert!(check_directory(&directory).unwrap_err().to_string().contains("mode 700"));
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert!(prepare(&link).is_err());
    }
}
