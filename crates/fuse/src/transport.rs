//! What a session needs of a transport. Three fit: `/dev/fuse` ([`crate::Device`]), memory
//! ([`crate::memory`]), and io_uring.
//!
//! A transport has one queue per worker thread. A queue hands out one request at a time, in a buffer
//! that the worker owns, and has a sink for replies, which may be used from any thread. Hand-over:
//! `receive` publishes a request; exactly one `commit` with its `unique` ends it; requests that the
//! kernel gave up in between make `commit` fail with `ENOENT`.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::buffer::Buffers;

/// A source of queues.
pub trait Transport: Send + 'static {
    /// One worker's queue.
    type Queue: Queue;

    /// Opens the next queue. The first one receives INIT; the others are opened after it was answered.
    ///
    /// # Errors
    /// Errors of the system.
    fn queue(&mut self) -> io::Result<Self::Queue>;

    /// What is not bound to a queue.
    fn control(&self) -> Arc<dyn Control>;
}

/// A request as received.
#[derive(Clone, Copy, Debug)]
pub enum Raw<'q> {
    /// Header, arguments and payload in one piece.
    Contiguous(&'q [u8]),
    /// In three pieces, as io_uring delivers them.
    Split {
        /// The header.
        header: &'q [u8],
        /// The operation's fixed arguments, possibly padded.
        fixed: &'q [u8],
        /// Names, data and extensions.
        rest: &'q [u8],
    },
}

/// Why no request was received.
#[derive(Debug)]
pub enum ReceiveError {
    /// Nothing is wrong: a signal, or a request that vanished. Look whether to stop, and try again.
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
    /// Waits for a request, and returns it with the area in which a long reply may be built. Records in
    /// [`Buffers::received`] how many bytes of the request buffer it filled.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    fn receive<'q>(
        &'q mut self,
        buffers: &'q mut Buffers,
    ) -> Result<(Raw<'q>, &'q mut crate::buffer::ReplyArea), ReceiveError>;

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

    /// The session is over: lets go of what keeps the connection open. Later commits fail.
    fn retire(&self) {}
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

    /// Runs in a worker thread before its first request.
    fn prepare_thread(&self) {}

    /// Makes a worker thread (`tid`) that waits in [`Queue::receive`] return [`ReceiveError::Retry`].
    /// May come too early and be lost: the caller repeats it.
    fn wake(&self, tid: i32);

    /// The session is over: lets go of what keeps the connection open. Later calls fail.
    fn retire(&self) {}
}
