//! The processes between the server and CMD.
//!
//! ```text
//! tollgate (server)    outside; holds the raw tree's descriptor and /dev/fuse
//! ├─ builder           new mount namespace (without privilege: new user namespace first);
//! │                    mounts the view over DIR, hands /dev/fuse out, ends
//! └─ keeper            first process of a new pid namespace; then a second user and mount namespace,
//!    │                 in which every mount is locked; dies with the server
//!    └─ CMD            everything it starts dies with the keeper
//! ```
//!
//! The kernel locks the mounts that a mount namespace inherits from a more privileged one (`MNT_LOCKED`):
//! CMD holds every capability at most in the second user namespace, so it cannot unmount, move or look
//! beneath the view, whatever its user id.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions};

use super::wire::{Channel, Message};
use super::{FORWARDED, aliases, guard};
use crate::mountinfo;
use crate::sys::{self, Forked};
use crate::tree::{self, Tree};
use crate::umount;

/// What the processes need to know.
#[derive(Debug)]
pub(super) struct Plan {
    /// The tree to cover. Its path has no symbolic links.
    pub(super) tree: Tree,
    /// Where CMD starts.
    pub(super) cwd: PathBuf,
    pub(super) command: Vec<OsString>,
}

/// How far this user's privilege goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Privilege {
    /// May mount in the user namespace it was started in.
    Mounter,
    /// May mount only in a user namespace of its own.
    User,
}

/// The builder: runs in the child of a fork, and never returns.
pub(super) fn build(plan: &Plan, channel: &Channel) -> ! {
    if let Err(error) = build_view(plan, channel) {
        // When the server is gone nobody waits for the text.
        let _ = channel.send(&Message::Failed(crate::in_words(&error)), None);
        sys::exit_now(1);
    }
    sys::exit_now(0)
}

fn build_view(plan: &Plan, channel: &Channel) -> anyhow::Result<()> {
    // The raw tree's descriptor must not get into CMD's reach.
    sys::close_all_but(channel).context("cannot close inherited descriptors")?;
    die_with_parent()?;
    rustix::process::chdir("/").context("cannot change to `/`")?;
    let privilege = enter_mount_namespace()?;
    cover(plan, channel)?;
    let proc = open_path("/proc")?;
    let (mut own_end, keeper_end) = UnixStream::pair().context("cannot make a socket pair")?;
    match sys::fork_sibling_in_pid_namespace().context("cannot enter a new pid namespace")? {
        Forked::Child => {
            drop((own_end, proc));
            keep(plan, channel, privilege, keeper_end)
        }
        Forked::Parent(keeper) => {
            drop(keeper_end);
            // An end without the byte: the keeper failed, and has said so itself.
            if own_end.read_exact(&mut [0]).is_ok() {
                map_identity(&proc, keeper)?;
                own_end.write_all(b"m").context("the keeper is gone")?;
            }
            Ok(())
        }
    }
}

fn die_with_parent() -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask to end with the server")
}

fn enter_mount_namespace() -> anyhow::Result<Privilege> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let privilege = match sys::unshare(libc::CLONE_NEWNS) {
        Ok(()) => Privilege::Mounter,
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).context(
                "no privilege to mount, and user namespaces are not allowed here; run as root, or \
                 allow them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
                 kernel.apparmor_restrict_unprivileged_userns)",
            )?;
            let own = |file: &str, text: String| {
                std::fs::write(file, text).with_context(|| format!("cannot write {file}"))
            };
            own("/proc/self/setgroups", "deny".to_owned())?;
            own("/proc/self/uid_map", format!("{uid} {uid} 1", uid = uid.as_raw()))?;
            own("/proc/self/gid_map", format!("{gid} {gid} 1", gid = gid.as_raw()))?;
            Privilege::User
        }
        Err(error) => return Err(error).context("cannot enter a mount namespace"),
    };
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).context("cannot make mounts private")?;
    Ok(privilege)
}

