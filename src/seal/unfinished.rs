//! Files that are not complete yet, or replaced and not yet removed, and what commands that were
//! killed left of them.
//!
//! They lie in [`IN_DIR`], which views with `seal` rules hide and other users may not enter: by the
//! name that they have for that moment, a rule could give more than by the name that they had or
//! will have. A file on another mount below DIR cannot be moved from there; its temporary one lies
//! beside it.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, DirEntryExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, StatxFlags};
use tempfile::TempPath;

use crate::escape::shown;
use crate::messages;
use crate::seal::spot::{Spot, path_of};
use crate::seal::temporary_name::{self, Made, Pair, Told, told_by};
use crate::sys::{self, Lease};

/// Where in DIR such files lie.
pub(crate) const IN_DIR: &str = ".tollgate-seal.new";
/// How often a directory is made that others remove.
const TRIES: usize = 5;

/// Opens a regular file through no symbolic link, without waiting for a FIFO. Reading it does not change its
/// time of access, where that may be asked for: of files of one's own, and by root.
///
/// # Errors
/// Those of open(2), or if it is not a regular file.
pub(super) fn open(path: &Path) -> Result<File> {
    let open = |flags: OFlags| {
        let flags = i32::try_from(flags.bits()).expect("flags of open(2)");
        File::options().read(true).custom_flags(flags).open(path)
    };
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match open(flags | OFlags::NOATIME) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => open(flags)?,
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        bail!("is not a regular file");
    }
    Ok(file)
}

/// A new file that is to take the place of `file`, which is in `beside`.
///
/// # Errors
/// Those of making it.
pub(super) fn temporary_for(file: &File, beside: &Path, dir: &Path) -> Result<Temporary> {
    // Another command may remove the directory at its end, at any moment.
    for _ in 0..TRIES {
        let apart = match apart(dir) {
            Ok(apart) => apart,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(_) => break,
        };
        if mount_of(&apart)? != mount_of(file)? {
            break;
        }
        match temporary(&path_of(&apart)) {
            Ok(file) => return Ok(Temporary::of(file, Some(apart))),
            // A full disk is one beside the file, too.
            Err(_) => continue,
        }
    }
    let beside = temporary(beside).and_then(|file| numbered(Temporary::of(file, None)));
    beside.context("no file can be made beside it")
}

/// Has the name say which file it is for: beside files of others, the name alone must not tell. Who is killed
/// just before leaves an empty file, which then counts as somebody's.
///
/// # Errors
/// Those of rename(2).
fn numbered(new: Temporary) -> Result<Temporary> {
    let Temporary { file, name } = new;
    let Made { inode, born, .. } = Made::of(&file)?;
    let name = renamed(name, &format!("{inode:x}-{born:x}"))?;
    Ok(Temporary { file, name })
}

/// A file that is not complete, and its name.
pub(super) struct Temporary {
    file: File,
    name: Name,
}

impl Temporary {
    fn of(file: tempfile::NamedTempFile, place: Option<File>) -> Temporary {
        let (file, path) = file.into_parts();
        Temporary { file, name: Name { path, _place: place } }
    }

    pub(super) fn as_file(&self) -> &File {
        &self.file
    }

    pub(super) fn into_parts(self) -> (File, Name) {
        (self.file, self.name)
    }
}

/// A temporary name. What has it is removed when this is dropped.
pub(super) struct Name {
    // Dropped before the directory that it leads through is closed.
    pub(super) path: TempPath,
    _place: Option<File>,
}

/// The directory of such files in `dir`, made if it is missing; through no link, which would lead
/// them elsewhere.
///
/// # Errors
/// Those of open(2).
fn apart(dir: &Path) -> io::Result<File> {
    let apart = dir.join(IN_DIR);
    match std::fs::DirBuilder::new().mode(0o700).create(&apart) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    open_apart(dir)
}

/// The same if it is there.
///
/// # Errors
/// Those of open(2).
pub(super) fn open_apart(dir: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(dir.join(IN_DIR), flags, Mode::empty())?))
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
    let builder = builder.prefix(temporary_name::START).rand_bytes(temporary_name::RANDOM);
    // Opened here, as its own errors have the path, which leads through a descriptor and says nothing.
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = builder.make_in(dir, |path| options.open(path))?;
    mark(file.as_file())?;
    Ok(file)
}

/// Whoever finds a file without this lock, and without somebody who has it open, knows that its
/// maker is gone.
pub(super) fn mark(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, FlockOperation::LockShared)?)
}

/// Whether the file at `path`, which has such a name, is one that was made here, by all that can be told
/// without taking it from who has it open.
pub(super) fn is_temporary(path: &Path) -> bool {
    let Some(told) = path.file_name().and_then(told_by) else { return false };
    let Ok(file) = open(path) else { return false };
    let Ok(found) = file.metadata() else { return false };
    let is_made_here = match told {
        Told::Nothing => false,
        Told::File(made) => made.is(&file).unwrap_or(false),
        Told::Pair(Pair { old, new }) => found.ino() == old || new.is(&file).unwrap_or(false),
    };
    is_made_here && found.nlink() == 1
}

/// The temporary name of `new`, which is to exchange names with `old`: it says which two files may have
/// it. What else is found there came in between, and is somebody's.
///
/// # Errors
/// Those of rename(2).
pub(super) fn named_for(name: Name, old: &File, new: &File) -> io::Result<Name> {
    let Made { inode, born, written } = Made::of(new)?;
    renamed(name, &format!("{:x}-{inode:x}-{born:x}-{written:x}", old.metadata()?.ino()))
}

