//! What the broker's processes give up, and the system calls that no safe interface has.
#![expect(unsafe_code, reason = "fork, ioctl, seccomp, signal handlers, ids of a process")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
};
use rustix::process::{Gid, Pid, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// `struct fuse_backing_map` of the kernel.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

const BACKING_OPEN: libc::Ioctl = libc::_IOW::<BackingMap>(229, 1);
const BACKING_CLOSE: libc::Ioctl = libc::_IOW::<u32>(229, 2);

/// What the listening process needs: to take a caller's identity, and to register.
const KEPT: CapabilitySet =
    CapabilitySet::SYS_ADMIN.union(CapabilitySet::SETUID).union(CapabilitySet::SETGID);

/// Leaves every file system and network, and every capability but three. Returns the directory of
/// a fusectl mount that nobody else sees.
pub(super) fn enter() -> io::Result<OwnedFd> {
    let flags = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC;
    // SAFETY: no memory and no descriptor is unshared, and the process has one thread.
    check(unsafe { libc::unshare(flags) }.into())?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let connections = new_mount("fusectl")?;
    let root = new_mount("tmpfs")?;
    rustix::mount::move_mount(&root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    rustix::process::fchdir(&root)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    rustix::thread::set_no_new_privs(true)?;
    keep_capabilities(KEPT)?;
    Ok(connections)
}

/// An empty file system, or one of the kernel's, mounted nowhere.
fn new_mount(kind: &str) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
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
pub(super) fn become_caller(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    rustix::thread::set_thread_groups(&groups)?;
    // SAFETY: no memory is involved. An error is told by the second call of each pair, which
    // changes nothing (there is no such id) and returns the id that holds.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
        [libc::setfsgid(u32::MAX), libc::setfsuid(u32::MAX)]
    };
    if now.map(i32::cast_unsigned) != [gid, uid] {
        return Err(Errno::PERM.into());
    }
    keep_capabilities(CapabilitySet::SYS_ADMIN)
}

/// Process, user and group of the peer when it connected. The process is 0 in a pid namespace that
/// is not below ours.
pub(super) fn peer(socket: &OwnedFd) -> io::Result<(i32, u32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let len = option(socket, libc::SO_PEERCRED, std::slice::from_mut(&mut peer))?;
    if len != size_of_val(&peer) {
        return Err(Errno::INVAL.into());
    }
    Ok((peer.pid, peer.uid, peer.gid))
}

/// Supplementary groups of the peer when it connected.
pub(super) fn peer_groups(socket: &OwnedFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 65_536];
    let len = option(socket, libc::SO_PEERGROUPS, &mut groups)?;
    groups.truncate(len / size_of::<u32>());
    Ok(groups)
}

/// Reads an option of a socket into `to`, plain integers; returns its bytes.
fn option<T>(socket: &OwnedFd, option: libc::c_int, to: &mut [T]) -> io::Result<usize> {
    let mut len = libc::socklen_t::try_from(size_of_val(to)).expect("a few KiB");
    let (socket, value) = (socket.as_raw_fd(), to.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most `len` bytes to `to`, which has as many, and to `len`. Every
    // value of the integers in `T` is valid.
    let rc = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, option, value, &raw mut len) };
    check(rc.into()).map(|_| len as usize)
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

/// Closes what was open when the program started, but `kept` and the standard streams.
pub(super) fn close_all_but(kept: &OwnedFd) -> io::Result<()> {
    let kept = kept.as_raw_fd().cast_unsigned();
    for (first, last) in [(3, kept - 1), (kept + 1, u32::MAX)] {
        if first <= last {
            // SAFETY: nothing in this process uses a descriptor that it inherited.
            check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
        }
    }
    Ok(())
}

/// Closes what the child of a fork inherited and must not keep.
pub(super) fn close_inherited(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the child neither uses nor drops `fd` again: it ends by
    // `exit`.
    check(unsafe { libc::close(fd.as_raw_fd()) }.into()).map(drop)
}

/// SIGCHLD interrupts the wait for a connection, and SIGALRM ends a process.
pub(super) fn prepare_signals() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let interrupt: extern "C" fn(libc::c_int) = nothing;
    let handlers =
        [(libc::SIGCHLD, interrupt as libc::sighandler_t), (libc::SIGALRM, libc::SIG_DFL)];
    for (signal, handler) in handlers {
        // SAFETY: all zeroes are a valid sigaction: no flags (so no SA_RESTART), an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler;
        // SAFETY: `action` is valid, and the handler does nothing at all.
        let rc = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        check(rc.into())?;
    }
    Ok(())
}

