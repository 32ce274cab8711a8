//! One file: sealed, sealed anew, written plain. Each as a whole, or not at all.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{FlockOperation, Mode, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use tollgate_seal::{Options, SealError, SealedFile};
use zeroize::Zeroizing;

use crate::escape::shown;
use crate::seal::job::Job;
use crate::sys;

/// Read and written at a time.
const STEP: usize = 256 << 10;
/// Before the random part of the names of files that are not complete yet.
const UNFINISHED: &str = ".tollgate-sealing-";
/// Letters and digits of the random part.
const UNFINISHED_RANDOM: usize = 16;
/// Most that is read of the names of extended attributes, and of one of them: the kernel's own
/// limit.
const XATTR_MAX: usize = 64 << 10;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Plain,
    /// Sealed with the key of an epoch.
    Sealed(u32),
}

/// Opens a regular file through no symbolic link, without waiting for a FIFO. `None` if there is
/// none of that name: it was there when the directory was listed.
///
/// # Errors
/// Those of open(2), or if it is not a regular file.
pub(super) fn open_unless_gone(path: &Path) -> Result<Option<File>> {
    match open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

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

/// Whether a file is sealed, under the keys and the domain of `job`.
///
/// # Errors
/// If it begins as a sealed file does and is not authentic.
pub(super) fn state(file: &File, job: &Job<'_>) -> Result<State> {
    if !tollgate_seal::looks_sealed(file)? {
        return Ok(State::Plain);
    }
    Ok(State::Sealed(tollgate_seal::stat(file, job.keys, job.domain)?.epoch))
}

/// Replaces a plain file by a sealed one with the same content, mode, owner, times and extended
/// attributes. Whoever reads it meanwhile has the old one; a crash leaves the old or the new one.
///
/// # Errors
/// If it has several names, or is open elsewhere, or was changed meanwhile; then it is as it was.
pub(super) fn convert(path: &Path, file: &File, job: &Job<'_>) -> Result<()> {
    replace(path, file, |new| {
        let sealed = SealedFile::create(new, job.keys, job.domain, Options::default())?;
        let size = file.metadata()?.len();
        for_each_extent(file, size, |offset, bytes| {
            sealed.write_in_place(bytes, offset)?;
            job.progress.bytes(bytes.len());
            Ok(())
        })?;
        sealed.set_len(size)?;
        Ok(sealed.commit()?)
    })
}

/// Replaces a sealed file by one that is sealed with the newest key.
///
/// # Errors
/// As [`convert`], or if a block is not authentic.
pub(super) fn seal_anew(path: &Path, file: &File, job: &Job<'_>) -> Result<()> {
    replace(path, file, |new| {
        let old = SealedFile::open(file, job.keys, job.domain)?;
        let sealed = SealedFile::create(new, job.keys, job.domain, Options::default())?;
        copy(&old, job, |offset, bytes| Ok(sealed.write_in_place(bytes, offset)?))?;
        sealed.set_len(old.size())?;
        Ok(sealed.commit()?)
    })
}

/// Writes a plain copy to `below` in the directory `dest`, which is made if it is missing. The copy
/// must not exist yet. `dest` may be a symbolic link; none is followed inside it.
///
/// # Errors
/// If the copy exists, a directory inside `dest` is a symbolic link, or a block is not authentic;
/// then there is no copy.
pub(super) fn export(file: &File, dest: &Path, below: &Path, job: &Job<'_>) -> Result<()> {
    let named = || shown(&dest.join(below));
    let name = below.file_name().context("has no name")?;
    let dir = made_beneath(dest, below.parent().unwrap_or(Path::new("")))?;
    // The directory itself, however its path changes meanwhile.
    let here = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    let new = temporary(&here).with_context(named)?;
    let sealed = SealedFile::open(file, job.keys, job.domain)?;
    copy(&sealed, job, |offset, bytes| Ok(new.as_file().write_all_at(bytes, offset)?))?;
    new.as_file().set_len(sealed.size())?;
    keep_attributes(file, &file.metadata()?, new.as_file())?;
    new.as_file().sync_all()?;
    let persisted = new.persist_noclobber(here.join(name)).map_err(|error| error.error);
    persisted.map(drop).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            anyhow!("{} is there already; remove it, or name another directory by --to", named())
        }
        _ => anyhow::Error::from(error).context(named()),
    })
}

/// Opens the directory `below` in `dest`, and makes both if they are missing.
fn made_beneath(dest: &Path, below: &Path) -> Result<OwnedFd> {
    let mut path = dest.to_owned();
    std::fs::create_dir_all(dest).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotADirectory => {
            anyhow!("{}: --to names a directory, and this is none or lies below none", shown(dest))
        }
        _ => anyhow::Error::from(error).context(shown(dest)),
    })?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(dest, flags, Mode::empty());
    let mut dir = opened.with_context(|| shown(dest))?;
    for name in below {
        path.push(name);
        match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error).with_context(|| shown(&path)),
        }
        dir = rustix::fs::openat(&dir, name, flags | OFlags::NOFOLLOW, Mode::empty()).map_err(
            |error| match error {
                Errno::LOOP | Errno::NOTDIR => anyhow!(
                    "{} is no directory; nothing is written through symbolic links inside {}",
                    shown(&path),
                    shown(dest)
                ),
                error => anyhow!("{}: {error}", shown(&path)),
            },
        )?;
    }
    Ok(dir)
}

