//! Processes of CMD that were killed and do not end: a thread of theirs waits in the kernel for an answer of
//! a FUSE file system that CMD serves itself, and keeps the device of that open.
//!
//! The [`Ender`] finds such threads. It searches for them when CMD should have ended: because its first thread
//! has, or a signal came for it.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open};

use crate::sandbox::Ender;

/// How long killed processes may take to end before it is searched for what keeps them.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often it is looked whether CMD has ended but for such threads, as the kernel tells nobody. A look
/// takes some microseconds.
const EVERY: Duration = Duration::from_secs(5);

/// When to look for them, while CMD is there.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    command: Option<Pid>,
    next: Option<Instant>,
    /// A signal came for CMD since the last look.
    may_end: bool,
}

impl Stuck {
    /// CMD is about to start.
    pub(super) fn begin(&mut self, command: Option<Pid>) {
        self.command = command;
        self.next = Some(Instant::now() + EVERY);
    }

    /// CMD may end soon.
    pub(super) fn may_end(&mut self) {
        self.may_end = true;
        self.next = Some(Instant::now() + PATIENCE);
    }

    /// How long until it is time to look.
    pub(super) fn patience(&self) -> Option<Timespec> {
        self.next?.saturating_duration_since(Instant::now()).try_into().ok()
    }

    /// Has `ender` look, if it is time.
    pub(super) fn look(&mut self, ender: &Ender) {
        let now = Instant::now();
        if let Some(command) = self.command
            && self.next.is_some_and(|at| at <= now)
        {
            self.next = Some(now + EVERY);
            match std::mem::take(&mut self.may_end) {
                true => ender.end_what_is_left(),
                false => ender.end_what_is_left_of(command),
            }
        }
    }
}

/// The shorter of two times to wait, of which each may be for ever.
pub(super) fn shorter(one: Option<Timespec>, other: Option<Timespec>) -> Option<Timespec> {
    let length = |time: &Timespec| (time.tv_sec, time.tv_nsec);
    [one, other].into_iter().flatten().min_by_key(length)
}

/// Waits for a child that was killed.
pub(super) fn wait_for(child: Pid, ender: Option<&Ender>) {
    let patience = PATIENCE.try_into().ok();
    if let Ok(open) = pidfd_open(child, PidfdFlags::empty()) {
        loop {
            let mut ready = [PollFd::new(&open, PollFlags::IN)];
            match rustix::event::poll(&mut ready, patience.as_ref()) {
                Ok(0) => ender.iter().for_each(|ender| ender.end_what_is_left()),
                Err(Errno::INTR) => {}
                _ => break,
            }
        }
    }
    let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_time_is_waited() {
        let time = |tv_sec, tv_nsec| Some(Timespec { tv_sec, tv_nsec });
        let seconds = |time: Option<Timespec>| time.map(|time| (time.tv_sec, time.tv_nsec));
        assert_eq!(seconds(shorter(None, None)), None);
        assert_eq!(seconds(shorter(time(1, 5), None)), Some((1, 5)));
        assert_eq!(seconds(shorter(time(1, 5), time(0, 9))), Some((0, 9)));
        assert_eq!(seconds(shorter(time(1, 5), time(1, 4))), Some((1, 4)));
    }
}
