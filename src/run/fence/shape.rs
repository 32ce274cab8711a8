//! What a fence is to look like.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::allow::Allowed;

/// What the fence of one `run` is to look like.
#[derive(Debug)]
pub(crate) struct Fence {
    /// What the user named.
    pub(crate) allowed: Vec<Allowed>,
    /// Further directories that views show, without symbolic links.
    pub(crate) further: Vec<PathBuf>,
    /// The home directory of CMD's user, without symbolic links.
    pub(crate) home: Option<PathBuf>,
    /// Further ones of this user, or of who called `run`.
    pub(crate) further_homes: Vec<PathBuf>,
    /// The user who CMD runs as.
    pub(crate) uid: u32,
    /// CMD as it was named.
    pub(crate) command: Option<OsString>,
    /// The files of CMD and of this program, which CMD may start inside.
    pub(crate) programs: Vec<PathBuf>,
}

impl Fence {
    /// Whether a view other than that of DIR shows `path`.
    pub(crate) fn is_in_a_view(&self, path: &Path) -> bool {
        self.further.iter().any(|view| path.starts_with(view))
    }
}
