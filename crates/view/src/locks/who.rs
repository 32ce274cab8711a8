//! Whether a lock belongs to a process or to an open file description, and when a process ends.
//!
//! FUSE does not tell `F_SETLK` from `F_OFD_SETLK`. While its request is unanswered, the thread
//! that asks waits in the kernel, and `/proc/<tid>/syscall` says with which command.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::budget::Held;
use crate::caller::Callers;

/// What owns locks on ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerKind {
    /// A process: its locks end when it closes any descriptor of the file.
    Process,
    /// An open file description: its locks end with the last descriptor of it.
    Description,
    /// Cannot be told: its locks end with the handle, or when the kernel says so.
    Unknown,
}

/// What thread `tid` asks a lock for.
pub(crate) fn asks(callers: &dyn Callers, tid: u32) -> OwnerKind {
    let line = callers.system_call(tid);
    line.and_then(|line| command(&line)).map_or(OwnerKind::Unknown, kind_of)
}

/// The second argument of the system call: its number, then six arguments in hexadecimal.
fn command(line: &[u8]) -> Option<u64> {
    let word = std::str::from_utf8(line).ok()?.split(' ').nth(2)?;
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

fn kind_of(command: u64) -> OwnerKind {
    let is = |list: &[i32]| list.iter().any(|known| u64::try_from(*known) == Ok(command));
    // 12 to 14: the commands of 32-bit programs with 64-bit offsets.
    if is(&[libc::F_OFD_GETLK, libc::F_OFD_SETLK, libc::F_OFD_SETLKW]) {
        OwnerKind::Description
    } else if is(&[libc::F_GETLK, libc::F_SETLK, libc::F_SETLKW, 12, 13, 14]) {
        OwnerKind::Process
    } else {
        OwnerKind::Unknown
    }
}

/// A process, to notice its end.
#[derive(Debug)]
pub(crate) struct Life {
    fd: OwnedFd,
    _held: Held,
}

impl Life {
    /// Process `pid`, by a descriptor that `held` counts.
    pub(crate) fn of(pid: u32, held: Held) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let fd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Self { fd, _held: held })
    }

    /// Whether the process ended.
    pub(crate) fn is_over(&self) -> bool {
        let mut poll = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)];
        let polled = rustix::event::poll(&mut poll, Some(&Timespec::default()));
        !matches!(polled, Ok(0) | Err(Errno::INTR))
    }
}

/// Becomes readable when the process ends.
impl AsFd for Life {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_the_second_argument() {
        let line = b"72 0x3 0x26 0x7ffc0 0x0 0x0 0x0 0x7ffc 0x7f\n";
        assert_eq!(command(line).map(kind_of), Some(OwnerKind::Description));
        assert_eq!(command(b"72 0x3 0x7 0x7ffc0\n").map(kind_of), Some(OwnerKind::Process));
        assert_eq!(command(b"running\n"), None);
        assert_eq!(command(b"-1 0x7ffc 0x7f\n"), None);
        assert_eq!(asks(&crate::caller::ProcCallers::default(), 0), OwnerKind::Unknown);
    }

    #[test]
    fn a_life_ends_with_its_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let held = crate::budget::Budget::new(0).hold_for_lock(0).unwrap();
        let life = Life::of(child.id(), held).unwrap();
        assert!(!life.is_over());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(life.is_over());
    }
}
