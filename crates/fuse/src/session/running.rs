//! A session's worker threads, from their start to their end.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, PoisonError, RwLock, mpsc};
use std::thread::{self, JoinHandle};

use crate::connection::Connection;
use crate::filesystem::Filesystem;
use crate::panics::caught;
use crate::session::config::{SessionConfig, ThreadHook};
use crate::session::ending::Ending;
use crate::session::error::{Ended, SessionError, worse};
use crate::session::stopper::{Registered, StopState, Stopper};
use crate::session::worker::Worker;
use crate::transport::{Control, Queue};

/// A session that serves. Dropping it stops it and waits for its threads.
///
/// A handler may drop it, or wait for it. Its thread cannot wait for itself: the session is then
/// stopped, and what follows is done by the last worker when that has ended, after the handler has
/// returned.
///
/// In a copy of the process (fork), where its threads are not, dropping it does nothing.
#[must_use = "dropping it ends the session"]
pub struct Running {
    ending: Arc<Ending>,
    stopper: Stopper,
    threads: Vec<JoinHandle<Result<Ended, SessionError>>>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("connection", self.connection()).finish_non_exhaustive()
    }
}

impl Running {
    /// Starts a thread for each worker.
    pub(crate) fn spawn<F: Filesystem, Q: Queue>(
        workers: impl ExactSizeIterator<Item = Worker<F, Q>>,
        config: &SessionConfig,
        control: Arc<dyn Control>,
        ending: Ending,
    ) -> Result<Self, SessionError> {
        let state = StopState::new(workers.len(), ending.connection().interrupts(), control);
        let state = Arc::new(state);
        let stopper = Stopper::new(Arc::clone(&state));
        let mut running = Self { ending: Arc::new(ending), stopper, threads: Vec::new() };
        let (tell, told) = mpsc::channel();
        // Nobody is served before all have started: who sees the mount finds what the caller sets up next to it.
        // Opened before `running` is dropped on error, which waits for the threads.
        let gate = Arc::new(RwLock::new(()));
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let started: Result<(), SessionError> =
            workers.enumerate().try_for_each(|(index, worker)| {
                let (state, ending) = (Arc::clone(&state), Arc::clone(&running.ending));
                let thread =
                    spawn_one(worker, Start::new(index, config, &tell, &gate), state, ending)
                        .map_err(|source| SessionError::Worker { worker: index, source })?;
                running.threads.push(thread);
                Ok(())
            });
        if started.is_err() && running.threads.is_empty() {
            // There is no worker whose end does this.
            running.ending.finish();
        }
        // Dropping `running` on error stops those that run, and ends the session after them.
        started?;
        drop(tell);
        if config.on_thread_start.is_some() {
            told.iter().collect::<Result<(), _>>()?;
        }
        drop(closed);
        Ok(running)
    }

    /// The connection to the kernel.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        self.ending.connection()
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

    /// Waits for the session's end, closes the device, and calls [`Filesystem::destroy`]. Called by a
    /// handler, it stops the session and returns [`Ended::Stopped`] at once; the last worker does the
    /// rest.
    ///
    /// When the last worker has ended by an error or a panic the device is closed without this call,
    /// so that every use of the mount fails.
    ///
    /// # Errors
    /// The first error that ended a worker. [`SessionError::Copy`] in a copy of the process.
    ///
    /// # Panics
    /// If [`Filesystem::destroy`] does.
    pub fn wait(mut self) -> Result<Ended, SessionError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Ended, SessionError> {
        if self.stopper.is_copy() {
            // Dropping a thread's handle would detach whoever has its memory here.
            let _threads = ManuallyDrop::new(std::mem::take(&mut self.threads));
            return Err(SessionError::Copy);
        }
        let own = thread::current().id();
        if self.threads.iter().any(|thread| thread.thread().id() == own) {
            self.ending.give_up();
            self.stop();
            self.threads.clear();
            return Ok(Ended::Stopped);
        }
        let mut outcome = None;
        for (worker, thread) in self.threads.drain(..).enumerate() {
            let one = thread.join().unwrap_or(Err(SessionError::PanickedServing { worker }));
            outcome = Some(worse(outcome, one));
        }
        let Some(outcome) = outcome else { return Ok(Ended::Stopped) };
        self.ending.finish();
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

/// How a worker's thread starts.
struct Start {
    index: usize,
    cpus: Option<Vec<usize>>,
    hook: Option<ThreadHook>,
    /// To who waits until all have started.
    tell: mpsc::Sender<Result<(), SessionError>>,
    /// Open once they have.
    gate: Arc<RwLock<()>>,
}

impl Start {
    fn new(
        index: usize,
        config: &SessionConfig,
        tell: &mpsc::Sender<Result<(), SessionError>>,
        gate: &Arc<RwLock<()>>,
    ) -> Self {
        let cpus = config.cpus.get(index).cloned().flatten();
        let hook = config.on_thread_start.clone();
        Self { index, cpus, hook, tell: tell.clone(), gate: Arc::clone(gate) }
    }

    /// Returns whether the worker may serve.
    fn run(self, control: &dyn Control) -> bool {
        let Self { index, cpus, hook, tell, gate } = self;
        let started = caught(|| {
            control.prepare_thread();
            if let Some(cpus) = cpus {
                pin(index, &cpus);
            }
            if let Some(hook) = hook {
                hook(index);
            }
        });
        let told = started.ok_or(SessionError::Panicked { worker: index });
        // Nobody listens where a worker before this one has failed.
        let _ = tell.send(told);
        drop(tell);
        drop(gate.read());
        started.is_some()
    }
}

fn spawn_one<F: Filesystem, Q: Queue>(
    worker: Worker<F, Q>,
    start: Start,
    state: Arc<StopState>,
    ending: Arc<Ending>,
) -> io::Result<JoinHandle<Result<Ended, SessionError>>> {
    let index = start.index;
    let body = move || {
        let outcome = {
            let _registered = Registered::new(index, &state);
            // The worker is dropped before the registration, whose end waits for threads that may wait
            // for this queue.
            match start.run(state.control()) {
                true => caught(|| worker.run(&state))
                    .unwrap_or(Err(SessionError::PanickedServing { worker: index })),
                false => {
                    let _ = caught(|| drop(worker));
                    Err(SessionError::Panicked { worker: index })
                }
            }
        };
        ending.worker_ended(outcome.is_err());
        outcome
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
