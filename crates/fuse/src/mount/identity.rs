//! Which mount is at a path: a path alone may lead to somebody else's by now.

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
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found: Statx = rustix::fs::statx(CWD, path, flags, what).ok()?;
    (found.stx_mask & what.bits() != 0).then_some(found.stx_mnt_id)
}
