//! The control socket: one per server, in a directory of the user's own.
//!
//! A client sends one line of JSON (`{"command":"status"}`), gets one JSON value, and is hung up on.
//! Only the server's own user and root are answered. One thread serves one client at a time; a client
//! that says nothing costs it [`PATIENCE`].

use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::status;

/// Longest request in bytes; a longer one is answered with an error.
const REQUEST_MAX_BYTES: u64 = 4096;
/// Longest answer in bytes that a client takes.
const ANSWER_MAX_BYTES: u64 = 4 << 20;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most sockets that `status` asks.
const SERVERS_MAX: usize = 4096;

/// Makes the report that `status` asks for.
pub(crate) type Reporter = Box<dyn Fn() -> Value + Send>;

/// The thread that answers.
#[derive(Debug)]
pub(crate) struct ControlServer {
    path: PathBuf,
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Opens the socket of this process.
    ///
    /// # Errors
    /// When the directory is not ours alone, or the socket cannot be made.
    pub(crate) fn start(reporter: Reporter) -> anyhow::Result<Self> {
        let directory = directory();
        prepare(&directory)?;
        Self::start_in(&directory, reporter)
    }

    fn start_in(directory: &Path, reporter: Reporter) -> anyhow::Result<Self> {
        let path = directory.join(format!("{}.sock", std::process::id()));
        // A leftover of a server that had this process id.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("control socket `{}` cannot be made", path.display()))?;
        let accepting = listener.try_clone().context("control socket")?;
        let thread = std::thread::Builder::new()
            .name("tollgate-control".to_owned())
            .spawn(move || serve(&accepting, &reporter))
            .context("control thread")?;
        Ok(Self { path, listener, thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // Ends a waiting accept(2).
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, reporter: &Reporter) {
    loop {
        match listener.accept() {
            // A client that goes away is its own business.
            Ok((client, _)) => drop(answer(&client, reporter)),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            // Out of descriptors or memory: they come back.
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    command: String,
}

fn answer(client: &UnixStream, reporter: &Reporter) -> anyhow::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let peer = rustix::net::sockopt::socket_peercred(client)?.uid;
    ensure!(peer.is_root() || peer == rustix::process::geteuid(), "a stranger");
    let value = match read_request(client) {
        Ok(request) if request.command == "status" => reporter(),
        Ok(request) => {
            status::error(&format!("unknown command `{}`; allowed: status", request.command))
        }
        Err(error) => status::error(&format!("{error:#}")),
    };
    let mut text = serde_json::to_vec(&value)?;
    text.push(b'\n');
    (&*client).write_all(&text)?;
    Ok(())
}

fn read_request(mut client: &UnixStream) -> anyhow::Result<Request> {
    let mut line = Vec::new();
    let mut byte = [0];
    // A byte at a time: a request is short, and nothing may be read past its end.
    while client.read(&mut byte).context("no request came")? == 1 && byte != *b"\n" {
        line.extend(byte);
        ensure!(line.len() as u64 <= REQUEST_MAX_BYTES, "longer than {REQUEST_MAX_BYTES} bytes");
    }
    serde_json::from_slice(&line).context("not a request")
}

/// What each server of this user reports. Sockets of dead servers are removed.
///
/// # Errors
/// When the directory is there and cannot be read.
pub(crate) fn all_reports() -> anyhow::Result<Vec<Value>> {
    reports_in(&directory())
}

fn reports_in(directory: &Path) -> anyhow::Result<Vec<Value>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("`{}` cannot be read", directory.display()))?,
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    paths.sort();
    paths.truncate(SERVERS_MAX);
    Ok(paths.iter().filter_map(|path| report(path)).collect())
}

/// `None` for a server that is dead or ends just now; a live one that does not answer is told of.
fn report(path: &Path) -> Option<Value> {
    match ask(path) {
        Ok(value) => Some(value),
        Err(error) => {
            let dead = error.downcast_ref::<io::Error>().is_some_and(|error| {
                matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
            });
            if dead {
                let _ = std::fs::remove_file(path);
            } else {
                crate::warn(&format!(
                    "the server at `{}` does not answer: {error:#}",
                    path.display()
                ));
            }
            None
        }
    }
}

fn ask(path: &Path) -> anyhow::Result<Value> {
    let mut server = UnixStream::connect(path)?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.set_write_timeout(Some(PATIENCE))?;
    server.write_all(b"{\"command\":\"status\"}\n")?;
    let mut text = Vec::new();
    server.take(ANSWER_MAX_BYTES).read_to_end(&mut text)?;
    ensure!(!text.is_empty(), "it hung up");
    Ok(serde_json::from_slice(&text)?)
}

/// Where this user's servers have their sockets.
fn directory() -> PathBuf {
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

/// Makes the directory, or checks that nobody else made it.
fn prepare(directory: &Path) -> anyhow::Result<()> {
    let shown = directory.display();
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("`{shown}` cannot be made"));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(directory)
        .with_context(|| format!("`{shown}` cannot be looked at"))?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_dir() || !ours || found.mode() & 0o077 != 0 {
        bail!("`{shown}` is not a directory that belongs to this user alone (mode 700)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn server(directory: &Path) -> ControlServer {
        ControlServer::start_in(directory, Box::new(|| json!({ "pid": 5 }))).unwrap()
    }

    fn say(server: &ControlServer, request: &[u8]) -> Value {
        let mut stream = UnixStream::connect(&server.path).unwrap();
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_server_answers_until_it_ends_and_leaves_no_socket() {
        let directory = tempfile::tempdir().unwrap();
        let server = server(directory.path());
        assert_eq!(reports_in(directory.path()).unwrap(), [json!({ "pid": 5 })]);
        assert_eq!(reports_in(directory.path()).unwrap().len(), 1);
        drop(server);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_socket_of_a_dead_server_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(directory.path().join("1.sock")).unwrap());
        assert!(reports_in(directory.path()).unwrap().is_empty());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn bad_requests_are_answered_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let server = server(directory.path());
        let error = |request: &[u8]| say(&server, request)["error"].as_str().unwrap().to_owned();
        assert!(error(b"{\"command\":\"stop\"}\n").contains("unknown command `stop`"));
        assert!(error(b"nonsense\n").contains("not a request"));
        assert!(error(&[b'x'; 4097]).contains("longer than 4096 bytes"));
        assert_eq!(say(&server, b"{\"command\":\"status\"}\n"), json!({ "pid": 5 }));
    }

    #[test]
    fn a_directory_open_to_others_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("tollgate");
        prepare(&directory).unwrap();
        prepare(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(prepare(&directory).unwrap_err().to_string().contains("mode 700"));
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert!(prepare(&link).is_err());
    }
}
