//! A session: the handshake, one worker thread per queue, and the end.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use thiserror::Error;
use zerocopy::IntoBytes;

use crate::abi::{self, InitOut, OutHeader};
use crate::buffer::Buffers;
use crate::connection::Connection;
use crate::counters::QueueCounters;
use crate::device::{Device, DeviceTransport};
use crate::filesystem::Filesystem;
use crate::init::{self, Handshake, InitError, InitFlags, Negotiated, Wish};
use crate::interrupt::Interrupts;
use crate::message::Message;
use crate::operation::{Dialect, Operation};
use crate::reply::{Lane, SinkBox};
use crate::transport::{Control, Queue, Raw, ReceiveError, ReplySink, Transport};
use crate::worker::Worker;

/// Runs in each worker thread before its first request, with the worker's index.
pub type ThreadHook = Arc<dyn Fn(usize) + Send + Sync>;

/// How a session is to run.
#[derive(Clone)]
pub struct SessionConfig {
    /// Worker threads, each with a queue; at least 1, at most [`SessionConfig::MAX_THREADS`].
    pub threads: usize,
    /// CPUs that worker `i` may run on; `None`, or no element, leaves it to the scheduler.
    pub cpus: Vec<Option<Vec<usize>>>,
    /// Capabilities to ask for; the transport adds those that it needs.
    pub want: InitFlags,
    /// How deep a backing file's file system may be stacked: 1, or 2 over a stacked one. 0: no
    /// passthrough.
    pub max_stack_depth: u32,
    /// Most readahead in bytes; the kernel has its own limit.
    pub max_readahead: u32,
    /// Largest payload of a WRITE in bytes.
    pub max_write: u32,
    /// Most requests in flight that no process waits for (readahead, RELEASE); more of them wait in
    /// the kernel.
    pub max_background: u16,
    /// From how many of those on the kernel counts the device as congested.
    pub congestion_threshold: u16,
    /// Granularity of times in nanoseconds.
    pub time_gran_ns: u32,
    /// How long a worker asks again and again for the next request before it sleeps; zero: not at all.
    pub spin: Duration,
    /// Runs in each worker thread first.
    pub on_thread_start: Option<ThreadHook>,
}

impl SessionConfig {
    /// Most worker threads. Each has two buffers of [`SessionConfig::max_write`] and a page.
    pub const MAX_THREADS: usize = 256;
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            threads: 1,
            cpus: Vec::new(),
            want: InitFlags::SUGGESTED,
            max_stack_depth: 2,
            max_readahead: 1 << 20,
            max_write: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            time_gran_ns: 1,
            spin: Duration::ZERO,
            on_thread_start: None,
        }
    }
}

impl std::fmt::Debug for SessionConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionConfig")
            .field("threads", &self.threads)
            .field("cpus", &self.cpus)
            .field("want", &self.want)
            .field("max_write", &self.max_write)
            .field("spin", &self.spin)
            .finish_non_exhaustive()
    }
}

/// Why a session did not start, or ended badly. The texts leave out what `source()` says: print the
/// chain.
#[derive(Debug, Error)]
pub enum SessionError {
    /// A configuration that makes no sense.
    #[error("{field} is {value}, but must be {allowed}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        allowed: String,
    },
    /// The device is not mounted.
    #[error("/dev/fuse is open but not mounted: mount the device before starting the session")]
    NotMounted,
    /// The file system went before the handshake.
    #[error("the file system was unmounted before the session had started")]
    Gone,
    /// The handshake failed.
    #[error(transparent)]
    Init(#[from] InitError),
    /// [`Filesystem::init`] failed.
    #[error("the file system did not start: {0}")]
    Filesystem(Errno),
    /// Receiving requests failed.
    #[error("receiving a FUSE request failed")]
    Receive(#[source] io::Error),
    /// Answering the handshake failed.
    #[error("answering the FUSE handshake failed")]
    Reply(#[source] io::Error),
    /// A queue or thread could not be made.
    #[error("worker {worker} could not be started")]
    Worker {
        /// Its index.
        worker: usize,
        /// Why.
        source: io::Error,
    },
    /// A worker thread panicked outside of any handler, in its start hook.
    #[error("worker {worker} panicked while it started")]
    Panicked {
        /// Its index.
        worker: usize,
    },
}

impl From<SessionError> for io::Error {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Filesystem(errno) => errno.into(),
            SessionError::Receive(e)
            | SessionError::Reply(e)
            | SessionError::Worker { source: e, .. } => Self::new(e.kind(), e),
            other => Self::other(other),
        }
    }
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The file system was unmounted.
    Unmounted,
    /// The connection was aborted, through fusectl for example.
    Aborted,
    /// [`Stopper::stop`] was called.
    Stopped,
}

