//! What wakes the housekeeper.

use std::time::Duration;

use tollgate_wakequeue::sync::{AtomicBool, Futex, Ordering};

/// Where the housekeeper sleeps, and whether it has to look at the workers.
pub(crate) struct Alarm {
    bell: Futex,
    armed: AtomicBool,
    stopped: AtomicBool,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self { bell: Futex::new(0), armed: AtomicBool::new(false), stopped: AtomicBool::new(false) }
    }

    /// There is something to watch. One load when that is known already.
    #[inline]
    pub(crate) fn arm(&self) {
        // After the claim of the worker that calls this; see `housekeeper::look`.
        if !self.armed.load(Ordering::SeqCst) {
            self.armed.store(true, Ordering::SeqCst);
            self.ring();
        }
    }

    /// Wakes the housekeeper.
    pub(crate) fn ring(&self) {
        self.bell.word().fetch_add(1, Ordering::SeqCst);
        self.bell.wake(1);
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.ring();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    /// True when it was armed.
    pub(crate) fn disarm(&self) -> bool {
        self.armed.swap(false, Ordering::SeqCst)
    }

    /// As [`arm`](Self::arm), by the housekeeper itself.
    pub(crate) fn rearm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// How often it was rung so far, for [`wait`](Self::wait).
    pub(crate) fn rings(&self) -> u32 {
        self.bell.word().load(Ordering::SeqCst)
    }

    /// Sleeps until it is rung once more than `rings` times, at most for `timeout`.
    pub(crate) fn wait(&self, rings: u32, timeout: Option<Duration>) {
        self.bell.wait(rings, timeout);
    }
}
