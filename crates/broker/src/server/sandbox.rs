//! What the broker's processes give up, and the system calls that no safe interface has.
#![expect(unsafe_code, reason = "fork, ioctl, signals, ids of a process")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
};
use rustix::process::{Pid, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{BpfProgram, SeccompFilter, SeccompRule};
use seccompiler::{
    SeccompAction as Action, SeccompCmpArgLen as ArgLen, SeccompCmpOp as CmpOp,
    SeccompCondition as Condition,
};

use super::peer::Peer;

/// `struct fuse_backing_map` of the kernel: the descriptor, flags, and 8 bytes of padding.
type BackingMap = [i32; 4];
const BACKING_OPEN: libc::Ioctl = libc::_IOW::<BackingMap>(229, 1);
const BACKING_CLOSE: libc::Ioctl = libc::_IOW::<u32>(229, 2);

/// Leaves every file system and network, and every capability but three.
pub(super) fn enter() -> io::Result<()> {
    for signal in [libc::SIGALRM, libc::SIGCHLD] {
        // SAFETY: no code of this process is a handler of it.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let flags = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC;
    // SAFETY: no memory and no descriptor is unshared, and the process has one thread.
    check(unsafe { libc::unshare(flags) }.into())?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let root = new_mount("tmpfs")?;
    rustix::mount::move_mount(&root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    rustix::process::fchdir(&root)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::thread::set_no_new_privs(true)?;
    // What the listening process needs: to register, and to take a caller's identity.
    let ids = CapabilitySet::SETUID | CapabilitySet::SETGID;
    keep_capabilities(CapabilitySet::SYS_ADMIN | ids)
}

/// An empty file system, or one of the kernel's, mounted nowhere, that nobody writes to.
pub(super) fn new_mount(kind: &str) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    let inheritable = CapabilitySet::empty();
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Takes the identity with which the kernel reads and writes every file that this process
/// registers: the caller's for files, and no capability but the one that registering takes. The
/// other ids stay root's, so that the caller cannot send signals.
pub(super) fn become_caller(peer: &Peer) -> io::Result<()> {
    rustix::thread::set_thread_groups(&peer.groups)?;
    // SAFETY: no memory is involved. An error is told by the second call of each pair, which
    // changes nothing (there is no such id) and returns the id that holds.
    let now = unsafe {
        libc::setfsgid(peer.gid);
        libc::setfsuid(peer.uid);
        [libc::setfsgid(u32::MAX), libc::setfsuid(u32::MAX)]
    };
    if now.map(i32::cast_unsigned) != [peer.gid, peer.uid] {
        return Err(Errno::PERM.into());
    }
    keep_capabilities(CapabilitySet::SYS_ADMIN)
}

/// `None` in the child.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the process has one thread, so no lock is left held in the child.
    let child = check(unsafe { libc::fork() }.into())?;
    Ok(i32::try_from(child).ok().and_then(Pid::from_raw))
}

/// Ends the process when `parent` ends. A change of identity would undo it, so it comes after that.
pub(super) fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Ends the process at once.
pub(super) fn exit() -> ! {
    // SAFETY: the call does not return, and touches no memory.
    unsafe { libc::_exit(0) }
}

/// Ends the process by SIGALRM in `seconds`, wherever it waits; 0: not at all.
pub(super) fn set_alarm(seconds: i64) -> io::Result<()> {
    let time = |tv_sec| libc::timeval { tv_sec, tv_usec: 0 };
    let timer = libc::itimerval { it_interval: time(0), it_value: time(seconds) };
    // SAFETY: `timer` is valid, and the old value is not asked for.
    let rc = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    Ok(check(rc.into()).map(drop)?)
}

/// Registers the file that `lower` names for the connection of `device`.
pub(super) fn open_backing(device: &OwnedFd, lower: &OwnedFd) -> Result<u32, Errno> {
    let map: BackingMap = [lower.as_raw_fd(), 0, 0, 0];
    // SAFETY: the request reads the 16 bytes of a `struct fuse_backing_map`, which `map` has and
    // which live until the call returns.
    let id = check(unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) }.into());
    u32::try_from(id?).map_err(|_| Errno::RANGE)
}

/// Drops the registration `id` of the connection of `device`; one that is not there is as good as
/// dropped.
pub(super) fn close_backing(device: &OwnedFd, id: u32) {
    // SAFETY: the request reads a `u32`, which lives until the call returns.
    unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const id) };
}

fn check(rc: libc::c_long) -> Result<libc::c_long, Errno> {
    let errno = || Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
    if rc < 0 { Err(errno()) } else { Ok(rc) }
}

/// Each system call that a connection's process may make, and for some the values that an argument
/// may have: (call, which argument, values). Everything else ends the process.
const ALLOWED: &[(libc::c_long, u8, &[u64])] = &[
    (libc::SYS_recvmsg, 0, &[]),
    (libc::SYS_sendto, 0, &[]),
    (libc::SYS_setitimer, 0, &[]),
    (libc::SYS_clock_gettime, 0, &[]),
    (libc::SYS_fcntl, 1, &[1, 3, 1034]), // F_GETFD, F_GETFL, F_GET_SEALS
    (libc::SYS_fstatfs, 0, &[]),
    (libc::SYS_statx, 0, &[]),
    (libc::SYS_open_tree, 2, &[0x8_1000]), // OPEN_TREE_CLOEXEC | AT_EMPTY_PATH: no new mount
    (libc::SYS_ioctl, 1, &[BACKING_OPEN, BACKING_CLOSE]),
    (libc::SYS_sched_setaffinity, 0, &[0]), // itself
    (libc::SYS_close, 0, &[]),
    (libc::SYS_write, 0, &[]),
    (libc::SYS_exit_group, 0, &[]),
];

/// Leaves the process thirteen system calls, for ever.
pub(super) fn filter_system_calls() -> Result<(), seccompiler::Error> {
    let mut rules = std::collections::BTreeMap::new();
    for (call, argument, values) in ALLOWED {
        let is = |value: &u64| Condition::new(*argument, ArgLen::Dword, CmpOp::Eq, *value);
        let rules_of = values.iter().map(|value| SeccompRule::new(vec![is(value)?]));
        rules.insert(*call, rules_of.collect::<Result<_, _>>()?);
    }
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, Action::KillProcess, Action::Allow, architecture)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)
}
