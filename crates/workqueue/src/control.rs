//! Requests to a running runtime: `dump`, `monitor` and `set`, each a line of JSON, and replies in
//! JSON. Needs the feature `control`.
//!
//! ```no_run
//! use tollgate_workqueue::{Runtime, control};
//!
//! let runtime = Runtime::builder().build()?;
//! // Where the command `tollgate wq` looks. Dropping the server removes the socket.
//! let server = control::serve(&runtime, &control::Directory::of_user("tollgate"))?;
//! println!("requests are taken at {}", server.path().display());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | request | reply |
//! |---|---|
//! | `{"command":"dump"}` | `{"dump": ...}`, a [`Dump`] |
//! | `{"command":"monitor"}` | `{"monitor": ...}`, a [`Monitor`]; two of them make rates |
//! | `{"command":"set","queue":"crypt","settings":["max_active=4"]}` | `{"set": ["max_active=4"]}`; all or none |
//! | anything else | `{"error": "what is wrong"}` |
//!
//! A program with a socket of its own passes the requests to [`reply`]. Who is served, and the
//! limits of size and time, are those of [`tollgate_control`].

use std::path::Path;
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};

pub use tollgate_control::{ControlError, Directory, Reserve, Server, ask};

use crate::shared::Shared;
use crate::{Dump, Monitor, Runtime};

/// The kind of the sockets that [`serve`] makes, for [`Directory::servers`].
pub const KIND: &str = "wq";

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// A [`Dump`].
    Dump,
    /// A [`Monitor`].
    Monitor,
    /// Attributes to change, all or none.
    Set {
        /// The queue's name.
        queue: String,
        /// Each `ATTRIBUTE=VALUE`.
        settings: Vec<String>,
    },
}

/// What comes back.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Dump`].
    Dump(Dump),
    /// To [`Request::Monitor`].
    Monitor(Monitor),
    /// To [`Request::Set`]: what was set.
    Set(Vec<String>),
    /// What is wrong.
    Error(String),
}

/// Carries out a request and returns the reply, both as JSON: for a program that has a socket of
/// its own.
#[must_use]
pub fn reply(runtime: &Runtime, request: &str) -> String {
    reply_of(runtime.shared(), request)
}

/// Takes requests at a socket in `directory`, from this user and root, until the server is dropped.
/// The runtime may be dropped before. Each runtime of a process has a socket of its own.
///
/// # Errors
/// The directory cannot be made, or is not private to this user; the socket cannot be made.
pub fn serve(runtime: &Runtime, directory: &Directory) -> Result<Server, ControlError> {
    let shared = Arc::downgrade(runtime.shared());
    directory.serve(KIND, move |_, request| reply_if_alive(&shared, request))
}

/// As [`serve`], by a socket that was made before.
///
/// # Errors
/// As [`Directory::serve_later`].
pub fn serve_later(
    runtime: &Runtime,
    directory: &Directory,
    reserve: &Reserve,
) -> Result<Server, ControlError> {
    let shared = Arc::downgrade(runtime.shared());
    directory.serve_later(reserve, KIND, move |_, request| reply_if_alive(&shared, request))
}

/// As [`serve`], at the socket `path`.
///
/// # Errors
/// The socket cannot be made, or a server listens there.
pub fn serve_at(runtime: &Runtime, path: &Path) -> Result<Server, ControlError> {
    // The socket must not keep the runtime alive.
    let shared = Arc::downgrade(runtime.shared());
    Server::start(path, move |_, request| reply_if_alive(&shared, request))
}

fn reply_if_alive(shared: &Weak<Shared>, request: &str) -> String {
    match shared.upgrade() {
        Some(shared) => reply_of(&shared, request),
        None => in_json(&shut_down()),
    }
}

fn reply_of(shared: &Arc<Shared>, request: &str) -> String {
    let reply = match serde_json::from_str(request) {
        // Queues that outlive their runtime keep what they shared with it.
        Ok(_) if shared.is_shut_down() => shut_down(),
        Ok(Request::Dump) => Reply::Dump(Dump::of(shared)),
        Ok(Request::Monitor) => Reply::Monitor(Monitor::of(shared)),
        Ok(Request::Set { queue, settings }) => match shared.set(&queue, &settings) {
            Ok(()) => Reply::Set(settings),
            Err(error) => Reply::Error(error.to_string()),
        },
        Err(error) => Reply::Error(format!("not a request: {error}")),
    };
    in_json(&reply)
}

