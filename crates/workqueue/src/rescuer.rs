//! A worker in reserve, for queues that must make progress even when no worker can be had.

use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use tollgate_wakequeue::sync::{AtomicBool, Futex, Ordering};

use crate::core::QueueCore;

/// The reserve of one queue: a thread that sleeps until the keeper calls, then runs the queue's
/// items one at a time for as long as some wait for a worker.
pub(crate) struct Rescuer {
    calls: Futex,
    stop: AtomicBool,
    thread: StdMutex<Option<JoinHandle<()>>>,
}

impl Rescuer {
    pub(crate) fn start(queue: &Arc<QueueCore>) -> std::io::Result<Arc<Self>> {
        let rescuer = Arc::new(Self {
            calls: Futex::new(0),
            stop: AtomicBool::new(false),
            thread: StdMutex::new(None),
        });
        let (me, queue) = (Arc::clone(&rescuer), Arc::downgrade(queue));
        let thread = thread::Builder::new()
            .name("workqueue-rescue".to_owned())
            .spawn(move || me.serve(&queue))?;
        *rescuer.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(rescuer)
    }

    /// Somebody has to do something.
    pub(crate) fn call(&self) {
        self.calls.word().fetch_add(1, Ordering::SeqCst);
        self.calls.wake(1);
    }

    fn serve(&self, queue: &Weak<QueueCore>) {
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
            let Some(queue) = queue.upgrade() else { return };
            while queue.rescue_one() {}
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.call();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            drop(thread.join());
        }
    }
}
