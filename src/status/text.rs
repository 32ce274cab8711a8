//! A report as text.

use std::fmt::Write;

use serde_json::Value;

/// A report for people.
pub(super) fn text(report: &Value) -> String {
    let mut text = String::new();
    head(report, &mut text);
    decisions(&report["view"]["counts"], &mut text);
    resources(report, &mut text);
    features(report, &mut text);
    keep_awake(&report["keep_awake"], &mut text);
    audit(&report["audit"], &mut text);
    text
}

/// Writing to a `String` cannot fail.
macro_rules! say {
    ($to:expr, $($what:tt)*) => { let _ = writeln!($to, $($what)*); };
}

fn head(report: &Value, to: &mut String) {
    let word = |key: &str| report[key].as_str().unwrap_or("?").to_owned();
    say!(to, "{} at {}", word("dir"), word("mount_point"));
    let uptime = report["uptime_seconds"].as_u64().unwrap_or(0);
    say!(
        to,
        "  server     {} ({}), up {uptime} s, since {}",
        word("kind"),
        pid(report),
        word("started")
    );
    say!(
        to,
        "  policy     {}",
        report["policy"].as_str().unwrap_or("none: everything passes through")
    );
    let native: Vec<_> =
        report["native"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !native.is_empty() {
        say!(to, "  native     {}", native.join(", "));
    }
}

/// The process as the reader can find it, and what it calls itself where that differs.
fn pid(report: &Value) -> String {
    match (report["pid"].as_u64(), report["pid_here"].as_u64()) {
        (Some(own), Some(here)) if own == here => format!("pid {own}"),
        (Some(own), Some(here)) => format!("pid {here}, {own} in its own pid namespace"),
        (Some(own), None) => format!("pid {own} in another pid namespace"),
        (None, _) => "pid unknown".to_owned(),
    }
}

fn decisions(counts: &Value, to: &mut String) {
    let list = |keys: &[(&str, &str)]| {
        let shown: Vec<_> =
            keys.iter().map(|(key, name)| format!("{name} {}", counts[key])).collect();
        shown.join(", ")
    };
    let opens = [
        ("open_passthrough", "passthrough"),
        ("open_userspace", "userspace"),
        ("open_fallback", "fallback"),
    ];
    let refused = [
        ("refused_deny", "deny"),
        ("refused_read_only", "read-only"),
        ("refused_weakening", "weakening"),
        ("hidden", "hidden"),
    ];
    say!(to, "  opens      {}", list(&opens));
    say!(to, "  refused    {}", list(&refused));
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
    say!(to, "  requests   {} on {} queues", transport["requests"], report["queues"]);
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
    let troubles: Vec<_> = ["malformed", "undelivered", "dropped", "panics"]
        .iter()
        .filter(|key| transport[key].as_u64().is_some_and(|count| count > 0))
        .map(|key| format!("{key} {}", transport[key]))
        .collect();
    if !troubles.is_empty() {
        say!(to, "  troubles   {}", troubles.join(", "));
    }
}

fn transport_line(transport: &Value, to: &mut String) {
    let Some(kind) = transport["kind"].as_str() else { return };
    if let Some(rings) = transport["rings"].as_object() {
        let (threads, queues, entries) =
            (&rings["threads"], &rings["queues"], &rings["entries_per_queue"]);
        say!(to, "  transport  {kind}: {threads} rings for {queues} CPUs, {entries} entries each");
    } else {
        say!(to, "  transport  {kind}");
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
    for item in report["view"]["unavailable"].as_array().into_iter().flatten() {
        let word = |key: &str| item[key].as_str().unwrap_or("?").to_owned();
        say!(to, "  without    {}: {}", word("feature"), word("reason"));
    }
}

/// A server of an older version has none.
fn keep_awake(status: &Value, to: &mut String) {
    if let Some(text) = status["text"].as_str() {
        say!(to, "  keep-awake {text}");
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
            "transport": { "kind": "devfuse", "uring_unavailable": "switched off", "requests": 9, "by_operation": { "GETATTR": 1, "LOOKUP": 8 },
                "malformed": 0, "undelivered": 2 },
            "view": { "counts": { "open_passthrough": 5, "hidden": 1 }, "nodes": 4,
                "unavailable": [{ "feature": "passthrough", "reason": "no CAP_SYS_ADMIN" }] },
            "keep_awake": { "text": "off: as asked for" },
            "audit": { "file": "/a", "written": 10, "dropped": 1, "failed": 0, "last_error": null },
        });
        let text = text(&report);
        for line in [
            "/d at /m",
            "policy     none: everything passes through",
            "opens      passthrough 5",
            "requests   9 on 2 queues\n             lookup 8, getattr 1",
            "troubles   undelivered 2\n",
            "transport  devfuse\n             no io_uring: switched off\n",
            "not agreed passthrough",
            "without    passthrough: no CAP_SYS_ADMIN",
            "keep-awake off: as asked for",
            "audit      /a: 10 written, 1 dropped",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }

    #[test]
    fn a_pid_is_shown_as_the_reader_can_use_it() {
        let shown = |own: u32, here: Option<u32>| pid(&json!({ "pid": own, "pid_here": here }));
        assert_eq!(shown(7, Some(7)), "pid 7");
        assert_eq!(shown(1, Some(7)), "pid 7, 1 in its own pid namespace");
        assert_eq!(shown(7, None), "pid 7 in another pid namespace");
    }
}