fn shut_down() -> Reply {
    Reply::Error("the runtime is shut down".to_owned())
}

fn in_json(reply: &Reply) -> String {
    // Maps have strings and numbers for keys, so there is nothing that JSON could not hold.
    serde_json::to_string(reply).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn error(runtime: &Runtime, request: &str) -> String {
        match serde_json::from_str(&reply(runtime, request)).unwrap() {
            Reply::Error(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_set_takes_all_settings_or_none() {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("crypt").build().unwrap();
        let set =
            |settings| format!(r#"{{"command":"set","queue":"crypt","settings":{settings}}}"#);
        let done = reply(&runtime, &set(r#"["max_active=3","affinity_scope=numa"]"#));
        assert_eq!(done, r#"{"set":["max_active=3","affinity_scope=numa"]}"#);
        assert_eq!(queue.attributes().max_active, Some(3));
        assert!(error(&runtime, &set(r#"["max_active=4","nice=99"]"#)).contains("nice 99"));
        assert_eq!(queue.attributes().max_active, Some(3), "none");
    }

    #[test]
    fn a_queue_that_outlives_its_runtime_cannot_be_set() {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("crypt").build().unwrap();
        let shared = Arc::downgrade(runtime.shared());
        drop(runtime);
        assert!(shared.upgrade().is_some(), "the queue holds it");
        for request in [
            r#"{"command":"set","queue":"crypt","settings":["nice=1"]}"#,
            r#"{"command":"dump"}"#,
            r#"{"command":"monitor"}"#,
        ] {
            let reply = reply_if_alive(&shared, request);
            assert_eq!(reply, r#"{"error":"the runtime is shut down"}"#);
        }
        assert_eq!(queue.attributes().nice, 0);
    }

    #[test]
    fn wrong_requests_say_what_is_wrong() {
        let runtime = Runtime::builder().build().unwrap();
        assert!(error(&runtime, "dump").contains("not a request"));
        let unknown = error(&runtime, r#"{"command":"stop"}"#);
        assert!(unknown.contains("`stop`") && unknown.contains("`dump`"), "{unknown}");
        let nobody = r#"{"command":"set","queue":"x","settings":["nice=1"]}"#;
        assert_eq!(error(&runtime, nobody), "no queue is named \"x\"");
        assert!(error(&runtime, r#"{"command":"set","queue":"x"}"#).contains("settings"));
    }

    #[test]
    fn replies_can_be_read_again() {
        let runtime = Runtime::builder().build().unwrap();
        let _queue = runtime.queue("crypt").ordered().build().unwrap();
        let Ok(Reply::Dump(dump)) = serde_json::from_str(&reply(&runtime, r#"{"command":"dump"}"#))
        else {
            panic!("no dump");
        };
        assert_eq!(dump.to_string(), runtime.dump().to_string());
        let request = r#"{"command":"monitor"}"#;
        let Ok(Reply::Monitor(monitor)) = serde_json::from_str(&reply(&runtime, request)) else {
            panic!("no monitor");
        };
        assert_eq!(monitor.queues, runtime.monitor().queues);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no Unix sockets")]
    fn two_runtimes_have_two_sockets_and_a_dropped_one_says_so() {
        let parent = tempfile::tempdir().unwrap();
        let [first, second] = [(); 2].map(|()| Runtime::builder().build().unwrap());
        let directory = Directory::at(parent.path().join("sockets"));
        let one = serve(&first, &directory).unwrap();
        let two = serve(&second, &directory).unwrap();
        assert_ne!(one.path(), two.path());
        drop(second);
        let request = r#"{"command":"dump"}"#;
        assert!(ask(one.path(), request).unwrap().starts_with(r#"{"dump":"#));
        let gone = ask(two.path(), request).unwrap();
        assert!(gone.contains("the runtime is shut down"), "{gone}");
    }
}
