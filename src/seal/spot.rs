//! A file by its directory, however the path to that changes meanwhile.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A name in a directory. Who moves the directory, or puts a symbolic link in its place, after it was
/// found does not lead anybody elsewhere.
pub(super) struct Spot {
    dir: File,
    name: OsString,
}

impl Spot {
    /// The file at `real`, an absolute path without links.
    ///
    /// # Errors
    /// Those of open(2) for its directory; `NotFound` also where a link, or a file, has come in the place of
    /// a directory on the way.
    pub(super) fn of(real: &Path) -> io::Result<Spot> {
        let name = real.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let dir = directory(real.parent().unwrap_or(Path::new("/")))?;
        Ok(Spot { dir, name: name.to_owned() })
    }

    /// A path to the file, as long as this is there.
    pub(super) fn path(&self) -> PathBuf {
        self.directory().join(&self.name)
    }

    /// A path to its directory, as long as this is there.
    pub(super) fn directory(&self) -> PathBuf {
        path_of(&self.dir)
    }

    /// # Errors
    /// That of fsync(2).
    pub(super) fn sync(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    /// Which directory it is: device and inode.
    ///
    /// # Errors
    /// That of fstat(2).
    pub(super) fn directory_key(&self) -> io::Result<(u64, u64)> {
        key_of(&self.dir)
    }

    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }
}

/// Device and inode.
///
/// # Errors
/// That of fstat(2).
pub(super) fn key_of(file: &File) -> io::Result<(u64, u64)> {
    let found = file.metadata()?;
    Ok((found.dev(), found.ino()))
}

/// A path that leads to the very file or directory, as long as it is open.
pub(super) fn path_of(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Opens a directory through no symbolic link.
///
/// # Errors
/// As [`Spot::of`].
pub(super) fn directory(real: &Path) -> io::Result<File> {
    let beneath = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut dir: Option<OwnedFd> = None;
    // One after the other: of a whole path the kernel follows all links but the last.
    for component in real.components() {
        let opened = match (&dir, component) {
            (None, Component::RootDir) => {
                rustix::fs::open("/", beneath | OFlags::PATH, Mode::empty())
            }
            (Some(dir), Component::Normal(name)) => {
                rustix::fs::openat(dir, name, beneath | OFlags::PATH, Mode::empty())
            }
            _ => Err(Errno::INVAL),
        };
        dir = Some(opened.map_err(not_there)?);
    }
    let dir = dir.ok_or(io::ErrorKind::InvalidInput)?;
    let opened = rustix::fs::openat(&dir, ".", beneath | OFlags::RDONLY, Mode::empty());
    Ok(File::from(opened.map_err(not_there)?))
}

fn not_there(errno: Errno) -> io::Error {
    match errno {
        Errno::LOOP | Errno::NOTDIR => io::ErrorKind::NotFound.into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_stays_the_one_that_was_found() {
        let base = tempfile::tempdir().expect("a directory");
        let base = base.path().canonicalize().expect("a path");
        for dir in ["a", "outside"] {
            std::fs::create_dir(base.join(dir)).expect("a directory");
            std::fs::write(base.join(dir).join("f"), dir).expect("a file");
        }
        let spot = Spot::of(&base.join("a/f")).expect("it is there");
        std::fs::rename(base.join("a"), base.join("b")).expect("renamed");
        std::os::unix::fs::symlink("outside", base.join("a")).expect("a link");
        assert_eq!(std::fs::read_to_string(base.join("a/f")).expect("a file"), "outside");
        assert_eq!(std::fs::read_to_string(spot.path()).expect("a file"), "a");
        let through_link = Spot::of(&base.join("a/f")).err().expect("through a link");
        assert_eq!(through_link.kind(), io::ErrorKind::NotFound);
    }
}
