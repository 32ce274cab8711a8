//! Removing a directory with whatever programs left in it: also directories without permissions, and
//! more levels of them than there are descriptors.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

/// Removes the directory `path` with everything in it. No symbolic link is followed, and no other
/// directory than those below `path` is changed, also if somebody moves them meanwhile.
///
/// One directory is open at a time; the way back is `..`, which has to lead to where it was entered.
///
/// # Errors
/// Something cannot be removed; the rest of it may be left as well.
pub(crate) fn remove_all(path: &Path) -> io::Result<()> {
    let mut current = enter(CWD, path)?;
    // The names of the directories entered, and what each of them lies in.
    let mut entered: Vec<(CString, (u64, u64))> = Vec::new();
    loop {
        if let Some(name) = clear(&current)? {
            let outer = identity(&current)?;
            current = enter(&current, &name)?;
            entered.push((name, outer));
        } else if let Some((name, outer)) = entered.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            current = rustix::fs::openat(&current, c"..", flags, Mode::empty())?;
            if identity(&current)? != outer {
                return Err(io::Error::other("a directory was moved while it was removed"));
            }
            rustix::fs::unlinkat(&current, &name, AtFlags::REMOVEDIR)?;
        } else {
            return Ok(rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR)?);
        }
    }
}

/// Opens a directory, and gives its owner all rights in it before that.
fn enter(directory: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    // What takes a descriptor without a file opened takes this path.
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::fs::chmodat(CWD, &path, Mode::RWXU, AtFlags::empty())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&place, c".", flags, Mode::empty())?)
}

/// Removes what is in `directory`, up to the first directory that is not empty, which is answered.
fn clear(directory: &OwnedFd) -> io::Result<Option<CString>> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        // The entry's type may be unknown.
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Some(name.to_owned())),
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn identity(directory: &OwnedFd) -> io::Result<(u64, u64)> {
    let found = rustix::fs::fstat(directory)?;
    Ok((found.st_dev, found.st_ino))
}
