//! The device and the mount of a view.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use anyhow::Context;
use rustix::fs::StatVfsMountFlags;
use tollgate_fuse::{Device, MountOptions};

use crate::tree::Tree;

/// How a view of `tree` is mounted: never with set-user-id programs or devices, and not more freely
/// than the file system beneath.
pub(crate) fn mount_options(tree: &Tree) -> anyhow::Result<MountOptions> {
    let lower = rustix::fs::statvfs(&tree.path).context("statvfs")?.f_flag;
    Ok(MountOptions {
        allow_other: rustix::process::geteuid().is_root(),
        read_only: lower.contains(StatVfsMountFlags::RDONLY),
        noexec: lower.contains(StatVfsMountFlags::NOEXEC),
        ..MountOptions::default()
    })
}

/// Mounts a new connection over the directory `place`, in the mount namespace of the caller.
///
/// # Errors
/// When /dev/fuse cannot be opened or the kernel refuses the mount.
pub(crate) fn mount_over(
    place: &OwnedFd,
    tree: &Tree,
    options: &MountOptions,
) -> anyhow::Result<Device> {
    let device = open_device()?;
    let options = MountOptions { allow_other: true, ..options.clone() };
    let path = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
    tollgate_fuse::mount_device(&device, &path, &options)
        .with_context(|| format!("cannot mount the view over `{}`", tree.path.display()))?;
    Ok(device)
}

/// Opens /dev/fuse.
///
/// # Errors
/// With what to do about it.
fn open_device() -> anyhow::Result<Device> {
    Device::open().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => anyhow::anyhow!(
            "/dev/fuse is not there: load the kernel module (`modprobe fuse`), or give this \
             container the device"
        ),
        Some(libc::EACCES | libc::EPERM) => anyhow::anyhow!(
            "/dev/fuse may not be opened by this user: run as root, or have it made accessible \
             (`chmod 666 /dev/fuse`, or the group that owns it)"
        ),
        _ => anyhow::anyhow!("/dev/fuse cannot be opened: {error}"),
    })
}
