//! What the policy is told about an inode and about a caller.

use crate::words::Kind;

/// How many bytes from the start of a file a content condition sees.
pub const HEAD_LEN: usize = 4096;

/// An inode under one name.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Relative to DIR, no leading or trailing slash; `b""` is DIR itself. Any bytes.
    pub path: &'a [u8],
    /// Type of the inode.
    pub kind: Kind,
    /// Size in bytes; 0 for a file about to be made.
    pub size: u64,
    /// The first [`HEAD_LEN`] bytes, or all of a shorter file; `None` if they are not known. Needed only
    /// when [`crate::Policy::needs_head`] says so; what is unknown counts against the caller.
    pub head: Option<&'a [u8]>,
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
