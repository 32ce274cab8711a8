//! What an owner that ends waits for, and submits.
#![expect(unsafe_code, reason = "ring entries are shared with the kernel and between threads")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::RingQueue;
use crate::abi::opcode;

/// How long an owner that ends waits for its helpers.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

impl RingQueue {
    /// Waits until helpers have served what they have of this ring, and submits their replies.
    pub(super) fn take_leave(&mut self) {
        let Some(handover) = self.handover.take() else { return };
        let withdrawn = handover.withdraw(|job| Arc::ptr_eq(&job.ring, &self.shared));
        let start = Instant::now();
        loop {
            self.submit_finished();
            if self.awaited() <= withdrawn || start.elapsed() > LEAVE_WITHIN {
                break;
            }
            let mut finished = [PollFd::new(&self.shared.eventfd, PollFlags::IN)];
            let tick = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            if matches!(rustix::event::poll(&mut finished, Some(&tick)), Ok(1..)) {
                // Resets the counter; it cannot block after the poll.
                let _ = rustix::io::read(&self.shared.eventfd, &mut [0u8; 8]);
            }
        }
    }

    /// Submits all replies that are finished, which may be more than there is room for at once.
    fn submit_finished(&mut self) {
        loop {
            self.queue_commits();
            let was_full = self.ring.room() == 0;
            let submitted = !self.queued || self.submit().is_ok();
            // What the kernel does not take now is tried again later.
            if !submitted || self.queued || !was_full {
                return;
            }
        }
    }

    /// How many requests that helpers were given are to be waited for: all but locks that wait, which
    /// may do so for ever.
    fn awaited(&self) -> usize {
        let handed = self.handed.iter().enumerate().filter(|(_, kind)| kind.is_some());
        let awaited = handed.filter(|(index, _)| {
            let entry = self.shared.entry(*index);
            // SAFETY: this is the owner, and what is handed was received, and not submitted since.
            !entry.lacks_only_the_reply() || unsafe { entry.operation() } != opcode::SETLKW
        });
        awaited.count()
    }
}
