//! The arguments of `tollgate reload`.

use std::path::PathBuf;

use clap::Args;

pub(super) const RELOAD_EXAMPLES: &str = "\
The server reads the file that it was started with. What is opened, looked up or changed from then
on is judged by the new policy, and what is recorded has its digest. A policy that is wrong leaves
the old one in force. What is open stays open: the paths that the new policy would refuse are
listed. SIGHUP sent to the server of `mount` does the same.

Examples:
  tollgate reload                  the only server that runs
  tollgate reload ~/project
  tollgate reload --all";

#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    /// Every server of this user
    #[arg(long, conflicts_with = "dir")]
    pub(crate) all: bool,

    /// Print JSON: a list with what each server said
    #[arg(long)]
    pub(crate) json: bool,

    /// The directory that is shown, or where it is mounted; left out, that of the only server that
    /// runs
    pub(crate) dir: Option<PathBuf>,
}
