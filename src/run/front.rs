//! The process that the terminal sees of the first `run` of a session.
//!
//! The server of a session serves others, too. If it were in the terminal's process group, Ctrl-Z
//! would stop it along with CMD, and all that joined would hang. So a process stays in front, which the
//! server stops when CMD stops, passes signals on and ends as the server does:
//!
//! ```text
//! tollgate (front)     in the terminal's process group
//! └─ tollgate (server) in a group of its own, once CMD's first process exists
//!    └─ builder, init, CMD, as always, in the terminal's group
//! ```

use anyhow::{Context, ensure};
use rustix::process::Pid;

use super::ended::CommandEnd;
use super::job::Command;
use super::signals::{self, die_with_parent};
use super::waiting;
use crate::sys::{self, Forked, SignalFd};

/// Goes on in a child, which is answered `None`; the process itself waits and is answered how that
/// ended.
pub(super) fn server() -> anyhow::Result<Option<CommandEnd>> {
    // Before the fork, so that none is lost between it and the signal descriptor.
    sys::block_signals(&signals::read()).context("cannot block signals")?;
    let own = rustix::process::getpid();
    match sys::fork().context("cannot fork")? {
        Forked::Child => {
            die_with_parent()?;
            let parent = rustix::process::getppid();
            ensure!(parent == Some(own), "the process in front of the server is gone");
            Ok(None)
        }
        Forked::Parent(server) => wait_for(server).map(Some),
    }
}

fn wait_for(server: Pid) -> anyhow::Result<CommandEnd> {
    let signals = SignalFd::new(&signals::read()).context("cannot read signals")?;
    let server = Command::open(server).context("the server cannot be waited for")?;
    waiting::for_server(&server, &signals)
}

/// Takes the server, and the proxy, out of the terminal's group. What they print does not stop them.
pub(super) fn leave_terminal(proxy: Option<Pid>) -> anyhow::Result<()> {
    sys::block_signals(&[libc::SIGTTOU]).context("cannot block signals")?;
    rustix::process::setpgid(None, None).context("cannot leave the process group")?;
    let Some(proxy) = proxy else { return Ok(()) };
    rustix::process::setpgid(Some(proxy), None).context("the proxy cannot leave the process group")
}
