//! Whose CPU time a worker spends.
//!
//! The kernel counts CPU time by thread. A worker runs items of many queues, too short to read that
//! clock for each, so it notes how long it was at work for each queue and, some hundred times per
//! second at most, splits the CPU time since the last time by that. Declared waits are left out.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use tollgate_wakequeue::sync::{AtomicU64, Ordering};

use crate::queue_ref::QueueRef;
use crate::sys;

/// Queues between two divisions. One more makes a division due.
const MAX_QUEUES: usize = 16;
/// Time between two divisions when there is nothing to do: reading the clock costs a system call.
const AT_LEAST_APART: Duration = Duration::from_micros(200);

/// A worker's notes.
pub(crate) struct CpuAccounts(RefCell<Notes>);

struct Notes {
    thread: u32,
    /// The queue worked for, and since when.
    current: Option<(QueueRef, Instant)>,
    /// Time at work for each queue since the last division.
    shares: Vec<(QueueRef, Duration)>,
    divided: Instant,
}

impl CpuAccounts {
    pub(crate) fn new(thread: u32) -> Self {
        let shares = Vec::with_capacity(MAX_QUEUES);
        Self(RefCell::new(Notes { thread, current: None, shares, divided: Instant::now() }))
    }

    /// The worker goes on with an item of another queue than before, or of its first.
    #[cold]
    pub(crate) fn switch(&self, queue: QueueRef, accounted_ns: &AtomicU64) {
        let mut notes = self.0.borrow_mut();
        let now = Instant::now();
        notes.note(now);
        notes.current = Some((queue, now));
        if notes.shares.len() >= MAX_QUEUES {
            notes.divide(now, accounted_ns);
        }
    }

    /// The worker slept since then. What it used before goes to those it worked for.
    pub(crate) fn slept(&self, since: Instant, accounted_ns: &AtomicU64) {
        let mut notes = self.0.borrow_mut();
        notes.note(since);
        notes.current = None;
        if since.saturating_duration_since(notes.divided) >= AT_LEAST_APART {
            notes.divide(since, accounted_ns);
        }
    }

    /// Brings the queues up to date.
    #[cold]
    pub(crate) fn divide(&self, accounted_ns: &AtomicU64) {
        let mut notes = self.0.borrow_mut();
        let now = Instant::now();
        notes.note(now);
        notes.current = notes.current.map(|(queue, _)| (queue, now));
        notes.divide(now, accounted_ns);
    }

    /// The worker waited for so long, inside an item.
    pub(crate) fn leave_out(&self, waited: Duration) {
        if let Some((_, since)) = &mut self.0.borrow_mut().current {
            *since += waited;
        }
    }
}

impl Notes {
    /// Adds the stretch that ends now.
    fn note(&mut self, now: Instant) {
        let Some((queue, since)) = self.current else { return };
        let time = now.saturating_duration_since(since);
        match self.shares.iter_mut().find(|(known, _)| *known == queue) {
            Some((_, share)) => *share += time,
            None => self.shares.push((queue, time)),
        }
    }

    fn divide(&mut self, now: Instant, accounted_ns: &AtomicU64) {
        self.divided = now;
        let used_ns = account(self.thread, accounted_ns);
        let total = self.shares.iter().map(|(_, share)| share.as_nanos()).sum::<u128>().max(1);
        for (queue, share) in self.shares.drain(..) {
            let part = u128::from(used_ns) * share.as_nanos() / total;
            add(queue, u64::try_from(part).unwrap_or(0));
        }
    }
}

fn add(queue: QueueRef, cpu_ns: u64) {
    queue.core().stats.cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
}

/// The CPU time of a thread that nobody accounted for yet, in nanoseconds; it is the caller's to
/// account for.
pub(crate) fn account(thread: u32, accounted_ns: &AtomicU64) -> u64 {
    let now_ns = sys::cpu_time_ns(thread);
    now_ns.saturating_sub(accounted_ns.fetch_max(now_ns, Ordering::Relaxed))
}
