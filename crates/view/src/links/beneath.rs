//! Paths of several components, resolved by the kernel in one call. It is told to stay beneath the
//! directory and to follow no symbolic link, so that it leads where a walk by single names would.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::lower::{self, Stat};

/// Longest piece of a path that is given to the kernel at once (`PATH_MAX` counts the NUL).
const MAX_PIECE: usize = 4095;
/// How often a call is repeated that a rename elsewhere made uncertain (`EAGAIN`).
const MAX_RETRIES: usize = 64;

/// Whether mounts below the directory are entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mounts {
    Enter,
    /// `EXDEV` at the first.
    Refuse,
}

/// Attributes of what `path` leads to beneath `dir`; the last component may be a symbolic link.
pub(super) fn stat(dir: BorrowedFd<'_>, path: &[u8]) -> Result<Stat, Errno> {
    let fd = open(dir, path, OFlags::PATH, Mounts::Enter)?;
    lower::stat_fd(fd.as_fd())
}

/// A descriptor that names the directory `path` beneath `dir`; `dir` itself if `path` is empty.
pub(super) fn directory(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return lower::open_path(dir, c".");
    }
    open(dir, path, OFlags::PATH | OFlags::DIRECTORY, Mounts::Enter)
}

/// Opens the directory `path` beneath `dir` for listing; `dir` itself if `path` is empty.
pub(super) fn open_dir(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return lower::open_dir(dir, c".");
    }
    // O_DIRECTORY: neither a FIFO nor a device is opened, whatever takes the name.
    open(dir, path, OFlags::RDONLY | OFlags::DIRECTORY, Mounts::Refuse)
}

fn open(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags, mounts: Mounts) -> Result<OwnedFd, Errno> {
    let (mut above, mut rest) = (None::<OwnedFd>, path);
    loop {
        let here = above.as_ref().map_or(dir, AsFd::as_fd);
        let piece = first_piece(rest)?;
        if piece.len() == rest.len() {
            return resolve(here, piece, flags, mounts);
        }
        let next = resolve(here, piece, OFlags::PATH | OFlags::DIRECTORY, mounts)?;
        rest = &rest[piece.len() + 1..];
        above = Some(next);
    }
}

/// As many whole components as fit one call.
fn first_piece(path: &[u8]) -> Result<&[u8], Errno> {
    if path.len() <= MAX_PIECE {
        return Ok(path);
    }
    let end = path[..=MAX_PIECE].iter().rposition(|byte| *byte == b'/');
    end.map(|end| &path[..end]).ok_or(Errno::NAMETOOLONG)
}

fn resolve(
    dir: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    let mut how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if mounts == Mounts::Refuse {
        how |= ResolveFlags::NO_XDEV;
    }
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..MAX_RETRIES {
        match rustix::fs::openat2(dir, path, flags, Mode::empty(), how) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_beneath_or_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/f"), "x").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        assert_eq!(stat(fd.as_fd(), b"a/b/f").unwrap().size(), 1);
        assert!(stat(fd.as_fd(), b"link").is_ok());
        for path in [&b"link/b/f"[..], b"a/../a/b/../../../x", b"/etc", b"a/missing"] {
            assert!(stat(fd.as_fd(), path).is_err(), "{}", path.escape_ascii());
        }
        assert!(open_dir(fd.as_fd(), b"a/b").is_ok() && open_dir(fd.as_fd(), b"").is_ok());
        assert!(open_dir(fd.as_fd(), b"a/b/f").is_err());
    }

    #[test]
    fn long_paths_are_taken_in_pieces() {
        let path = vec![&b"abc"[..]; 3000].join(&b'/');
        let piece = first_piece(&path).unwrap();
        assert!(piece.len() <= MAX_PIECE && piece.len() > MAX_PIECE - 8);
        assert_eq!(path[piece.len()], b'/');
        assert_eq!(first_piece(&[b'x'; 5000]).unwrap_err(), Errno::NAMETOOLONG);
    }
}
