//! Starting CMD: what its process does to itself before it becomes CMD.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, ensure};

use super::environment::Environment;
use super::limits::Limits;
use super::user::User;
use super::wire::{Channel, Message};
use super::{fence, filter, network, signals};
use crate::control::FOR_GUEST;
use crate::{inherited, messages, sys};

/// Tells CMD, and what it starts, that it is in a view, and of which directory.
pub(super) const IN_RUN: &str = "TOLLGATE_RUN";

/// What CMD is, and what is kept from it.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) command: Vec<OsString>,
    /// The directory of the view.
    pub(super) dir: PathBuf,
    /// Where CMD starts.
    pub(super) cwd: PathBuf,
    pub(super) environment: Environment,
    /// Who CMD runs as, where that is somebody else.
    pub(super) user: Option<User>,
    /// The sockets at which the servers answer that user.
    pub(super) control: Option<OsString>,
    /// Whether there is a fence around it.
    pub(super) fenced: bool,
    /// Nothing of the fence may be missing.
    pub(super) whole_fence: bool,
    /// Whether it has a network of its own.
    pub(super) own_network: bool,
    /// For each process.
    pub(super) limits: Limits,
    /// Whether it ends with the process that started it. Init's ends with init.
    pub(super) ends_with_parent: bool,
}

impl Start {
    /// The user who CMD runs as.
    pub(super) fn uid(&self) -> u32 {
        self.user.as_ref().map_or_else(|| rustix::process::getuid().as_raw(), |user| user.uid)
    }

    /// Becomes CMD, in the child of a fork.
    pub(super) fn become_command(&self, channel: &Channel) -> ! {
        let error = match self.prepare(channel) {
            // Looks `PATH` through.
            Ok(()) => inherited::exec(self.program()),
            Err(error) => {
                let _ = channel.send(&Message::Failed(messages::in_words(&error)), None);
                sys::exit_now(125);
            }
        };
        let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
        let _ = channel.send(&Message::NotExecuted(errno), None);
        sys::exit_now(if errno == libc::ENOENT { 127 } else { 126 })
    }

    fn program(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.command[0]);
        command.args(&self.command[1..]).env(IN_RUN, &self.dir);
        // Another name of the same directory stays as the user had it.
        let named = std::env::var_os("PWD").and_then(|path| std::fs::canonicalize(path).ok());
        if named.as_ref() != Some(&self.cwd) {
            command.env("PWD", &self.cwd);
        }
        if let Some(user) = &self.user {
            command.envs(user.environment());
        }
        if let Some(sockets) = &self.control {
            command.env(FOR_GUEST, sockets);
        }
        for name in self.environment.dropped() {
            command.env_remove(name);
        }
        command.envs(self.environment.set.iter().map(|(name, value)| (name, value)));
        command
    }

    fn prepare(&self, channel: &Channel) -> anyhow::Result<()> {
        filter::install().context("cannot install the system call filter")?;
        if self.own_network {
            network::restrict_sockets().context("cannot install the filter of sockets")?;
        }
        if self.fenced && !fence::confine_signals_and_sockets()? {
            let text = "this kernel does not confine signals and abstract sockets (Landlock of \
                        Linux 6.12); CMD can send signals to its own process group outside";
            ensure!(!self.whole_fence, "--require fence: {text}");
            channel.send(&Message::Warning(text.to_owned()), None)?;
        }
        self.limits.apply().context("cannot limit the process")?;
        channel.send(&Message::Starting, None)?;
        self.user.as_ref().map_or(Ok(()), User::become_it)?;
        // After the change of user, which would undo it.
        if self.ends_with_parent { signals::die_with_parent() } else { Ok(()) }
    }
}
