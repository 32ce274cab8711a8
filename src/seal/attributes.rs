//! What a new file keeps of the one that it replaces, or is a copy of.

use std::fs::{File, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use anyhow::{Context, Result};
use rustix::fs::{Timespec, Timestamps, XattrFlags};

/// Most that is read of the names of extended attributes, and of one of them: the kernel's own
/// limit.
const XATTR_MAX: usize = 64 << 10;

/// Owner, mode, times and extended attributes of a file, and how many names it has.
pub(super) struct Attributes {
    pub(super) metadata: Metadata,
    /// The time of access.
    pub(super) accessed: Timespec,
    /// Names and values, in the order of the file system.
    extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// # Errors
    /// When they cannot be read.
    pub(super) fn of(file: &File) -> Result<Self> {
        let metadata = file.metadata()?;
        let mut names = vec![0_u8; XATTR_MAX];
        let length = match rustix::fs::flistxattr(file, &mut names[..]) {
            Ok(length) => length,
            Err(rustix::io::Errno::OPNOTSUPP) => 0,
            Err(error) => return Err(error).context("extended attributes cannot be read"),
        };
        let mut value = vec![0_u8; XATTR_MAX];
        let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let extended = names.map(|name| {
            let length = rustix::fs::fgetxattr(file, name, &mut value[..]);
            let length = length.with_context(|| not_kept(name))?;
            Ok((name.to_owned(), value[..length].to_owned()))
        });
        let extended = extended.collect::<Result<_>>()?;
        Ok(Self { accessed: accessed(&metadata), metadata, extended })
    }

    /// Gives them to `new`.
    ///
    /// # Errors
    /// When one of them cannot be had.
    pub(super) fn give(&self, new: &File) -> Result<()> {
        self.give_rights(new)?;
        let had = &self.metadata;
        let modified = Timespec { tv_sec: had.mtime(), tv_nsec: had.mtime_nsec() };
        let times = Timestamps { last_access: self.accessed, last_modification: modified };
        rustix::fs::futimens(new, &times)?;
        Ok(())
    }

    /// Gives `new` all but the times, which are its own where it has other content.
    ///
    /// # Errors
    /// When one of them cannot be had.
    pub(super) fn give_rights(&self, new: &File) -> Result<()> {
        let had = &self.metadata;
        std::os::unix::fs::fchown(new, Some(had.uid()), Some(had.gid()))
            .context("the owner cannot be kept")?;
        for (name, value) in &self.extended {
            rustix::fs::fsetxattr(new, &name[..], value, XattrFlags::empty())
                .with_context(|| not_kept(name))?;
        }
        new.set_permissions(std::fs::Permissions::from_mode(had.mode() & 0o7777))?;
        Ok(())
    }

    /// Whether `file` has them still. Not the times of access and change, which are the kernel's.
    ///
    /// # Errors
    /// As [`Attributes::of`].
    pub(super) fn are_those_of(&self, file: &File) -> Result<bool> {
        let now = Attributes::of(file)?;
        let kept = |of: &Metadata| {
            (of.uid(), of.gid(), of.mode(), of.nlink(), of.len(), of.mtime(), of.mtime_nsec())
        };
        Ok(kept(&now.metadata) == kept(&self.metadata) && now.extended == self.extended)
    }
}

/// The time of access.
pub(super) fn accessed(of: &Metadata) -> Timespec {
    Timespec { tv_sec: of.atime(), tv_nsec: of.atime_nsec() }
}

fn not_kept(name: &[u8]) -> String {
    format!("extended attribute `{}` cannot be kept", String::from_utf8_lossy(name))
}
