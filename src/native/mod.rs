//! Native directories: subtrees of DIR that the view shows by a mount of the lower directory, so
//! that the kernel sends no request about them.
//!
//! What a mount makes of it, without further code: a rename or a link across its border is EXDEV,
//! and the directory itself cannot be removed or renamed (EBUSY). The view refuses to move a
//! directory above it, which would take the mount along to a name that other rules may cover.

mod links;
mod mounts;
mod prepare;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};
use tollgate_fuse::MountError;

pub(crate) use links::Beside;
pub(crate) use prepare::{leave_out_linked, leave_out_mounted, prepare};

use crate::escape::shown;
use crate::mountinfo::{self, MountInfo};
use crate::{sys, tree};

/// Mounts each of `directories`, paths relative to DIR, from the lower tree `lower` into the view
/// of it that `view` names: without set-user-id programs and devices, like the view, and with
/// everything that is mounted below them. The view must be served already.
///
/// # Errors
/// A directory is gone or cannot be reached through the view; the kernel refuses a mount. Those
/// before it stay mounted.
pub(crate) fn mount(
    lower: impl AsFd,
    view: impl AsFd,
    directories: &[PathBuf],
) -> anyhow::Result<()> {
    for directory in directories {
        mount_one(lower.as_fd(), view.as_fd(), directory)
            .with_context(|| format!("native directory `{}`", shown(directory)))?;
    }
    Ok(())
}

/// Whether this process may mount what lies below `source`.
pub(crate) fn is_permitted(source: &OwnedFd) -> bool {
    detached_copy(source).is_ok()
}

fn mount_one(lower: BorrowedFd<'_>, view: BorrowedFd<'_>, directory: &Path) -> anyhow::Result<()> {
    let from = tree::open_beneath(lower, directory).context("it is gone")?;
    let copy = detached_copy(&from)?;
    sys::confine_mount(copy.as_fd()).context("its mount cannot be restricted")?;
    let onto = tree::open_beneath(view, directory).map_err(|error| {
        anyhow!(error).context(match error {
            Errno::CONNABORTED | Errno::NOTCONN => "the server of the view has ended",
            _ => "it cannot be reached through the view; does a rule hide it?",
        })
    })?;
    attach(&copy, &onto).context("it cannot be mounted")
}

/// A copy of what is mounted at `directory` and below it, attached nowhere.
///
/// # Errors
/// The error of open_tree(2).
pub(crate) fn detached_copy(directory: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    rustix::mount::open_tree(directory, "", flags)
}

fn attach(tree: &OwnedFd, onto: &OwnedFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, "", onto, "", flags)
}

/// Splits `directories` of the view at `view`, whose connection has this number, into those that are
/// mounted, as far as this mount namespace shows, and those that are not any more: the kernel drops the
/// mount when the directory is removed or exchanged in the lower tree. Where the view itself is not there,
/// nothing is known of them.
pub(crate) fn still_mounted(
    view: &Path,
    number: u32,
    directories: &[PathBuf],
) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let all = || (directories.to_vec(), Vec::new());
    let Ok(mounts) = mountinfo::read() else { return all() };
    let is_it = |at: &MountInfo| at.kind == mountinfo::VIEW && at.minor_number() == Some(number);
    if !mountinfo::at(&mounts, view).is_some_and(is_it) {
        return all();
    }
    let is_mounted = |directory: &&PathBuf| mountinfo::at(&mounts, &view.join(directory)).is_some();
    let (mounted, gone): (Vec<&PathBuf>, Vec<&PathBuf>) = directories.iter().partition(is_mounted);
    (mounted.into_iter().cloned().collect(), gone.into_iter().cloned().collect())
}

/// Unmounts the view at `view`, and `directories` in it before. If one of these mounts is in use,
/// all stay as they were.
///
/// # Errors
/// As [`tollgate_fuse::unmount`].
pub(crate) fn unmount_view(
    view: &Path,
    directories: &[PathBuf],
    lazy: bool,
) -> Result<(), MountError> {
    if lazy {
        // Takes what is mounted in it along.
        return tollgate_fuse::unmount(view, true);
    }
    let mut removed = Vec::new();
    let mut result = directories
        .iter()
        .try_for_each(|directory| unmount_one(view, &view.join(directory), &mut removed));
    if result.is_ok() {
        result = tollgate_fuse::unmount(view, false);
    }
    if result.is_err() {
        // What was mounted on another one comes after it.
        removed.iter().rev().for_each(Removed::restore);
    }
    result
}

/// A mount of a native directory, or of something below it, that was unmounted.
struct Removed {
    /// A copy of the mount, kept to restore it.
    tree: OwnedFd,
    /// The file or directory of the view beneath it.
    beneath: PathBuf,
}

impl Removed {
    /// Failing that, the directory is served by the view, which loses speed and nothing else; what
    /// was mounted below it stays away.
    fn restore(&self) {
        if let Ok(onto) = open_top(&self.beneath) {
            let _ = attach(&self.tree, &onto);
        }
    }
}

/// What is seen at `point`, without an open of it.
fn open_top(point: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(point, flags, Mode::empty())
}

/// Unmounts what is mounted at `point` and below it, and adds it to `removed`, in case of an error,
/// too. Nothing may be mounted there, as after a deletion from outside.
fn unmount_one(view: &Path, point: &Path, removed: &mut Vec<Removed>) -> Result<(), MountError> {
    let system = |source: Errno| MountError::System { path: point.into(), source: source.into() };
    // The kernel drops the mount of a directory that others have taken away when it looks for it, and
    // not before.
    let top = open_top(point).map(drop);
    let mounts = mountinfo::read().map_err(|error| MountError::System {
        path: point.into(),
        source: std::io::Error::other(error),
    })?;
    let mut points: Vec<_> =
        mounts.iter().map(|mount| &mount.point).filter(|at| at.starts_with(point)).collect();
    if !points.iter().any(|at| *at == point) {
        return Ok(());
    }
    top.map_err(system)?;
    // Deepest first; of several at one point, the kernel takes the latest.
    points.sort_by_key(|at| std::cmp::Reverse(at.components().count()));
    for at in points {
        // The descriptor of the original would keep it in use.
        let copy = open_top(at).and_then(|top| detached_copy(&top));
        if at == point {
            copy.as_ref().map_err(|error| system(*error))?;
        }
        match rustix::mount::unmount(at, UnmountFlags::NOFOLLOW) {
            // Of one that the kernel does not copy (MS_UNBINDABLE), there is nothing to restore.
            Ok(()) => {
                removed.extend(copy.map(|tree| Removed { tree, beneath: at.clone() }));
            }
            Err(Errno::INVAL) => {}
            Err(Errno::BUSY) => return Err(MountError::Busy { path: view.into() }),
            Err(error) => return Err(system(error)),
        }
    }
    Ok(())
}
