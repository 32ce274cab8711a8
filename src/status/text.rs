//! A report as text.

use std::fmt::Write;

use serde_json::Value;

use crate::audit::{self, TallyReport};
use crate::escape::{self, escaped};
use crate::lingering;

/// A report for people: what they decided and what became of it; with `verbose` what the server
/// does inside, too.
pub(super) fn text(report: &Value, verbose: bool) -> String {
    let mut text = String::new();
    // Its words are escaped where they are put together.
    let tally = &report["refusals"];
    // CMD of a `run` may answer as a server does. No other word of a report is shown as it came.
    let report = &escape::in_report(report);
    if report["brief"] == true {
        brief(report, &mut text);
        return text;
    }
    head(report, &mut text);
    let counts = &report["view"]["counts"];
    refused(counts, &mut text);
    refusals(tally, &mut text);
    masked(&report["view"]["masked"], &mut text);
    audit(&report["audit"], &mut text);
    broker(report, &mut text);
    troubles(&report["transport"], &mut text);
    blocked(report, &mut text);
    shares(&report["view"]["shares"], verbose, &mut text);
    without(&report["view"]["unavailable"], &mut text);
    sandbox(&report["sandbox"], verbose, &mut text);
    if verbose {
        opens(counts, &mut text);
        resources(report, &mut text);
        features(report, &mut text);
        watch(&report["view"]["watch"], &mut text);
        keep_awake(&report["keep_awake"], &mut text);
    }
    text
}

/// Writing to a `String` cannot fail.
macro_rules! say {
    ($to:expr, $($what:tt)*) => { let _ = writeln!($to, $($what)*); };
}

/// What a server tells CMD's user, who is not its own.
fn brief(report: &Value, to: &mut String) {
    let word = |key: &str| report[key].as_str().unwrap_or("?");
    let uptime = report["uptime_seconds"].as_u64().unwrap_or(0);
    say!(to, "{} at {}", word("dir"), word("mount_point"));
    say!(to, "  server     {}, up {uptime} s, since {}", word("kind"), word("started"));
    say!(
        to,
        "  more       for the user who started it, and root; `tollgate why PATH` answers here"
    );
}

