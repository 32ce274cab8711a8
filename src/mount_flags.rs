//! What a mount is like beyond its policy: read-only, without programs, without access times.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, bail};
use tollgate_fuse::MountOptions;

use crate::cli::{MountFlagArgs, OthersArg};
use crate::{native, sys};

/// Refuses what cannot be had without root.
///
/// # Errors
/// With what would be right.
pub(crate) fn check(args: &MountFlagArgs) -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    if args.allow_other == Some(OthersArg::On) {
        bail!(
            "`--allow-other on` needs root: this server would do what others ask for with your \
             rights; leave it out, or mount as root"
        );
    }
    if args.noatime {
        bail!("`--noatime` needs root: leave it out, or mount DIR itself with `noatime`");
    }
    Ok(())
}

/// Adds to `options`, which hold what the file system beneath demands, what was asked for.
pub(crate) fn apply(args: &MountFlagArgs, options: &mut MountOptions) {
    options.read_only |= args.read_only;
    options.noexec |= args.noexec;
    options.noatime |= args.noatime;
    if let Some(others) = args.allow_other {
        options.allow_other = others == OthersArg::On;
    }
    options.source.clone_from(&args.source);
}

/// DIR as the server and native directories reach it. The view's own mount cannot restrict what the
/// kernel does on the lower mount (access times), nor what is mounted into the view from there
/// (native directories): so the server works on a copy of the lower mount that is restricted alike. `None`
/// where that is not needed.
///
/// # Errors
/// When the kernel refuses the copy.
pub(crate) fn restricted(
    args: &MountFlagArgs,
    source: &OwnedFd,
) -> anyhow::Result<Option<OwnedFd>> {
    let mut attributes = 0;
    for (wanted, attribute) in [
        (args.read_only, libc::MOUNT_ATTR_RDONLY),
        (args.noexec, libc::MOUNT_ATTR_NOEXEC),
        (args.noatime, libc::MOUNT_ATTR_NOATIME),
    ] {
        attributes |= if wanted { attribute } else { 0 };
    }
    if attributes == 0 || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let copy = native::detached_copy(source).context("the mount of DIR cannot be copied")?;
    let done = sys::restrict_mount(copy.as_fd(), attributes);
    done.context("the copy of DIR's mount cannot be restricted")?;
    Ok(Some(copy))
}
