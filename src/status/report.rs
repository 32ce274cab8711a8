//! What a server reports of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tollgate_fuse::{Connection, InitFlags, Negotiated};
use tollgate_haltpoll::{Means, State, Status};
use tollgate_view::Snapshot;

use crate::audit::{AuditStatus, TallyReport};

/// Version of [`Report`]; a field is added without a new number, never changed or removed.
pub(crate) const VERSION: u32 = 1;

/// The report of a server, as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: u32,
    pub(crate) pid: u32,
    pub(crate) kind: &'static str,
    pub(crate) dir: String,
    /// Its bytes, if they are not UTF-8; so for the other paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dir_hex: Option<String>,
    /// Where it is now, if others have moved it.
    pub(crate) dir_now: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dir_now_hex: Option<String>,
    pub(crate) mount_point: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mount_point_hex: Option<String>,
    /// Its number in /sys/fs/fuse/connections, where it is known.
    pub(crate) connection: Option<u32>,
    pub(crate) policy: Option<String>,
    /// The policy of `dir`, which makes `policy` stricter.
    pub(crate) tightened_by: Option<String>,
    /// Relative to `dir`.
    pub(crate) native: Vec<String>,
    pub(crate) started: String,
    pub(crate) uptime_seconds: u64,
    pub(crate) queues: usize,
    pub(crate) negotiated: Value,
    pub(crate) transport: Value,
    pub(crate) view: Snapshot,
    pub(crate) audit: Option<AuditStatus>,
    pub(crate) refusals: TallyReport,
    pub(crate) keep_awake: Value,
    /// Who registers files for this server, if it is not the server itself.
    pub(crate) broker: Option<Value>,
    pub(crate) sandbox: Value,
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

/// A worker that is in its handler for longer waits for the file system beneath.
const BLOCKED: Duration = Duration::from_secs(1);

/// How requests come, and what the transport counted.
pub(crate) fn transport(connection: &Connection) -> Value {
    let counts = connection.counts();
    let report = connection.transport();
    let rings = report.and_then(|report| report.rings).map(|rings| {
        json!({
            "threads": rings.threads,
            "helpers": rings.helpers,
            "queues": rings.queues,
            "entries_per_queue": rings.entries_per_queue,
            "buffer_bytes": rings.buffer_bytes,
        })
    });
    let unavailable = report.and_then(|report| report.uring_unavailable.as_ref());
    let blocked = connection.blocked(BLOCKED);
    let requests: BTreeMap<_, _> = counts.by_operation().filter(|(_, count)| *count > 0).collect();
    json!({
        "kind": report.map(|report| report.in_use.to_string()),
        "reason": report.and_then(|report| report.reason),
        "rings": rings,
        "uring_unavailable": unavailable.map(ToString::to_string),
        "reserve": connection.reserve(),
        "blocked": blocked.len(),
        "longest_blocked_seconds": blocked.iter().max().map(Duration::as_secs),
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

/// To who serves without being root. `doctor` says it in the steps that this machine needs.
const LACKS_PERMISSION: &str = "members of the group `tollgate` have the kernel keep CPUs awake, which wakes \
                                them faster: usermod -aG tollgate NAME (as root; docs/broker.md)";

/// What keeping CPUs awake does and costs.
pub(crate) fn keep_awake(status: &Status) -> Value {
    let micros = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e6);
    json!({
        "mode": status.mode.to_string(),
        "by": match status.state {
            State::Measuring => "measuring",
            State::Ready(Means::Latency) => "cpu_dma_latency",
            State::Ready(Means::Pollers) => "pollers",
            State::Off => "nothing",
        },
        "reason": status.reason,
        "remedy": status.lacks_permission.then_some(LACKS_PERMISSION),
        "wake_us": micros(status.wake),
        "wake_awake_us": micros(status.wake_held),
        "bursts": status.bursts,
        "awake_seconds": status.awake.as_secs_f64(),
        "cpu_seconds": status.cpu.as_secs_f64(),
        "suspended": status.suspended,
        "suspended_for": status.suspended_for,
        "text": status.to_string(),
    })
}
