//! The threads and buffers of a road.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tollgate_workqueue::{BuildError, Queue, Runtime, Scope, Work};

use super::cleaning::Cleaning;
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
    /// Items that compute, or wait to.
    computing: Arc<AtomicU64>,
    trimming: Arc<Trimming>,
    trim: Arc<Work>,
    _cleaning: Arc<Cleaning>,
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
        let computing = Arc::default();
        let _cleaning = Cleaning::start(&io, memory.pool(), &computing);
        Ok(Self { seal, redact, io, computing, trimming, trim, _cleaning, runtime, memory })
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// CPUs that have nothing to compute for requests. One at least.
    pub(super) fn idle_cpus(&self) -> u64 {
        let all = self.runtime.topology().allowed().len() as u64;
        all.saturating_sub(self.computing.load(Ordering::Relaxed)).max(1)
    }

    /// Whether what waits for a CPU is so little that reading ahead is worth it.
    pub(super) fn may_read_ahead(&self) -> bool {
        let all = self.runtime.topology().allowed().len() as u64;
        self.computing.load(Ordering::Relaxed) < 2 * all
    }

    /// The queue of a lane.
    pub(super) fn queue(&self, lane: Lane) -> &Queue {
        match lane {
            Lane::Seal => &self.seal,
            Lane::Redact => &self.redact,
            Lane::Io => &self.io,
        }
    }

    /// Runs `item` near the CPU of the caller's request. If it cannot be queued it is dropped: who
    /// waits for it learns of that.
    pub(super) fn run(&self, lane: Lane, item: impl FnOnce() + Send + 'static) {
        let (queue, computes) = (self.queue(lane), lane != Lane::Io);
        let counted = computes.then(|| Counted::new(&self.computing));
        let item = move || {
            item();
            drop(counted);
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

/// An item that is counted while it lives, whether it runs or is dropped.
struct Counted(Arc<AtomicU64>);

impl Counted {
    fn new(count: &Arc<AtomicU64>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::caller::ProcCallers;

    /// Nobody takes a buffer meanwhile, and its memory is not given back yet.
    #[test]
    fn what_lay_in_a_buffer_is_cleared_on_the_queues_while_nothing_computes() {
        let powers = Powers::of_this_process(Arc::new(ProcCallers::default()));
        let running = Running::start(powers).unwrap();
        let cleared = || running.memory().pool().stats().background_clears;
        let counted = Counted::new(&running.computing);
        let room = running.memory().room();
        drop((room.filled(&[7; 100_000]).unwrap(), room));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(cleared(), 0, "a request computes");
        drop(counted);
        let begun = Instant::now();
        while cleared() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "not cleared");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(running.memory().pool().stats().released, 0);
    }
}
