//! The atomics, locks and fences of the pool: the standard library's, or the model checker's under
//! `--cfg loom`. Nothing else in the pool may synchronise.

#[cfg(not(loom))]
use std::sync as imp;

#[cfg(loom)]
use loom::sync as imp;

pub(crate) use imp::MutexGuard;
pub(crate) use imp::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use std::sync::PoisonError;
use std::time::Duration;

/// A mutex without poisoning: what these guard is never left half changed, because no code of a
/// caller runs under them.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(imp::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(imp::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Leaves the lock, sleeps until notified or for `timeout` (in the model: until notified), and
    /// takes the lock again. May return early.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        let woken = self.0.wait_timeout(guard, timeout);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }
}
