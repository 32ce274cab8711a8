//! The control sockets of this program's servers: what they take, and how to ask all of them.

use serde::Deserialize;
use serde_json::Value;
use tollgate_control::{ControlError, Directory, Found, Server, error_reply};

use crate::messages;

/// The name of this user's directory of sockets. Programs with work queues put theirs there, too.
const DIRECTORY: &str = "tollgate";
/// The kind of socket that a server of a view has.
const KIND: &str = "view";

/// Makes the report that `status` asks for.
pub(crate) type Reporter = Box<dyn Fn() -> Value + Send>;

/// What can be asked, as a line of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// The report.
    Status,
}

/// Where this user's sockets are.
pub(crate) fn directory() -> Directory {
    Directory::of_user(DIRECTORY)
}

/// Opens the socket of this process.
///
/// # Errors
/// When the directory is not private to this user, or the socket cannot be made.
pub(crate) fn serve(reporter: Reporter) -> Result<Server, ControlError> {
    serve_in(&directory(), reporter)
}

fn serve_in(directory: &Directory, reporter: Reporter) -> Result<Server, ControlError> {
    directory.serve(KIND, move |_, request| reply(request, &reporter))
}

fn reply(request: &str, reporter: &Reporter) -> String {
    match serde_json::from_str(request) {
        Ok(Request::Status) => reporter().to_string(),
        Err(error) => error_reply(&format!("not a request: {error}")),
    }
}

/// The reports of all servers of this user, in the order in which they started. Warns of those that
/// cannot be asked.
///
/// Each report gets the member `pid_here`: the server's process id in the pid namespace of this
/// process, or null if the server is not in it.
///
/// # Errors
/// When the directory is there and cannot be read, or is not private to this user.
pub(crate) fn reports() -> Result<Vec<Value>, ControlError> {
    reports_in(&directory())
}

fn reports_in(directory: &Directory) -> Result<Vec<Value>, ControlError> {
    let discovery = directory.servers(KIND)?;
    for trouble in discovery.troubles {
        messages::warn(&messages::in_words(&trouble.into()));
    }
    let mut reports: Vec<_> = discovery.found.iter().filter_map(report).collect();
    reports.sort_by_cached_key(|report| {
        [&report["started"], &report["mount_point"]].map(ToString::to_string)
    });
    Ok(reports)
}

/// `None`, after a warning, for a server that cannot be asked. One that ends just now is left out.
fn report(found: &Found) -> Option<Value> {
    let warn = |text: String| {
        messages::warn(&format!("the server at `{}`: {text}", found.path.display()));
    };
    let text = match tollgate_control::ask(&found.path, r#"{"command":"status"}"#) {
        Ok(text) => text,
        Err(error) if error.is_gone() => return None,
        Err(error) => {
            messages::warn(&messages::in_words(&error.into()));
            return None;
        }
    };
    match serde_json::from_str::<Value>(&text) {
        Ok(report) if report["error"].is_string() => warn(report["error"].to_string()),
        Ok(Value::Object(mut report)) => {
            report.insert("pid_here".to_owned(), found.pid.into());
            return Some(Value::Object(report));
        }
        Ok(_) => warn("its reply is no report; is it of another version?".to_owned()),
        Err(error) => warn(format!("its reply is not JSON: {error}")),
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fixture() -> (tempfile::TempDir, Directory) {
        let home = tempfile::tempdir().unwrap();
        let directory = Directory::at(home.path().join("sockets"));
        (home, directory)
    }

    #[test]
    fn each_server_is_asked_until_it_ends() {
        let (_home, directory) = fixture();
        let server = |pid, started| {
            let report = json!({ "pid": pid, "started": started });
            serve_in(&directory, Box::new(move || report.clone())).unwrap()
        };
        let second = server(5, "later");
        let _first = server(6, "earlier");
        let here = std::process::id();
        let report =
            |pid: u32, started: &str| json!({ "pid": pid, "started": started, "pid_here": here });
        let expected = [report(6, "earlier"), report(5, "later")];
        assert_eq!(reports_in(&directory).unwrap(), expected);
        drop(second);
        assert_eq!(reports_in(&directory).unwrap().len(), 1);
    }

    #[test]
    fn a_server_that_replies_nonsense_is_left_out() {
        let (_home, directory) = fixture();
        let replies = ["not JSON", "[]", r#"{"error":"broken"}"#];
        let _servers = replies.map(|text| directory.serve(KIND, |_, _| text.to_owned()).unwrap());
        assert!(reports_in(&directory).unwrap().is_empty());
    }

    #[test]
    fn bad_requests_get_the_reason() {
        let (_home, directory) = fixture();
        let server = serve_in(&directory, Box::new(|| json!({ "pid": 5 }))).unwrap();
        let ask = |request: &str| tollgate_control::ask(server.path(), request).unwrap();
        assert!(ask(r#"{"command":"stop"}"#).contains("unknown variant `stop`"));
        assert!(ask("nonsense").contains("not a request"));
        assert_eq!(ask(r#"{"command":"status"}"#), r#"{"pid":5}"#);
    }
}
