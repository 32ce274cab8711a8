//! What a session needs of a transport. Two exist: that of a mounted device ([`crate::Device`]),
//! over `/dev/fuse` or io_uring, and memory ([`crate::memory`]).
//!
//! A transport has one queue per worker thread. A queue returns one request at a time, in a buffer
//! that it owns, and has a sink for replies, which may be used from any thread. [`Queue::receive`]
//! hands over a request; exactly one [`ReplySink::commit`] with its `unique` ends it. If the kernel
//! gave the request up in between, `commit` fails with `ENOENT`.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tollgate_haltpoll::PollingTime;

use crate::buffer::ReplyArea;
use crate::init::InitFlags;
use crate::uring::{RingReport, UringUnavailable};

/// A source of queues.
pub trait Transport: Send + 'static {
    /// One worker's queue.
    type Queue: Queue;

    /// Opens the first queue, which receives INIT.
    ///
    /// # Errors
    /// Errors of the system.
    fn open(&mut self, config: &QueueConfig) -> io::Result<Self::Queue>;

    /// Capabilities that the transport asks for in the handshake.
    fn flags(&self) -> InitFlags {
        InitFlags::empty()
    }

    /// Opens the other queues, after the reply to INIT. `agreed` are the capabilities in force.
    ///
    /// # Errors
    /// Errors of the system.
    fn open_others(
        &mut self,
        agreed: InitFlags,
        config: &QueueConfig,
    ) -> io::Result<Vec<Self::Queue>>;

    /// Which of the queues are not there for every request, as far as is known. Asked when all were
    /// opened, and again after [`Transport::report`]. Default: none.
    fn spare(&self, _config: &QueueConfig) -> Spare {
        Spare::default()
    }

    /// What is not bound to a queue.
    fn control(&self) -> Arc<dyn Control>;

    /// What is in use. Waits until every queue was attached.
    fn report(&self) -> TransportReport;
}

/// How queues are to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Worker threads.
    pub threads: usize,
    /// Those beside them that serve while others are blocked.
    pub reserve: usize,
    /// Handlers may wait for ever.
    pub may_hang: bool,
    /// Largest payload of a request or reply in bytes.
    pub max_payload_bytes: usize,
    /// Bytes of all buffers together that may stay resident between requests.
    pub buffer_bytes: usize,
    /// Ring entries for each CPU's queue.
    pub ring_depth: usize,
    /// RELEASEs wait in the kernel, where the connection allows that.
    pub defer_releases: bool,
}

/// Queues of a transport that are not there for every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spare {
    /// They serve only while others are blocked.
    pub reserve: usize,
    /// They serve nothing: what they were for cannot be used.
    pub unused: usize,
}

/// The transport that a session uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportInUse {
    /// `/dev/fuse`.
    DevFuse,
    /// io_uring, with `/dev/fuse` for what the kernel sends there.
    Uring,
    /// Memory: a test plays the kernel.
    Memory,
}

impl fmt::Display for TransportInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DevFuse => "devfuse",
            Self::Uring => "uring",
            Self::Memory => "memory",
        })
    }
}

/// The transport that a session uses, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportReport {
    /// What is in use.
    pub in_use: TransportInUse,
    /// Why, if the choice was left to the session.
    pub reason: Option<&'static str>,
    /// The rings, if io_uring is in use.
    pub rings: Option<RingReport>,
    /// Why io_uring is not in use, if the session was allowed to use it.
    pub uring_unavailable: Option<UringUnavailable>,
}

/// A request as received.
#[derive(Clone, Copy, Debug)]
pub enum RawRequest<'q> {
    /// Header, arguments and payload in one piece.
    Contiguous(&'q [u8]),
    /// In three pieces, as io_uring delivers them. Each is replied to, also those of operations that
    /// have no reply over /dev/fuse.
    Split {
        /// The header.
        header: &'q [u8],
        /// The operation's fixed arguments, possibly padded.
        fixed: &'q [u8],
        /// Names, data and extensions.
        rest: &'q [u8],
    },
}

