//! The log of the only server that writes one, for who names none.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use serde_json::{Map, Value};

use crate::audit::read::bytes_of;
use crate::believed::{is_believed_in, is_read_only};
use crate::control::{self, Report, Request, Warnings};
use crate::escape::{shown, word};
use crate::messages;

/// The log of the only server that writes one.
///
/// # Errors
/// When there is none, or more than one.
pub(super) fn only_log() -> anyhow::Result<PathBuf> {
    let replies = control::ask_all(&Request::Status, Warnings::Shown)?.replies;
    let log = log_of(&replies, control::directory().path(), &is_read_only)?;
    messages::note(&format!("the log of the one server that writes one is `{}`", shown(&log)));
    Ok(log)
}

fn log_of(
    replies: &[Report],
    top: &Path,
    is_read_only: &dyn Fn(&Path) -> bool,
) -> anyhow::Result<PathBuf> {
    let logs = replies.iter().filter_map(|reply| Some((reply, file_of(&reply.report)?)));
    let is_believed = |reply: &Report| is_believed_in(top, &reply.found.path, is_read_only);
    let (logs, others): (Vec<_>, Vec<_>) = logs.partition(|(reply, _)| is_believed(reply));
    match (logs.as_slice(), others.as_slice()) {
        ([(_, file)], _) => Ok(file.clone()),
        ([], []) => bail!("no server of this user writes an audit log; name FILE"),
        ([], _) => bail!(
            "no server of this user writes an audit log, but for what was started in a `tollgate run` \
             and may name any file; name FILE"
        ),
        (several, _) => {
            let names: Vec<_> = several.iter().map(|(_, file)| word(file)).collect();
            bail!("several servers write audit logs; name one of: {}", names.join(", "))
        }
    }
}

/// The file of a report, by its bytes where it is not UTF-8.
fn file_of(report: &Map<String, Value>) -> Option<PathBuf> {
    let audit = report.get("audit")?;
    let file = audit["file"].as_str()?;
    let bytes = audit["file_hex"].as_str().and_then(bytes_of);
    Some(bytes.map_or_else(|| file.into(), |bytes| OsString::from_vec(bytes).into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tollgate_control::Found;

    use super::*;

    /// Who reports from a socket, and which log.
    fn reply(socket: &str, audit: &Value) -> Report {
        let report = json!({ "audit": audit }).as_object().unwrap().clone();
        let found = Found { path: socket.into(), pid: None, uid: 0 };
        Report { found, report }
    }

    fn log(name: &str) -> Value {
        json!({ "file": name })
    }

    /// The log, or the error, where `read_only` and what lies around it is.
    fn chosen(replies: &[Report], read_only: &str) -> String {
        let is_read_only = |path: &Path| Path::new(read_only).starts_with(path);
        match log_of(replies, Path::new("/run/t"), &is_read_only) {
            Ok(log) => log.to_str().unwrap().to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_a_command_of_a_run_has_answer_chooses_no_log() {
        let outer = reply("/run/t/view-1.sock", &log("/outer"));
        let inner = reply("/run/t/in-1/view-2.sock", &log("/inner"));
        let innermost = reply("/run/t/in-1/in-2/view-3.sock", &log("/innermost"));
        let guest = reply("/run/t-users/view-4.sock", &log("/guest"));
        let all = [outer, inner, innermost, guest];
        assert_eq!(chosen(&all, ""), "/outer");
        let none = chosen(&all[1..], "");
        assert!(none.contains("no server") && none.contains("`tollgate run`"), "{none}");
        // In the `run` that has in-1, and in one in that: what was started there, and outside of all.
        assert_eq!(chosen(&all[1..], "/run/t"), "/inner");
        assert_eq!(chosen(&all[1..], "/run/t/in-1"), "/innermost");
        assert!(chosen(&all, "/run/t").ends_with("name one of: /outer, /inner"));
        assert!(chosen(&all, "/run/t/in-1").ends_with("name one of: /outer, /innermost"));
        assert_eq!(chosen(&[], ""), "no server of this user writes an audit log; name FILE");
    }

    #[test]
    fn of_several_logs_all_are_named_as_words_of_a_command() {
        let at = |number: u8, audit: Value| reply(&format!("/run/t/view-{number}.sock"), &audit);
        let replies = [at(1, log("/a b")), at(2, Value::Null), at(3, log("/c\u{1b}\n"))];
        let said = chosen(&replies, "");
        assert!(said.ends_with(r"name one of: '/a b', $'/c\033\012'"), "{said}");
    }

    #[test]
    fn a_log_is_found_by_any_bytes() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/a\xff"));
        let log = json!({ "file": path.to_string_lossy(), "file_hex": crate::escape::hex(path) });
        let replies = [reply("/run/t/view-1.sock", &log)];
        assert_eq!(log_of(&replies, Path::new("/run/t"), &|_| false).unwrap(), path);
    }
}
