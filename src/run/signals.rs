//! Signals between `run` and what it starts.

use anyhow::Context;
use rustix::process::Signal;

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

/// The calling process ends when its parent does.
pub(super) fn die_with_parent() -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask to end with the server")
}
