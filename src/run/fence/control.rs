//! The control sockets of servers outside: CMD, which may be of the same user, finds them, and does
//! not remove or replace them. Its own servers have a directory of their own inside.

use std::path::PathBuf;

use tollgate_control::{Directory, Nested};

use super::kept::Kept;

/// The directory of sockets, and the one in it that is CMD's, which goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    outer: PathBuf,
    own: Nested,
}

impl Control {
    /// Makes CMD's directory. `None` where it cannot be had: then the server's own socket cannot be
    /// made either, which is said at that time.
    pub(crate) fn new(directory: &Directory) -> Option<Self> {
        let own = directory.nested().ok()?;
        // Mounts are put where no symbolic link leads elsewhere.
        let outer = std::fs::canonicalize(directory.path()).ok()?;
        (outer == directory.path()).then_some(Self { outer, own })
    }

    /// What is to be attached: the outer one read-only, CMD's writable.
    pub(super) fn kept(&self) -> anyhow::Result<[Kept; 2]> {
        Ok([Kept::read_only_copy(&self.outer)?, Kept::copy(self.own.path())?])
    }
}

/// The same where there is no fence.
///
/// # Errors
/// The mounts cannot be made.
pub(crate) fn protect(control: &Control) -> anyhow::Result<()> {
    control.kept()?.iter().try_for_each(Kept::attach)
}
