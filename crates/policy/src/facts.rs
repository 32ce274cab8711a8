//! What the policy is told about an inode and about a caller.

use crate::words::Kind;

/// An inode under one name.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Relative to DIR, no leading or trailing slash; `b""` is DIR itself. Any bytes.
    pub path: &'a [u8],
    /// Type of the inode.
    pub kind: Kind,
    /// Size in bytes; 0 for a file about to be made.
    pub size: u64,
    /// The first [`crate::HEAD_LEN`] bytes, or all of a shorter file; `None` if they are not known.
    /// Needed only when [`crate::Policy::needs_head`] says so; what is unknown counts against the
    /// caller.
    pub head: Option<&'a [u8]>,
}

impl<'a> Facts<'a> {
    /// What does not depend on the name.
    #[must_use]
    pub fn inode(&self) -> InodeFacts<'a> {
        InodeFacts { kind: self.kind, size: self.size, head: self.head }
    }
}

/// An inode, whatever its names are.
#[derive(Clone, Copy, Debug)]
pub struct InodeFacts<'a> {
    /// Type of the inode.
    pub kind: Kind,
    /// Size in bytes; 0 for a file about to be made.
    pub size: u64,
    /// The first [`crate::HEAD_LEN`] bytes, or all of a shorter file; `None` if they are not known.
    /// Needed only when [`crate::Matched::needs_head`] says so; what is unknown counts against the
    /// caller.
    pub head: Option<&'a [u8]>,
}

impl<'a> InodeFacts<'a> {
    /// The inode under a name.
    #[must_use]
    pub fn at(&self, path: &'a [u8]) -> Facts<'a> {
        Facts { path, kind: self.kind, size: self.size, head: self.head }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct CallerFacts<'a> {
    /// File system user id.
    pub uid: u32,
    /// File system group id (supplementary groups are not seen).
    pub gid: u32,
    /// Absolute path of the executable; `None` if it is not known, which counts against the caller.
    pub exe: Option<&'a [u8]>,
}

/// Which caller facts some rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CallerNeeds {
    /// `uid` or `gid`.
    pub ids: bool,
    /// `exe`.
    pub exe: bool,
}
