//! `tollgate umount`.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;
use tollgate_fuse::MountError;

use crate::cli::UmountArgs;
use crate::escape::shown;
use crate::{control, killed, mountinfo, native, tree};

/// Unmounts a view; of one whose server is dead, cleans up.
///
/// # Errors
/// When no view is mounted there, or when it is in use.
pub(crate) fn run(args: &UmountArgs) -> anyhow::Result<()> {
    killed::end_connections();
    let shown = shown(&args.mnt);
    let path = absolute(&args.mnt)?;
    let mounts = mountinfo::read()?;
    match mountinfo::at(&mounts, &path) {
        Some(mount) if mount.kind == mountinfo::VIEW => {}
        Some(mount) => {
            bail!("MNT `{shown}` is a mount of type {}, not a Tollgate view", mount.kind)
        }
        None if path.exists() => {
            bail!("MNT `{shown}` is not a mount point; `tollgate status` lists views")
        }
        None => bail!("MNT `{shown}` does not exist{}", crate::nearest::path(&args.mnt)),
    }
    let reports = control::reports().unwrap_or_default();
    let lazy = args.lazy || is_dead(&path, reports.len());
    match native::unmount_view(&path, &native_directories(&path, &reports), lazy) {
        Ok(()) => Ok(()),
        Err(MountError::Busy { .. }) => bail!(
            "MNT `{shown}` is in use; end what works there, or detach it with `tollgate umount \
             --lazy`"
        ),
        Err(error) => Err(error.into()),
    }
}

/// The native directories of the view at `path`, as its server reports them. Without a server to
/// ask there is nothing to do about them: the view is detached with all that is mounted in it.
fn native_directories(path: &Path, reports: &[Value]) -> Vec<PathBuf> {
    let shows = |report: &&Value| report["mount_point"].as_str().map(Path::new) == Some(path);
    let native = reports.iter().find(shows).and_then(|report| report["native"].as_array());
    native.into_iter().flatten().filter_map(Value::as_str).map(PathBuf::from).collect()
}

/// Whether the server of the file system at `path` is gone, where `answered` servers of this user are
/// not. Of one that hangs the kernel is not asked: nobody could end this process then.
pub(crate) fn is_dead(path: &Path, answered: usize) -> bool {
    !control::some_are_silent(answered) && tollgate_fuse::stale(path)
}

/// Detaches a view at `mnt` whose server is dead; false when there is none.
///
/// # Errors
/// When the mount cannot be detached, and when its server may hang.
pub(crate) fn clean_dead(mnt: &Path) -> anyhow::Result<bool> {
    let Ok(path) = absolute(mnt) else { return Ok(false) };
    let mounts = mountinfo::read()?;
    if mountinfo::at(&mounts, &path).is_none_or(|mount| mount.kind != mountinfo::VIEW) {
        return Ok(false);
    }
    let answered = control::reports().map_or(0, |reports| reports.len());
    if control::some_are_silent(answered) {
        bail!(
            "MNT `{}` shows a view, which may be that of a server that does not answer: end that one, \
             then `tollgate umount`",
            shown(mnt)
        );
    }
    if !is_dead(&path, answered) {
        return Ok(false);
    }
    tollgate_fuse::unmount(&path, true).with_context(|| {
        format!("MNT `{}` was left by a dead server and cannot be cleaned up", shown(mnt))
    })?;
    Ok(true)
}

/// The path without symbolic links. The last component is not looked at: behind a dead server
/// nothing can be.
fn absolute(mnt: &Path) -> anyhow::Result<PathBuf> {
    if let Ok(path) = std::fs::canonicalize(mnt) {
        return Ok(path);
    }
    let absolute = std::path::absolute(mnt).with_context(|| format!("MNT `{}`", shown(mnt)))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Ok(absolute);
    };
    match std::fs::canonicalize(parent) {
        Ok(parent) => Ok(parent.join(name)),
        Err(error) => bail!("MNT `{}` {}", shown(mnt), tree::why(&error)),
    }
}
