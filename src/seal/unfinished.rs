//! Files that are not complete yet, or replaced and not yet removed, and what commands that were
//! killed left of them.
//!
//! They lie in [`IN_DIR`], which views with `seal` rules hide and other users may not enter: by the
//! name that they have for that moment, a rule could give more than by the name that they had or
//! will have. A file on another mount below DIR cannot be moved from there; its temporary one lies
//! beside it.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, DirEntryExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, FlockOperation, OFlags, RenameFlags, StatxFlags};
use tempfile::TempPath;

use crate::escape::shown;
use crate::messages;
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

/// The temporary name of `new`, which is to exchange names with `old`: it says which two files may have
/// it, by their inodes. What else is found there came in between, and is somebody's.
///
/// # Errors
/// Those of rename(2).
pub(super) fn named_for(name: TempPath, old: &File, new: &File) -> io::Result<TempPath> {
    let mut pair = name.to_path_buf().into_os_string();
    pair.push(format!("-{:x}-{:x}", old.metadata()?.ino(), new.metadata()?.ino()));
    std::fs::rename(&name, &pair)?;
    // Dropped, it would remove a file that is not there any more.
    let _ = name.keep();
    TempPath::try_from_path(pair)
}

/// The inodes that a temporary name says it is for: the old one and the new one, or none. `None` if it is
/// no such name.
fn inodes_of(name: &OsStr) -> Option<Vec<u64>> {
    let mut parts = name.to_str()?.strip_prefix(UNFINISHED)?.split('-');
    let random = parts.next()?.as_bytes();
    if random.len() != UNFINISHED_RANDOM || !random.iter().all(u8::is_ascii_alphanumeric) {
        return None;
    }
    let inodes: Vec<_> =
        parts.map(|part| u64::from_str_radix(part, 16).ok()).collect::<Option<_>>()?;
    matches!(inodes.len(), 0 | 2).then_some(inodes)
}

/// Removes what a command that was killed left behind, and nothing else that has such a name. What
/// others had put in the place of a file at that moment gets its name back; `dir` is where files are
/// sealed.
///
/// # Errors
/// With why it is left as it is.
pub(super) fn remove_unfinished(path: &Path, dir: &Path) -> Result<()> {
    let Some(inodes) = path.file_name().and_then(inodes_of) else {
        bail!("it was not made by this command, though its name begins so");
    };
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
    if let [old, new] = inodes[..]
        && ![old, new].contains(&held.ino())
    {
        return put_back(path, &held, new, dir);
    }
    Ok(std::fs::remove_file(path)?)
}

/// Gives the file at `path`, which others had put in the place of one that was replaced at that moment,
/// the name that the one with the inode `new` has by now; that one is removed.
fn put_back(path: &Path, theirs: &Metadata, new: u64, dir: &Path) -> Result<()> {
    const WHAT: &str = "it is what another program had put in the place of";
    let Some(taken) = find_inode(dir, (theirs.dev(), new))? else {
        bail!("{WHAT} a file that is gone; move it to where it belongs, or remove it");
    };
    let file = open(&taken)?;
    let named = shown(&taken);
    let written = |of: &Metadata| (of.mtime(), of.mtime_nsec());
    if written(&file.metadata()?) > written(theirs) {
        bail!("{WHAT} {named}, which was written since; keep one of the two, and remove the other");
    }
    if let Err(error) = sys::lease(&file, Lease::Read)
        && error.kind() == io::ErrorKind::WouldBlock
    {
        bail!("{WHAT} {named}, which is open for writing; close that and run this again");
    }
    let exchange = || rustix::fs::renameat_with(CWD, path, CWD, &taken, RenameFlags::EXCHANGE);
    exchange().with_context(|| named.clone())?;
    if std::fs::symlink_metadata(path)?.ino() != new {
        exchange().with_context(|| named.clone())?;
        bail!("{WHAT} {named}, which others move at the same time; run this again");
    }
    File::open(directory_of(&taken))?.sync_all()?;
    messages::note(&format!("{named} is again what another program had put there"));
    Ok(std::fs::remove_file(path)?)
}

/// The regular file with this device and inode below `dir`.
fn find_inode(dir: &Path, wanted: (u64, u64)) -> Result<Option<PathBuf>> {
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| shown(&dir))? {
            let entry = entry.with_context(|| shown(&dir))?;
            let kind = entry.file_type().with_context(|| shown(&dir))?;
            if kind.is_dir() && entry.file_name() != IN_DIR {
                left.push(entry.path());
            } else if kind.is_file() && entry.ino() == wanted.1 {
                let found = entry.metadata().with_context(|| shown(&dir))?;
                if (found.dev(), found.ino()) == wanted {
                    return Ok(Some(entry.path()));
                }
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_name_says_which_files_may_have_it() {
        let of = |name: &str| inodes_of(OsStr::new(name));
        assert_eq!(of(".tollgate-sealing-0123456789abcXYZ"), Some(Vec::new()));
        assert_eq!(of(".tollgate-sealing-0123456789abcXYZ-1f-20"), Some(vec![31, 32]));
        for other in ["-1f", "-1f-20-21", "-1f-g", "-", "-1f-20-"] {
            assert_eq!(of(&format!(".tollgate-sealing-0123456789abcXYZ{other}")), None, "{other}");
        }
        assert_eq!(of(".tollgate-sealing-short-1-2"), None);
        assert_eq!(of("other"), None);
    }
}
