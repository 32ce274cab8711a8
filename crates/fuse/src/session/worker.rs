//! A worker: receives a request from its queue, has it served, and goes on to the next.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use tollgate_haltpoll::{Hook, PollingTime};
use zerocopy::FromBytes;

use crate::abi::{InHeader, UNIQUE_RESEND, opcode};
use crate::buffer::ReplyArea;
use crate::counters::add;
use crate::dispatch::dispatch;
use crate::filesystem::Filesystem;
use crate::interrupt::Interrupted;
use crate::message::{DecodeError, Message};
use crate::operation::{Dialect, Operation};
use crate::panics::caught;
use crate::reply::{QueueState, RawReply};
use crate::request::Request;
use crate::session::error::{Ended, SessionError};
use crate::session::stopper::StopState;
use crate::transport::{Queue, RawRequest, ReceiveError, Received};
use crate::types::NodeId;

pub(crate) struct Worker<F, Q> {
    pub(crate) queue: Q,
    pub(crate) state: Arc<QueueState>,
    pub(crate) fs: Arc<F>,
    pub(crate) dialect: Dialect,
    pub(crate) hook: Hook,
    pub(crate) polling: PollingTime,
}

impl<F: Filesystem, Q: Queue> Worker<F, Q> {
    /// Serves until the session ends.
    pub(crate) fn run(self, stop: &StopState) -> Result<Ended, SessionError> {
        let Self { mut queue, state, fs, dialect, hook, polling } = self;
        let worker = state.worker;
        queue.attach(polling).map_err(|source| SessionError::Worker { worker, source })?;
        let mut server = Server { state: &state, fs: &*fs, dialect, hook };
        while !stop.is_over() {
            let handler_ns = match queue.receive() {
                Ok(received) => server.serve(received),
                Err(ReceiveError::Retry) => continue,
                Err(ReceiveError::Unmounted) => return Ok(Ended::Unmounted),
                Err(ReceiveError::Aborted) => return Ok(Ended::Aborted),
                Err(ReceiveError::Io(error)) => return Err(SessionError::Receive(error)),
            };
            if stop.was_copied() {
                // A handler forked, and this is the copy: the request is the server's, and what the
                // queue has is shared with it.
                let _queue = ManuallyDrop::new(queue);
                return Ok(Ended::Stopped);
            }
            // The caller has its reply already: clearing the buffers costs it nothing.
            queue.finish(handler_ns);
        }
        Ok(Ended::Stopped)
    }
}

/// A worker without its queue, which is borrowed while a request is served.
struct Server<'w, F> {
    state: &'w Arc<QueueState>,
    fs: &'w F,
    dialect: Dialect,
    hook: Hook,
}

impl<F: Filesystem> Server<'_, F> {
    /// Returns how long the handler took.
    fn serve(&mut self, received: Received<'_>) -> u64 {
        let Received { raw, area, observer } = received;
        let decoded = Message::parse(raw).and_then(|message| {
            self.state.counters.count(message.header().opcode);
            Ok((message, Operation::decode(&message, self.dialect)?))
        });
        match decoded {
            Ok((message, operation)) => {
                self.hook.touch_for(message.header().pid);
                let looks = operation.caller_may_be_looked_at();
                let caller = if looks { message.header().pid } else { 0 };
                observer.decoded(caller, operation.takes_long());
                self.serve_operation(&message, operation, area)
            }
            Err(error) => {
                self.malformed(raw, error, area);
                0
            }
        }
    }

    fn serve_operation(
        &mut self,
        message: &Message<'_>,
        op: Operation<'_>,
        area: &mut ReplyArea,
    ) -> u64 {
        let header = message.header();
        match op {
            Operation::Forget { lookups } => self.forget(NodeId(header.nodeid), lookups),
            Operation::BatchForget { forgets } => {
                forgets.for_each(|(node, lookups)| self.forget(node, lookups));
            }
            Operation::Interrupt { unique } => self.interrupt(unique),
            Operation::Destroy => {
                RawReply::new(self.state, header.unique, area).answer(&());
                return 0;
            }
            // A second handshake makes no sense.
            Operation::Init { .. } => {
                RawReply::new(self.state, header.unique, area).error(Errno::IO);
                return 0;
            }
            op => match message.supplementary_group() {
                Ok(group) => return self.call(header, group, op, area),
                Err(error) => {
                    self.refuse(header, error, message.is_in_entry(), area);
                    return 0;
                }
            },
        }
        if message.is_in_entry() {
            RawReply::new(self.state, header.unique, area).answer(&());
        }
        0
    }

    /// Hands a request to the file system. Returns how long the handler took.
    fn call(
        &self,
        header: &InHeader,
        group: Option<u32>,
        op: Operation<'_>,
        area: &mut ReplyArea,
    ) -> u64 {
        let state = self.state;
        if header.unique & UNIQUE_RESEND != 0 {
            add(&state.counters.resent, 1);
        }
        state.interrupts.begin(state.worker, header.unique);
        let raw = RawReply::new(state, header.unique, area);
        let interrupts = Some(&*state.interrupts);
        let (worker, class) = (state.worker, Cell::new(0));
        let request = Request { header, group, worker, interrupts, class };
        let begin = Instant::now();
        state.counters.begins(begin);
        self.guard(|| dispatch(self.fs, &request, op, raw));
        let ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        state.counters.latencies.record(header.opcode, request.class.get(), ns);
        state.counters.ended();
        state.interrupts.end(state.worker);
        ns
    }

    /// Runs a handler. A panic ends the request (its reply is dropped, which replies EIO), not the
    /// worker.
    fn guard(&self, handler: impl FnOnce()) {
        if caught(handler).is_none() {
            add(&self.state.counters.panics, 1);
            tracing::error!(worker = self.state.worker, "a request handler panicked");
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        add(&self.state.counters.forgets, 1);
        self.guard(|| self.fs.forget(node, lookups));
    }

    /// An INTERRUPT has no reply.
    fn interrupt(&self, unique: u64) {
        add(&self.state.counters.interrupts, 1);
        if self.state.interrupts.interrupt(unique) != Interrupted::Marked {
            add(&self.state.counters.interrupts_unknown, 1);
        }
        // After the mark: who begins to wait and asks for the mark then misses neither.
        self.guard(|| self.fs.interrupted(unique & !UNIQUE_RESEND));
    }

    fn malformed(&self, raw: RawRequest<'_>, error: DecodeError, area: &mut ReplyArea) {
        let (bytes, is_in_entry) = match raw {
            RawRequest::Contiguous(bytes) => (bytes, false),
            RawRequest::Split { header, .. } => (header, true),
        };
        match InHeader::read_from_prefix(bytes) {
            Ok((header, _)) => self.refuse(&header, error, is_in_entry, area),
            // Without a header there is nobody to reply to.
            Err(_) => add(&self.state.counters.malformed, 1),
        }
    }

    fn refuse(
        &self,
        header: &InHeader,
        error: DecodeError,
        is_in_entry: bool,
        area: &mut ReplyArea,
    ) {
        add(&self.state.counters.malformed, 1);
        tracing::debug!(%error, unique = header.unique, "malformed request");
        let silent = [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT];
        if is_in_entry || !silent.contains(&header.opcode) {
            RawReply::new(self.state, header.unique, area).error(error.errno());
        }
    }
}