fn head(report: &Value, to: &mut String) {
    let word = |key: &str| report[key].as_str().unwrap_or("?");
    say!(to, "{} at {}", word("dir"), word("mount_point"));
    if let Some(now) = report["dir_now"].as_str() {
        say!(to, "  moved      the directory is {now} now");
    }
    if let Some(processes) = report["mounted_elsewhere"].as_array() {
        say!(to, "  unmounted  {}", lingers(processes));
    }
    let uptime = report["uptime_seconds"].as_u64().unwrap_or(0);
    say!(
        to,
        "  server     {} ({}), up {uptime} s, since {}",
        word("kind"),
        pid(report),
        word("started")
    );
    let policy = report["policy"].as_str().unwrap_or("none: everything passes through");
    say!(to, "  policy     {policy}");
    if let Some(own) = report["tightened_by"].as_str() {
        say!(to, "             tightened by {own}");
    }
    for other in report["other_views"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        say!(to, "  also at    {other}: the same files, judged by that policy");
    }
    let native: Vec<_> =
        report["native"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !native.is_empty() {
        say!(to, "  native     {}", native.join(", "));
    }
}

/// Why the server of a view that is not mounted here goes on.
fn lingers(processes: &[Value]) -> String {
    let process = |process: &Value| {
        let name = process["name"].as_str().unwrap_or_default();
        format!("process {} ({name})", process["pid"])
    };
    match processes {
        [] => "here; files in it are open, or another mount namespace has it: the server goes on until then"
            .to_owned(),
        [first, rest @ ..] => {
            let more = if rest.is_empty() { "" } else { " and others" };
            format!(
                "here; {}{more} still {} it, in another mount namespace: the server goes on until then",
                process(first),
                lingering::have(processes.len())
            )
        }
    }
}

/// What was refused most often, and last. A server of an older version has none.
fn refusals(refusals: &Value, to: &mut String) {
    let report: TallyReport = serde_json::from_value(refusals.clone()).unwrap_or_default();
    for one in report.by_path.iter().take(SHOWN) {
        say!(to, "  refusals   {}", audit::refusals_with_count(one));
    }
    for one in report.recent.iter().rev().take(SHOWN) {
        let exe = escaped(one.exe.as_deref().unwrap_or("?"));
        let (time, what) = (escaped(&one.time), audit::refusals_in_words(&one.what));
        say!(to, "  last       {time} {exe}[{}]: {what}", one.pid);
    }
}

/// Secrets that readers did not get. A server of an older version does not count them.
fn masked(masked: &Value, to: &mut String) {
    let secrets = masked["secrets"].as_object().into_iter().flatten();
    let shown: Vec<_> = secrets.map(|(name, count)| format!("{name} {count}")).collect();
    if !shown.is_empty() {
        let opens = usize::try_from(masked["opens"].as_u64().unwrap_or(0)).unwrap_or(usize::MAX);
        let opens = crate::messages::count(opens, "open");
        say!(to, "  masked     {}, in {opens} of files", shown.join(", "));
    }
}

/// Lines about refusals of each kind.
const SHOWN: usize = 3;

/// The process as the reader can find it, and what it calls itself where that differs.
fn pid(report: &Value) -> String {
    match (report["pid"].as_u64(), report["pid_here"].as_u64()) {
        (Some(own), Some(here)) if own == here => format!("pid {own}"),
        (Some(own), Some(here)) => format!("pid {here}, {own} in its own pid namespace"),
        (Some(own), None) => format!("pid {own} in another pid namespace"),
        (None, _) => "pid unknown".to_owned(),
    }
}

fn counted(counts: &Value, keys: &[(&str, &str)]) -> String {
    let shown: Vec<_> = keys.iter().map(|(key, name)| format!("{name} {}", counts[key])).collect();
    shown.join(", ")
}

fn refused(counts: &Value, to: &mut String) {
    let kinds = [
        ("refused_deny", "deny"),
        ("refused_read_only", "read-only"),
        ("refused_weakening", "weakening"),
        ("hidden", "hidden"),
    ];
    let recorded = match counts["would_refuse"].as_u64() {
        None | Some(0) => String::new(),
        Some(count) => format!("; would have been refused {count}, recorded only"),
    };
    if kinds.iter().all(|(key, _)| counts[key] == 0) {
        say!(to, "  refused    nothing so far{recorded}");
    } else {
        say!(to, "  refused    {}{recorded}", counted(counts, &kinds));
    }
}

fn opens(counts: &Value, to: &mut String) {
    let kinds = [
        ("open_passthrough", "passthrough"),
        ("open_cached", "cached"),
        ("open_userspace", "userspace"),
        ("open_fallback", "fallback"),
    ];
    let ahead = match counts["read_ahead"].as_u64() {
        None | Some(0) => String::new(),
        Some(read) => {
            format!("; files read ahead {read}, opened then {}", counts["read_ahead_used"])
        }
    };
    say!(to, "  opens      {}{ahead}", counted(counts, &kinds));
}

fn troubles(transport: &Value, to: &mut String) {
    let troubles: Vec<_> = ["malformed", "undelivered", "dropped", "panics"]
        .iter()
        .filter(|key| transport[key].as_u64().is_some_and(|count| count > 0))
        .map(|key| format!("{key} {}", transport[key]))
        .collect();
    if !troubles.is_empty() {
        say!(to, "  troubles   {}", troubles.join(", "));
    }
}

/// Workers that wait for the file system beneath.
fn blocked(report: &Value, to: &mut String) {
    let transport = &report["transport"];
    let number = |of: &Value| of.as_u64().unwrap_or(0);
    let (count, reserve) = (number(&transport["blocked"]), number(&transport["reserve"]));
    if count > 0 {
        let all = number(&report["queues"]) + reserve;
        let longest = number(&transport["longest_blocked_seconds"]);
        say!(
            to,
            "  blocked    {count} of {all} workers wait for the file system beneath, the longest for \
             {longest} s"
        );
    }
}

/// What callers share: how much of it is taken, and whether somebody wanted more than a user may
/// have. A server of an older version has none.
fn shares(shares: &Value, verbose: bool, to: &mut String) {
    for share in shares.as_array().into_iter().flatten() {
        let number = |key: &str| share[key].as_u64().unwrap_or(0);
        let (of, refused) = (share["of"].as_str().unwrap_or("?"), number("refused"));
        if refused == 0 && !verbose {
            continue;
        }
        let last = match share["last_refused_uid"].as_u64() {
            Some(uid) => format!("; refused {refused} times, user {uid} last"),
            None => String::new(),
        };
        let (taken, max, one_user) = (number("taken"), number("max"), number("one_user"));
        say!(to, "  shares     {of}: {taken} of {max}, one user at most {one_user} more{last}");
    }
}

/// What the server has to do without.
fn without(unavailable: &Value, to: &mut String) {
    for item in unavailable.as_array().into_iter().flatten() {
        let word = |key: &str| item[key].as_str().unwrap_or("?");
        say!(to, "  without    {}: {}", word("feature"), word("reason"));
    }
}

fn resources(report: &Value, to: &mut String) {
    let (view, transport) = (&report["view"], &report["transport"]);
    let mut operations: Vec<_> = transport["by_operation"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, count)| (count.as_u64().unwrap_or(0), name))
        .collect();
    operations.sort_by(|a, b| b.cmp(a));
    let operations: Vec<_> =
        operations.iter().map(|(count, name)| format!("{} {count}", name.to_lowercase())).collect();
    let reserve = match transport["reserve"].as_u64() {
        Some(reserve @ 1..) => format!(", {reserve} workers in reserve"),
        _ => String::new(),
    };
    let (requests, queues) = (&transport["requests"], &report["queues"]);
    say!(to, "  requests   {requests} on {queues} queues{reserve}");
    if !operations.is_empty() {
        say!(to, "             {}", operations.join(", "));
    }
    transport_line(transport, to);
    say!(
        to,
        "  holds      {} inodes, {} of {} descriptors, {} handles served in user space",
        view["nodes"],
        view["descriptors_used"],
        view["descriptors_max"],
        view["userspace_handles"]
    );
}

