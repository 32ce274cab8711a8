//! A worker in reserve, for queues that must make progress even when no worker can be had.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::thread::{self, JoinHandle};

use tollgate_wakequeue::sync::{AtomicBool, Futex, Ordering};

/// The reserve of one queue: a thread that sleeps until the watchdog calls, then runs the queue's
/// items one at a time for as long as some wait for a worker.
pub(crate) struct Rescuer {
    calls: Futex,
    stop: AtomicBool,
    thread: StdMutex<Option<JoinHandle<()>>>,
}

impl Rescuer {
    /// Starts the thread. `rescue` runs one item, or returns false when none waits.
    pub(crate) fn start(
        name: String,
        rescue: impl Fn() -> bool + Send + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let rescuer = Arc::new(Self {
            calls: Futex::new(0),
            stop: AtomicBool::new(false),
            thread: StdMutex::new(None),
        });
        let me = Arc::clone(&rescuer);
        let thread = thread::Builder::new().name(name).spawn(move || me.serve(&rescue))?;
        *rescuer.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(rescuer)
    }

    /// Wakes the rescuer: the pool of its queue makes no progress.
    pub(crate) fn call(&self) {
        self.calls.word().fetch_add(1, Ordering::SeqCst);
        self.calls.wake(1);
    }

    fn serve(&self, rescue: &dyn Fn() -> bool) {
        let mut answered = 0;
        loop {
            let calls = self.calls.word().load(Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if calls == answered {
                self.calls.wait(calls, None);
                continue;
            }
            answered = calls;
            let mut found = true;
            while found && !self.stop.load(Ordering::SeqCst) {
                found = rescue();
            }
        }
    }

    /// Ends the thread after the item that it runs, without waiting for that.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.call();
    }

    /// As [`stop`](Self::stop), and waits. Not from inside an item of the queue.
    pub(crate) fn stop_and_wait(&self) {
        self.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            drop(thread.join());
        }
    }
}
