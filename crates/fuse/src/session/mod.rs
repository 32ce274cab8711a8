//! A session: the handshake, one worker thread per queue, and the end.

mod config;
mod ending;
mod error;
mod handshake;
mod running;
mod stopper;
mod worker;

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use tollgate_haltpoll::Hook;

use crate::buffer::BufferSize;
use crate::connection::Connection;
use crate::counters::QueueCounters;
use crate::device::{Device, DeviceTransport};
use crate::filesystem::Filesystem;
use crate::forked::Maker;
use crate::init::InitFlags;
use crate::interrupt::Interrupts;
use crate::mounted::MountedTransport;
use crate::operation::Dialect;
use crate::reply::QueueState;
use crate::transport::{Queue, SinkBox, Transport};

use ending::Ending;

pub use config::{SessionConfig, ThreadHook};
pub use error::{Ended, SessionError};
pub use running::Running;
pub use stopper::Stopper;

/// A file system about to be served.
#[derive(Debug)]
#[must_use = "nothing is served before `start`"]
pub struct Session<F, T = MountedTransport> {
    fs: Arc<F>,
    transport: T,
    config: SessionConfig,
}

impl<F: Filesystem> Session<F> {
    /// A session over a mounted device.
    pub fn new(device: Device, fs: Arc<F>, config: SessionConfig) -> Self {
        let device = DeviceTransport::new(device, config.spin);
        let transport = MountedTransport::new(device, config.transport);
        Self { fs, transport, config }
    }
}

impl<F: Filesystem, T: Transport> Session<F, T> {
    /// A session over another transport.
    pub fn with_transport(transport: T, fs: Arc<F>, config: SessionConfig) -> Self {
        Self { fs, transport, config }
    }

    /// Replies to the kernel's INIT, calls [`Filesystem::init`], and starts the workers. Waits for
    /// INIT, which the kernel sends when the device is mounted, and for
    /// [`SessionConfig::on_thread_start`] in each worker.
    ///
    /// # Errors
    /// See [`SessionError`]. The connection is closed then: every use of the mount fails.
    ///
    /// # Panics
    /// If [`Filesystem::init`] does. The connection is closed before.
    pub fn start(mut self) -> Result<Running, SessionError> {
        self.config.check()?;
        let config = self.config.queues();
        let failed = |worker| move |source| SessionError::Worker { worker, source };
        let mut first = self.transport.open(&config).map_err(failed(0))?;
        let control = self.transport.control();
        let proposal = self.config.proposal(self.transport.flags());
        let negotiated = handshake::handshake(&mut first, &proposal)?;
        let others = self.transport.open_others(negotiated.flags, &config).map_err(failed(1))?;
        let queues: Vec<_> = std::iter::once(first).chain(others).collect();
        let longest = BufferSize::longest_reply(config.max_payload_bytes);
        let states = queue_states(&queues, longest);
        let registrar = self.config.registrar.clone();
        let connection = Connection::new(
            negotiated,
            Arc::clone(&control),
            registrar,
            states.clone(),
            self.transport.spare(&config),
        );
        // The file system may hold the connection, which would keep the device open.
        match panic::catch_unwind(AssertUnwindSafe(|| self.fs.init(&connection))) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) => {
                connection.close();
                return Err(SessionError::Filesystem(errno));
            }
            Err(payload) => {
                connection.close();
                panic::resume_unwind(payload);
            }
        }
        let dialect = Dialect { setxattr_ext: connection.has(InitFlags::SETXATTR_EXT) };
        let keep_awake = self.config.keep_awake.as_ref();
        let workers = queues.into_iter().zip(states).map(|(queue, state)| worker::Worker {
            queue,
            state,
            fs: Arc::clone(&self.fs),
            dialect,
            hook: keep_awake.map_or_else(Hook::inert, |awake| awake.hook()),
            polling: keep_awake.map(|awake| awake.polling_time()).unwrap_or_default(),
        });
        let ending = Ending::new(workers.len(), connection, self.fs.clone());
        let running = Running::spawn(workers, &self.config, control, ending)?;
        let report = self.transport.report();
        running.connection().settle(report, self.transport.spare(&config));
        Ok(running)
    }
}

fn queue_states<Q: Queue>(queues: &[Q], longest_reply: usize) -> Vec<Arc<QueueState>> {
    let interrupts = Arc::new(Interrupts::new(queues.len()));
    let state = |(worker, queue): (usize, &Q)| {
        Arc::new(QueueState {
            sink: SinkBox(queue.sink()),
            worker,
            server: Maker::this(),
            longest_reply,
            counters: QueueCounters::default(),
            interrupts: Arc::clone(&interrupts),
        })
    };
    queues.iter().enumerate().map(state).collect()
}
