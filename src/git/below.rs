//! Repositories below a directory, as far as a short look finds them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags};

/// Most directories that are read.
const MAX_DIRECTORIES: usize = 2048;
/// Most names that are looked at.
const MAX_NAMES: usize = 1 << 16;
/// Directories with what tools fetched and built, many of which have repositories.
const PASSED: [&[u8]; 2] = [b"node_modules", b"target"];

/// Paths relative to `dir` of directories in it, not of itself, that have a `.git`; the nearest to
/// it first. Follows no symbolic link and enters no mount.
pub(super) fn repositories(dir: &Path) -> Vec<PathBuf> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(top) = rustix::fs::openat(CWD, dir, flags, Mode::empty()) else { return Vec::new() };
    let (mut pending, mut found) = (VecDeque::from([PathBuf::new()]), Vec::new());
    let (mut directories, mut names) = (0, 0);
    while let Some(path) = pending.pop_front() {
        directories += 1;
        if directories > MAX_DIRECTORIES || names > MAX_NAMES {
            break;
        }
        for (name, kind) in entries(&top, &path) {
            names += 1;
            if name == b".git" {
                if path != Path::new("") {
                    found.push(path.clone());
                }
            } else if kind == FileType::Directory && !PASSED.contains(&name.as_slice()) {
                pending.push_back(path.join(std::ffi::OsStr::from_bytes(&name)));
            }
        }
    }
    found
}

/// The names in a directory beneath `top`; none of one that cannot be read.
fn entries(top: &OwnedFd, path: &Path) -> Vec<(Vec<u8>, FileType)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let path = if path == Path::new("") { Path::new(".") } else { path };
    let opened = rustix::fs::openat2(top.as_fd(), path, flags, Mode::empty(), beneath);
    let Ok(directory) = opened.and_then(Dir::new) else { return Vec::new() };
    directory
        .flatten()
        .map(|entry| (entry.file_name().to_bytes().to_vec(), entry.file_type()))
        .filter(|(name, _)| !matches!(name.as_slice(), b"." | b".."))
        .take(MAX_NAMES)
        .collect()
}
