//! The connection to the kernel, apart from requests: what was negotiated, backing files,
//! notifications, counters.

use std::ffi::CStr;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{self, NotifyDelete, NotifyInvalEntry, NotifyInvalInode, OutHeader};
use crate::counters::RequestCounts;
use crate::init::{InitFlags, Negotiated};
use crate::interrupt::Interrupts;
use crate::latency::{self, OperationLatency};
use crate::reply::QueueState;
use crate::transport::{Control, TransportInUse, TransportReport};
use crate::types::{BackingId, Name, NodeId};

/// A handle on the connection; clones are cheap and name the same connection. It does not keep the
/// connection open: when the session has ended, its methods fail.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    negotiated: Negotiated,
    control: Arc<dyn Control>,
    queues: Vec<Arc<QueueState>>,
    transport: OnceLock<TransportReport>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("negotiated", self.negotiated()).finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(
        negotiated: Negotiated,
        control: Arc<dyn Control>,
        queues: Vec<Arc<QueueState>>,
    ) -> Self {
        let transport = OnceLock::new();
        Self { shared: Arc::new(Shared { negotiated, control, queues, transport }) }
    }

    /// What kernel and server agreed on.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        &self.shared.negotiated
    }

    /// What was agreed on contains all of `flags`.
    #[must_use]
    pub fn has(&self, flags: InitFlags) -> bool {
        self.negotiated().flags.contains(flags)
    }

    /// Requests counted since the connection was made.
    #[must_use]
    pub fn counts(&self) -> RequestCounts {
        let mut counts = RequestCounts::sum(self.shared.queues.iter().map(|queue| &queue.counters));
        counts.undelivered +=
            self.shared.queues.iter().map(|queue| queue.sink.0.undelivered()).sum::<u64>();
        counts
    }

    /// The transport in use; `None` while the session starts.
    #[must_use]
    pub fn transport(&self) -> Option<&TransportReport> {
        self.shared.transport.get()
    }

    /// The transport's choice is final.
    pub(crate) fn settle(&self, report: TransportReport) {
        let first = self.shared.transport.set(report).is_ok();
        debug_assert!(first, "a session starts once");
    }

    /// How long requests took, by operation and class ([`crate::Request::set_class`]).
    #[must_use]
    pub fn latencies(&self) -> Vec<OperationLatency> {
        latency::sum(&self.shared.queues.iter().map(|queue| &queue.counters.latencies))
    }

    /// Queues, each with a worker thread.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.shared.queues.len()
    }

    /// Registers `fd` with the kernel as the lower file of an inode. Needs `CAP_SYS_ADMIN` in the
    /// initial user namespace. A descriptor opened with `O_PATH` serves as well: the kernel opens
    /// the file anew for each handle. It holds the file from then on: `fd` may be closed.
    ///
    /// # Errors
    /// `EPERM` without the capability or without [`InitFlags::PASSTHROUGH`]; `EISDIR` and
    /// `EOPNOTSUPP` for what is not a regular file; `ELOOP` when the lower file system is stacked
    /// too deep already.
    pub fn open_backing(&self, fd: BorrowedFd<'_>) -> io::Result<BackingFile> {
        let id = self.shared.control.open_backing(fd)?;
        Ok(BackingFile { id: BackingId(id), connection: self.clone() })
    }

    /// Makes the kernel drop the attributes of `node` and its cached data from `offset` on, `len`
    /// bytes (0: to the end; a negative `offset`: no data, attributes alone).
    ///
    /// Like the other invalidations, this can wait for a request that the server has yet to reply
    /// to: never call it from a handler that works on the same inode or directory.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the inode.
    pub fn invalidate_inode(&self, node: NodeId, offset: i64, len: i64) -> io::Result<()> {
        self.notify(
            abi::notify::INVAL_INODE,
            &NotifyInvalInode { ino: node.0, off: offset, len },
            None,
        )
    }

    /// Makes the kernel forget what it cached for `name` in `parent`.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the directory or the name; `ENOTEMPTY`-like errors of
    /// directories in use as mount points.
    pub fn invalidate_entry(&self, parent: NodeId, name: Name<'_>) -> io::Result<()> {
        let head = NotifyInvalEntry { parent: parent.0, namelen: name_len(name), flags: 0 };
        self.notify(abi::notify::INVAL_ENTRY, &head, Some(name.as_c_str()))
    }

    /// Tells the kernel that `name` in `parent`, which was `child`, is deleted. Watchers are told.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the directory, the name, or another inode by it.
    pub fn delete(&self, parent: NodeId, child: NodeId, name: Name<'_>) -> io::Result<()> {
        let namelen = name_len(name);
        let head = NotifyDelete { parent: parent.0, child: child.0, namelen, padding: 0 };
        self.notify(abi::notify::DELETE, &head, Some(name.as_c_str()))
    }

    /// Asks the kernel to send again all requests that were received and not answered, marked
    /// ([`crate::Request::resent`]). For a server that takes over from one that died.
    ///
    /// # Errors
    /// `EINVAL` from kernels without [`InitFlags::HAS_RESEND`]. `EOPNOTSUPP` over io_uring, whose
    /// requests the kernel does not send again.
    pub fn resend(&self) -> io::Result<()> {
        if self.transport().is_some_and(|report| report.in_use == TransportInUse::Uring) {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.notify(abi::notify::RESEND, &(), None)
    }

    fn notify<T: IntoBytes + Immutable>(
        &self,
        code: i32,
        head: &T,
        name: Option<&CStr>,
    ) -> io::Result<()> {
        let name = name.map_or(&[][..], CStr::to_bytes_with_nul);
        let len = size_of::<OutHeader>() + size_of::<T>() + name.len();
        let len = u32::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let header = OutHeader { len, error: code, unique: 0 };
        let parts = [header.as_bytes(), head.as_bytes(), name].map(IoSlice::new);
        self.shared.control.notify(&parts)
    }

    pub(crate) fn interrupts(&self) -> Arc<Interrupts> {
        // A session has at least one queue, and all share one table.
        Arc::clone(&self.shared.queues[0].interrupts)
    }

    /// The session is over.
    pub(crate) fn close(&self) {
        for queue in &self.shared.queues {
            queue.sink.0.close();
        }
        self.shared.control.close();
    }
}

/// Length without the NUL, at most [`Name::MAX`].
#[expect(clippy::cast_possible_truncation, reason = "bounded by Name::MAX")]
fn name_len(name: Name<'_>) -> u32 {
    name.as_bytes().len() as u32
}

/// A lower file that is registered with the kernel; dropping it takes the registration back.
/// Handles that were opened with it go on working: the kernel holds the file for them.
#[derive(Debug)]
pub struct BackingFile {
    id: BackingId,
    connection: Connection,
}

impl BackingFile {
    /// For [`crate::Opened::backing`].
    #[must_use]
    pub fn id(&self) -> BackingId {
        self.id
    }
}

impl Drop for BackingFile {
    fn drop(&mut self) {
        if let Err(error) = self.connection.shared.control.close_backing(self.id.0) {
            tracing::debug!(id = self.id.0, %error, "backing file not closed");
        }
    }
}
