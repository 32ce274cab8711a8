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
//! A waiter is a thread, which sleeps on the condition, or a task, whose waker lies under the lock.
//! Who gives wakes one of each: whichever comes second finds nothing and waits again. A task that was
//! woken and is dropped before it looked passes the wake-up on.
//!
//! The background cleaner sleeps in the same way, by a flag in the same word, so that a giver pays
//! for one load.

use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::contained;
use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, fence};

/// The cleaner is asleep and wants to hear of dirty buffers.
const CLEANER: usize = 1;
/// One waiter.
const WAITER: usize = 2;

#[derive(Debug)]
pub(crate) struct WaitList {
    /// [`CLEANER`], plus [`WAITER`] for each waiter.
    attention: AtomicUsize,
    /// Held by a waiter from its last look at the lists until it sleeps.
    lock: Mutex<Tasks>,
    condition: Condvar,
}

/// Tasks that wait, the one that came first at the front.
#[derive(Debug, Default)]
struct Tasks {
    /// Of the next task.
    number: u64,
    asleep: VecDeque<(u64, Waker)>,
}

/// A task's place among those that wait. It counts as a waiter until it is given to
/// [`WaitList::leave`], or [`WaitList::poll`] was ready.
#[derive(Debug)]
pub(crate) struct Ticket(u64);

impl WaitList {
    pub(crate) fn new() -> Self {
        let lock = Mutex::new(Tasks::default());
        Self { attention: AtomicUsize::new(0), lock, condition: Condvar::new() }
    }

    /// Call after a buffer was put on a list. Returns whether the cleaner was asleep on this list and
    /// must be started; one caller per sleep gets `true`.
    #[must_use]
    pub(crate) fn arrived(&self) -> bool {
        fence(Ordering::SeqCst);
        let attention = self.attention.load(Ordering::Relaxed);
        attention != 0 && self.wake(attention)
    }

    #[cold]
    fn wake(&self, attention: usize) -> bool {
        if attention >= WAITER {
            let tasks = self.lock.lock();
            self.condition.notify_one();
            self.wake_first(tasks);
        }
        attention & CLEANER != 0 && self.cleaner_awake()
    }

    /// Wakes the task that came first. Where its waker panics, that one may never look: the next one is
    /// woken as well. A panic does not come out, which would end the process from the drop of a buffer
    /// whose owner panics.
    fn wake_first<'a>(&'a self, mut tasks: MutexGuard<'a, Tasks>) {
        // Not more than there are now: a waker may have its task wait anew before it panics.
        for _ in 0..tasks.asleep.len() {
            let first = tasks.asleep.pop_front();
            drop(tasks);
            let Some((_, waker)) = first else { return };
            if contained::call(|| waker.wake()).is_some() {
                return;
            }
            tasks = self.lock.lock();
        }
    }

    /// The cleaner goes to sleep. It must look at the lists once more afterwards.
    pub(crate) fn cleaner_asleep(&self) {
        // Whoever wakes it sees what it did before: that its job is not on its way any more.
        self.attention.fetch_or(CLEANER, Ordering::Release);
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
        self.come();
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
        self.go();
        found
    }

    /// One attempt of a task, which `waker` wakes when another may succeed. `ticket` is `None` at
    /// first. As for [`WaitList::wait`], `attempt` must be short.
    pub(crate) fn poll<T>(
        &self,
        ticket: &mut Option<Ticket>,
        waker: &Waker,
        attempt: impl FnOnce() -> Option<T>,
    ) -> Poll<T> {
        // A waker is the caller's code, and may give a buffer back or take one. So it is cloned before
        // the lock is taken, and dropped after it is released.
        let mut mine = Some(waker.clone());
        if ticket.is_none() {
            self.come();
        }
        let mut tasks = self.lock.lock();
        let number = match ticket {
            Some(Ticket(number)) => *number,
            None => {
                tasks.number += 1;
                *ticket = Some(Ticket(tasks.number));
                tasks.number
            }
        };
        let place = tasks.asleep.iter().position(|(other, _)| *other == number);
        if let Some(found) = attempt() {
            let before = place.and_then(|place| tasks.asleep.remove(place));
            drop(tasks);
            *ticket = None;
            self.go();
            // What was found must reach the caller, whatever the drop of a waker does.
            contained::call(|| drop(before));
            contained::call(|| drop(mine));
            return Poll::Ready(found);
        }
        if let Some(waker) = mine.take() {
            match place {
                Some(place) => mine = Some(std::mem::replace(&mut tasks.asleep[place].1, waker)),
                // It came before those that wait now, but for the first time.
                None => {
                    let later = |(other, _): &(u64, Waker)| *other > number;
                    let place = tasks.asleep.iter().position(later).unwrap_or(tasks.asleep.len());
                    tasks.asleep.insert(place, (number, waker));
                }
            }
        }
        drop(tasks);
        contained::call(|| drop(mine));
        Poll::Pending
    }

    /// A task gives up. If it was woken before, another is woken in its place.
    pub(crate) fn leave(&self, ticket: &Ticket) {
        let mut tasks = self.lock.lock();
        let place = tasks.asleep.iter().position(|(other, _)| *other == ticket.0);
        let mine = place.and_then(|place| tasks.asleep.remove(place));
        self.go();
        if mine.is_none() {
            self.wake_first(tasks);
            return;
        }
        drop(tasks);
        contained::call(|| drop(mine));
    }

    fn come(&self) {
        let before = self.attention.fetch_add(WAITER, Ordering::Relaxed);
        debug_assert!(before < usize::MAX / 2, "more waiters than memory has room for");
        fence(Ordering::SeqCst);
    }

    fn go(&self) {
        let before = self.attention.fetch_sub(WAITER, Ordering::Relaxed);
        debug_assert!(before >= WAITER, "a waiter leaves that never came");
    }
}
