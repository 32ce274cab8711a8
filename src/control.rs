//! The control socket: one per server, in a directory of the user's own.
//!
//! A client sends one line of JSON (`{"command":"status"}`) and gets one JSON value; see
//! [`tollgate_workqueue::control`], whose socket and directory this is.

use std::io;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;
use tollgate_workqueue::control::{self, ControlError};

use crate::status;

/// Most sockets that `status` asks.
const SERVERS_MAX: usize = 4096;

/// Makes the report that `status` asks for.
pub(crate) type Reporter = Box<dyn Fn() -> Value + Send>;

/// The thread that answers.
#[derive(Debug)]
pub(crate) struct ControlServer {
    /// Answers while it is here.
    #[cfg_attr(not(test), expect(dead_code, reason = "held for its thread"))]
    server: control::Server,
}

impl ControlServer {
    /// Opens the socket of this process.
    ///
    /// # Errors
    /// When the directory is not ours alone, or the socket cannot be made.
    pub(crate) fn start(reporter: Reporter) -> anyhow::Result<Self> {
        let directory = control::directory();
        control::prepare(&directory)?;
        Self::start_in(&directory, reporter)
    }

    fn start_in(directory: &Path, reporter: Reporter) -> anyhow::Result<Self> {
        let path = directory.join(format!("{}.sock", std::process::id()));
        let server = control::Server::start(&path, move |request| answer(request, &reporter))?;
        Ok(Self { server })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    command: String,
}

fn answer(request: &str, reporter: &Reporter) -> String {
    let value = match serde_json::from_str::<Request>(request) {
        Ok(request) if request.command == "status" => reporter(),
        Ok(request) => {
            status::error(&format!("unknown command `{}`; allowed: status", request.command))
        }
        Err(error) => status::error(&format!("not a request: {error}")),
    };
    value.to_string()
}

/// What each server of this user reports. Sockets of dead servers are removed.
///
/// # Errors
/// When the directory is there and cannot be read, or is not this user's alone.
pub(crate) fn all_reports() -> anyhow::Result<Vec<Value>> {
    reports_in(&control::directory())
}

fn reports_in(directory: &Path) -> anyhow::Result<Vec<Value>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("`{}` cannot be read", directory.display()))?,
    };
    control::check_directory(directory)?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| pid_of_server(path).is_some());
    paths.sort();
    paths.truncate(SERVERS_MAX);
    Ok(paths.iter().filter_map(|path| report(path)).collect())
}

/// Of `PID.sock`. The work queues of other programs have their sockets beside it; see `wq`.
fn pid_of_server(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_suffix(".sock")?.parse().ok()
}

/// `None` for a server that is dead or ends just now; a live one that does not answer is told of.
fn report(path: &Path) -> Option<Value> {
    let answer = match control::ask(path, "{\"command\":\"status\"}") {
        Ok(text) => serde_json::from_str(&text).context("the answer is not JSON"),
        Err(ControlError::Gone { .. }) => {
            // A server that starts has its socket a moment before it listens.
            let alive =
                pid_of_server(path).is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists());
            if !alive {
                // Another `status` may have been faster.
                drop(std::fs::remove_file(path));
            }
            return None;
        }
        Err(ControlError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return None;
        }
        Err(error) => Err(error.into()),
    };
    answer.inspect_err(|error| crate::warn(&crate::in_words(error))).ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    use serde_json::json;

    use super::*;

    fn private_directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(directory.path(), mode).unwrap();
        directory
    }

    fn server(directory: &Path) -> ControlServer {
        ControlServer::start_in(directory, Box::new(|| json!({ "pid": 5 }))).unwrap()
    }

    fn say(server: &ControlServer, request: &[u8]) -> Value {
        let mut stream = UnixStream::connect(server.server.path()).unwrap();
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_server_answers_until_it_ends_and_leaves_no_socket() {
        let directory = private_directory();
        let server = server(directory.path());
        assert_eq!(reports_in(directory.path()).unwrap(), [json!({ "pid": 5 })]);
        assert_eq!(reports_in(directory.path()).unwrap().len(), 1);
        drop(server);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_socket_of_a_dead_server_is_removed() {
        let directory = private_directory();
        // No process has the first number; we may be about to listen; the third is not a server's.
        let starting = format!("{}.sock", std::process::id());
        for name in ["4000000000.sock", &starting, "wq-4000000000.sock"] {
            drop(UnixListener::bind(directory.path().join(name)).unwrap());
        }
        assert!(reports_in(directory.path()).unwrap().is_empty());
        let left = std::fs::read_dir(directory.path()).unwrap().flatten();
        let mut left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left, [&*starting, "wq-4000000000.sock"]);
    }

    #[test]
    fn a_directory_open_to_others_is_not_asked() {
        let directory = tempfile::tempdir().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), mode).unwrap();
        assert!(reports_in(directory.path()).unwrap_err().to_string().contains("mode 700"));
    }

    #[test]
    fn bad_requests_are_answered_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let server = server(directory.path());
        let error = |request: &[u8]| say(&server, request)["error"].as_str().unwrap().to_owned();
        assert!(error(b"{\"command\":\"stop\"}\n").contains("unknown command `stop`"));
        assert!(error(b"nonsense\n").contains("not a request"));
        assert!(error(&[b'x'; 4200]).contains("longer than 4096 bytes"));
        assert_eq!(say(&server, b"{\"command\":\"status\"}\n"), json!({ "pid": 5 }));
    }
}
