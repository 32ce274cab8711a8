//! The arguments of `tollgate mount` and `tollgate umount`.

use std::path::PathBuf;

use clap::Args;

use super::mount_flags::MountFlagArgs;
use super::serve::ServeArgs;

pub(super) const MOUNT_EXAMPLES: &str = "\
Examples:
  tollgate mount --policy p.toml ~/project ~/view            until Ctrl-C or umount
  tollgate mount --daemon --log /tmp/t.log ~/project ~/view  returns when the view is ready
  tollgate umount ~/view";

pub(super) const UMOUNT_EXAMPLES: &str = "\
Examples:
  tollgate umount ~/view
  tollgate umount --lazy ~/view     while programs still use it";

#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,

    #[command(flatten)]
    pub(crate) flags: MountFlagArgs,

    /// Return when the view is ready and serve in the background
    #[arg(long)]
    pub(crate) daemon: bool,

    /// Where the background server writes its messages (left out: nowhere)
    #[arg(long, value_name = "FILE", requires = "daemon")]
    pub(crate) log: Option<PathBuf>,

    /// Check the arguments and the policy, and mount nothing: `mount -f` of the helper
    #[arg(long, hide = true)]
    pub(crate) fake: bool,

    /// The directory to show
    pub(crate) dir: PathBuf,

    /// The empty directory to show it at, outside of DIR
    pub(crate) mnt: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// Detach now and let programs that still use the view finish
    #[arg(long, short)]
    pub(crate) lazy: bool,

    /// The mount point
    pub(crate) mnt: PathBuf,
}
