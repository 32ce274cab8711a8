//! One file: sealed, sealed anew, written plain. Each as a whole, or not at all.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use tempfile::NamedTempFile;
use tollgate_seal::{Options, SealError, SealedFile};
use zeroize::Zeroizing;

use crate::escape::shown;
use crate::seal::attributes::Attributes;
use crate::seal::beside;
use crate::seal::job::Job;
use crate::seal::replace::{Old, Writers, replace};
use crate::seal::spot::{Spot, path_of};
use crate::seal::unfinished;

/// Read and written at a time.
const STEP: usize = 256 << 10;

/// A view makes an empty file first, and seals it at once.
const MADE_WITHIN: Duration = Duration::from_millis(500);

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
pub(super) fn open_unless_gone(spot: &Spot) -> Result<Option<File>> {
    match unfinished::open(&spot.path()) {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a file still has a name. One with nothing in it may be one that a view is making at this moment: then
/// waits until it begins as sealed files do.
///
/// # Errors
/// Those of fstat(2).
pub(super) fn is_made(file: &File) -> io::Result<bool> {
    loop {
        let found = file.metadata()?;
        let changed = Duration::new(
            found.ctime().try_into().unwrap_or(0),
            found.ctime_nsec().try_into().unwrap_or(0),
        );
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let is_new = now.checked_sub(changed).is_some_and(|age| age < MADE_WITHIN);
        if found.nlink() == 0 || found.len() > 0 || !is_new {
            return Ok(found.nlink() > 0);
        }
        std::thread::sleep(MADE_WITHIN / 50);
    }
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
pub(super) fn convert(spot: &Spot, file: &File, job: &Job<'_>) -> Result<()> {
    let old = Old { spot, file, dir: job.dir, writers: Writers::Any };
    replace(&old, |new, held| {
        let sealed = SealedFile::create(new, job.keys, job.domain, Options::default())?;
        let size = file.metadata()?.len();
        for_each_extent(file, size, |offset, bytes| {
            sealed.write_in_place(bytes, offset)?;
            held.is_undisturbed()?;
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
pub(super) fn seal_anew(spot: &Spot, file: &File, job: &Job<'_>) -> Result<()> {
    let old = Old { spot, file, dir: job.dir, writers: Writers::Servers };
    replace(&old, |new, held| {
        let old = SealedFile::open(file, job.keys, job.domain)?;
        let sealed = SealedFile::create(new, job.keys, job.domain, Options::default())?;
        copy(&old, job, |offset, bytes| {
            sealed.write_in_place(bytes, offset)?;
            held.is_undisturbed()
        })?;
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
    let new = Copy::in_directory(&dir).with_context(named)?;
    let mut before = Attributes::of(file)?;
    before.accessed = job.accessed;
    beside::whole(file, job, |sealed| {
        new.as_file().set_len(0)?;
        copy(sealed, job, |offset, bytes| Ok(new.as_file().write_all_at(bytes, offset)?))?;
        Ok(new.as_file().set_len(sealed.size())?)
    })?;
    before.give(new.as_file())?;
    new.as_file().sync_all()?;
    new.named(&dir, name).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            anyhow!("{} is there already; remove it, or name another directory by --to", named())
        }
        _ => anyhow::Error::from(error).context(named()),
    })
}

/// A plain copy that is not complete yet.
enum Copy {
    /// A kill leaves nothing of it.
    Unnamed(File),
    /// Where the file system has no files without names.
    Apart(NamedTempFile),
}

impl Copy {
    fn in_directory(dir: &OwnedFd) -> Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::openat(dir, ".", flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Ok(Copy::Unnamed(file.into())),
            // EISDIR: the kernel is older than such files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                Ok(Copy::Apart(unfinished::temporary(&path_of(dir))?))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn as_file(&self) -> &File {
        match self {
            Copy::Unnamed(file) => file,
            Copy::Apart(file) => file.as_file(),
        }
    }

    /// Gives it its name, unless there is a file of that name.
    fn named(self, dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
        match self {
            Copy::Unnamed(file) => {
                let follow = AtFlags::SYMLINK_FOLLOW;
                Ok(rustix::fs::linkat(CWD, path_of(&file), dir, name, follow)?)
            }
            Copy::Apart(file) => {
                file.persist_noclobber(path_of(dir).join(name)).map_err(|error| error.error)?;
                Ok(())
            }
        }
    }
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
        let top = dir.path().canonicalize().expect("a path");
        let path = top.join("file");
        let open = |path: &Path| open_unless_gone(&Spot::of(path).expect("a directory"));
        assert!(open(&path).expect("it is only gone").is_none());
        std::fs::write(&path, "x").expect("a file");
        assert!(open(&path).expect("it is there").is_some());
        assert!(open(&top).is_err(), "a directory is not a regular file");
        let link = top.join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(open(&link).is_err(), "links are not followed");
    }

    /// It was plain until then, and was not sealed: neither is said of a file on its way.
    #[test]
    fn an_empty_file_is_waited_for_only_while_it_may_be_a_new_one_with_a_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let make = |name: &str| File::create(dir.path().join(name)).expect("a file");
        let (empty, full, gone) = (make("empty"), make("full"), make("gone"));
        full.write_all_at(b"x", 0).expect("written");
        std::fs::remove_file(dir.path().join("gone")).expect("removed");
        assert!(!is_made(&gone).expect("it is open"));
        assert!(is_made(&full).expect("it is open"));
        assert!(is_made(&empty).expect("it is open"));
        let made = empty.metadata().expect("it is open").modified().expect("a time");
        assert!(made.elapsed().expect("in the past") >= MADE_WITHIN);
    }
}
