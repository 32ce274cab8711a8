//! The system calls that need `unsafe`, each behind a safe function.

#![expect(unsafe_code, reason = "fork, clone, signal masks and seccomp have no safe wrapper")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// Which side of a fork this is.
#[derive(Debug)]
pub(crate) enum Forked {
    Child,
    Parent(Pid),
}

/// fork(2).
///
/// # Errors
/// The error of fork(2); `Unsupported` when the process has more than one thread, whose locks the
/// child would inherit for ever.
pub(crate) fn fork() -> io::Result<Forked> {
    only_thread()?;
    // SAFETY: the child may do anything when the parent has one thread, which `only_thread`
    // checked.
    let pid = unsafe { libc::fork() };
    forked(i64::from(pid))
}

/// A child that is the first process of a new pid namespace and belongs to *our parent*, so that
/// this process may end and the parent's death signal still reaches the child.
///
/// # Errors
/// As [`fork`].
pub(crate) fn fork_sibling_in_pid_namespace() -> io::Result<Forked> {
    only_thread()?;
    let flags = libc::CLONE_PARENT | libc::CLONE_NEWPID | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with a null stack this is fork(2) by another name: the child
    // goes on with a copy of this memory. There is one thread, so no lock is held by another. What
    // libc's fork would do beside it is for other threads, and for a cached thread id that nothing
    // here uses.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0, 0, 0, 0) };
    forked(pid)
}

/// A child that belongs to *our parent*, in this process's namespaces for children.
///
/// # Errors
/// As [`fork`].
pub(crate) fn fork_sibling() -> io::Result<Forked> {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: as in `fork_sibling_in_pid_namespace`. The caller has entered other namespaces, where
    // /proc may not show it, so `only_thread` cannot be asked; it is the child of a `fork` itself,
    // which has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0, 0, 0, 0) };
    forked(pid)
}

fn forked(pid: i64) -> io::Result<Forked> {
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    Ok(Pid::from_raw(pid).map_or(Forked::Child, Forked::Parent))
}

/// Waits for threads that ask other servers, which end by themselves: nobody waits for one whose server
/// does not answer, and one that has its answer needs a moment to end.
fn only_thread() -> io::Result<()> {
    let end = Instant::now() + tollgate_control::PATIENCE + Duration::from_secs(1);
    loop {
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads == 1 {
            return Ok(());
        }
        if Instant::now() >= end {
            let text = format!("cannot fork with {threads} threads");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends the process without running destructors or exit handlers, as the child of a fork must.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no precondition.
    unsafe { libc::_exit(code) }
}

/// unshare(2) with `CLONE_NEW*` flags.
///
/// # Errors
/// The error of unshare(2).
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: new namespaces change no memory. CLONE_FILES, which would undermine owned
    // descriptors, is not among the flags used here.
    check(unsafe { libc::unshare(flags) })
}

/// The pid or user namespace above `namespace`.
///
/// # Errors
/// `EPERM` for one that this process may not know of.
pub(crate) fn parent_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `_IO(0xb7, 2)`
    const NS_GET_PARENT: libc::Ioctl = 0xb702;
    // SAFETY: the descriptor is open, and the request takes no argument.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
    check(fd.min(0))?;
    // SAFETY: the call returned a new descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Brings the interface `lo` of this network namespace up.
///
/// # Errors
/// The error of socket(2) or ioctl(2).
pub(crate) fn bring_up_loopback() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zeroes are a valid `ifreq`, which is made of integers and arrays of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).unwrap_or(1);
    // SAFETY: the request reads a `struct ifreq`, which lives until the call returns.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })
}

/// Closes every descriptor but 0, 1, 2 and `keep`, for a process that will never drop what it
/// inherited: the child of a fork that ends by [`exit_now`] or exec.
///
/// # Errors
/// The error of close_range(2).
pub(crate) fn close_all_but(keep: &impl AsFd) -> io::Result<()> {
    let keep = u32::try_from(keep.as_fd().as_raw_fd()).map_err(io::Error::other)?;
    if keep > 3 {
        close_range(3, keep - 1)?;
    }
    close_range(keep.max(2) + 1, u32::MAX)
}

