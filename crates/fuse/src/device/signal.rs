//! A signal that does nothing but end a blocking `read`.
//!
//! Waiting in `poll` for the device and an eventfd would cost a system call per request and wake
//! all workers for each; a signal costs nothing until it is needed. A signal that comes just before
//! the `read` is lost, so the sender repeats it until the worker has noticed.
#![expect(unsafe_code, reason = "signal dispositions and masks")]

use std::sync::OnceLock;

/// The first real-time signal whose disposition nobody has changed, with a no-op handler installed.
/// `None` if all are taken.
fn signal() -> Option<i32> {
    static SIGNAL: OnceLock<Option<i32>> = OnceLock::new();
    *SIGNAL.get_or_init(|| (libc::SIGRTMIN()..=libc::SIGRTMAX()).find(|&n| claim(n)))
}

fn claim(number: i32) -> bool {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: `sigaction` is plain data for which zeroes are valid (no flags, empty mask, SIG_DFL).
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `old` is valid for writes; no new disposition is given.
    let known = unsafe { libc::sigaction(number, std::ptr::null(), &raw mut old) } == 0;
    if !known || old.sa_sigaction != libc::SIG_DFL {
        return false;
    }
    let handler: extern "C" fn(i32) = nothing;
    // SAFETY: as above.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    // No SA_RESTART: the point is that `read` returns EINTR.
    new.sa_sigaction = handler as usize;
    // SAFETY: `new` is initialised; its handler does nothing and so is safe at any point of a
    // program.
    unsafe { libc::sigaction(number, &raw const new, std::ptr::null_mut()) == 0 }
}

/// Leaves all signals to the process's other threads, but the wake-up signal and those that report
/// a fault of this thread.
pub(crate) fn prepare_thread() {
    let kept =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
    // SAFETY: `sigset_t` is plain data; `sigfillset` and `sigdelset` get a valid pointer and known
    // signal numbers; the mask set is this thread's own.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        for number in kept.into_iter().chain(signal()) {
            libc::sigdelset(&raw mut set, number);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Sends the signal to a thread of this process.
pub(crate) fn wake(tid: i32) {
    let Some(number) = signal() else { return };
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: no memory is involved; a thread that is gone yields ESRCH. The caller keeps the
    // thread from being joined, so its id is not reused.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, number) };
}