/// Reads all that is not in a hole.
fn copy(
    sealed: &SealedFile<&File>,
    job: &Job<'_>,
    mut each: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut buffer = Zeroizing::new(vec![0; STEP]);
    let mut offset = 0;
    while let Some(data) = sealed.next_data(offset)? {
        offset = data.start;
        while offset < data.end {
            let most = usize::try_from(data.end - offset).unwrap_or(STEP).min(STEP);
            let length = sealed.read_at(&mut buffer[..most], offset)?;
            each(offset, &mut buffer[..length])?;
            job.progress.bytes(length);
            offset += length as u64;
        }
    }
    Ok(())
}

/// The parts of a plain file that are not holes.
fn for_each_extent(
    file: &File,
    size: u64,
    mut each: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut buffer = Zeroizing::new(vec![0; STEP]);
    let mut offset = 0;
    while offset < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        offset = start;
        while offset < end {
            let most = usize::try_from(end - offset).unwrap_or(STEP).min(STEP);
            let length = file.read_at(&mut buffer[..most], offset)?;
            if length == 0 {
                bail!("became shorter while it was read");
            }
            each(offset, &mut buffer[..length])?;
            offset += length as u64;
        }
    }
    Ok(())
}

/// Whether a file has other names, which would not be those of what replaces it.
///
/// # Errors
/// That of fstat(2).
pub(super) fn has_other_names(file: &File) -> Result<bool> {
    Ok(file.metadata()?.nlink() > 1)
}

/// Holds off who would open `file` for writing, as far as the file system can; whether it can.
///
/// # Errors
/// If it cannot be replaced: it has several names, or is open for writing.
pub(super) fn hold(file: &File) -> Result<bool> {
    let names = file.metadata()?.nlink();
    if names > 1 {
        bail!("has {names} names (hard links); only one of them would be sealed");
    }
    // Whoever has it open would go on with the old file, and what they write would be lost.
    let lease = sys::lease(file);
    if let Err(error) = &lease
        && error.kind() == io::ErrorKind::WouldBlock
    {
        bail!("is open for writing elsewhere; close it and run this again");
    }
    Ok(lease.is_ok())
}

/// Has `write` fill a new file, and puts it in the place of `file`.
fn replace(path: &Path, file: &File, write: impl FnOnce(&File) -> Result<()>) -> Result<()> {
    let before = file.metadata()?;
    let is_held = hold(file)?;
    let dir = directory_of(path);
    let new = temporary(&dir).with_context(|| format!("{}", dir.display()))?;
    write(new.as_file())?;
    keep_attributes(file, &before, new.as_file())?;
    new.as_file().sync_all()?;
    let now = file.metadata()?;
    let disturbed = is_held && !sys::still_leased(file);
    let version = |of: &Metadata| (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
    if disturbed || version(&now) != version(&before) || now.len() != before.len() {
        bail!("was changed meanwhile; run this again");
    }
    new.persist(path).map_err(|error| error.error)?;
    File::open(&dir).and_then(|dir| dir.sync_all())?;
    Ok(())
}

pub(super) fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn temporary(dir: &Path) -> Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    let file = builder.prefix(UNFINISHED).rand_bytes(UNFINISHED_RANDOM).tempfile_in(dir)?;
    // Whoever finds it without a lock knows that its maker is gone.
    rustix::fs::flock(&file, FlockOperation::LockShared)?;
    Ok(file)
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
    let written = sys::lease(&file).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    if locked.is_err() || written {
        bail!("somebody has it open");
    }
    let (held, named) = (file.metadata()?, std::fs::symlink_metadata(path)?);
    if held.nlink() != 1 || (held.dev(), held.ino()) != (named.dev(), named.ino()) {
        bail!("it has another name");
    }
    Ok(std::fs::remove_file(path)?)
}

/// Owner, mode, extended attributes and times of `old`.
fn keep_attributes(old: &File, before: &Metadata, new: &File) -> Result<()> {
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

/// Whether an error says that there is no such file.
pub(super) fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Whether an error is about the file's content rather than about reading it.
pub(super) fn is_damage(error: &anyhow::Error) -> bool {
    error.downcast_ref::<SealError>().is_some_and(|error| !matches!(error, SealError::Io(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rotate` and the like list a tree before they open its files.
    #[test]
    fn a_file_that_vanished_is_none_and_other_errors_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        assert!(open_unless_gone(&path).expect("it is only gone").is_none());
        std::fs::write(&path, "x").expect("a file");
        assert!(open_unless_gone(&path).expect("it is there").is_some());
        assert!(open_unless_gone(dir.path()).is_err(), "a directory is not a regular file");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(open_unless_gone(&link).is_err(), "links are not followed");
    }
}
