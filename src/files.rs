//! Files that a policy is read from: also by a server that was confined to DIR since, and is to read
//! its policy again.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Most files that are remembered; a policy and what a preset looks at are a few dozen, where few
/// repositories are in DIR.
const MAX: usize = 1024;

/// Files that were asked for so far, there or not.
static ASKED_FOR: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// One that a confined server could not open.
static OUT_OF_REACH: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Another process, which reaches what this one does not any more.
pub(crate) trait Elsewhere: Send + Sync {
    /// Opens a file to read it.
    ///
    /// # Errors
    /// The error of open(2).
    fn open(&self, path: &Path) -> io::Result<File>;
    /// The id of the user of this name.
    fn user(&self, name: &str) -> Option<u32>;
    /// The id of the group of this name.
    fn group(&self, name: &str) -> Option<u32>;
}

static ELSEWHERE: OnceLock<Arc<dyn Elsewhere>> = OnceLock::new();

/// From now on, what this process does not reach is asked for there.
pub(crate) fn ask(elsewhere: Arc<dyn Elsewhere>) {
    // A process is confined once.
    let _ = ELSEWHERE.set(elsewhere);
}

/// Where to ask for what this process may not reach any more, if that is so.
pub(crate) fn elsewhere() -> Option<&'static dyn Elsewhere> {
    ELSEWHERE.get().map(|elsewhere| &**elsewhere)
}

/// Opens a file to read it, without waiting for the writer of a FIFO. It is one that the user has named:
/// where a confined server does not reach it, [`take_out_of_reach`] says so.
///
/// # Errors
/// The error of open(2).
pub(crate) fn open(path: &Path) -> io::Result<File> {
    open_found(path).inspect_err(|error| {
        if elsewhere().is_some() && error.kind() == io::ErrorKind::PermissionDenied {
            *out_of_reach() = Some(path.to_owned());
        }
    })
}

/// The same for a file that what is in DIR names: CMD may have it name any, which must not keep a server
/// from a reload.
fn open_found(path: &Path) -> io::Result<File> {
    let opened =
        File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let Some(elsewhere) = elsewhere() else {
        remember(path);
        return opened;
    };
    match opened {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => elsewhere.open(path),
        opened => opened,
    }
}

/// All of a file that is the user's own.
///
/// # Errors
/// The error of open(2) or read(2).
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// All of a regular file of at most `max` bytes: for one that CMD may have put there, or have named,
/// which could be a link to a device without an end.
///
/// # Errors
/// As [`read`], `InvalidInput` for what is no regular file, and `FileTooLarge`.
pub(crate) fn read_at_most(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    of_at_most(read_head(path, max + 1)?, max)
}

/// The same of one that the user has named.
///
/// # Errors
/// As [`read_at_most`].
pub(crate) fn read_own_at_most(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    of_at_most(head_of(open(path)?, max + 1)?, max)
}

fn of_at_most(bytes: Vec<u8>, max: u64) -> io::Result<Vec<u8>> {
    if bytes.len() as u64 > max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// The first `max` bytes of a file as for [`read_at_most`].
///
/// # Errors
/// As [`read`], and `InvalidInput` for what is no regular file.
pub(crate) fn read_head(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    head_of(open_found(path)?, max)
}

/// Whether who closed an absolute `path`, which may not be looked at or read, can be CMD of a `run` of this user,
/// which can open it later: what is closed, the path itself or a directory above it, is this user's.
pub(crate) fn is_closed_by_own(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let mut found = path.ancestors().map(std::fs::metadata);
    let found = found.find(|found| !found.as_ref().is_err_and(denied));
    found.is_none_or(|found| found.is_ok_and(|found| found.uid() == own))
}

/// Whether an error of [`read_at_most`] or [`read_head`] is about a file that is there, and has something to
/// be read.
pub(crate) fn is_unread(error: &io::Error) -> bool {
    use rustix::io::Errno;
    const UNREAD: [Errno; 6] =
        [Errno::ACCESS, Errno::PERM, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO];
    error.kind() == io::ErrorKind::FileTooLarge
        || Errno::from_io_error(error).is_some_and(|errno| UNREAD.contains(&errno))
}

fn head_of(file: File, max: u64) -> io::Result<Vec<u8>> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes the file `path` with these bytes, on the disk, or does not: one that could be written in part
/// alone is not left behind. `mode` is reduced by the umask.
///
/// # Errors
/// `AlreadyExists`, or what writing it failed with.
pub(crate) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Before a name is taken that somebody may look at.
    if path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // For the error, which names no temporary file then.
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::accessat(rustix::fs::CWD, dir, access, rustix::fs::AtFlags::EACCESS)?;
    let permissions = std::fs::Permissions::from_mode(mode);
    let made = tempfile::Builder::new().permissions(permissions).tempfile_in(dir);
    let mut file = made.map_err(without_path)?;
    file.as_file_mut().write_all(bytes)?;
    file.as_file().sync_all()?;
    let file = file.persist_noclobber(path).map_err(|error| without_path(error.error))?;
    make_names_durable(dir, &file).inspect_err(|_| {
        // Who is told that it failed makes it anew.
        let _ = std::fs::remove_file(path);
    })
}

/// Makes durable which names `dir` has, that of `file` among them.
fn make_names_durable(dir: &Path, file: &File) -> io::Result<()> {
    let dir = match File::open(dir) {
        // Who may write to a directory may not always read it: then with all of the file system.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Ok(rustix::fs::syncfs(file)?);
        }
        opened => opened?,
    };
    match dir.sync_all() {
        // Some file systems have no such call for directories, and keep no names back.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// The error of the system call: the name of the temporary file helps nobody.
fn without_path(error: io::Error) -> io::Error {
    let cause = error.get_ref().and_then(|error| error.source());
    let number = cause.and_then(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
    number.map_or(error, io::Error::from_raw_os_error)
}

/// Where `path` leads to, without links and from any working directory. What is not there, or does not
/// answer, has its name in the directory that it would be in.
pub(crate) fn whole(path: &Path) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (path.parent().and_then(|dir| std::fs::canonicalize(dir).ok()), path.file_name()) {
        (Some(dir), Some(name)) => dir.join(name),
        _ => path,
    }
}

/// The files that were asked for so far.
pub(crate) fn asked_for() -> Vec<PathBuf> {
    ASKED_FOR.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A file that could not be opened since this was asked last, because this server is confined.
pub(crate) fn take_out_of_reach() -> Option<PathBuf> {
    out_of_reach().take()
}

fn out_of_reach() -> std::sync::MutexGuard<'static, Option<PathBuf>> {
    OUT_OF_REACH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From any working directory: a daemon leaves its own.
fn remember(path: &Path) {
    let Ok(path) = std::path::absolute(path) else { return };
    let mut files = ASKED_FOR.lock().unwrap_or_else(PoisonError::into_inner);
    if files.len() < MAX && !files.contains(&path) {
        files.push(path);
    }
}
