//! A session's worker threads, from their start to their end.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::connection::Connection;
use crate::filesystem::Filesystem;
use crate::session::config::SessionConfig;
use crate::session::error::{Ended, SessionError, worse};
use crate::session::stopper::{Registered, StopState, Stopper};
use crate::session::worker::Worker;
use crate::transport::{Control, Queue};

/// A session that serves. Dropping it stops it and waits for its threads.
#[must_use = "dropping it ends the session"]
pub struct Running {
    connection: Connection,
    stopper: Stopper,
    threads: Vec<JoinHandle<Result<Ended, SessionError>>>,
    fs: Arc<dyn Filesystem>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl Running {
    /// Starts a thread for each worker.
    pub(crate) fn spawn<F: Filesystem, Q: Queue>(
        workers: impl ExactSizeIterator<Item = Worker<F, Q>>,
        config: &SessionConfig,
        connection: Connection,
        control: Arc<dyn Control>,
        fs: Arc<F>,
    ) -> Result<Self, SessionError> {
        let state = StopState::new(workers.len(), connection.interrupts(), control);
        let state = Arc::new(state);
        let stopper = Stopper::new(Arc::clone(&state));
        let mut running = Self { connection, stopper, threads: Vec::new(), fs };
        for (index, worker) in workers.enumerate() {
            // Dropping `running` on error stops those that run.
            let thread = spawn_one(index, worker, config, Arc::clone(&state))
                .map_err(|source| SessionError::Worker { worker: index, source })?;
            running.threads.push(thread);
        }
        Ok(running)
    }

    /// The connection to the kernel.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Ends the session; see [`Stopper::stop`].
    pub fn stop(&self) {
        self.stopper.stop();
    }

    /// A handle that ends the session from elsewhere.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits for the session's end, closes the device, and calls [`Filesystem::destroy`].
    ///
    /// # Errors
    /// The first error that ended a worker.
    pub fn wait(mut self) -> Result<Ended, SessionError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Ended, SessionError> {
        let mut outcome = None;
        for (worker, thread) in self.threads.drain(..).enumerate() {
            let one = thread.join().unwrap_or(Err(SessionError::Panicked { worker }));
            outcome = Some(worse(outcome, one));
        }
        let Some(outcome) = outcome else { return Ok(Ended::Stopped) };
        self.connection.close();
        self.fs.destroy();
        outcome
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop();
            // The caller chose not to learn how it ended.
            let _ = self.finish();
        }
    }
}

fn spawn_one<F: Filesystem, Q: Queue>(
    index: usize,
    worker: Worker<F, Q>,
    config: &SessionConfig,
    state: Arc<StopState>,
) -> io::Result<JoinHandle<Result<Ended, SessionError>>> {
    let cpus = config.cpus.get(index).cloned().flatten();
    let hook = config.on_thread_start.clone();
    let body = move || {
        let _registered = Registered::new(index, &state);
        // Dropped before the registration, whose end waits for threads that may wait for this
        // queue.
        let worker = worker;
        state.control().prepare_thread();
        if let Some(cpus) = cpus {
            pin(index, &cpus);
        }
        if let Some(hook) = hook {
            hook(index);
        }
        worker.run(&state)
    };
    thread::Builder::new().name(format!("tollgate-fuse-{index}")).spawn(body)
}

fn pin(index: usize, cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < rustix::thread::CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    // A CPU that went away must not end the session: the worker runs elsewhere.
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(worker = index, ?cpus, %error, "worker not pinned");
    }
}
