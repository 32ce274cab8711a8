//! The arguments of `tollgate run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use super::fence::{FenceArgs, LimitArgs, NetworkArgs};
use super::serve::ServeArgs;

pub(super) const RUN_EXAMPLES: &str = "\
In a private mount namespace the view covers DIR itself: CMD sees the same paths, cannot unmount
the view, and the raw tree is out of its reach. The view, and whatever CMD left running, is gone
when CMD ends. What this does and does not keep apart is listed in docs/run.md.

Examples:
  tollgate run -- claude                       this repository, policy of DIR or preset `agent`
  tollgate run --policy node . -- npm test     a built-in preset
  tollgate run --policy p.toml --audit /var/log/agent.jsonl ~/project -- make
  tollgate run --allow ~/.cargo:rw . -- cargo build
  tollgate run --allow-host crates.io --allow-host '*.crates.io' . -- cargo fetch
  tollgate run --session work -- claude        and in a second terminal, in the same fence:
  tollgate run --session work -- bash
  tollgate run --policy none ~/project -- bash    a view that allows everything";

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,

    /// Leave out notes, and the summary of what was refused, which `run` ends with
    #[arg(long, short)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) fence: FenceArgs,

    #[command(flatten)]
    pub(crate) network: NetworkArgs,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    /// Join the fence that another `run` with this name has, or be the one that others join
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,

    /// Where CMD starts; left out, the working directory if it lies in DIR, else DIR
    #[arg(long, value_name = "PATH")]
    pub(crate) chdir: Option<PathBuf>,

    /// The directory that CMD sees through the policy; left out, the top of the git working tree
    /// around the working directory, or that directory itself
    pub(crate) dir: Option<PathBuf>,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    /// The options that stand on the command line, as `--name`.
    #[arg(skip)]
    pub(crate) given: Vec<String>,
}

impl RunArgs {
    /// Remembers which options stand on the command line: a default does not tell.
    pub(crate) fn remember_given(&mut self, matches: &ArgMatches) {
        let by_user = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let positional = ["dir", "command"];
        // The groups that structs of options make are no options.
        let command = Self::augment_args(clap::Command::new("run"));
        let is_option = |id: &&clap::Id| command.get_groups().all(|group| group.get_id() != *id);
        let all = matches.ids().filter(is_option).map(clap::Id::as_str);
        let given = all.filter(|id| by_user(id) && !positional.contains(id));
        // An argument's id is that of its field, which options of several commands share.
        let name = |id: &str| {
            let argument = command.get_arguments().find(|one| one.get_id() == id);
            argument.and_then(clap::Arg::get_long).map(|name| format!("--{name}"))
        };
        self.given = given.filter_map(name).collect();
    }
}

pub(super) const WHY_EXAMPLES: &str = "\
Examples:
  tollgate run -- tollgate why ~/.ssh/config
  tollgate run -- tollgate why --write docs/guide.md";

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Whether it may be changed, not only read
    #[arg(long)]
    pub(crate) write: bool,

    /// Print the answer as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The path, in DIR or outside
    pub(crate) path: PathBuf,
}
