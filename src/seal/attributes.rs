//! What a new file keeps of the one that it replaces, or is a copy of.

use std::fs::{File, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use anyhow::{Context, Result};
use rustix::fs::{Timespec, Timestamps, XattrFlags};

/// Most that is read of the names of extended attributes, and of one of them: the kernel's own
/// limit.
const XATTR_MAX: usize = 64 << 10;

/// Owner, mode, extended attributes and times of `old`.
pub(super) fn keep_attributes(old: &File, before: &Metadata, new: &File) -> Result<()> {
    std::os::unix::fs::fchown(new, Some(before.uid()), Some(before.gid()))
        .context("the owner cannot be kept")?;
    keep_xattrs(old, new)?;
    new.set_permissions(std::fs::Permissions::from_mode(before.mode() & 0o7777))?;
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(before.atime(), before.atime_nsec()),
        last_modification: time(before.mtime(), before.mtime_nsec()),
    };
    rustix::fs::futimens(new, &times)?;
    Ok(())
}

fn keep_xattrs(old: &File, new: &File) -> Result<()> {
    let mut names = vec![0_u8; XATTR_MAX];
    let length = match rustix::fs::flistxattr(old, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error).context("extended attributes cannot be read"),
    };
    let mut value = vec![0_u8; XATTR_MAX];
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let kept = || {
            let length = rustix::fs::fgetxattr(old, name, &mut value[..])?;
            rustix::fs::fsetxattr(new, name, &value[..length], XattrFlags::empty())
        };
        let mut kept = kept;
        kept().with_context(|| {
            format!("extended attribute `{}` cannot be kept", String::from_utf8_lossy(name))
        })?;
    }
    Ok(())
}
