//! Signals between `run` and what it starts.

use anyhow::Context;
use rustix::process::Signal;

use crate::sys::Arrived;

/// Signals that are passed on to CMD when a process sent them. The terminal sends its own to CMD,
/// too, but for the one that says that it is gone.
const FORWARDED: &[libc::c_int] = &[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
];

/// Signals that stop a job, unless it does something else on them, and the one that has it go on.
const OF_JOBS: &[libc::c_int] = &[libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGCONT];

/// What is blocked and read while there is CMD: these, and that a child stopped or ended.
pub(super) fn read() -> Vec<libc::c_int> {
    [FORWARDED, OF_JOBS, &[libc::SIGCHLD]].concat()
}

/// Whether CMD is sent the signal too: a process sent it, and not this one, to its process group; or a timer
/// that was set before this program was executed (`alarm` of a script); or the terminal is gone, which the
/// kernel tells the leader of the session alone.
pub(super) fn is_for_command(arrived: &Arrived) -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let is_passed = FORWARDED.contains(&arrived.signal) || stops(arrived.signal);
    let is_sent = arrived.by_process || arrived.signal == libc::SIGALRM || arrived.terminal_is_gone;
    is_passed && is_sent && arrived.sender != own
}

/// Whether a terminal, or who acts for it, stops a job by `signal`.
pub(super) fn stops(signal: libc::c_int) -> bool {
    OF_JOBS.contains(&signal) && signal != libc::SIGCONT
}

/// The calling process ends when its parent does.
pub(super) fn die_with_parent() -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask to end with the server")
}
