//! Whether a worker of `/dev/fuse` may still hold a request that the kernel gave it.
//!
//! The device has one queue, in which a RELEASE stands before a later request. That request may be
//! served first all the same: the worker that took the RELEASE out of the queue can lose its CPU
//! before it serves it. Whoever has to know asks each worker: it begins a turn before it looks into
//! the queue, and ends it when it has found nothing and is about to sleep. A request that was taken
//! before the question belongs to a turn that had begun then. The kernel's lock on its queue orders
//! the two: the turn began before its worker took the lock, and the question came after the asker's
//! own request was taken under it.

use crate::sync::{AtomicU64, AtomicUsize, Ordering, this_thread};

/// The turns of one worker. Only the worker itself begins and ends them.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Grows by two with each turn; odd while one lasts.
    count: AtomicU64,
    /// The worker's thread; 0 before it runs.
    thread: AtomicUsize,
}

impl Default for Turn {
    fn default() -> Self {
        Self { count: AtomicU64::new(0), thread: AtomicUsize::new(0) }
    }
}

impl Turn {
    /// The calling thread is the worker.
    pub(crate) fn belongs_here(&self) {
        self.thread.store(this_thread(), Ordering::Relaxed);
    }

    /// The worker is about to look for a request. What it received before has been served.
    pub(crate) fn begins(&self) {
        let next = (self.count.load(Ordering::Relaxed) + 2) | 1;
        // Release: who sees it sees what the worker served. The system call that follows takes the
        // kernel's lock, and cannot be moved before this.
        self.count.store(next, Ordering::Release);
    }

    /// The worker found nothing and sleeps.
    pub(crate) fn ends(&self) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count & !1, Ordering::Release);
    }

    /// What [`Turn::has_passed`] takes. A worker that asks within its own turn does not wait for
    /// itself.
    pub(crate) fn ask(&self) -> u64 {
        let is_own = self.thread.load(Ordering::Relaxed) == this_thread();
        if is_own { 0 } else { self.count.load(Ordering::Acquire) }
    }

    /// Whether the turn that lasted at the question, if one did, is over.
    pub(crate) fn has_passed(&self, asked: u64) -> bool {
        asked & 1 == 0 || self.count.load(Ordering::Acquire) != asked
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_open_until_the_turn_ends_or_the_next_begins() {
        let turn = Turn::default();
        assert!(turn.has_passed(turn.ask()), "nothing was received yet");
        turn.begins();
        let asked = turn.ask();
        assert!(!turn.has_passed(asked));
        turn.begins();
        assert!(turn.has_passed(asked), "it looks for the next one");
        let asked = turn.ask();
        assert!(!turn.has_passed(asked));
        turn.ends();
        assert!(turn.has_passed(asked), "it sleeps");
        assert!(turn.has_passed(turn.ask()));
    }

    #[test]
    fn a_worker_does_not_wait_for_itself() {
        let turn = Turn::default();
        turn.belongs_here();
        turn.begins();
        assert!(turn.has_passed(turn.ask()));
        let asked = std::thread::scope(|scope| scope.spawn(|| turn.ask()).join().unwrap());
        assert!(!turn.has_passed(asked));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::Mutex;
    use crate::sync::model::{Arc, check, run};

    /// The kernel's queue with a RELEASE in it, a worker that takes and serves it, and a second one
    /// that finds the queue empty behind it and asks: once the turn is over, it has been served.
    #[test]
    fn loom_what_was_taken_before_the_question_is_served_when_the_turn_is_over() {
        struct Device {
            queue: Mutex<u32>,
            served: AtomicU64,
            turn: Turn,
        }
        check(|| {
            let device = Arc::new(Device {
                queue: Mutex::new(1),
                served: AtomicU64::new(0),
                turn: Turn::default(),
            });
            let worker = run(&device, |device| {
                device.turn.begins();
                let taken = std::mem::take(&mut *device.queue.lock());
                if taken == 1 {
                    device.served.store(1, Ordering::Relaxed);
                    device.turn.begins();
                }
                device.turn.ends();
            });
            let taken = *device.queue.lock() == 0;
            if taken {
                let asked = device.turn.ask();
                if device.turn.has_passed(asked) {
                    assert_eq!(device.served.load(Ordering::Relaxed), 1);
                }
            }
            worker.join().unwrap();
        });
    }
}
