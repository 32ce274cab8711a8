//! `tollgate status`: what servers report, and how it is shown.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::bail;
use serde::Serialize;
use serde_json::{Value, json};
use tollgate_fuse::{InitFlags, Negotiated, RequestCounts};
use tollgate_view::Snapshot;

use crate::audit::AuditStatus;
use crate::cli::StatusArgs;
use crate::control;

/// Version of [`Report`]; a field is added without a new number, never changed or removed.
pub(crate) const VERSION: u32 = 1;

/// What a server says of itself, as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: u32,
    pub(crate) pid: u32,
    pub(crate) kind: &'static str,
    pub(crate) dir: String,
    pub(crate) mount_point: String,
    pub(crate) policy: Option<String>,
    pub(crate) started: String,
    pub(crate) uptime_seconds: u64,
    pub(crate) queues: usize,
    pub(crate) negotiated: Value,
    pub(crate) transport: Value,
    pub(crate) view: Snapshot,
    pub(crate) audit: Option<AuditStatus>,
}

/// What kernel and server agreed on.
pub(crate) fn negotiated(negotiated: &Negotiated) -> Value {
    json!({
        "protocol": format!("{}.{}", negotiated.major, negotiated.minor),
        "kernel_protocol": format!("{}.{}", negotiated.major, negotiated.kernel_minor),
        "features": names(negotiated.flags),
        "missing": names(negotiated.missing()),
        "offered": names(negotiated.offered),
        "max_write_bytes": negotiated.max_write,
        "max_pages": negotiated.max_pages,
        "max_readahead_bytes": negotiated.max_readahead,
        "max_background": negotiated.max_background,
        "congestion_threshold": negotiated.congestion_threshold,
        "time_gran_ns": negotiated.time_gran_ns,
        "max_stack_depth": negotiated.max_stack_depth,
    })
}

fn names(flags: InitFlags) -> Vec<String> {
    flags.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}

/// What the transport counted.
pub(crate) fn transport(counts: &RequestCounts) -> Value {
    let requests: BTreeMap<_, _> = counts.by_operation().filter(|(_, count)| *count > 0).collect();
    json!({
        "requests": counts.total(),
        "by_operation": requests,
        "malformed": counts.malformed,
        "undelivered": counts.undelivered,
        "dropped": counts.dropped,
        "panics": counts.panics,
        "interrupts": counts.interrupts,
        "forgets": counts.forgets,
    })
}

/// An answer that says what went wrong.
pub(crate) fn error(text: &str) -> Value {
    json!({ "version": VERSION, "error": text })
}

/// Runs `tollgate status`.
///
/// # Errors
/// When MNT is given and no server of this user shows there.
pub(crate) fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let mut reports = control::all_reports()?;
    if let Some(mnt) = &args.mnt {
        let path = std::fs::canonicalize(mnt).unwrap_or_else(|_| mnt.clone());
        reports.retain(|report| shows_at(report, &path));
        if reports.is_empty() {
            bail!("no server of this user shows at `{}`; {}", mnt.display(), hint(mnt));
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else if reports.is_empty() {
        println!("no server of this user runs");
    } else {
        let texts: Vec<_> = reports.iter().map(text).collect();
        print!("{}", texts.join("\n"));
    }
    Ok(())
}

fn shows_at(report: &Value, path: &Path) -> bool {
    report["mount_point"].as_str().is_some_and(|point| Path::new(point) == path)
}

fn hint(mnt: &Path) -> String {
    if crate::umount::is_dead(mnt) {
        "its server is dead: clean up with `tollgate umount`".to_owned()
    } else {
        "`tollgate status` lists those that run".to_owned()
    }
}

/// A report for people.
fn text(report: &Value) -> String {
    let mut text = String::new();
    head(report, &mut text);
    decisions(&report["view"]["counts"], &mut text);
    resources(report, &mut text);
    features(report, &mut text);
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
        "  server     {} (pid {}), up {uptime} s, since {}",
        word("kind"),
        report["pid"],
        word("started")
    );
    say!(
        to,
        "  policy     {}",
        report["policy"].as_str().unwrap_or("none: everything passes through")
    );
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
    use super::*;

    #[test]
    fn a_report_is_shown_with_what_is_missing_and_why() {
        let report = json!({
            "pid": 7, "kind": "mount", "dir": "/d", "mount_point": "/m", "policy": null,
            "started": "then", "uptime_seconds": 3, "queues": 2,
            "negotiated": { "protocol": "7.45", "features": ["parallel_dirops"],
                "missing": ["passthrough"], "max_write_bytes": 1_048_576 },
            "transport": { "requests": 9, "by_operation": { "GETATTR": 1, "LOOKUP": 8 },
                "malformed": 0, "undelivered": 2 },
            "view": { "counts": { "open_passthrough": 5, "hidden": 1 }, "nodes": 4,
                "unavailable": [{ "feature": "passthrough", "reason": "no CAP_SYS_ADMIN" }] },
            "audit": { "file": "/a", "written": 10, "dropped": 1, "failed": 0, "last_error": null },
        });
        let text = text(&report);
        for line in [
            "/d at /m",
            "policy     none: everything passes through",
            "opens      passthrough 5",
            "requests   9 on 2 queues\n             lookup 8, getattr 1",
            "troubles   undelivered 2\n",
            "not agreed passthrough",
            "without    passthrough: no CAP_SYS_ADMIN",
            "audit      /a: 10 written, 1 dropped",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }
}
