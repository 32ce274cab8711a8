//! Waiting for a process, with signals that are meant for it.

use anyhow::Context;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, WaitOptions};

use super::ended::{CommandEnd, end};
use super::job::{self, Command, Job};
use crate::sys::SignalFd;

/// Waits until CMD `child`, this process's child, has ended, and passes on the signals that processes
/// send to this one. Those of the terminal reach the child without that. When CMD stops, so does
/// this process.
///
/// # Errors
/// The errors of poll(2) and waitpid(2).
pub(super) fn for_command(
    child: &Command,
    signals: &SignalFd,
    job: &mut Job,
) -> anyhow::Result<CommandEnd> {
    until_ended(child, signals, Some(job), "CMD")
}

/// The same for the server of a session, which stops this process when CMD does, or asks it by SIGTSTP
/// to stop with its whole group, and has to learn that this one goes on.
///
/// # Errors
/// The errors of poll(2) and waitpid(2).
pub(super) fn for_server(server: &Command, signals: &SignalFd) -> anyhow::Result<CommandEnd> {
    until_ended(server, signals, None, "the server")
}

fn until_ended(
    child: &Command,
    signals: &SignalFd,
    mut job: Option<&mut Job>,
    what: &str,
) -> anyhow::Result<CommandEnd> {
    loop {
        let mut ready =
            [PollFd::new(&child.open, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        let patience = job.as_ref().and_then(|job| job.patience());
        match rustix::event::poll(&mut ready, patience.as_ref()) {
            Err(Errno::INTR) => continue,
            other => other.with_context(|| format!("cannot wait for {what}"))?,
        };
        let [ended, signal] = ready.map(|fd| !fd.revents().is_empty());
        if ended {
            let waited = rustix::process::waitpid(Some(child.process), WaitOptions::empty())
                .with_context(|| format!("cannot wait for {what}"))?;
            let (_, status) = waited.with_context(|| format!("{what} is somebody else's"))?;
            return Ok(end(status.as_raw()));
        }
        if signal {
            let arrived = signals.read().context("cannot read a signal")?;
            match (arrived.signal, &mut job) {
                (libc::SIGCHLD, Some(job)) => follow(child, job),
                (libc::SIGCONT, Some(job)) => job.go_on(child),
                (libc::SIGCONT, None) => child.go_on(),
                (libc::SIGTSTP, None) if arrived.sender == number(child) => {
                    job::stop_group(libc::SIGTSTP);
                    child.go_on();
                }
                _ => child.pass_on(&arrived),
            }
        } else if let Some(job) = &mut job {
            job.go_on_in_time(child);
        }
    }
}

fn number(child: &Command) -> i32 {
    child.process.as_raw_nonzero().get()
}

/// Stops with `child`, if that is what happened to it, or learns that it goes on.
fn follow(child: &Command, job: &mut Job) {
    let id = WaitId::Pid(child.process);
    let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
    // An error: it has ended. Whoever reads its descriptor learns that.
    let Some(status) = rustix::process::waitid(id, options).ok().flatten() else { return };
    match status.stopping_signal() {
        Some(signal) => job.stop(child, signal),
        None => job.continued(),
    }
}