fn transport_line(transport: &Value, to: &mut String) {
    let Some(kind) = transport["kind"].as_str() else { return };
    if let Some(rings) = transport["rings"].as_object() {
        let number = |key: &str| rings.get(key).and_then(Value::as_u64).unwrap_or(0);
        let (queues, entries) = (number("queues"), number("entries_per_queue"));
        let (rings, helpers) = (number("threads"), number("helpers"));
        say!(
            to,
            "  transport  {kind}: rings {rings}, helpers {helpers}; queues {queues}, one for each \
             CPU, with {entries} entries each"
        );
    } else {
        let reason = transport["reason"].as_str().map(|reason| format!(": {reason}"));
        say!(to, "  transport  {kind}{}", reason.unwrap_or_default());
    }
    if let Some(reason) = transport["uring_unavailable"].as_str() {
        say!(to, "             no io_uring: {reason}");
    }
}

fn features(report: &Value, to: &mut String) {
    let negotiated = &report["negotiated"];
    let list = |value: &Value| {
        let words: Vec<_> =
            value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        words.join(" ")
    };
    let protocol = negotiated["protocol"].as_str().unwrap_or("?");
    say!(to, "  protocol   {protocol}, requests up to {} bytes", negotiated["max_write_bytes"]);
    say!(to, "  features   {}", list(&negotiated["features"]));
    let missing = list(&negotiated["missing"]);
    if !missing.is_empty() {
        say!(to, "  not agreed {missing}");
    }
}

/// A server that registers its files itself has none.
fn broker(report: &Value, to: &mut String) {
    let Some(socket) = report["broker"]["socket"].as_str() else { return };
    let broker = &report["broker"];
    let does = match broker["trouble"].as_str() {
        None => "registers files for passthrough".to_owned(),
        Some(why) => format!("{why}; files opened now are served by tollgate"),
    };
    let (registered, refused) = (&broker["registered"], &broker["refused"]);
    say!(to, "  broker     {socket}: {does}; registered {registered}, refused {refused}");
    let only_read = report["view"]["counts"]["open_only_read"].as_u64().unwrap_or(0);
    if only_read > 0 {
        say!(
            to,
            "             opens of files that this user may only read, served by tollgate: \
             {only_read}"
        );
    }
}

/// A server of an older version has none.
fn watch(status: &Value, to: &mut String) {
    let count = |key: &str| status[key].as_u64().unwrap_or(0);
    match status["on"].as_bool() {
        None => {}
        Some(false) => {
            say!(to, "  watch      off: names and attributes are cached for --attr-timeout alone");
        }
        Some(true) => {
            say!(
                to,
                "  watch      on: directories {}, changes by others {}, lost reports {}",
                count("directories"),
                count("changes"),
                count("overflows")
            );
        }
    }
}

/// A server of an older version has none.
fn keep_awake(status: &Value, to: &mut String) {
    if let Some(text) = status["text"].as_str() {
        say!(to, "  keep-awake {text}");
    }
    if let Some(remedy) = status["remedy"].as_str() {
        say!(to, "             {remedy}");
    }
}

/// A server of an older version has none.
fn sandbox(sandbox: &Value, verbose: bool, to: &mut String) {
    let Some(mode) = sandbox["mode"].as_str() else { return };
    let reason = sandbox["reason"].as_str();
    if verbose || reason.is_some() {
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        say!(to, "  sandbox    {mode}{reason}");
    }
    if let Some(reason) = sandbox["files_not_restricted"].as_str() {
        say!(to, "  sandbox    the server reaches all files of its user: {reason}");
    }
    if let Some(reason) = sandbox["system_calls_not_restricted"].as_str() {
        say!(to, "  sandbox    system calls are not restricted: {reason}");
    }
    if let Some(last) = sandbox["last_refused_call"].as_str() {
        let count = &sandbox["refused_calls"];
        say!(to, "  sandbox    refused {count} system calls, `{last}` last; please report it");
    }
}