/// Mounts the view over DIR and every other path to it, and gives the server its end.
fn cover(plan: &Plan, channel: &Channel) -> anyhow::Result<()> {
    let mounts = mountinfo::read()?;
    let raw = open_path(&plan.tree.path)?;
    ensure!(
        tree::identity(&raw)? == plan.tree.identity,
        "DIR `{}` was exchanged while tollgate started",
        plan.tree.path.display()
    );
    let mount_id = rustix::fs::statx(&raw, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)
        .context("statx")?
        .stx_mnt_id;
    let aliases = aliases::find(&mounts, mount_id, &plan.tree.path);
    let device = crate::serve::mount_over(&raw, &plan.tree)?;
    channel.send(&Message::Mounted, Some(device.as_fd()))?;
    drop(device);
    // The mount went by path; nobody may have moved the path meanwhile. Where DIR is in a view itself,
    // the mount that it lay in is of the same kind.
    let covered = mountinfo::read()?;
    ensure!(
        mountinfo::at(&covered, &plan.tree.path)
            .is_some_and(|mount| mount.kind == umount::KIND && mount.id != mount_id),
        "DIR `{}` was moved while tollgate started",
        plan.tree.path.display()
    );
    let view = open_path(&plan.tree.path)?;
    let view_path = format!("/proc/self/fd/{}", view.as_raw_fd());
    for alias in aliases {
        aliases::cover(&alias, &view_path)?;
    }
    Ok(())
}

fn open_path(path: impl rustix::path::Arg + Copy + std::fmt::Debug) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
        .with_context(|| format!("cannot open {path:?}"))
}

/// Gives the user namespace of `keeper` the ids of our own, each as itself.
fn map_identity(proc: &OwnedFd, keeper: Pid) -> anyhow::Result<()> {
    for file in ["uid_map", "gid_map"] {
        let own = std::fs::read_to_string(format!("/proc/thread-self/{file}"))
            .or_else(|_| read_at(proc, &format!("{}/{file}", std::process::id())))
            .with_context(|| format!("cannot read our own {file}"))?;
        let name = format!("{}/{file}", keeper.as_raw_nonzero());
        let map = rustix::fs::openat(proc, &name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| format!("cannot open /proc/{name}"))?;
        std::fs::File::from(map)
            .write_all(identity_map(&own).as_bytes())
            .with_context(|| format!("cannot write /proc/{name}"))?;
    }
    Ok(())
}

fn read_at(directory: &OwnedFd, name: &str) -> io::Result<String> {
    let fd = rustix::fs::openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::read_to_string(std::fs::File::from(fd))
}

/// Lines of `inside outside count` to lines of `inside inside count`.
fn identity_map(own: &str) -> String {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (inside, count) = (words.next()?, words.nth(1)?);
        Some(format!("{inside} {inside} {count}\n"))
    };
    own.lines().filter_map(line).collect()
}

/// The keeper: never returns.
fn keep(plan: &Plan, channel: &Channel, privilege: Privilege, builder: UnixStream) -> ! {
    if let Err(error) = keep_command(plan, channel, privilege, builder) {
        let _ = channel.send(&Message::Failed(crate::in_words(&error)), None);
        sys::exit_now(1);
    }
    sys::exit_now(0)
}

fn keep_command(
    plan: &Plan,
    channel: &Channel,
    privilege: Privilege,
    mut builder: UnixStream,
) -> anyhow::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match rustix::mount::mount("proc", "/proc", "proc", flags, None) {
        // A container that hides parts of /proc (as `run` itself does) does not let it be mounted again.
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
    // CMD must not trace the keeper, whose user it is.
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
            let _ = channel.send(&Message::Failed(crate::in_words(&error)), None);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_map_covers_what_is_mapped_and_no_more() {
        assert_eq!(identity_map("         0          0 4294967295\n"), "0 0 4294967295\n");
        assert_eq!(identity_map(" 0 1000 1\n 1 100000 65536\n"), "0 0 1\n1 1 65536\n");
        assert_eq!(identity_map(""), "");
    }
}
