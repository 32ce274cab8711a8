//! The arguments of `tollgate audit` and `tollgate learn`.

use std::path::PathBuf;

use clap::Args;

pub(super) const AUDIT_EXAMPLES: &str = "\
Reads FILE and the files it was rotated to, oldest first. Without FILE it is the log of the one
server of this user that writes one, those left out that CMD of a `run` started. Globs mean what
they mean in policies. A line that is damaged is named on standard error and left out; the exit
status is 1 then. Of a path that the log has cut, what could fit a glob is shown, and a note says how
many records that is. Colour on a terminal only, and not where NO_COLOR is set.

Examples:
  tollgate audit agent.jsonl --refused
  tollgate audit agent.jsonl --path 'src/**' --since 10m
  tollgate audit --follow --exe '**/node'
  tollgate audit agent.jsonl --json --rule keys | jq .path";

pub(super) const LEARN_EXAMPLES: &str = "\
Prints a policy that refuses everything but what the records show, as TOML with comments. Take the
records with `mode = \"audit\"` or without a policy, at the level `opens`, from runs that do all that is
to be allowed. What was refused, or would have been, is left out and listed in comments.

Examples:
  tollgate run --policy tried-out.toml --audit ~/seen.jsonl ~/project -- make test
  tollgate learn ~/seen.jsonl > policy.toml
  tollgate learn ~/seen.jsonl 5f0c21d7a93be846";

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// The audit log
    pub(crate) file: Option<PathBuf>,

    /// Go on with what is written from now on, across rotations
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Records that the rule of this name decided
    #[arg(long, value_name = "NAME")]
    pub(crate) rule: Option<String>,

    /// Records about paths that match, old or new name
    #[arg(long, value_name = "GLOB")]
    pub(crate) path: Option<String>,

    /// Records of callers whose executable matches
    #[arg(long, value_name = "GLOB")]
    pub(crate) exe: Option<String>,

    /// What was refused, or would have been
    #[arg(long)]
    pub(crate) refused: bool,

    /// Not what is older: 30s, 10m, 2h, 3d, or a time in UTC such as 2026-01-31T09:15
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,

    /// Print the records as they are, one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LearnArgs {
    /// Audit logs, and ids of runs in them (sixteen hexadecimal digits); without ids, all runs
    #[arg(value_name = "FILE|RUN", required = true)]
    pub(crate) inputs: Vec<PathBuf>,

    /// Name every path, instead of whole directories where many of their files were used alike
    #[arg(long)]
    pub(crate) exact: bool,
}
