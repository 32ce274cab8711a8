//! Init: the first process of CMD's pid namespace. It locks the mounts, starts CMD and collects
//! the processes that CMD leaves behind.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, bail, ensure};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::process::{DumpableBehavior, Pid, WaitOptions};

use super::fence::{self, Built};
use super::guard;
use super::plan::Plan;
use super::privilege::Privilege;
use super::session::Namespaces;
use super::signals::die_with_parent;
use super::wire::{Channel, Message};
use crate::escape::shown;
use crate::sys::{self, Forked};
use crate::{messages, mountinfo};

/// Runs in the first process of the new pid namespace, and never returns.
pub(super) fn run(
    plan: &Plan,
    channel: &Channel,
    privilege: Privilege,
    built: Built,
    (builder, outer): (UnixStream, Option<OwnedFd>),
) -> ! {
    let result = prepare(plan, channel, privilege, builder, outer);
    if let Err(error) =
        result.and_then(|go| if go { run_command(plan, channel, built) } else { Ok(()) })
    {
        let _ = channel.send(&Message::Failed(messages::in_words(&error)), None);
        sys::exit_now(1);
    }
    sys::exit_now(0)
}

/// Everything that CMD must find in place; whether it is to be started.
fn prepare(
    plan: &Plan,
    channel: &Channel,
    privilege: Privilege,
    mut builder: UnixStream,
    outer: Option<OwnedFd>,
) -> anyhow::Result<bool> {
    let number = number_in_outer_proc();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match rustix::mount::mount("proc", "/proc", "proc", flags, None) {
        // A container that hides parts of /proc (as `run` itself does) does not let it be mounted
        // again.
        Err(Errno::PERM) => {
            let text = "/proc cannot be mounted here; CMD sees the outer process list, in which its own \
                        processes have other numbers (`ps` fails, `/proc/$$` is another process)";
            ensure!(!plan.start.whole_fence, "--require fence: {text}");
            channel.send(&Message::Warning(text.to_owned()), None)?;
        }
        other => other.context("cannot mount /proc")?,
    }
    let mounts = mountinfo::read()?;
    if privilege == Privilege::Mounter {
        guard::freeze_kernel_settings(&mounts)?;
        guard::take_devices(&mounts)?;
        guard::cover_disks()?;
    } else if plan.fence.is_some() {
        // In what is allowed to be changed; all else is read-only by now.
        guard::freeze_kernel_file_systems(&mounts)?;
    }
    guard::cover_other_proc(&mounts)?;
    let memory = if plan.fence.is_some() { libc::CLONE_NEWIPC } else { 0 };
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | memory).map_err(no_second_namespace)?;
    builder.write_all(&number.to_ne_bytes()).context("the builder is gone")?;
    if builder.read_exact(&mut [0]).is_err() {
        sys::exit_now(1);
    }
    drop(builder);
    die_with_parent()?;
    if let Some(outer) = outer {
        let namespaces = Namespaces::of_this_process(outer)?;
        channel.send_all(&Message::Namespaces, &namespaces.fds())?;
    }
    channel.send(&Message::Ready, None)?;
    match channel.receive()? {
        Some(received) if received.message == Message::Go => Ok(true),
        Some(received) => bail!("unexpected {:?}", received.message),
        None => Ok(false),
    }
}

fn no_second_namespace(error: std::io::Error) -> anyhow::Error {
    // The limit is ENOSPC; EPERM comes from a chroot or from a security module.
    let setting = match error.raw_os_error() {
        Some(libc::EPERM) => "",
        _ => {
            " (sysctls user.max_user_namespaces, user.max_mnt_namespaces, user.max_ipc_namespaces)"
        }
    };
    let text = format!("cannot lock the view: no second user namespace{setting}");
    anyhow::Error::new(error).context(text)
}

/// This process's number in the /proc that the builder has, which may be that of a process namespace
/// further outside; 0 where it is not shown.
fn number_in_outer_proc() -> i32 {
    let link = std::fs::read_link("/proc/self").ok();
    link.and_then(|link| link.to_str()?.parse().ok()).unwrap_or(0)
}

fn run_command(plan: &Plan, channel: &Channel, built: Built) -> anyhow::Result<()> {
    let cwd = &plan.start.cwd;
    rustix::process::chdir(cwd).with_context(|| {
        format!("the working directory `{}` cannot be entered through the view", shown(cwd))
    })?;
    // CMD must not trace init, whose user it is.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("cannot become untraceable")?;
    match sys::fork().context("cannot fork")? {
        Forked::Child => plan.start.become_command(channel),
        Forked::Parent(command) => {
            let status = reap_until(command, channel)?;
            tell_what_is_gone(plan, channel, built)?;
            channel.send(&Message::Ended(status), None)
        }
    }
}

/// What was written to places that go with CMD, where somebody could miss it.
fn tell_what_is_gone(plan: &Plan, channel: &Channel, built: Built) -> anyhow::Result<()> {
    let home = plan.fence.as_ref().and_then(|fence| fence.home.as_deref());
    let told = built.written.zip(home).and_then(|(written, home)| fence::told(&written, home));
    told.map_or(Ok(()), |text| channel.send(&Message::Note(text), None))
}

/// Collects children, our own and orphans, until `command` ended; its raw wait status. Says each
/// time that it stopped or goes on.
fn reap_until(command: Pid, channel: &Channel) -> anyhow::Result<i32> {
    loop {
        match rustix::process::wait(WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
            Ok(Some((pid, status))) if pid == command => match status.stopping_signal() {
                Some(signal) => channel.send(&Message::Stopped(signal), None)?,
                None if status.continued() => channel.send(&Message::Continued, None)?,
                None => return Ok(status.as_raw()),
            },
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for CMD"),
        }
    }
}
