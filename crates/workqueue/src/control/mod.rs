//! Commands to a running runtime: `dump`, `monitor` and `set`, as a line of JSON and an answer in JSON.
//!
//! ```no_run
//! use tollgate_workqueue::{Runtime, control};
//!
//! let runtime = Runtime::builder().build()?;
//! // From here on, `tollgate wq dump` shows this process. Dropping it removes the socket.
//! let control = control::serve_default(&runtime)?;
//! println!("commands are taken at {}", control.path().display());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | request | answer |
//! |---|---|
//! | `{"command":"dump"}` | `{"dump": ...}`, a [`Dump`] |
//! | `{"command":"monitor"}` | `{"monitor": ...}`, a [`Monitor`]; two of them make rates |
//! | `{"command":"set","queue":"crypt","settings":["max_active=4"]}` | `{"set": ["max_active=4"]}`; all or none |
//! | anything else | `{"error": "what is wrong"}` |
//!
//! A program with a socket of its own carries them by [`answer`].

mod socket;

use std::path::Path;
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};

pub use socket::{
    ANSWER_MAX_BYTES, ControlError, REQUEST_MAX_BYTES, Server, ask, check_directory, directory,
    prepare,
};

use crate::runtime::Shared;
use crate::{Dump, Monitor, Runtime};

/// The most sockets of one process that [`serve_default`] finds names for.
const SOCKETS_MAX: u32 = 64;

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

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::Dump`].
    Dump(Dump),
    /// To [`Request::Monitor`].
    Monitor(Monitor),
    /// To [`Request::Set`]: what was set.
    Set(Vec<String>),
    /// What is wrong.
    Error(String),
}

/// Carries out a request and answers it, both as JSON: for a program that has a socket of its own.
#[must_use]
pub fn answer(runtime: &Runtime, request: &str) -> String {
    answer_for(runtime.shared(), request)
}

/// Takes commands at `path`, from this user and root, until the server is dropped. The runtime may be
/// dropped before.
///
/// # Errors
/// The socket cannot be made, or a live process listens there.
pub fn serve(runtime: &Runtime, path: &Path) -> Result<Server, ControlError> {
    // The socket must not keep the runtime alive.
    let shared = Arc::downgrade(runtime.shared());
    Server::start(path, move |request| answer_if_alive(&shared, request))
}

/// As [`serve`], where `tollgate wq` looks: in [`directory`], as `wq-PID.sock`, or `wq-PID-2.sock` for
/// a second runtime of the process.
///
/// # Errors
/// As [`serve`]; the directory is open to others.
pub fn serve_default(runtime: &Runtime) -> Result<Server, ControlError> {
    let directory = directory();
    prepare(&directory)?;
    serve_in(runtime, &directory)
}

fn serve_in(runtime: &Runtime, directory: &Path) -> Result<Server, ControlError> {
    let pid = std::process::id();
    let mut number = 1;
    loop {
        let name =
            if number == 1 { format!("wq-{pid}.sock") } else { format!("wq-{pid}-{number}.sock") };
        match serve(runtime, &directory.join(name)) {
            Err(ControlError::InUse { .. }) if number < SOCKETS_MAX => number += 1,
            other => return other,
        }
    }
}

fn answer_if_alive(shared: &Weak<Shared>, request: &str) -> String {
    match shared.upgrade() {
        Some(shared) => answer_for(&shared, request),
        None => in_json(&shut_down()),
    }
}

fn answer_for(shared: &Arc<Shared>, request: &str) -> String {
    let answer = match serde_json::from_str(request) {
        // Queues that outlive their runtime keep what they shared with it.
        Ok(_) if shared.is_shut_down() => shut_down(),
        Ok(Request::Dump) => Answer::Dump(Dump::of(shared)),
        Ok(Request::Monitor) => Answer::Monitor(Monitor::of(shared)),
        Ok(Request::Set { queue, settings }) => match shared.set(&queue, &settings) {
            Ok(()) => Answer::Set(settings),
            Err(error) => Answer::Error(error.to_string()),
        },
        Err(error) => Answer::Error(format!("not a request: {error}")),
    };
    in_json(&answer)
}

fn shut_down() -> Answer {
    Answer::Error("the runtime is shut down".to_owned())
}

fn in_json(answer: &Answer) -> String {
    // Maps have strings and numbers for keys, so there is nothing that JSON could not hold.
    serde_json::to_string(answer).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn error(runtime: &Runtime, request: &str) -> String {
        match serde_json::from_str(&answer(runtime, request)).unwrap() {
            Answer::Error(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_set_takes_all_settings_or_none() {
        let runtime = Runtime::builder().build().unwrap();
        let queue = runtime.queue("crypt").build().unwrap();
        let set =
            |settings| format!(r#"{{"command":"set","queue":"crypt","settings":{settings}}}"#);
        let done = answer(&runtime, &set(r#"["max_active=3","affinity_scope=numa"]"#));
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
            let answer = answer_if_alive(&shared, request);
            assert_eq!(answer, r#"{"error":"the runtime is shut down"}"#);
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
    fn answers_can_be_read_again() {
        let runtime = Runtime::builder().build().unwrap();
        let _queue = runtime.queue("crypt").ordered().build().unwrap();
        let Ok(Answer::Dump(dump)) =
            serde_json::from_str(&answer(&runtime, r#"{"command":"dump"}"#))
        else {
            panic!("no dump");
        };
        assert_eq!(dump.to_string(), runtime.dump().to_string());
        let request = r#"{"command":"monitor"}"#;
        let Ok(Answer::Monitor(monitor)) = serde_json::from_str(&answer(&runtime, request)) else {
            panic!("no monitor");
        };
        assert_eq!(monitor.queues, runtime.monitor().queues);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no Unix sockets")]
    fn two_runtimes_have_two_sockets_and_a_dropped_one_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = [(); 2].map(|()| Runtime::builder().build().unwrap());
        let one = serve_in(&first, directory.path()).unwrap();
        let two = serve_in(&second, directory.path()).unwrap();
        assert_ne!(one.path(), two.path());
        drop(second);
        let request = r#"{"command":"dump"}"#;
        assert!(ask(one.path(), request).unwrap().starts_with(r#"{"dump":"#));
        let gone = ask(two.path(), request).unwrap();
        assert!(gone.contains("the runtime is shut down"), "{gone}");
    }
}
