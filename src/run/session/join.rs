//! The second `run` of a session: it enters the namespaces of the first, starts CMD there and waits
//! for it.
//!
//! ```text
//! tollgate (joins)     outside; passes signals on, waits for CMD
//! └─ middle            enters the namespaces, makes CMD a child of its own parent, ends
//!    CMD               in the process namespace of the session, which ends it, too
//! ```

use anyhow::{Context, bail};
use rustix::process::{DumpableBehavior, WaitOptions};

use super::namespaces::Namespaces;
use crate::messages;
use crate::run::ended::{CommandEnd, not_executed};
use crate::run::job::{Command, Job};
use crate::run::signals;
use crate::run::start::Start;
use crate::run::waiting;
use crate::run::wire::{Channel, Message};
use crate::sys::{self, Forked, SignalFd};

/// Starts CMD in the namespaces and waits until it ends.
///
/// # Errors
/// When the namespaces cannot be entered, or CMD cannot be started.
pub(crate) fn join(
    start: &Start,
    namespaces: &Namespaces,
    cgroups: &[std::path::PathBuf],
) -> anyhow::Result<CommandEnd> {
    sys::block_signals(&signals::read()).context("cannot block signals")?;
    let mut job = Job::of_this_process(None);
    let signals = SignalFd::new(&signals::read()).context("cannot read signals")?;
    let (channel, child_channel) = Channel::pair()?;
    match sys::fork().context("cannot fork")? {
        Forked::Child => {
            if let Err(error) = enter(start, namespaces, cgroups, &child_channel) {
                let _ = child_channel.send(&Message::Failed(messages::in_words(&error)), None);
                sys::exit_now(1);
            }
            sys::exit_now(0)
        }
        Forked::Parent(middle) => {
            drop(child_channel);
            let result = until_started(start, &channel);
            let _ = rustix::process::waitpid(Some(middle), WaitOptions::empty());
            let result = result
                .and_then(|command| until_ended(&command, &channel, start, &signals, &mut job));
            job.end();
            result
        }
    }
}

fn enter(
    start: &Start,
    namespaces: &Namespaces,
    cgroups: &[std::path::PathBuf],
    channel: &Channel,
) -> anyhow::Result<()> {
    for cgroup in cgroups {
        std::fs::write(cgroup.join("cgroup.procs"), "0")
            .with_context(|| format!("cannot enter the cgroup `{}`", cgroup.display()))?;
    }
    // Processes of the session must not trace this one, which will be among them.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("cannot become untraceable")?;
    namespaces.enter()?;
    match sys::fork_sibling().context("cannot fork")? {
        Forked::Child => {
            let ready = sys::close_all_but(channel)
                .context("cannot close inherited descriptors")
                .and_then(|()| rustix::process::chdir(&start.cwd).context("cannot enter it"))
                .with_context(|| format!("the working directory `{}`", start.cwd.display()));
            if let Err(error) = ready {
                let _ = channel.send(&Message::Failed(messages::in_words(&error)), None);
                sys::exit_now(1);
            }
            start.become_command(channel)
        }
        Forked::Parent(_) => Ok(()),
    }
}

/// CMD, once it exists.
fn until_started(start: &Start, channel: &Channel) -> anyhow::Result<Command> {
    loop {
        let received = channel.receive()?.context("the session ended")?;
        match received.message {
            Message::Starting => {
                let command = received.sender.context("CMD has no process id here")?;
                return Command::open(command).context("CMD cannot be waited for");
            }
            other => deal_with(other, start)?,
        }
    }
}

fn deal_with(message: Message, start: &Start) -> anyhow::Result<()> {
    match message {
        Message::NotExecuted(errno) => Err(not_executed(&start.command[0], errno)),
        Message::Failed(text) => bail!("{text}"),
        Message::Warning(text) => {
            messages::warn(&text);
            Ok(())
        }
        other => bail!("CMD's process sent {other:?} out of turn"),
    }
}

fn until_ended(
    command: &Command,
    channel: &Channel,
    start: &Start,
    signals: &SignalFd,
    job: &mut Job,
) -> anyhow::Result<CommandEnd> {
    // It is closed by exec, or carries why there was none.
    while let Some(received) = channel.receive()? {
        if let Err(error) = deal_with(received.message, start) {
            let _ = rustix::process::waitpid(Some(command.process), WaitOptions::empty());
            return Err(error);
        }
    }
    waiting::for_command(command, signals, job)
}
