//! A mount in the place of one whose server is gone. The directory below must not show meanwhile: what
//! was refused would be made there, and be hidden by the new mount.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};

use super::identity::MountId;
use super::options::MountOptions;
use crate::device::Device;

/// Mounts beneath what is mounted at `path`, and detaches that.
///
/// # Errors
/// Of each step: an older kernel than Linux 6.5 cannot mount beneath, and nobody can without privilege.
/// Nothing has changed then, but where the old mount could not be detached.
pub(super) fn replace(
    path: &Path,
    options: &MountOptions,
) -> io::Result<(Device, Option<MountId>)> {
    let old = MountId::at(path).ok_or(io::ErrorKind::Unsupported)?;
    let device = Device::open()?;
    let new = detached(&device, options)?;
    let id = MountId::of(new.as_fd());
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_BENEATH;
    move_mount(&new, "", CWD, path, flags)?;
    // Somebody else may have detached it.
    if MountId::at(path) == Some(old) {
        rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
    }
    Ok((device, id))
}

/// A mount that is attached nowhere.
fn detached(device: &Device, options: &MountOptions) -> io::Result<OwnedFd> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: &str| fsconfig_set_string(context.as_fd(), key, value);
    set("source", &options.source)?;
    set("subtype", &options.subtype)?;
    set("fd", &device.as_fd().as_raw_fd().to_string())?;
    set("rootmode", &format!("{:o}", FileType::Directory.as_raw_mode()))?;
    set("user_id", &rustix::process::getuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getgid().as_raw().to_string())?;
    for option in options.kernel_options() {
        match option.split_once('=') {
            Some((key, value)) => set(key, value)?,
            None => fsconfig_set_flag(context.as_fd(), option.as_str())?,
        }
    }
    if options.read_only {
        fsconfig_set_flag(context.as_fd(), "ro")?;
    }
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes(options))?)
}

fn attributes(options: &MountOptions) -> MountAttrFlags {
    let mut attributes = MountAttrFlags::empty();
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, options.nosuid);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, options.nodev);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, options.noexec);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOATIME, options.noatime);
    attributes
}