/// A request, with what is lent for serving it.
pub struct Received<'q> {
    /// The request.
    pub raw: RawRequest<'q>,
    /// Where a long reply may be built.
    pub area: &'q mut ReplyArea,
    /// Learns what the decoder found.
    pub observer: &'q mut dyn Observer,
}

/// A part of a queue that adapts to the requests it received.
pub trait Observer {
    /// The request was decoded and is about to be served. `caller` is the id of the thread that
    /// waits for it, 0 if none does or if it may not be asked about; `takes_long` is [`crate::Operation::takes_long`].
    fn decoded(&mut self, caller: u32, takes_long: bool);
}

/// Ignores what it is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn decoded(&mut self, _caller: u32, _takes_long: bool) {}
}

/// Why no request was received.
#[derive(Debug)]
pub enum ReceiveError {
    /// A signal, or a request that the kernel withdrew. Check whether to stop, and try again.
    Retry,
    /// The file system was unmounted.
    Unmounted,
    /// The connection was aborted.
    Aborted,
    /// Anything else.
    Io(io::Error),
}

/// One worker's end of the connection.
pub trait Queue: Send + 'static {
    /// Runs in the worker's thread before the first request. `polling` is CPU time of the process that is
    /// no load.
    ///
    /// # Errors
    /// The queue cannot be used.
    fn attach(&mut self, _polling: PollingTime) -> io::Result<()> {
        Ok(())
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    fn receive(&mut self) -> Result<Received<'_>, ReceiveError>;

    /// The request that was received last has been served, or has been taken over by a detached
    /// reply; `handler_ns` is how long that took. Clears what it and its reply left in the buffers.
    fn finish(&mut self, handler_ns: u64);

    /// Where replies to this queue's requests go.
    fn sink(&self) -> Arc<dyn ReplySink>;
}

/// Takes replies, from any thread.
pub trait ReplySink: Send + Sync + 'static {
    /// Sends one reply; the concatenated parts start with the header.
    ///
    /// # Errors
    /// `ENOENT` if the request is over already; other errors of the system.
    fn commit(&self, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// The session is over: closes what keeps the connection open. Later commits fail.
    fn close(&self) {}

    /// Asks the queue to tell when it has served all requests that it was sent before this call;
    /// returns what [`ReplySink::has_passed`] takes. A queue that cannot tell has passed at once.
    fn ask_to_pass(&self) -> u64 {
        0
    }

    /// Whether the queue has served what it was sent before [`ReplySink::ask_to_pass`] returned
    /// `asked`.
    fn has_passed(&self, _asked: u64) -> bool {
        true
    }

    /// Replies that the kernel refused after `commit` had returned.
    fn undelivered(&self) -> u64 {
        0
    }
}

/// A sink that can be printed.
pub(crate) struct SinkBox(pub(crate) Arc<dyn ReplySink>);

impl std::fmt::Debug for SinkBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplySink")
    }
}

/// The connection apart from its queues.
pub trait Control: Send + Sync + 'static {
    /// Sends a notification (a message with `unique` 0).
    ///
    /// # Errors
    /// Errors of the system.
    fn notify(&self, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// Registers a backing file and returns its id.
    ///
    /// # Errors
    /// Errors of the system.
    fn open_backing(&self, fd: BorrowedFd<'_>) -> io::Result<u32>;

    /// Drops a backing file.
    ///
    /// # Errors
    /// Errors of the system.
    fn close_backing(&self, id: u32) -> io::Result<()>;

    /// The descriptor of `/dev/fuse`, for a [`Registrar`](crate::Registrar).
    fn device(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Runs in a worker thread before its first request.
    fn prepare_thread(&self) {}

    /// Makes a worker thread (`tid`) that waits in [`Queue::receive`] return
    /// [`ReceiveError::Retry`]. A wake-up that comes too early is lost: the caller repeats it.
    fn wake(&self, tid: i32);

    /// The session is over: closes what keeps the connection open. Later calls fail.
    fn close(&self) {}
}