fn audit(audit: &Value, to: &mut String) {
    let Some(file) = audit["file"].as_str() else { return };
    let (written, dropped, failed) = (&audit["written"], &audit["dropped"], &audit["failed"]);
    say!(to, "  audit      {file}: {written} written, {dropped} dropped, {failed} failed");
    if let Some(error) = audit["last_error"].as_str() {
        say!(to, "  audit      last error: {error}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_is_shown_with_what_is_missing_and_why() {
        let report = json!({
            "pid": 7, "pid_here": 7, "kind": "mount", "dir": "/d", "mount_point": "/m",
            "policy": null,
            "started": "then", "uptime_seconds": 3, "queues": 2,
            "negotiated": { "protocol": "7.45", "features": ["parallel_dirops"],
                "missing": ["passthrough"], "max_write_bytes": 1_048_576 },
            "transport": { "kind": "devfuse", "reason": "fast", "uring_unavailable": "switched off", "requests": 9, "by_operation": { "GETATTR": 1, "LOOKUP": 8 },
                "malformed": 0, "undelivered": 2, "reserve": 30, "blocked": 3,
                "longest_blocked_seconds": 14 },
            "view": { "shares": [{ "of": "locks", "max": 80, "taken": 20, "one_user": 30,
                    "refused": 2, "last_refused_uid": 1000 },
                    { "of": "descriptors", "max": 160, "taken": 20, "one_user": 70, "refused": 0 }],
                "counts": { "open_passthrough": 5, "hidden": 1, "would_refuse": 7 },
                "nodes": 4,
                "watch": { "on": true, "directories": 3, "changes": 2, "overflows": 1 },
                "unavailable": [{ "feature": "passthrough", "reason": "no CAP_SYS_ADMIN" }] },
            "refusals": { "by_path": [{ "operation": "open", "path": "a\u{1b}[2J",
                "rule": "keys", "errno": "EACCES", "count": 4 },
                { "operation": "opendir", "path": "", "rule": null, "errno": "EACCES",
                "audit_only": true, "count": 1 }], "recent": [{ "time": "then", "pid": 9,
                "operation": "open", "path": "b", "errno": "EACCES", "audit_only": true,
                "exe": null }] },
            "keep_awake": { "text": "auto by pollers: slow", "remedy": "usermod" },
            "audit": { "file": "/a", "written": 10, "dropped": 1, "failed": 0, "last_error": null },
        });
        let brief = super::text(&report, false);
        for line in ["requests ", "protocol ", "keep-awake ", "opens "] {
            assert!(!brief.contains(line), "{line} is for `--verbose`:\n{brief}");
        }
        for line in
            ["policy     none", "refused    deny null", "last       then", "without    pass"]
        {
            assert!(brief.contains(line), "{line} is not in:\n{brief}");
        }
        let text = super::text(&report, true);
        for line in [
            "/d at /m",
            "policy     none: everything passes through",
            "refused    deny null, read-only null, weakening null, hidden 1; would have been refused 7, \
             recorded only\n",
            "refusals   open a\\x1b[2J: EACCES by rule `keys`, 4 times\n",
            "refusals   opendir DIR itself: EACCES by the default, recorded only, once\n",
            "last       then ?[9]: open b: EACCES by the default, recorded only\n",
            "opens      passthrough 5",
            "requests   9 on 2 queues, 30 workers in reserve\n             lookup 8, getattr 1",
            "blocked    3 of 32 workers wait for the file system beneath, the longest for 14 s",
            "shares     locks: 20 of 80, one user at most 30 more; refused 2 times, user 1000 last",
            "shares     descriptors: 20 of 160, one user at most 70 more\n",
            "troubles   undelivered 2\n",
            "transport  devfuse: fast\n             no io_uring: switched off\n",
            "not agreed passthrough",
            "without    passthrough: no CAP_SYS_ADMIN",
            "keep-awake auto by pollers: slow\n             usermod\n",
            "watch      on: directories 3, changes by others 2, lost reports 1",
            "audit      /a: 10 written, 1 dropped",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }

    #[test]
    fn who_keeps_a_view_is_said_in_words() {
        let process = json!({ "pid": 5, "name": "sh" });
        let one = std::slice::from_ref(&process);
        assert!(lingers(one).contains("process 5 (sh) still has it"), "{}", lingers(one));
        let two = lingers(&[process.clone(), process.clone()]);
        assert!(two.contains("process 5 (sh) and others still have it"), "{two}");
    }

    #[test]
    fn a_pid_is_shown_as_the_reader_can_use_it() {
        let shown = |own: u32, here: Option<u32>| pid(&json!({ "pid": own, "pid_here": here }));
        assert_eq!(shown(7, Some(7)), "pid 7");
        assert_eq!(shown(1, Some(7)), "pid 7, 1 in its own pid namespace");
        assert_eq!(shown(7, None), "pid 7 in another pid namespace");
    }
}
