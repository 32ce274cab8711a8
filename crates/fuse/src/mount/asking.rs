//! Asks a mount whether its server is there, without waiting for one that is and does not answer.
#![expect(unsafe_code, reason = "close_range has no wrapper")]

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

/// A connection that has ended answers at once; this is for a thread that waits for a CPU.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is known of a mount's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Gone,
    Answers,
    /// It is there, and did not answer in time.
    Silent,
}

/// Whether `errno` is what a mount answers whose server is gone. A request that the server had taken
/// ends with `ECONNABORTED`, or `ECANCELED` if a ring was to get it; later ones with `ENOTCONN`.
pub(super) fn says_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
}

/// Asks with statfs(2), which no cache answers, and waits for the answer.
pub(super) fn is_gone(path: &Path) -> bool {
    rustix::fs::statfs(path).is_err_and(says_gone)
}

/// Asks, in a thread that is left behind if no answer comes in time. It ends when the server answers
/// or ends.
pub(super) fn ask(path: &Path) -> Server {
    let (tell, told) = mpsc::sync_channel(1);
    let path = path.to_owned();
    let asking = move || {
        drop_descriptors();
        let _ = tell.send(is_gone(&path));
    };
    let Ok(thread) = thread::Builder::new().name("tollgate-asks".into()).spawn(asking) else {
        return Server::Silent;
    };
    let Ok(is_gone) = told.recv_timeout(PATIENCE) else { return Server::Silent };
    // Some calls (unshare(2), setns(2)) are for processes of one thread.
    let _ = thread.join();
    if is_gone { Server::Gone } else { Server::Answers }
}

/// Gives the calling thread a table of descriptors of its own, with none in it. If this process is the
/// server itself and is killed, its device is then closed although this thread waits for it, and that
/// ends the wait. An older kernel (before Linux 5.9) refuses.
fn drop_descriptors() {
    let (first, last, unshare) = (0_u32, u32::MAX, libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: no memory is involved. This thread uses no descriptor from here on, and those of all
    // other threads stay as they are.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, unshare) };
}
