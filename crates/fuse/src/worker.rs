//! A worker: takes a request from its queue, has it served, and goes on to the next.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::abi::{InHeader, UNIQUE_RESEND, opcode};
use crate::buffer::{Buffers, ReplyArea};
use crate::counters::add;
use crate::dispatch::dispatch;
use crate::filesystem::Filesystem;
use crate::interrupt::Interrupted;
use crate::message::{DecodeError, Message};
use crate::operation::{Dialect, Operation};
use crate::reply::{Lane, Ticket};
use crate::request::Request;
use crate::session::{Ended, SessionError, Shared, decode};
use crate::transport::{Queue, Raw, ReceiveError};
use crate::types::NodeId;

/// How often in a row the kernel is asked to send an INTERRUPT again whose request is not known yet.
/// The request is then taken for lost: it was received, and will never be answered.
const MAX_INTERRUPT_RETRIES: u32 = 1000;

pub(crate) struct Worker<F, Q> {
    pub(crate) queue: Q,
    pub(crate) lane: Arc<Lane>,
    pub(crate) fs: Arc<F>,
    pub(crate) dialect: Dialect,
}

impl<F: Filesystem, Q: Queue> Worker<F, Q> {
    pub(crate) fn run(self, shared: &Shared, mut buffers: Buffers) -> Result<Ended, SessionError> {
        let Self { mut queue, lane, fs, dialect } = self;
        let mut server = Server { lane: &lane, fs: &*fs, dialect, unknown: (0, 0) };
        while !shared.stop.load(Ordering::Relaxed) {
            match queue.receive(&mut buffers) {
                Ok((raw, area)) => server.serve(raw, area),
                Err(ReceiveError::Retry) => continue,
                Err(ReceiveError::Unmounted) => return Ok(Ended::Unmounted),
                Err(ReceiveError::Aborted) => return Ok(Ended::Aborted),
                Err(ReceiveError::Io(error)) => return Err(SessionError::Receive(error)),
            }
            // The caller has its answer: this costs it nothing.
            buffers.clear();
        }
        Ok(Ended::Stopped)
    }
}

/// A worker without its queue and buffers, which are lent out while a request is served.
struct Server<'w, F> {
    lane: &'w Arc<Lane>,
    fs: &'w F,
    dialect: Dialect,
    /// The last INTERRUPT for an unknown request, and how often it came.
    unknown: (u64, u32),
}

impl<F: Filesystem> Server<'_, F> {
    fn serve(&mut self, raw: Raw<'_>, area: &mut ReplyArea) {
        let decoded = decode(raw).and_then(|message| {
            self.lane.counters.count(message.header().opcode);
            Ok((message, Operation::decode(&message, self.dialect)?))
        });
        match decoded {
            Ok((message, operation)) => self.serve_operation(&message, operation, area),
            Err(error) => self.malformed(raw, error, area),
        }
    }

    fn serve_operation(&mut self, message: &Message<'_>, op: Operation<'_>, area: &mut ReplyArea) {
        let header = message.header();
        match op {
            Operation::Forget { lookups } => self.forget(NodeId(header.nodeid), lookups),
            Operation::BatchForget { forgets } => {
                forgets.for_each(|(node, lookups)| self.forget(node, lookups));
            }
            Operation::Interrupt { unique } => self.interrupt(header.unique, unique, area),
            Operation::Destroy => {
                Ticket::new(self.lane, header.unique, area).answer(&());
            }
            // A second handshake makes no sense.
            Operation::Init { .. } => {
                Ticket::new(self.lane, header.unique, area).error(Errno::IO);
            }
            op => match message.supplementary_group() {
                Ok(group) => self.call(header, group, op, area),
                Err(error) => self.refuse(header, error, area),
            },
        }
    }

    /// Hands a request to the file system.
    fn call(&self, header: &InHeader, group: Option<u32>, op: Operation<'_>, area: &mut ReplyArea) {
        let lane = self.lane;
        if header.unique & UNIQUE_RESEND != 0 {
            add(&lane.counters.resent, 1);
        }
        lane.interrupts.begin(lane.worker, header.unique);
        let ticket = Ticket::new(lane, header.unique, area);
        let interrupts = &*lane.interrupts;
        let request = Request { header, group, worker: lane.worker, interrupts };
        self.guard(|| dispatch(self.fs, &request, op, ticket));
        lane.interrupts.end(lane.worker);
    }

    /// Runs a handler. A panic ends the request (its reply is dropped, which answers EIO), not the
    /// worker.
    fn guard(&self, handler: impl FnOnce()) {
        if panic::catch_unwind(AssertUnwindSafe(handler)).is_err() {
            add(&self.lane.counters.panics, 1);
            tracing::error!(worker = self.lane.worker, "a request handler panicked");
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        add(&self.lane.counters.forgets, 1);
        self.guard(|| self.fs.forget(node, lookups));
    }

    /// An INTERRUPT is answered only by "send it again", when it overtook its request.
    fn interrupt(&mut self, own: u64, unique: u64, area: &mut ReplyArea) {
        add(&self.lane.counters.interrupts, 1);
        let outcome = self.lane.interrupts.interrupt(unique);
        if outcome == Interrupted::Marked {
            return;
        }
        add(&self.lane.counters.interrupts_unknown, 1);
        let (last, times) = self.unknown;
        self.unknown = (unique, if last == unique { times + 1 } else { 0 });
        if outcome == Interrupted::Unknown && self.unknown.1 < MAX_INTERRUPT_RETRIES {
            Ticket::new(self.lane, own, area).error(Errno::AGAIN);
        }
    }

    fn malformed(&self, raw: Raw<'_>, error: DecodeError, area: &mut ReplyArea) {
        let bytes = match raw {
            Raw::Contiguous(bytes) => bytes,
            Raw::Split { header, .. } => header,
        };
        match InHeader::read_from_prefix(bytes) {
            Ok((header, _)) => self.refuse(&header, error, area),
            // There is nobody to answer.
            Err(_) => add(&self.lane.counters.malformed, 1),
        }
    }

    fn refuse(&self, header: &InHeader, error: DecodeError, area: &mut ReplyArea) {
        add(&self.lane.counters.malformed, 1);
        tracing::debug!(%error, unique = header.unique, "malformed request");
        let silent = [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT];
        if !silent.contains(&header.opcode) {
            Ticket::new(self.lane, header.unique, area).error(error.errno());
        }
    }
}
