//! Ending a session from outside its workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::forked::Maker;
use crate::interrupt::Interrupts;
use crate::transport::Control;

/// What workers and stoppers share.
pub(crate) struct StopState {
    pub(crate) stop: AtomicBool,
    /// The process that has the workers.
    server: Maker,
    interrupts: Arc<Interrupts>,
    control: Arc<dyn Control>,
    /// Thread ids; 0 before the thread runs and after it ended.
    tids: Vec<AtomicI32>,
}

impl StopState {
    pub(crate) fn new(
        workers: usize,
        interrupts: Arc<Interrupts>,
        control: Arc<dyn Control>,
    ) -> Self {
        let tids = (0..workers).map(|_| AtomicI32::new(0)).collect();
        let (stop, server) = (AtomicBool::new(false), Maker::this());
        Self { stop, server, interrupts, control, tids }
    }

    /// Whether this process is a copy, without the workers.
    pub(crate) fn was_copied(&self) -> bool {
        self.server.was_copied()
    }

    /// Whether a worker is to end.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.was_copied()
    }

    pub(crate) fn control(&self) -> &dyn Control {
        &*self.control
    }
}

/// Ends a running session from any thread, a signal handler's helper for example.
#[derive(Clone)]
pub struct Stopper {
    state: Arc<StopState>,
}

impl std::fmt::Debug for Stopper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stopper")
    }
}

impl Stopper {
    /// How long [`Stopper::stop`] goes on waking workers that wait for requests.
    const PATIENCE: Duration = Duration::from_secs(5);

    pub(crate) fn new(state: Arc<StopState>) -> Self {
        Self { state }
    }

    /// Makes the workers finish the request in their hands and end. Requests that they have not
    /// received stay with the kernel until [`crate::Running::wait`] closes the device, which aborts
    /// the connection unless somebody else holds it. Returns when no worker waits for requests any
    /// more.
    ///
    /// In a copy of the process (fork) this does nothing.
    pub fn stop(&self) {
        if self.state.was_copied() {
            return;
        }
        self.state.stop.store(true, Ordering::SeqCst);
        let start = Instant::now();
        while self.wake_waiting() && start.elapsed() < Self::PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn is_copy(&self) -> bool {
        self.state.was_copied()
    }

    /// Wakes the workers that wait; `false` if there are none.
    fn wake_waiting(&self) -> bool {
        let mut waiting = false;
        // A worker that stops its own session is in a handler, of a FORGET perhaps.
        let own = own_tid();
        for (worker, tid) in self.state.tids.iter().enumerate() {
            let tid = tid.load(Ordering::SeqCst);
            if tid != 0 && tid != own && !self.state.interrupts.is_serving(worker) {
                waiting = true;
                self.state.control.wake(tid);
            }
        }
        waiting
    }
}

fn own_tid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// A worker thread's entry in the table of thread ids. When a thread ends by an error or a panic,
/// the other workers are made to end as well.
pub(crate) struct Registered<'a> {
    index: usize,
    state: &'a Arc<StopState>,
}

impl<'a> Registered<'a> {
    /// Registers the calling thread as worker `index`.
    pub(crate) fn new(index: usize, state: &'a Arc<StopState>) -> Self {
        let before = state.tids[index].swap(own_tid(), Ordering::SeqCst);
        debug_assert_eq!(before, 0, "worker {index} runs twice");
        Self { index, state }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.state.tids[self.index].store(0, Ordering::SeqCst);
        if !self.state.stop.load(Ordering::SeqCst) {
            Stopper::new(Arc::clone(self.state)).stop();
        }
    }
}
