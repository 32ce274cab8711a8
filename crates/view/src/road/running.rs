//! The threads and buffers of a road.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::thread::sched_getcpu;
use tollgate_workqueue::{BuildError, CpuId, Queue, Runtime, Scope, Work};

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
                tracing::error!(%error, "a worker shares its umask");
            }
        };
        let runtime = Runtime::builder()
            .thread_name("tollgate-wq")
            .on_thread_start(prepare)
            .cpu_intensive_after(LONG_WORK)
            .build()?;
        let queue = |name| runtime.queue(name).scope(Scope::Cache).build();
        let (seal, redact, io) = (queue("seal")?, queue("redact")?, queue("io")?);
        let (memory, trimming) = (Arc::new(Memory::new()?), Arc::<Trimming>::default());
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

    pub(super) fn memory(&self) -> &Memory {
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
        // Issued here: the transport's thread runs where the caller does.
        let counted = (lane != Lane::Io).then(|| Counted::new(&self.computing));
        queue_item(self.queue(lane), counted, item);
    }

    /// What runs the items of a request later, as if they were queued here.
    pub(super) fn starter(&self, lane: Lane) -> Starter {
        Starter {
            queue: self.queue(lane).clone(),
            computing: (lane != Lane::Io).then(|| Arc::clone(&self.computing)),
            thread: thread::current().id(),
            cpu: sched_getcpu(),
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

/// A queue, and where the request came from whose items run there.
pub(super) struct Starter {
    queue: Queue,
    computing: Option<Arc<AtomicU64>>,
    thread: ThreadId,
    cpu: usize,
}

impl Starter {
    /// As [`Running::run`]. On another thread than the request's, the CPU is the request's still.
    pub(super) fn run(&self, item: impl FnOnce() + Send + 'static) {
        let counted = self.computing.as_ref().map(Counted::new);
        let cpu = u32::try_from(self.cpu).map(CpuId);
        let (true, Ok(cpu)) = (thread::current().id() != self.thread, cpu) else {
            return queue_item(&self.queue, counted, item);
        };
        // The queue may have left the CPU since then, and drops what it refuses.
        let item = Arc::new(Mutex::new(Some((item, counted))));
        let again = Arc::clone(&item);
        let on_cpu = move || {
            if let Some((item, _counted)) = { item.lock().take() } {
                item();
            }
        };
        if self.queue.post_on(cpu, on_cpu).is_err()
            && let Some((item, counted)) = { again.lock().take() }
        {
            queue_item(&self.queue, counted, item);
        }
    }
}

fn queue_item(queue: &Queue, counted: Option<Counted>, item: impl FnOnce() + Send + 'static) {
    let item = move || {
        item();
        drop(counted);
    };
    if let Err(error) = queue.post(item) {
        tracing::debug!(%error, "a request is not computed");
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

    use rustix::thread::CpuSet;

    use super::*;
    use crate::caller::ProcCallers;

    fn pin(cpu: usize) {
        let mut one = CpuSet::new();
        one.set(cpu);
        rustix::thread::sched_setaffinity(None, &one).unwrap();
    }

    /// The CPU on which an item runs that `start` starts.
    fn cpu_of(start: impl FnOnce(Box<dyn FnOnce() + Send>)) -> usize {
        let (give, take) = std::sync::mpsc::channel();
        start(Box::new(move || give.send(sched_getcpu()).unwrap()));
        take.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    /// With a pod for each CPU. A request that waited for a buffer is started by whoever frees it,
    /// on another CPU.
    #[test]
    fn items_run_in_the_pod_where_their_request_came_in() {
        let all = rustix::thread::sched_getaffinity(None).unwrap();
        let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).take(2).collect();
        let [first, second] = cpus[..] else {
            println!("not tested: this machine has one CPU");
            return;
        };
        let powers = Powers::of_this_process(Arc::new(ProcCallers::default()));
        let running = Running::start(powers).unwrap();
        running.redact.set("affinity_scope=cpu").unwrap();
        running.redact.set("affinity_strict=true").unwrap();
        for (own, other) in [(first, second), (second, first)].repeat(50) {
            let running = &running;
            let starter = std::thread::scope(|scope| {
                let receive = scope.spawn(move || {
                    pin(own);
                    assert_eq!(cpu_of(|item| running.run(Lane::Redact, item)), own);
                    running.starter(Lane::Redact)
                });
                receive.join().unwrap()
            });
            let freed = std::thread::spawn(move || {
                pin(other);
                cpu_of(|item| starter.run(item))
            });
            assert_eq!(freed.join().unwrap(), own, "not on {other}, which freed the buffer");
        }
    }

    /// Nobody takes a buffer meanwhile, and its memory is not given back yet.
    #[test]
    fn what_lay_in_a_buffer_is_cleared_on_the_queues_while_nothing_computes() {
        let powers = Powers::of_this_process(Arc::new(ProcCallers::default()));
        let running = Running::start(powers).unwrap();
        let cleared = || running.memory().pool().stats().background_clears;
        let counted = Counted::new(&running.computing);
        let room = running.memory().room_ahead().unwrap();
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
