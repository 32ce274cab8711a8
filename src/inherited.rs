//! The signals that the caller of `tollgate` ignored and blocked, so that CMD of `run` finds them as
//! if the caller had started it.
//!
//! Rust's runtime has SIGPIPE ignored before `main`, and resets it, with the mask, in every program
//! that is executed. So what there was is remembered before the runtime begins. SIGXFSZ is ignored
//! here: a write beyond a limit on the size of files (`ulimit -f`) fails with `EFBIG` then, and does not
//! end a server with all that it serves.

#![expect(unsafe_code, reason = "constructors, signal masks and what runs before exec")]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Of the kernel; a mask has a bit for each.
const SIGNALS: libc::c_int = 64;

/// Signal N is bit N - 1.
static BLOCKED: AtomicU64 = AtomicU64::new(0);
static IGNORES_CLOSED_PIPES: AtomicBool = AtomicBool::new(false);
static IGNORES_CHILDREN: AtomicBool = AtomicBool::new(false);
static IGNORES_LARGE_FILES: AtomicBool = AtomicBool::new(false);

/// The C library calls what it finds in this section before it calls `main`.
// SAFETY: the section holds pointers to functions of this type, which are called once, by the only
// thread. This one needs nothing of Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

extern "C" fn remember() {
    let mut mask = MaybeUninit::uninit();
    // SAFETY: a null new mask changes nothing; the old one is written to `mask`.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr()) } == 0 {
        // SAFETY: the call succeeded, so it is initialised.
        let mask = unsafe { mask.assume_init() };
        // SAFETY: the mask is initialised, and the number is one of a signal.
        let is_blocked = |signal| unsafe { libc::sigismember(&raw const mask, signal) } == 1;
        let bits = (1..=SIGNALS).filter(|signal| is_blocked(*signal));
        BLOCKED.store(bits.fold(0, |all, signal| all | 1 << (signal - 1)), Ordering::Relaxed);
    }
    IGNORES_CLOSED_PIPES.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    IGNORES_LARGE_FILES.store(is_ignored(libc::SIGXFSZ), Ordering::Relaxed);
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if is_ignored(libc::SIGCHLD) {
        IGNORES_CHILDREN.store(true, Ordering::Relaxed);
        // The kernel would tell nothing of how children of this process ended.
        // SAFETY: the default action installs no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
}

/// Those of `signals` that this process does not ignore, as under `nohup`: one that is blocked and read
/// would come nevertheless.
pub(crate) fn without_ignored(signals: &[libc::c_int]) -> Vec<libc::c_int> {
    signals.iter().copied().filter(|signal| !is_ignored(*signal)).collect()
}

/// Whether this process ignores it; of those that are not named above, as its caller did.
pub(crate) fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null new action changes nothing; the old one is written to `action`.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: where the call succeeded it is initialised.
    result == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Replaces this process, as `CommandExt::exec` does, by a program that finds signals as the caller
/// of this one left them. Returns only when that fails.
pub(crate) fn exec(mut command: Command) -> io::Error {
    // SAFETY: it makes system calls alone; there is one thread, which runs it.
    unsafe { command.pre_exec(restore) };
    command.exec()
}

fn restore() -> io::Result<()> {
    let ignored = [
        (libc::SIGPIPE, &IGNORES_CLOSED_PIPES),
        (libc::SIGCHLD, &IGNORES_CHILDREN),
        (libc::SIGXFSZ, &IGNORES_LARGE_FILES),
    ];
    for (signal, is_ignored) in ignored {
        let action = if is_ignored.load(Ordering::Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: neither action installs a handler.
        unsafe { libc::signal(signal, action) };
    }
    let blocked = BLOCKED.load(Ordering::Relaxed);
    let mut mask = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set; sigaddset gets an initialised one, and refuses the
    // signals that the C library keeps for itself. The mask that was may be null.
    let result = unsafe {
        libc::sigemptyset(mask.as_mut_ptr());
        for signal in (1..=SIGNALS).filter(|signal| blocked & 1 << (signal - 1) != 0) {
            libc::sigaddset(mask.as_mut_ptr(), signal);
        }
        libc::sigprocmask(libc::SIG_SETMASK, mask.as_ptr(), std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
