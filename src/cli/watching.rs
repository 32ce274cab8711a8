//! The arguments of `tollgate status` and `tollgate top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::values::{count, interval};

pub(super) const TOP_EXAMPLES: &str = "\
The columns are explained in docs/commands.md. The key q and Ctrl-C end it.

Examples:
  tollgate top
  tollgate top --once ~/view
  tollgate top --json --interval 5 | jq '.[] | {dir, requests_per_second}'";

pub(super) const STATUS_EXAMPLES: &str = "\
Leads with the policy and what it refused; --verbose adds requests, transport and what kernel and
server agreed on.

Examples:
  tollgate status
  tollgate status --verbose ~/view
  tollgate status --json | jq '.[] | {dir, policy, refusals}'
  tollgate status --metrics ~/view     for Prometheus";

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Show rates and latencies of requests by operation and decision, and the threads
    #[arg(long)]
    pub(crate) requests: bool,

    /// Print the counters of one server as Prometheus text
    #[arg(long, conflicts_with_all = ["json", "requests"])]
    pub(crate) metrics: bool,

    /// The mount point (for `run`: DIR); left out, every server of this user
    pub(crate) mnt: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,

    /// End after so many looks
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) count: Option<u64>,

    /// Print one table after one interval and end
    #[arg(long, conflicts_with = "count")]
    pub(crate) once: bool,

    /// Print JSON, one line per interval
    #[arg(long)]
    pub(crate) json: bool,

    /// The mount point (for `run`: DIR); left out, every server of this user
    pub(crate) mnt: Option<PathBuf>,
}
