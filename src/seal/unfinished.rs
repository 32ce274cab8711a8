//! Files that are not complete yet, or replaced and not yet removed, and what commands that were
//! killed left of them.
//!
//! They lie in [`IN_DIR`], which views with `seal` rules hide and other users may not enter: by the
//! name that they have for that moment, a rule could give more than by the name that they had or
//! will have. A file on another mount below DIR cannot be moved from there; its temporary one lies
//! beside it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, FlockOperation, OFlags, StatxFlags};

use crate::sys::{self, Lease};

/// Where in DIR such files lie.
pub(crate) const IN_DIR: &str = ".tollgate-seal.new";
/// Before the random part of the names of files that are not complete yet.
const UNFINISHED: &str = ".tollgate-sealing-";
/// Letters and digits of the random part.
const UNFINISHED_RANDOM: usize = 16;
/// How often a directory is made that others remove.
const TRIES: usize = 5;

/// Opens a regular file through no symbolic link, without waiting for a FIFO.
///
/// # Errors
/// Those of open(2), or if it is not a regular file.
pub(super) fn open(path: &Path) -> Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).expect("flags of open(2)");
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        bail!("is not a regular file");
    }
    Ok(file)
}

pub(super) fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// A new file that is to take the place of `file`, which is in `beside`.
///
/// # Errors
/// Those of making it.
pub(super) fn temporary_for(
    file: &File,
    beside: &Path,
    dir: &Path,
) -> Result<tempfile::NamedTempFile> {
    let apart = dir.join(IN_DIR);
    // Another command may remove the directory at its end, at any moment.
    for _ in 0..TRIES {
        let made = std::fs::DirBuilder::new().mode(0o700).create(&apart);
        if made.is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
            break;
        }
        let Ok(opened) = File::open(&apart) else { continue };
        if mount_of(&opened)? != mount_of(file)? {
            break;
        }
        match temporary(&apart) {
            Ok(made) => return Ok(made),
            // A full disk is one beside the file, too.
            Err(_) => continue,
        }
    }
    temporary(beside).with_context(|| beside.display().to_string())
}

/// What a rename stays within.
fn mount_of(file: impl AsFd) -> io::Result<(u32, u32, u64)> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let found = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted)?;
    Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_mnt_id))
}

/// Removes the directory of such files, unless another command is at work there.
pub(super) fn leave(dir: &Path) {
    let _ = std::fs::remove_dir(dir.join(IN_DIR));
}

/// A new file in `dir`, removed when it is dropped.
///
/// # Errors
/// Those of making it.
pub(super) fn temporary(dir: &Path) -> Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    let file = builder.prefix(UNFINISHED).rand_bytes(UNFINISHED_RANDOM).tempfile_in(dir)?;
    mark(file.as_file())?;
    Ok(file)
}

/// Whoever finds a file without this lock, and without somebody who has it open, knows that its
/// maker is gone.
pub(super) fn mark(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, FlockOperation::LockShared)?)
}

/// Whether a name is one of those that files have that are not complete, or only begins so.
pub(super) fn looks_unfinished(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes())
}

/// Removes what a command that was killed left behind, and nothing else that has such a name.
///
/// # Errors
/// With why it is left as it is.
pub(super) fn remove_unfinished(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let random = name.strip_prefix(UNFINISHED.as_bytes()).unwrap_or_default();
    if random.len() != UNFINISHED_RANDOM || !random.iter().all(u8::is_ascii_alphanumeric) {
        bail!("it was not made by this command, though its name begins so");
    }
    let file = open(path)?;
    let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    // A file that is being replaced has no lock of ours, which could be in the way of others' locks;
    // but whoever replaces it has it open.
    let alone = sys::lease(&file, Lease::Write);
    let is_open = alone.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    if locked.is_err() || is_open {
        bail!("somebody has it open");
    }
    let (held, named) = (file.metadata()?, std::fs::symlink_metadata(path)?);
    if held.nlink() != 1 || (held.dev(), held.ino()) != (named.dev(), named.ino()) {
        bail!("it has another name");
    }
    Ok(std::fs::remove_file(path)?)
}