/// Gives a temporary name these numbers behind its random part.
fn renamed(name: Name, numbers: &str) -> io::Result<Name> {
    let Name { path, _place } = name;
    let had = path.file_name().unwrap_or_default().to_string_lossy();
    let renamed = path.with_file_name(temporary_name::with(&had, numbers));
    std::fs::rename(&path, &renamed)?;
    // Dropped, it would remove a file that is not there any more.
    let _ = path.keep();
    Ok(Name { path: TempPath::try_from_path(renamed)?, _place })
}

/// What became of something that a command left behind.
#[derive(Debug)]
pub(super) enum Tidied {
    /// It is gone, or has its name again.
    Done,
    /// It is somebody's, and they have to say what becomes of it: why.
    Kept(String),
    /// It is no such thing, although it has such a name.
    Theirs,
}

/// Removes what a command that was killed left behind, and nothing else that has such a name. What
/// others had put in the place of a file at that moment gets its name back, and so does a file that they had
/// given a further name, or wrote since; `dir` is where files are sealed. What is not `apart`, in [`IN_DIR`], must be the
/// very file that its name tells of: a file of somebody may have such a name.
///
/// # Errors
/// With why it is left as it is.
pub(super) fn remove_unfinished(path: &Path, dir: &Path, is_apart: bool) -> Result<Tidied> {
    let Some(told) = path.file_name().and_then(told_by) else {
        bail!("it was not made by this command, though its name begins so");
    };
    let file = open(path)?;
    let is_made_here = match told {
        Told::Nothing => false,
        Told::File(made) => made.is(&file)?,
        Told::Pair(_) => true,
    };
    if !is_made_here && !is_apart {
        return Ok(Tidied::Theirs);
    }
    // A file that is being replaced has no lock of ours, which could be in the way of others' locks;
    // but whoever replaces it has it open. That first: they would see our lock.
    let alone = sys::lease(&file, Lease::Write);
    let is_open = alone.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    if is_open || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("somebody has it open");
    }
    let (held, named) = (file.metadata()?, std::fs::symlink_metadata(path)?);
    if (held.dev(), held.ino()) != (named.dev(), named.ino()) {
        bail!("others move it at the same time");
    }
    match told {
        Told::Pair(Pair { old, new })
            if !new.is(&file)?
                && (held.ino() != old || held.nlink() > 1 || was_written(&file, new)?) =>
        {
            put_back(path, &held, Pair { old, new }, dir)
        }
        _ if held.nlink() != 1 => Ok(Tidied::Theirs),
        _ => removed(path),
    }
}

/// Whether the old file was written since the `new` one got its times: by who waited to open it when the
/// command was killed, and went on with it then.
fn was_written(old: &File, new: Made) -> io::Result<bool> {
    Ok(Made::of(old)?.written != new.written)
}

/// Gives the file at `path`, which others had put in the place of one that was replaced at that moment,
/// or given a further name, or written, the name that the new one has by now; that one is removed.
fn put_back(path: &Path, theirs: &Metadata, Pair { old, new }: Pair, dir: &Path) -> Result<Tidied> {
    let did = if theirs.ino() == old && theirs.nlink() == 1 { "written" } else { "put" };
    let kept = |of: &str| {
        Ok(Tidied::Kept(format!("is what another program had {did} in the place of {of}")))
    };
    let has_further_name = theirs.nlink() > 1;
    let Some((taken, file)) = find_made(dir, theirs.dev(), new)? else {
        if has_further_name {
            return removed(path);
        }
        return kept("a file that is gone; move it to where it belongs, or remove it");
    };
    let named = shown(&taken);
    if Made::of(&file)?.written != new.written {
        if has_further_name {
            let since = "was written since, and is a file of its own";
            messages::note(&format!("{named} had got a further name; it {since}"));
            return removed(path);
        }
        return kept(&format!(
            "{named}, which was written since; keep one of the two, and remove the other"
        ));
    }
    if file.metadata()?.nlink() > 1 {
        return kept(&format!("{named}, which has further names by now; remove one of the two"));
    }
    if let Err(error) = sys::lease(&file, Lease::Read)
        && error.kind() == io::ErrorKind::WouldBlock
    {
        return kept(&format!("{named}, which is open for writing; close that and run this again"));
    }
    let spot = Spot::of(&taken).with_context(|| named.clone())?;
    let exchange = || rustix::fs::renameat_with(CWD, path, CWD, spot.path(), RenameFlags::EXCHANGE);
    exchange().with_context(|| named.clone())?;
    if std::fs::symlink_metadata(path)?.ino() != new.inode {
        exchange().with_context(|| named.clone())?;
        return kept(&format!("{named}, which others move at the same time; run this again"));
    }
    spot.sync()?;
    messages::note(&format!("{named} is again what another program had {did} there"));
    removed(path)
}

fn removed(path: &Path) -> Result<Tidied> {
    std::fs::remove_file(path)?;
    Ok(Tidied::Done)
}

/// The file that a name says was made, wherever it is by now.
fn find_made(dir: &Path, device: u64, new: Made) -> Result<Option<(PathBuf, File)>> {
    let dir = std::fs::canonicalize(dir).with_context(|| shown(dir))?;
    let Some(path) = find_inode(&dir, (device, new.inode))? else { return Ok(None) };
    let file = open(&path)?;
    Ok(new.is(&file)?.then_some((path, file)))
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
