//! The arguments of `tollgate demo` and `tollgate doctor`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the project and print where it is
    #[arg(long)]
    pub(crate) keep: bool,

    /// Leave the speed table out
    #[arg(long)]
    pub(crate) no_speed: bool,
}

pub(super) const DEMO_EXAMPLES: &str = "\
Exit status 1 if no view can be shown on this machine: then it prints what the policy would decide.

Examples:
  tollgate demo
  tollgate demo --no-speed --keep";

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The directory to look at; left out, the top of the git working tree around the working
    /// directory, or that directory itself
    pub(crate) dir: Option<PathBuf>,
}

pub(super) const DOCTOR_EXAMPLES: &str = "\
Tries things instead of guessing from versions: it opens /dev/fuse, makes namespaces in a child,
mounts a view that nobody sees and reads a file through it. It changes nothing. Exit status 1 if
`tollgate run` cannot work here.

Examples:
  tollgate doctor
  tollgate doctor ~/project
  tollgate doctor --json | jq '.checks[] | select(.state != \"ok\")'";

pub(super) const COMPLETION_EXAMPLES: &str = "\
Examples:
  tollgate completions bash > /etc/bash_completion.d/tollgate
  tollgate completions zsh  > ~/.zfunc/_tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish";
