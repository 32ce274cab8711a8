//! Which mount is at a path: a path alone may lead to somebody else's by now.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};

use super::table;

/// `STATX_MNT_ID_UNIQUE`: an id that no other mount gets, ever (Linux 6.8).
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Names one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MountId {
    /// As in the kernel's table. Another mount may get it once this one is gone.
    listed: u64,
    unique: Option<u64>,
}

impl MountId {
    /// The topmost mount at `path`. Nothing is asked of its server.
    pub(super) fn at(path: &Path) -> Option<Self> {
        let listed = ask(path, StatxFlags::MNT_ID)?;
        Some(Self { listed, unique: ask(path, UNIQUE) })
    }

    /// The mount that `root`, its root, is on, attached or not.
    pub(super) fn of(root: BorrowedFd<'_>) -> Option<Self> {
        let flags = AtFlags::EMPTY_PATH;
        let listed = ask_at(root, Path::new(""), flags, StatxFlags::MNT_ID)?;
        Some(Self { listed, unique: ask_at(root, Path::new(""), flags, UNIQUE) })
    }

    /// Whether this mount, a FUSE file system, is the topmost one at `path`.
    pub(super) fn is_at(self, path: &Path) -> bool {
        Self::at(path) == Some(self) && (self.unique.is_some() || table::is_fuse(path))
    }

    /// Where this mount, a FUSE file system, is by now: somebody may have renamed a directory above it,
    /// or moved it.
    pub(super) fn place(self) -> Option<PathBuf> {
        table::fuse_point(self.listed)
    }
}

fn ask(path: &Path, what: StatxFlags) -> Option<u64> {
    ask_at(CWD, path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, what)
}

fn ask_at(dir: BorrowedFd<'_>, path: &Path, flags: AtFlags, what: StatxFlags) -> Option<u64> {
    let found: Statx = rustix::fs::statx(dir, path, flags | AtFlags::STATX_DONT_SYNC, what).ok()?;
    (found.stx_mask & what.bits() != 0).then_some(found.stx_mnt_id)
}
