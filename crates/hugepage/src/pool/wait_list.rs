//! Waiting for a buffer, and waking whoever waits.
//!
//! A giver puts its buffer on a list, then looks whether anyone is waiting; a waiter announces
//! itself, then looks at the lists. A sequentially consistent fence between the two steps on both
//! sides means that at least one of them sees the other, so no buffer lies on a list with a waiter
//! asleep:
//!
//! * the giver sees the waiter: it takes the lock, which the waiter holds from its look at the
//!   lists until it sleeps on the condition, and wakes it;
//! * the waiter sees the buffer: it does not sleep.
//!
//! Under the lock a waiter only takes a buffer off a list. It clears the buffer afterwards, so that
//! a giver never waits for a clear.
//!
//! The background cleaner sleeps in the same way, by a flag in the same word, so that a giver pays
//! for one load.

use std::time::{Duration, Instant};

use crate::sync::{AtomicUsize, Condvar, Mutex, Ordering, fence};

/// The cleaner is asleep and wants to hear of dirty buffers.
const CLEANER: usize = 1;
/// One waiter.
const WAITER: usize = 2;

#[derive(Debug)]
pub(crate) struct WaitList {
    /// [`CLEANER`], plus [`WAITER`] for each waiter.
    attention: AtomicUsize,
    /// Held by a waiter from its last look at the lists until it sleeps.
    lock: Mutex<()>,
    condition: Condvar,
}

impl WaitList {
    pub(crate) fn new() -> Self {
        Self { attention: AtomicUsize::new(0), lock: Mutex::new(()), condition: Condvar::new() }
    }

    /// Call after a buffer was put on a list. Returns whether the cleaner was asleep and must be
    /// started; one caller per sleep gets `true`.
    #[must_use]
    pub(crate) fn arrived(&self) -> bool {
        fence(Ordering::SeqCst);
        let attention = self.attention.load(Ordering::Relaxed);
        attention != 0 && self.wake(attention)
    }

    #[cold]
    fn wake(&self, attention: usize) -> bool {
        if attention >= WAITER {
            let guard = self.lock.lock();
            self.condition.notify_one();
            drop(guard);
        }
        attention & CLEANER != 0 && self.cleaner_awake()
    }

    /// The cleaner goes to sleep. It must look at the lists once more afterwards.
    pub(crate) fn cleaner_asleep(&self) {
        self.attention.fetch_or(CLEANER, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The cleaner is awake again. Returns whether it was this call that woke it.
    pub(crate) fn cleaner_awake(&self) -> bool {
        self.attention.fetch_and(!CLEANER, Ordering::AcqRel) & CLEANER != 0
    }

    /// Tries until `attempt` succeeds or `timeout` has passed. `attempt` runs under the lock that
    /// givers take to wake a waiter, so it must be short.
    pub(crate) fn wait<T>(
        &self,
        timeout: Duration,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now().checked_add(timeout);
        let before = self.attention.fetch_add(WAITER, Ordering::Relaxed);
        debug_assert!(before < usize::MAX / 2, "more waiters than threads");
        fence(Ordering::SeqCst);
        let mut found = None;
        let mut guard = self.lock.lock();
        loop {
            found = found.or_else(&mut attempt);
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => timeout,
            };
            if found.is_some() || left.is_zero() {
                break;
            }
            guard = self.condition.wait_timeout(guard, left);
        }
        drop(guard);
        let before = self.attention.fetch_sub(WAITER, Ordering::Relaxed);
        debug_assert!(before >= WAITER, "a waiter leaves that never came");
        found
    }
}
