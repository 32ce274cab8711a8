//! The arguments of `tollgate topology` and `tollgate hugepage`.

use clap::{Args, Subcommand};
use tollgate_topology::Scope;

pub(super) const TOPOLOGY_EXAMPLES: &str = "\
Examples:
  tollgate topology
  tollgate topology --scope cache_shard
  tollgate topology --synthetic 'numa:2 l3:4 core:8 pu:2' --scope cache --json";

pub(super) const HUGEPAGE_EXAMPLES: &str = "\
Example:
  tollgate hugepage tune --rounds 3";

const TUNE_EXAMPLES: &str = "\
Measures, whatever was kept from an earlier time, and changes nothing. Rows given here, or in the
environment variable TOLLGATE_CLEAR_PLAN, hold whatever is measured.

Examples:
  tollgate hugepage tune
  tollgate hugepage tune --rounds 3 --json";

#[derive(Debug, Args)]
pub(crate) struct TopologyArgs {
    /// Describe this machine instead, such as 'numa:2 l3:4 core:8 pu:2'
    #[arg(long, value_name = "DESCRIPTION")]
    pub(crate) synthetic: Option<String>,

    /// Cut the CPUs into the pods of a scope: cpu, smt, cache, cache_shard, numa or system
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Option<Scope>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HugepageCommand {
    /// Measure the ways to clear and copy memory, and print the samples and the choice
    #[command(after_long_help = TUNE_EXAMPLES)]
    Tune(TuneArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// Samples of each way, taken in turn
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,

    /// Rows of the plan that hold whatever is measured
    #[arg(long, value_name = "ROWS")]
    pub(crate) plan: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
