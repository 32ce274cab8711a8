//! The threads and buffers of a road.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tollgate_workqueue::{BuildError, Queue, Runtime, Scope, Work};

use super::lane::Lane;
use super::memory::Memory;
use crate::creds::Powers;

/// How long nobody reads before the memory of the buffers goes back.
const IDLE: Duration = Duration::from_secs(3);

/// A part takes a millisecond or two. On a slow or busy machine it may be some ten, which is nothing to
/// warn of.
const LONG_WORK: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    Queues(#[from] BuildError),
    #[error(transparent)]
    Memory(#[from] tollgate_hugepage::Error),
}

/// Queues and buffers.
pub(crate) struct Running {
    seal: Queue,
    redact: Queue,
    io: Queue,
    trimming: Arc<Trimming>,
    trim: Arc<Work>,
    /// After the queues: dropping it ends the threads.
    runtime: Runtime,
    memory: Arc<Memory>,
}

/// When memory goes back.
#[derive(Default)]
struct Trimming {
    /// Somebody read since it was looked at last.
    used: AtomicBool,
    /// It will be looked at.
    planned: AtomicBool,
}

impl Running {
    pub(super) fn start(powers: Powers) -> Result<Self, StartError> {
        let prepare = move || {
            if let Err(error) = powers.prepare_thread() {
                tracing::error!(%error, "a worker shares umask and groups");
            }
        };
        let runtime = Runtime::builder()
            .thread_name("tollgate-wq")
            .on_thread_start(prepare)
            .cpu_intensive_after(LONG_WORK)
            .build()?;
        let queue = |name| runtime.queue(name).scope(Scope::Cache).build();
        let (seal, redact, io) = (queue("seal")?, queue("redact")?, queue("io")?);
        let (memory, trimming) = (Memory::new()?, Arc::<Trimming>::default());
        let again: Arc<OnceLock<Weak<Work>>> = Arc::default();
        let trim = Arc::new(io.item({
            let (memory, trimming) = (Arc::clone(&memory), Arc::clone(&trimming));
            let again = Arc::clone(&again);
            move || {
                if trimming.look(&memory)
                    && let Some(work) = again.get().and_then(Weak::upgrade)
                {
                    let _ = work.queue_delayed(IDLE);
                }
            }
        }));
        let _ = again.set(Arc::downgrade(&trim));
        Ok(Self { seal, redact, io, trimming, trim, runtime, memory })
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(super) fn cpus(&self) -> u64 {
        self.runtime.topology().allowed().len() as u64
    }

    /// Runs `item` near the CPU of the caller's request. If it cannot be queued it is dropped: who
    /// waits for it learns of that.
    pub(super) fn run(&self, lane: Lane, item: impl FnOnce() + Send + 'static) {
        let queue = match lane {
            Lane::Seal => &self.seal,
            Lane::Redact => &self.redact,
            Lane::Io => &self.io,
        };
        // Issued here: the transport's thread runs where the caller does.
        if let Err(error) = queue.post(item) {
            tracing::debug!(%error, "a request is not computed");
        }
    }

    /// Sees to it that the memory of buffers goes back once nobody reads any more.
    pub(super) fn keep_trimmed(&self) {
        self.trimming.used.store(true, Ordering::Relaxed);
        if !self.trimming.planned.swap(true, Ordering::Relaxed) {
            // A runtime that is shut down has no memory to give back.
            let _ = self.trim.queue_delayed(IDLE);
        }
    }
}

impl Trimming {
    /// Trims unless somebody read meanwhile; returns whether to look again.
    fn look(&self, memory: &Memory) -> bool {
        if self.used.swap(false, Ordering::Relaxed) {
            return true;
        }
        memory.trim();
        self.planned.store(false, Ordering::Relaxed);
        // Who read since then found it planned, and left it at that.
        self.used.load(Ordering::Relaxed) && !self.planned.swap(true, Ordering::Relaxed)
    }
}