/// The same with several to keep.
///
/// # Errors
/// The error of close_range(2).
pub(crate) fn close_all_but_these(keep: &[RawFd]) -> io::Result<()> {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep.into_iter().filter(|fd| *fd >= 3) {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the callers run in a forked child whose inherited owners are never used or dropped
    // again.
    check(unsafe { libc::close_range(first, last, 0) })
}

/// Blocks `signals` in this thread, and so in the threads it starts. What was blocked before stays
/// so.
///
/// # Errors
/// The error of pthread_sigmask(3).
pub(crate) fn block_signals(signals: &[libc::c_int]) -> io::Result<()> {
    mask(libc::SIG_BLOCK, signals)
}

/// Unblocks `signals` in this thread.
///
/// # Errors
/// The error of pthread_sigmask(3).
pub(crate) fn unblock_signals(signals: &[libc::c_int]) -> io::Result<()> {
    mask(libc::SIG_UNBLOCK, signals)
}

/// Whether one of `signals`, which are blocked, has come and was not read yet.
pub(crate) fn is_any_pending(signals: &[libc::c_int]) -> bool {
    let mut pending = MaybeUninit::uninit();
    // SAFETY: the set is written where the call succeeds; it fails for no valid pointer.
    if unsafe { libc::sigpending(pending.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so the set is initialised.
    let pending = unsafe { pending.assume_init() };
    // SAFETY: the set is initialised, and the numbers are those of signals.
    signals.iter().any(|signal| unsafe { libc::sigismember(&raw const pending, *signal) } == 1)
}

/// Blocks every signal that can be blocked in this thread.
///
/// # Errors
/// The error of pthread_sigmask(3).
pub(crate) fn block_all_signals() -> io::Result<()> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set it is given.
    let set = unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    };
    set_mask(libc::SIG_BLOCK, &set)
}

fn mask(how: libc::c_int, signals: &[libc::c_int]) -> io::Result<()> {
    set_mask(how, &signal_set(signals))
}

fn set_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: a reference is to an initialised set; a null old set is allowed.
    match unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn signal_set(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set it is given; sigaddset gets an initialised one and
    // refuses numbers that are no signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Signals read as data.
#[derive(Debug)]
pub(crate) struct SignalFd {
    fd: OwnedFd,
    leads_session: bool,
}

/// One signal that arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) signal: i32,
    /// Sent by a process; not by the kernel, as a terminal's signals are.
    pub(crate) by_process: bool,
    /// The terminal is gone, which the kernel tells the leader of its session alone.
    pub(crate) terminal_is_gone: bool,
    /// The process that sent it, or 0.
    pub(crate) sender: i32,
}

impl SignalFd {
    /// A descriptor that is readable when one of `signals`, which must be blocked, has arrived.
    ///
    /// # Errors
    /// The error of signalfd(2).
    pub(crate) fn new(signals: &[libc::c_int]) -> io::Result<Self> {
        let set = signal_set(signals);
        // SAFETY: `set` is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        check(fd)?;
        // SAFETY: the call succeeded, so `fd` is open and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // Asked now: the sandbox of a server does not allow it.
        Ok(Self { fd, leads_session: leads_session() })
    }

    /// Waits for a signal.
    ///
    /// # Errors
    /// The error of read(2).
    pub(crate) fn read(&self) -> io::Result<Arrived> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: `info` has `size` writable bytes.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if usize::try_from(read) != Ok(size) {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the structure is made of integers, for which every byte pattern (zeroed before,
        // filled by the kernel now) is a value.
        let info = unsafe { info.assume_init() };
        let signal = i32::try_from(info.ssi_signo).unwrap_or_default();
        let sender = i32::try_from(info.ssi_pid).unwrap_or_default();
        let by_process = info.ssi_code <= 0;
        let terminal_is_gone = self.leads_session && !by_process && signal == libc::SIGHUP;
        Ok(Arrived { signal, by_process, terminal_is_gone, sender })
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether `fd` has something to read within `time`.
///
/// # Errors
/// The error of poll(2).
pub(crate) fn readable_within(fd: &impl AsFd, time: std::time::Duration) -> io::Result<bool> {
    let until = std::time::Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(std::time::Instant::now());
        let left = rustix::event::Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            // As after Ctrl-Z and `fg`.
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// Ends this process by `signal`, as if it had been sent to it, but without a second core dump.
/// Returns only when the signal does not end processes.
pub(crate) fn die_by_signal(signal: libc::c_int) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `none` is a valid limit; resetting a signal to its default action installs no
    // handler; raise has no precondition. Failures leave the process as it was.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
    }
    let _ = unblock_signals(&[signal]);
    // SAFETY: as above.
    unsafe { libc::raise(signal) };
}

/// Has `signal`, which is blocked and waits for this process, stop it until it is continued. `false`
/// where it does not: it is ignored, or no shell waits for this process group. The SIGCONT that came,
/// if that is blocked, is taken from the queue; where it came first, nothing stops.
pub(crate) fn stop_by_waiting(signal: libc::c_int) -> bool {
    // In between, it stops.
    let _ = unblock_signals(&[signal]);
    let _ = block_signals(&[signal]);
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let continued = signal_set(&[libc::SIGCONT]);
    let info = std::ptr::null_mut();
    // SAFETY: the set and the time are initialised, and what is known of the signal may be null.
    let came = unsafe { libc::sigtimedwait(&raw const continued, info, &raw const now) };
    came == libc::SIGCONT
}

/// The number of this process's group; 0 for one that this pid namespace does not see.
pub(crate) fn process_group() -> i32 {
    // SAFETY: getpgrp has no precondition.
    unsafe { libc::getpgrp() }
}

/// Whether this process leads its session. One that this pid namespace does not see has the number 0.
fn leads_session() -> bool {
    // SAFETY: neither call has a precondition.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// The number of the process group that has the terminal, as [`process_group`] would give it.
///
/// # Errors
/// The error of tcgetpgrp(3).
pub(crate) fn foreground_group(terminal: &impl AsFd) -> io::Result<i32> {
    // SAFETY: the descriptor is open.
    let group = unsafe { libc::tcgetpgrp(terminal.as_fd().as_raw_fd()) };
    check(group).map(|()| group)
}

/// From now on, writing to a pipe without a reader ends this process, silently.
pub(crate) fn end_on_closed_pipe() {
    // SAFETY: the default action installs no handler. It fails for no valid signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Makes the mount at `path` read-only.
///
/// # Errors
/// The error of mount_setattr(2).
pub(crate) fn make_read_only(path: &std::ffi::CStr) -> io::Result<()> {
    change_mount(libc::AT_FDCWD, path, 0, libc::MOUNT_ATTR_RDONLY, 0)
}

/// Makes the mount at `path`, and none in it, writable again.
///
/// # Errors
/// The error of mount_setattr(2).
pub(crate) fn make_writable(path: &std::ffi::CStr) -> io::Result<()> {
    change_attributes(libc::AT_FDCWD, path, 0, (0, libc::MOUNT_ATTR_RDONLY), 0)
}

/// Makes every mount of this mount namespace read-only, and device nodes on them have no effect.
///
/// # Errors
/// The error of mount_setattr(2).
pub(crate) fn restrict_all_mounts() -> io::Result<()> {
    let restrictions = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NODEV;
    change_mount(libc::AT_FDCWD, c"/", libc::AT_RECURSIVE, restrictions, 0)
}

/// Makes device nodes on the mount at `path` have no effect.
///
/// # Errors
/// The error of mount_setattr(2).
pub(crate) fn without_devices(path: &std::ffi::CStr) -> io::Result<()> {
    change_mount(libc::AT_FDCWD, path, 0, libc::MOUNT_ATTR_NODEV, 0)
}

/// Makes the mounts of device nodes that `tree` names refuse every change of the nodes (`EROFS`).
/// Reading and writing the devices themselves stays possible.
///
/// # Errors
/// The error of mount_setattr(2).
pub(crate) fn protect_nodes(tree: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::AT_RECURSIVE | libc::AT_EMPTY_PATH;
    let restrictions = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    change_mount(tree.as_raw_fd(), c"", flags, restrictions, 0)
}

/// Takes set-user-id programs and devices from the mount that `tree` names and all below it, and
/// makes them private: what is mounted in or unmounted from other mounts of the same files does not
/// show in them.
///
/// # Errors
/// The error of mount_setattr(2).
pub(crate) fn confine_mount(tree: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::AT_RECURSIVE | libc::AT_EMPTY_PATH;
    let restrictions = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    change_mount(tree.as_raw_fd(), c"", flags, restrictions, libc::MS_PRIVATE)
}

/// Adds `attributes` (`MOUNT_ATTR_*`) to the mount that `tree` names and all below it, and makes
/// them private.
///
/// # Errors
/// The error of mount_setattr(2).
pub(crate) fn restrict_mount(tree: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    let flags = libc::AT_RECURSIVE | libc::AT_EMPTY_PATH;
    change_mount(tree.as_raw_fd(), c"", flags, attributes, libc::MS_PRIVATE)
}

fn change_mount(
    directory: libc::c_int,
    path: &std::ffi::CStr,
    flags: libc::c_int,
    attr_set: u64,
    propagation: libc::c_ulong,
) -> io::Result<()> {
    // The ways to treat access times are one number: whoever sets one must clear the others.
    let times = attr_set & libc::MOUNT_ATTR__ATIME != 0;
    let attr_clr = if times { libc::MOUNT_ATTR__ATIME } else { 0 };
    change_attributes(directory, path, flags, (attr_set, attr_clr), propagation)
}

fn change_attributes(
    directory: libc::c_int,
    path: &std::ffi::CStr,
    flags: libc::c_int,
    (attr_set, attr_clr): (u64, u64),
    propagation: libc::c_ulong,
) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set, attr_clr, propagation, userns_fd: 0 };
    // SAFETY: `path` ends with a NUL, and the structure is given with its size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    check(libc::c_int::try_from(result).unwrap_or(-1))
}

/// Installs a seccomp filter (classic BPF) on this process and what it becomes. Needs
/// `CAP_SYS_ADMIN` in the process's user namespace.
///
/// # Errors
/// The error of seccomp(2).
pub(crate) fn install_filter(program: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // SAFETY: `program` points to `len` instructions, which the kernel copies and verifies.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    check(libc::c_int::try_from(result).unwrap_or(-1))
}

/// The version of Landlock that the kernel has.
///
/// # Errors
/// The error of landlock_create_ruleset(2): `ENOSYS` without it, `EOPNOTSUPP` where it is switched
/// off.
pub(crate) fn landlock_version() -> io::Result<u32> {
    const VERSION: libc::c_ulong = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: asked for the version, the call takes a null pointer and the size 0, and makes
    // nothing.
    let result = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0 as libc::size_t, VERSION)
    };
    u32::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Whom a lease holds off, at most for /proc/sys/fs/lease-break-time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Whoever would open the file for writing.
    Read,
    /// Whoever would open the file.
    Write,
}

impl Lease {
    fn kind(self) -> libc::c_int {
        match self {
            Self::Read => libc::F_RDLCK,
            Self::Write => libc::F_WRLCK,
        }
    }
}

/// Takes a lease on `file`, until it is closed.
///
/// # Errors
/// `WouldBlock` if somebody has it open whom the lease would have held off; other errors where there
/// are no leases.
pub(crate) fn lease(file: &impl AsFd, lease: Lease) -> io::Result<()> {
    // From fcntl.h of Linux, the same on x86-64 and aarch64; missing in libc.
    const F_SETSIG: libc::c_int = 10;
    let fd = file.as_fd().as_raw_fd();
    // What would be sent to this process ends it by default; this signal does not.
    // SAFETY: the descriptor is open, and the argument is a signal's number.
    check(unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) })?;
    // SAFETY: the descriptor is open, and the argument is a kind of lease.
    check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, lease.kind()) })
}

/// Whether nobody wants to open `file` since [`lease`] who is held off by `lease`.
pub(crate) fn still_leased(file: &impl AsFd, lease: Lease) -> bool {
    // SAFETY: the descriptor is open, and this command has no argument.
    let found = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GETLEASE) };
    found == lease.kind()
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
