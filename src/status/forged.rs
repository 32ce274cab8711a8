//! Reports as CMD of a `run` could forge them: it may answer as a server does.

use serde_json::{Value, json};

use super::{for_output, text};
use crate::other_paths;

/// Moves the cursor in three ways, begins a line that looks like one of a report, and turns the text.
const STEERS: &str = "\u{1b}[2J\u{9b}1m\r\n/forged at /m\u{202e}";

/// A report that has every word that is shown, each with `end` behind it.
fn report(end: &str) -> Value {
    let word = |text: &str| format!("{text}{end}");
    json!({
        "pid": 7, "pid_here": 7, "uptime_seconds": 3, "queues": 2,
        "kind": word("mount"), "dir": word("/d"), "dir_now": word("/now"),
        "mount_point": word("/m"), "policy": word("/p.toml"), "tightened_by": word("/own.toml"),
        "started": word("then"), "native": [word("target"), word("cache")],
        "mounted_elsewhere": [{ "pid": 5, "name": word("holder") }],
        "negotiated": { "protocol": word("7.45"), "features": [word("dirops")],
            "missing": [word("passthrough")], "max_write_bytes": word("many") },
        "transport": { "kind": word("devfuse"), "reason": word("fast"),
            "uring_unavailable": word("switched off"), "requests": word("nine"),
            "by_operation": { word("getattr"): 1 }, "undelivered": 2, "reserve": 30, "blocked": 3 },
        "view": { "shares": [{ "of": word("locks"), "refused": 2 }],
            "counts": { "open_passthrough": word("five"), "hidden": word("six"), "read_ahead": 1,
                "read_ahead_used": word("seven"), "open_only_read": 1 },
            "masked": { "opens": 1, "secrets": { word("card"): word("eight") } },
            "nodes": word("ten"), "descriptors_used": word("eleven"),
            "descriptors_max": word("twelve"), "userspace_handles": word("thirteen"),
            "watch": { "on": true },
            "unavailable": [{ "feature": word("a feature"), "reason": word("a reason") }] },
        "refusals": {
            "by_path": [{ "operation": word("open"), "path": word("a"), "rule": word("keys"),
                "errno": word("EACCES"), "count": 4 }],
            "recent": [{ "time": word("just now"), "pid": 9, "operation": word("unlink"),
                "path": word("b"), "errno": word("EROFS"), "rule": word("docs"),
                "exe": word("/bin/sh") }] },
        "keep_awake": { "text": word("by pollers"), "remedy": word("usermod") },
        "broker": { "socket": word("/b.sock"), "trouble": word("no reply"),
            "registered": word("fourteen"), "refused": word("fifteen") },
        "sandbox": { "mode": word("on"), "reason": word("no Landlock"),
            "files_not_restricted": word("old kernel"),
            "system_calls_not_restricted": word("no seccomp"),
            "last_refused_call": word("ptrace"), "refused_calls": word("sixteen") },
        "audit": { "file": word("/log"), "written": word("seventeen"),
            "dropped": word("eighteen"), "failed": word("nineteen"),
            "last_error": word("disk full") },
    })
}

/// As `status` has it: beside another one that shows the same directory.
fn beside_another(end: &str) -> Value {
    let mut one = report(end);
    let other = json!({ "pid": 8, "dir": one["dir_now"], "mount_point": format!("/other{end}"),
        "kind": format!("run{end}"), "policy": format!("/strict.toml{end}") });
    one["other_views"] = other_paths::other_views(&one, &[other]).into();
    one
}

fn words(report: &Value) -> Vec<&str> {
    match report {
        Value::String(word) => vec![word],
        Value::Array(all) => all.iter().flat_map(words).collect(),
        Value::Object(members) => members.values().flat_map(words).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn no_word_of_a_report_steers_the_terminal_or_adds_a_line() {
    let plain = beside_another("");
    let shown = text::text(&plain, true);
    for word in words(&plain).into_iter().chain(["getattr", "card", "/other", "/strict.toml"]) {
        assert!(shown.contains(word), "`{word}` is not tried, as it is not in:\n{shown}");
    }
    let mut brief = [plain, beside_another(STEERS)];
    let forged = text::text(&brief[1], true);
    assert_harmless(&forged, &shown);
    for report in &mut brief {
        report["brief"] = true.into();
    }
    let [shown, forged] = brief.each_ref().map(|report| text::text(report, true));
    assert_harmless(&forged, &shown);
}

fn assert_harmless(forged: &str, shown: &str) {
    let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!forged.contains(steers), "{forged:?}");
    assert_eq!(forged.lines().count(), shown.lines().count(), "{forged}");
}

#[test]
fn counters_do_not_steer_the_terminal_and_are_left_as_they_are_for_programs() {
    let counters = "up 1\nforged{dir=\"\u{1b}[2J\"} 2\n";
    assert_eq!(for_output(counters, true), "up 1\nforged{dir=\"\\x1b[2J\"} 2\n");
    assert_eq!(for_output(counters, false), counters);
}
