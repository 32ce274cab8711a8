//! A lower file on its way to be opened.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tollgate_fuse::Caller;

use crate::creds::Powers;
use crate::table::Node;

/// A lower file that is to be opened as [`Content`](crate::content::Content).
pub(crate) struct ToOpen<'a> {
    /// Open for reading; for reading and writing if it is to be written.
    pub(crate) fd: Arc<OwnedFd>,
    /// Handles of one inode that need state in common find it by this.
    pub(crate) node: &'a Arc<Node>,
    /// It was made by this request: it has no bytes, and needs what a file of its kind has.
    pub(crate) is_new: bool,
    pub(crate) writes: bool,
    /// It is cut to nothing right after: what it has need not be readable.
    pub(crate) begins_anew: bool,
    /// Where it is in the view, for the audit log.
    pub(crate) path: Vec<u8>,
    /// Who asked, and how to act for that user: what a new file needs must find room as its bytes do.
    pub(crate) asked: (&'a Powers, Caller),
}
