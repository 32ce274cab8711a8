//! What the processes of `run` have in common.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use rustix::process::Signal;

use super::environment::Environment;
use super::fence::{Control, Fence};
use super::limits;
use super::network::Network;
use super::user::User;
use crate::tree::Tree;

/// Signals that are passed on to CMD when a process sent them. The terminal sends its own to CMD,
/// too.
pub(super) const FORWARDED: &[libc::c_int] = &[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
];

/// What the processes need to know.
#[derive(Debug)]
pub(super) struct Plan {
    /// The tree to cover. Its path has no symbolic links.
    pub(super) tree: Tree,
    /// Where CMD starts.
    pub(super) cwd: PathBuf,
    pub(super) command: Vec<OsString>,
    /// Paths, relative to DIR, of the directories to mount natively.
    pub(super) native: Vec<PathBuf>,
    /// Where CMD's servers put their control sockets.
    pub(super) control: Option<Control>,
    /// `None`: CMD writes wherever its user may.
    pub(super) fence: Option<Fence>,
    pub(super) environment: Environment,
    pub(super) network: Network,
    pub(super) limits: limits::Kept,
    /// Nothing of the fence may be missing.
    pub(super) whole_fence: bool,
    /// Who CMD runs as, where that is somebody else.
    pub(super) user: Option<User>,
}

pub(super) fn die_with_parent() -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask to end with the server")
}
