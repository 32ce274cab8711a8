//! Waiting for a process, with signals that are meant for it.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

use super::ended::{CommandEnd, end};
use crate::sys::SignalFd;

/// Waits until `child`, which `pidfd` refers to, has ended, and passes on the signals that processes
/// send to this one. Those of the terminal reach the child without that. `what` names it in errors.
///
/// # Errors
/// The errors of poll(2) and waitpid(2).
pub(super) fn until_ended(
    child: Pid,
    pidfd: BorrowedFd<'_>,
    signals: &SignalFd,
    what: &str,
) -> anyhow::Result<CommandEnd> {
    loop {
        let mut ready = [PollFd::new(&pidfd, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        match rustix::event::poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            other => other.with_context(|| format!("cannot wait for {what}"))?,
        };
        let [ended, signal] = ready.map(|fd| !fd.revents().is_empty());
        if ended {
            let waited = rustix::process::waitpid(Some(child), WaitOptions::empty())
                .with_context(|| format!("cannot wait for {what}"))?;
            let (_, status) = waited.with_context(|| format!("{what} is somebody else's"))?;
            return Ok(end(status.as_raw()));
        }
        if signal {
            pass_on(signals, pidfd.as_fd())?;
        }
    }
}

/// Reads a signal, and passes it on if a process sent it.
///
/// # Errors
/// When it cannot be read.
fn pass_on(signals: &SignalFd, to: BorrowedFd<'_>) -> anyhow::Result<()> {
    let arrived = signals.read().context("cannot read a signal")?;
    if arrived.by_process
        && let Some(signal) = Signal::from_named_raw(arrived.signal)
    {
        // It may have ended by now.
        let _ = rustix::process::pidfd_send_signal(to, signal);
    }
    Ok(())
}