/// A file system about to be served.
#[derive(Debug)]
pub struct Session<F, T = DeviceTransport> {
    fs: Arc<F>,
    transport: T,
    config: SessionConfig,
}

impl<F: Filesystem> Session<F> {
    /// A session over a mounted device.
    pub fn new(device: Device, fs: Arc<F>, config: SessionConfig) -> Self {
        let transport = DeviceTransport::new(device, config.spin);
        Self { fs, transport, config }
    }
}

impl<F: Filesystem, T: Transport> Session<F, T> {
    /// A session over another transport.
    pub fn with_transport(transport: T, fs: Arc<F>, config: SessionConfig) -> Self {
        Self { fs, transport, config }
    }

    /// Answers the kernel's INIT, calls [`Filesystem::init`], and starts the workers. Waits for INIT,
    /// which the kernel sends when the device is mounted.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn start(mut self) -> Result<Running, SessionError> {
        check(&self.config)?;
        let failed = |worker| move |source| SessionError::Worker { worker, source };
        let mut first = self.transport.queue().map_err(failed(0))?;
        let control = self.transport.control();
        let negotiated = handshake(&mut first, &self.config)?;
        let mut queues = vec![first];
        for worker in 1..self.config.threads {
            queues.push(self.transport.queue().map_err(failed(worker))?);
        }
        let lanes = lanes(&queues);
        let connection = Connection::new(negotiated, Arc::clone(&control), lanes.clone());
        self.fs.init(&connection).map_err(|errno| {
            connection.retire();
            SessionError::Filesystem(errno)
        })?;
        let dialect = Dialect { setxattr_ext: connection.has(InitFlags::SETXATTR_EXT) };
        let workers = queues.into_iter().zip(lanes).map(|(queue, lane)| Worker {
            queue,
            lane,
            fs: Arc::clone(&self.fs),
            dialect,
        });
        spawn_all(workers, &self.config, connection, control, self.fs.clone())
    }
}

fn check(config: &SessionConfig) -> Result<(), SessionError> {
    let max = SessionConfig::MAX_THREADS;
    if config.threads == 0 || config.threads > max {
        let (field, value) = ("threads", config.threads.to_string());
        return Err(SessionError::Config { field, value, allowed: format!("from 1 to {max}") });
    }
    if config.max_stack_depth > 2 {
        let (field, value) = ("max_stack_depth", config.max_stack_depth.to_string());
        return Err(SessionError::Config { field, value, allowed: "0, 1 or 2".into() });
    }
    Ok(())
}

fn lanes<Q: Queue>(queues: &[Q]) -> Vec<Arc<Lane>> {
    let interrupts = Arc::new(Interrupts::new(queues.len()));
    let lane = |(worker, queue): (usize, &Q)| {
        Arc::new(Lane {
            sink: SinkBox(queue.sink()),
            worker,
            counters: QueueCounters::default(),
            interrupts: Arc::clone(&interrupts),
        })
    };
    queues.iter().enumerate().map(lane).collect()
}

