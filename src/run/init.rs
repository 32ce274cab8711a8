//! Init: the first process of CMD's pid namespace. It locks the mounts, starts CMD and collects
//! the processes that CMD leaves behind.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::process::{DumpableBehavior, Pid, WaitOptions};

use super::guard;
use super::plan::{FORWARDED, Plan, Privilege, die_with_parent};
use super::wire::{Channel, Message};
use crate::sys::{self, Forked};
use crate::{messages, mountinfo};

/// Runs in the first process of the new pid namespace, and never returns.
pub(super) fn run(plan: &Plan, channel: &Channel, privilege: Privilege, builder: UnixStream) -> ! {
    if let Err(error) = prepare(plan, channel, privilege, builder) {
        let _ = channel.send(&Message::Failed(messages::in_words(&error)), None);
        sys::exit_now(1);
    }
    sys::exit_now(0)
}

fn prepare(
    plan: &Plan,
    channel: &Channel,
    privilege: Privilege,
    mut builder: UnixStream,
) -> anyhow::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match rustix::mount::mount("proc", "/proc", "proc", flags, None) {
        // A container that hides parts of /proc (as `run` itself does) does not let it be mounted
        // again.
        Err(Errno::PERM) => channel.send(
            &Message::Warning(
                "/proc cannot be mounted here; CMD sees the outer process list".into(),
            ),
            None,
        )?,
        other => other.context("cannot mount /proc")?,
    }
    if privilege == Privilege::Mounter {
        guard::freeze_kernel_settings(&mountinfo::read()?)?;
        guard::cover_disks()?;
    }
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).context(
        "cannot lock the view: no second user namespace (sysctl user.max_user_namespaces)",
    )?;
    builder.write_all(b"u").context("the builder is gone")?;
    if builder.read_exact(&mut [0]).is_err() {
        sys::exit_now(1);
    }
    drop(builder);
    die_with_parent()?;
    channel.send(&Message::Ready, None)?;
    match channel.receive()? {
        Some(received) if received.message == Message::Go => run_command(plan, channel),
        Some(received) => bail!("unexpected {:?}", received.message),
        None => Ok(()),
    }
}

fn run_command(plan: &Plan, channel: &Channel) -> anyhow::Result<()> {
    rustix::process::chdir(&plan.cwd).with_context(|| {
        format!("the working directory `{}` cannot be entered through the view", plan.cwd.display())
    })?;
    // CMD must not trace init, whose user it is.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("cannot become untraceable")?;
    match sys::fork().context("cannot fork")? {
        Forked::Child => become_command(plan, channel),
        Forked::Parent(command) => {
            let status = reap_until(command)?;
            channel.send(&Message::Ended(status), None)
        }
    }
}

fn become_command(plan: &Plan, channel: &Channel) -> ! {
    let error = match prepare_command(channel) {
        // Sets the default action for SIGPIPE and looks `PATH` through.
        Ok(()) => std::process::Command::new(&plan.command[0]).args(&plan.command[1..]).exec(),
        Err(error) => {
            let _ = channel.send(&Message::Failed(messages::in_words(&error)), None);
            sys::exit_now(125);
        }
    };
    let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
    let _ = channel.send(&Message::NotExecuted(errno), None);
    sys::exit_now(if errno == libc::ENOENT { 127 } else { 126 })
}

fn prepare_command(channel: &Channel) -> anyhow::Result<()> {
    guard::install_filter().context("cannot install the system call filter")?;
    sys::unblock_signals(FORWARDED).context("cannot unblock signals")?;
    channel.send(&Message::Starting, None)
}

/// Collects children, our own and orphans, until `command` ended; its raw wait status.
fn reap_until(command: Pid) -> anyhow::Result<i32> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => return Ok(status.as_raw()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for CMD"),
        }
    }
}
