//! The arguments of `tollgate mount` that say what the mount is like; fstab(5) has short names for
//! them.

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct MountFlagArgs {
    /// Let nothing be changed through the view, whatever the policy allows
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Let no program in the view be executed
    #[arg(long)]
    pub(crate) noexec: bool,

    /// Leave access times as they are when files are read through the view (root)
    #[arg(long)]
    pub(crate) noatime: bool,

    /// Whether users other than the one who mounts may use the view [default: on for root, else
    /// off]
    #[arg(long, value_name = "WHEN", value_enum)]
    pub(crate) allow_other: Option<OthersArg>,

    /// What the first column of /proc/mounts shows
    #[arg(long, value_name = "NAME", default_value = "tollgate")]
    pub(crate) source: String,
}

/// `--allow-other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OthersArg {
    /// They may, as far as modes and the policy let them (root)
    On,
    /// They get EACCES
    Off,
}
