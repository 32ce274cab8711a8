//! The arguments of `tollgate wq`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::values::{count, interval};

pub(super) const WQ_EXAMPLES: &str = "\
For programs that use the crate tollgate-workqueue and have called control::serve_default.
The columns are explained in docs/workqueue-tools.md.

Examples:
  tollgate wq dump                                   the only such program of this user
  tollgate wq monitor --pid 4711 --interval 5 crypt  one line per queue and interval
  tollgate wq set crypt affinity_scope=numa max_active=8";

const WQ_DUMP_EXAMPLES: &str = "\
Examples:
  tollgate wq dump
  tollgate wq dump --pid 4711 --json | jq '.queues[].name'";

const WQ_MONITOR_EXAMPLES: &str = "\
Ctrl-C ends it with status 0; a process that ends meanwhile, with status 1.

Examples:
  tollgate wq monitor
  tollgate wq monitor --interval 0.5 --count 10 crypt log
  tollgate wq monitor --json | jq '.queues[] | {name, started_per_s}'";

const WQ_SET_EXAMPLES: &str = "\
affinity_scope is cpu, smt, cache_shard, cache, numa, system or default; affinity_strict
and localize are true or false; cpumask is a list such as 0-3,8; nice is from -20 to 19;
max_active is from 1 to 65536. The value default takes a choice back. Nothing that is queued is
lost.

Examples:
  tollgate wq set crypt max_active=8
  tollgate wq set crypt affinity_scope=numa affinity_strict=true cpumask=0-3
  tollgate wq set crypt affinity_scope=default max_active=default";

#[derive(Debug, Subcommand)]
pub(crate) enum WqCommand {
    /// Show scopes, pods, pools, queues with their attributes, and where the items of each CPU go
    #[command(after_long_help = WQ_DUMP_EXAMPLES)]
    Dump(WqDumpArgs),
    /// Show what each queue did, per second, until Ctrl-C
    #[command(after_long_help = WQ_MONITOR_EXAMPLES)]
    Monitor(WqMonitorArgs),
    /// Change attributes of a queue, all or none
    #[command(after_long_help = WQ_SET_EXAMPLES)]
    Set(WqSetArgs),
}

/// Which process to look into.
#[derive(Debug, Args)]
pub(crate) struct WqTarget {
    /// The process; left out, the only one of this user with a socket
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,

    /// The control socket, where it is not in the usual place
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    pub(crate) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct WqDumpArgs {
    #[command(flatten)]
    pub(crate) target: WqTarget,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WqMonitorArgs {
    #[command(flatten)]
    pub(crate) target: WqTarget,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,

    /// End after so many tables
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) count: Option<u64>,

    /// Print JSON, one line per interval
    #[arg(long)]
    pub(crate) json: bool,

    /// The queues to show; left out, all
    #[arg(value_name = "QUEUE")]
    pub(crate) queues: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WqSetArgs {
    #[command(flatten)]
    pub(crate) target: WqTarget,

    /// The queue
    pub(crate) queue: String,

    /// What to set: affinity_scope, affinity_strict, localize, cpumask, nice or max_active
    #[arg(required = true, value_name = "ATTRIBUTE=VALUE")]
    pub(crate) settings: Vec<String>,
}