/// Receives INIT and answers it.
fn handshake<Q: Queue>(queue: &mut Q, config: &SessionConfig) -> Result<Negotiated, SessionError> {
    let wish = Wish {
        want: config.want,
        max_stack_depth: config.max_stack_depth,
        max_readahead: config.max_readahead,
        max_write: config.max_write,
        max_background: config.max_background,
        congestion_threshold: config.congestion_threshold,
        time_gran_ns: config.time_gran_ns,
    };
    let mut buffers = Buffers::new(config.max_write as usize);
    let sink = queue.sink();
    loop {
        let raw = match queue.receive(&mut buffers) {
            Ok((raw, _)) => raw,
            Err(ReceiveError::Retry) => continue,
            Err(ReceiveError::Unmounted | ReceiveError::Aborted) => return Err(SessionError::Gone),
            Err(ReceiveError::Io(e)) if e.raw_os_error() == Some(libc::EPERM) => {
                return Err(SessionError::NotMounted);
            }
            Err(ReceiveError::Io(e)) => return Err(SessionError::Receive(e)),
        };
        if let Some(agreed) = answer_init(raw, &*sink, &wish)? {
            return Ok(agreed);
        }
    }
}

/// `None` if the kernel is to ask again.
fn answer_init(
    raw: Raw<'_>,
    sink: &dyn ReplySink,
    wish: &Wish,
) -> Result<Option<Negotiated>, SessionError> {
    let message = decode(raw).map_err(|_| InitError::Malformed { len: 0, opcode: 0 })?;
    let unique = message.header().unique;
    let operation = Operation::decode(&message, Dialect::default());
    let Ok(Operation::Init { args }) = operation else {
        let (len, opcode) = (message.header().len as usize, message.header().opcode);
        refuse(sink, unique);
        return Err(InitError::Malformed { len, opcode }.into());
    };
    let (agreed, out) = match init::negotiate(args, wish) {
        Ok(Handshake::Agreed(agreed, out)) => (Some(agreed), out),
        Ok(Handshake::AskAgain(out)) => (None, out),
        Err(error) => {
            refuse(sink, unique);
            return Err(error.into());
        }
    };
    let len = abi_len::<InitOut>();
    let header = OutHeader { len, error: 0, unique };
    let parts = [header.as_bytes(), out.as_bytes()].map(IoSlice::new);
    sink.commit(&parts).map_err(SessionError::Reply)?;
    Ok(agreed)
}

/// Ends the handshake for the kernel: every use of the mount then fails instead of waiting.
fn refuse(sink: &dyn ReplySink, unique: u64) {
    let error = -Errno::PROTO.raw_os_error();
    let header = OutHeader { len: 16, error, unique };
    // Nothing is left to do when the kernel is gone already.
    let _ = sink.commit(&[IoSlice::new(header.as_bytes())]);
}

#[expect(clippy::cast_possible_truncation, reason = "structures of the wire are small")]
fn abi_len<T>() -> u32 {
    (size_of::<abi::OutHeader>() + size_of::<T>()) as u32
}

pub(crate) fn decode(raw: Raw<'_>) -> Result<Message<'_>, crate::message::DecodeError> {
    match raw {
        Raw::Contiguous(bytes) => Message::contiguous(bytes),
        Raw::Split { header, fixed, rest } => Message::split(header, fixed, rest),
    }
}

/// What workers and stoppers share.
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    pub(crate) interrupts: Arc<Interrupts>,
    control: Arc<dyn Control>,
    /// Thread ids; 0 before the thread runs and after it ended.
    tids: Vec<AtomicI32>,
}

/// Ends a running session from any thread, a signal handler's helper for example.
#[derive(Clone)]
pub struct Stopper {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Stopper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stopper")
    }
}

impl Stopper {
    /// How long [`Stopper::stop`] goes on waking workers that wait for requests.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// Makes the workers finish the request in their hands and end. Requests that they have not
    /// received stay with the kernel until [`Running::wait`] lets go of the device, which aborts the
    /// connection unless somebody else holds it. Returns when no worker waits for requests any more.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let start = Instant::now();
        while self.wake_waiting() && start.elapsed() < Self::PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Wakes the workers that wait; `false` if there are none.
    fn wake_waiting(&self) -> bool {
        let mut waiting = false;
        for (worker, tid) in self.shared.tids.iter().enumerate() {
            let tid = tid.load(Ordering::SeqCst);
            if tid != 0 && !self.shared.interrupts.is_serving(worker) {
                waiting = true;
                self.shared.control.wake(tid);
            }
        }
        waiting
    }
}