/// Ends the process by SIGALRM in `seconds`, wherever it waits; 0: not at all.
pub(super) fn set_alarm(seconds: i64) -> io::Result<()> {
    let zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let value = libc::timeval { tv_sec: seconds, tv_usec: 0 };
    let timer = libc::itimerval { it_interval: zero, it_value: value };
    // SAFETY: `timer` is valid, and the old value is not asked for.
    let rc = unsafe {
        libc::syscall(libc::SYS_setitimer, 0, &raw const timer, std::ptr::null::<libc::itimerval>())
    };
    check(rc).map(drop)
}

/// Registers the file that `lower` names for the connection of `device`.
pub(super) fn open_backing(device: BorrowedFd<'_>, lower: BorrowedFd<'_>) -> Result<u32, Errno> {
    let map = BackingMap { fd: lower.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: the request reads a `struct fuse_backing_map`, which `map` is and which lives until
    // the call returns.
    let id = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) };
    u32::try_from(id).ok().filter(|id| *id != 0).ok_or_else(last_error)
}

/// Drops the registration `id` of the connection of `device`.
pub(super) fn close_backing(device: BorrowedFd<'_>, id: u32) -> Result<(), Errno> {
    // SAFETY: the request reads a `u32`, which lives until the call returns.
    let rc = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), BACKING_CLOSE, &raw const id) };
    if rc < 0 { Err(last_error()) } else { Ok(()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn check(rc: libc::c_long) -> io::Result<libc::c_long> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Each system call that a connection's process may make, and for some the values that an argument
/// may have: (call, which argument, values). Everything else ends the process.
#[expect(clippy::cast_possible_truncation, reason = "requests of ioctl(2) have 32 bits")]
const ALLOWED: &[(libc::c_long, u32, &[u32])] = &[
    (libc::SYS_recvmsg, 0, &[]),
    (libc::SYS_sendto, 0, &[]),
    (libc::SYS_setitimer, 0, &[]),
    (libc::SYS_clock_gettime, 0, &[]),
    (libc::SYS_fcntl, 1, &[1, 3, 1034]), // F_GETFD, F_GETFL, F_GET_SEALS
    (libc::SYS_fstatfs, 0, &[]),
    (libc::SYS_statx, 0, &[]),
    (libc::SYS_open_tree, 2, &[0x8_1000]), // OPEN_TREE_CLOEXEC | AT_EMPTY_PATH: no new mount
    (libc::SYS_ioctl, 1, &[BACKING_OPEN as u32, BACKING_CLOSE as u32]),
    (libc::SYS_close, 0, &[]),
    (libc::SYS_write, 0, &[]),
    (libc::SYS_exit_group, 0, &[]),
];

/// Leaves the process a dozen system calls, for ever.
pub(super) fn filter_system_calls() -> io::Result<()> {
    let mut program = program();
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("a few dozen instructions"),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: `filter` and the instructions that it points to live until the call returns, which
    // copies them. It needs no_new_privs, which `enter` set.
    let rc = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter)
    };
    check(rc).map(drop)
}

fn program() -> Vec<libc::sock_filter> {
    let give = |what| instruction(libc::BPF_RET | libc::BPF_K, what, 0, 0);
    let load = |offset| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let compare = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    // Skips this many instructions unless what was loaded is `value`.
    let unless = |value, skip| instruction(compare, value, 0, skip);
    let (allow, kill) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_KILL_PROCESS);
    // `struct seccomp_data`: number, architecture, address, six arguments of 64 bits. No argument
    // that is compared has more than 32.
    let low = if cfg!(target_endian = "little") { 16 } else { 20 };
    let mut program = vec![load(4), instruction(compare, ARCHITECTURE, 1, 0), give(kill), load(0)];
    for (call, argument, values) in ALLOWED {
        let call = u32::try_from(*call).expect("numbers of system calls are small");
        if values.is_empty() {
            program.extend([unless(call, 1), give(allow)]);
            continue;
        }
        let body = u8::try_from(2 + 2 * values.len()).expect("a few values");
        program.extend([unless(call, body), load(low + 8 * argument)]);
        for value in *values {
            program.extend([unless(*value, 1), give(allow)]);
        }
        program.push(give(kill));
    }
    program.push(give(kill));
    program
}

#[expect(clippy::cast_possible_truncation, reason = "codes of BPF instructions fit 16 bits")]
fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}
