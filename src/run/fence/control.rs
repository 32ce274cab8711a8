//! The control sockets of servers outside: CMD, which may be of the same user, finds them, and does
//! not remove or replace them. Its own servers have a directory of their own inside.

use std::path::{Path, PathBuf};

use tollgate_control::{Directory, Nested};

use super::allow::Allowed;
use super::kept::{Kept, open_path};
use super::layers;

/// The name of a user's directory of sessions. Not the one of control sockets, which CMD sees.
const SESSIONS: &str = "tollgate-sessions";

/// Where this user's sessions listen.
pub(crate) fn session_directory() -> Directory {
    Directory::of_user(SESSIONS)
}

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

/// Empty directories in the place of those with the sockets of sessions, where `--allow` would show
/// them: who is answered there is handed the namespaces of a fence.
pub(super) fn sessions(allowed: &[Allowed]) -> anyhow::Result<Vec<Kept>> {
    let own = session_directory();
    let is_shown = |path: &Path| allowed.iter().any(|allowed| path.starts_with(&allowed.path));
    if own.path().parent().is_some_and(is_shown) {
        // One that is made later would show.
        own.prepare()?;
    }
    let others = std::fs::read_dir("/run/user").into_iter().flatten().flatten();
    let others = others.map(|user| user.path().join(SESSIONS));
    let name = |entry: &std::fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(SESSIONS))
    };
    let temporary = std::fs::read_dir("/tmp").into_iter().flatten().flatten().filter(name);
    let mut all: Vec<PathBuf> = others.chain(temporary.map(|entry| entry.path())).collect();
    all.extend([own.path().to_owned(), Path::new("/run").join(SESSIONS)]);
    all.sort();
    all.dedup();
    all.retain(|path| is_shown(path) && path.is_dir());
    all.iter().map(|path| Kept::read_only(path, layers::memory(&open_path(path)?)?)).collect()
}