/// A session that serves. Dropping it stops it and waits for its threads.
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
    /// The connection to the kernel.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Ends the session; see [`Stopper::stop`].
    pub fn stop(&self) {
        self.stopper.stop();
    }

    /// Something to end the session with from elsewhere.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits for the session's end, lets go of the device, and calls [`Filesystem::destroy`].
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
        self.connection.retire();
        self.fs.destroy();
        outcome
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop();
            // The caller chose not to hear how it ended.
            let _ = self.finish();
        }
    }
}

/// An error weighs more than an end, and an end from outside more than a stop.
fn worse(
    before: Option<Result<Ended, SessionError>>,
    one: Result<Ended, SessionError>,
) -> Result<Ended, SessionError> {
    match (before, one) {
        (None | Some(Ok(Ended::Stopped)), one) => one,
        (Some(Ok(_)), Err(error)) => Err(error),
        (Some(before), _) => before,
    }
}

fn spawn_all<F: Filesystem, Q: Queue>(
    workers: impl Iterator<Item = Worker<F, Q>>,
    config: &SessionConfig,
    connection: Connection,
    control: Arc<dyn Control>,
    fs: Arc<F>,
) -> Result<Running, SessionError> {
    let shared = Arc::new(Shared {
        stop: AtomicBool::new(false),
        interrupts: connection.interrupts(),
        control,
        tids: (0..config.threads).map(|_| AtomicI32::new(0)).collect(),
    });
    let stopper = Stopper { shared: Arc::clone(&shared) };
    let mut running = Running { connection, stopper, threads: Vec::new(), fs };
    let payload = running.connection.negotiated().max_write as usize;
    for (index, worker) in workers.enumerate() {
        // Dropping `running` on error stops those that run.
        let thread = spawn(index, worker, config, payload, Arc::clone(&shared))
            .map_err(|source| SessionError::Worker { worker: index, source })?;
        running.threads.push(thread);
    }
    Ok(running)
}

fn spawn<F: Filesystem, Q: Queue>(
    index: usize,
    worker: Worker<F, Q>,
    config: &SessionConfig,
    payload: usize,
    shared: Arc<Shared>,
) -> io::Result<JoinHandle<Result<Ended, SessionError>>> {
    let cpus = config.cpus.get(index).cloned().flatten();
    let hook = config.on_thread_start.clone();
    let body = move || {
        let _life = Life::begin(index, &shared);
        shared.control.prepare_thread();
        if let Some(cpus) = cpus {
            pin(index, &cpus);
        }
        if let Some(hook) = hook {
            hook(index);
        }
        worker.run(&shared, Buffers::new(payload))
    };
    thread::Builder::new().name(format!("tollgate-fuse-{index}")).spawn(body)
}

/// A worker thread's entry in the table of thread ids. When a thread ends by error or panic, the
/// others are told to end as well, by the next request or by the one who waits.
struct Life<'a> {
    index: usize,
    shared: &'a Arc<Shared>,
}

impl<'a> Life<'a> {
    fn begin(index: usize, shared: &'a Arc<Shared>) -> Self {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        shared.tids[index].store(tid, Ordering::SeqCst);
        Self { index, shared }
    }
}

impl Drop for Life<'_> {
    fn drop(&mut self) {
        self.shared.tids[self.index].store(0, Ordering::SeqCst);
        if !self.shared.stop.load(Ordering::SeqCst) {
            Stopper { shared: Arc::clone(self.shared) }.stop();
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn a_text_and_its_cause_say_different_things() {
        let source = || io::Error::from_raw_os_error(22);
        for error in [
            SessionError::Receive(source()),
            SessionError::Reply(source()),
            SessionError::Worker { worker: 3, source: source() },
        ] {
            let cause = error.source().unwrap().to_string();
            assert!(!error.to_string().contains(&cause), "{error}");
        }
    }
}
