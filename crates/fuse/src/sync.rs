//! Atomics and locks of the standard library, or of the model checker under `--cfg loom`.
//!
//! loom 0.7 models `SeqCst` fences in full, but treats `SeqCst` accesses as `AcqRel`. Code whose
//! proof needs the single total order of sequentially consistent accesses therefore puts a fence
//! between them.

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(loom)]
use loom::sync as lib;
#[cfg(not(loom))]
use std::sync as lib;

pub(crate) use lib::MutexGuard;
pub(crate) use lib::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// A load, by a thread that changes the same location afterwards.
///
/// When loom 0.7 looks for accesses to reorder, it remembers only the latest access to a location.
/// A thread that loads a location and then changes it hides every load that another thread made in
/// between, and loom never tries the order in which that thread sees the change. Under loom the
/// load is therefore an exchange, which counts as a change.
///
/// Not for a load whose place in the total order is to be proved: an exchange sees the latest
/// value, so the model would not notice a missing fence.
pub(crate) trait Observe {
    /// The location's type.
    type Value;

    /// Returns the present value.
    fn observe(&self, order: Ordering) -> Self::Value;
}

impl Observe for AtomicU64 {
    type Value = u64;

    fn observe(&self, order: Ordering) -> u64 {
        #[cfg(loom)]
        return self
            .fetch_add(0, if order == Ordering::Relaxed { order } else { Ordering::Acquire });
        #[cfg(not(loom))]
        self.load(order)
    }
}

/// Tells threads that live at the same time apart, without a system call. Never 0.
pub(crate) fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}

/// A mutex that ignores poisoning: the state behind each lock of this crate is valid after every
/// statement, so that a panic while it is held spoils nothing.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(lib::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(lib::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(lib::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(lib::Condvar::new())
    }

    pub(crate) fn wait<'m, T>(&self, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for at most `timeout`; may return earlier.
    pub(crate) fn wait_timeout<'m, T>(
        &self,
        guard: MutexGuard<'m, T>,
        timeout: Duration,
    ) -> MutexGuard<'m, T> {
        self.0.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }
}

/// What every model of this crate shares. Run them with
/// `RUSTFLAGS="--cfg loom" cargo test -p tollgate-fuse --release --lib loom`.
#[cfg(all(test, loom))]
pub(crate) mod model {
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::thread::{JoinHandle, yield_now};

    /// Explores `body`.
    pub(crate) fn check(body: impl Fn() + Send + Sync + 'static) {
        loom::model(body);
    }

    /// Runs `body` on `shared` in another thread.
    pub(crate) fn run<T: Send + Sync + 'static, R: 'static>(
        shared: &Arc<T>,
        body: impl FnOnce(&T) -> R + 'static,
    ) -> JoinHandle<R> {
        let shared = Arc::clone(shared);
        loom::thread::spawn(move || body(&shared))
    }
}
