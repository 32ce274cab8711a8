//! For threads of a file system that block in a system call until it is interrupted.
//!
//! It is the signal by which a session wakes its own workers: a real-time signal that nobody else
//! handles, with a handler that does nothing.

use crate::device::signal;

/// Prepares the calling thread: all signals go to other threads, but the one of [`interrupt`] and
/// those that report a fault of this thread.
pub fn prepare_thread() {
    signal::prepare_thread();
}

/// Ends the system call in which thread `tid` of this process blocks, with `EINTR`. Nothing happens
/// if it blocks in none: a thread that is about to begin its call does not notice, so repeat this
/// until it answers.
pub fn interrupt(tid: i32) {
    signal::wake(tid);
}
