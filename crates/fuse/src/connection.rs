//! The connection to the kernel, apart from requests: what was negotiated, backing files,
//! notifications, counters.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{self, NotifyDelete, NotifyInvalEntry, NotifyInvalInode, NotifyStore, OutHeader};
use crate::counters::RequestCounts;
use crate::forked::Maker;
use crate::init::{InitFlags, Negotiated};
use crate::interrupt::Interrupts;
use crate::latency::{self, OperationLatency};
use crate::passing::Passing;
use crate::registrar::Registrar;
use crate::reply::QueueState;
use crate::transport::{Control, Spare, TransportInUse, TransportReport};
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
    registrar: Option<Arc<dyn Registrar>>,
    queues: Vec<Arc<QueueState>>,
    transport: OnceLock<(TransportReport, Spare)>,
    /// What holds until then.
    spare: Spare,
    closed: AtomicBool,
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
        registrar: Option<Arc<dyn Registrar>>,
        queues: Vec<Arc<QueueState>>,
        spare: Spare,
    ) -> Self {
        let transport = OnceLock::new();
        let closed = AtomicBool::new(false);
        let shared = Shared { negotiated, control, registrar, queues, transport, spare, closed };
        Self { shared: Arc::new(shared) }
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
        self.shared.transport.get().map(|(report, _)| report)
    }

    /// The transport's choice is final.
    pub(crate) fn settle(&self, report: TransportReport, spare: Spare) {
        let first = self.shared.transport.set((report, spare)).is_ok();
        debug_assert!(first, "a session starts once");
    }

    /// How long requests took, by operation and class ([`crate::Request::set_class`]).
    #[must_use]
    pub fn latencies(&self) -> Vec<OperationLatency> {
        latency::sum(&self.shared.queues.iter().map(|queue| &queue.counters.latencies))
    }

    /// Queues, each with a worker thread, without the reserve. With io_uring: `/dev/fuse`, the rings
    /// and the helpers.
    #[must_use]
    pub fn queues(&self) -> usize {
        let Spare { reserve, unused } = self.spare();
        self.shared.queues.len().saturating_sub(reserve + unused)
    }

    /// Worker threads that serve only while others are blocked: those of
    /// [`SessionConfig::reserve`](crate::SessionConfig::reserve), where the transport has them.
    #[must_use]
    pub fn reserve(&self) -> usize {
        self.spare().reserve
    }

    fn spare(&self) -> Spare {
        self.shared.transport.get().map_or(self.shared.spare, |(_, spare)| *spare)
    }

    /// For how long each worker has been in its handler that has been there for longer than `time`.
    #[must_use]
    pub fn blocked(&self, time: Duration) -> Vec<Duration> {
        let busy = self.shared.queues.iter().filter_map(|queue| queue.counters.busy());
        busy.filter(|busy| *busy > time).collect()
    }

    /// Registers `fd` with the kernel as the lower file of an inode. Needs `CAP_SYS_ADMIN` in the
    /// initial user namespace. A descriptor opened with `O_PATH` serves as well: the kernel opens
    /// the file anew for each handle. It holds the file from then on: `fd` may be closed.
    ///
    /// With [`SessionConfig::registrar`](crate::SessionConfig::registrar) that one registers it, no
    /// capability is needed, and `fd` must be open for reading and writing.
    ///
    /// # Errors
    /// `EPERM` without the capability or without [`InitFlags::PASSTHROUGH`]; `EISDIR` for a directory and
    /// `EINVAL` for whatever else is not a regular file (a device, a pipe); `ELOOP` when the lower file
    /// system is stacked too deep already, which one over FUSE and procfs always are; `EBADF` after the
    /// session's end.
    pub fn open_backing(&self, fd: BorrowedFd<'_>) -> io::Result<BackingFile> {
        let id = match self.registrar() {
            Some((registrar, device)) => registrar.register(device, fd)?,
            None => self.shared.control.open_backing(fd)?,
        };
        Ok(BackingFile { id: BackingId(id), maker: Maker::this(), connection: self.clone() })
    }

    /// Whether [`Connection::open_backing`] takes only what is open for reading and writing: with
    /// [`SessionConfig::registrar`](crate::SessionConfig::registrar).
    #[must_use]
    pub fn has_registrar(&self) -> bool {
        self.registrar().is_some()
    }

    /// Makes sure that the registrar is there; without one this does nothing.
    ///
    /// # Errors
    /// Why it is not.
    pub fn reach_registrar(&self) -> io::Result<()> {
        self.registrar().map_or(Ok(()), |(registrar, device)| registrar.connect(device))
    }

    /// Who registers backing files, if it is not this process.
    fn registrar(&self) -> Option<(&Arc<dyn Registrar>, BorrowedFd<'_>)> {
        Some((self.shared.registrar.as_ref()?, self.shared.control.device()?))
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
            &[],
        )
    }

    /// Puts `data` into the kernel's page cache of `node`, from `offset` on. The file becomes
    /// longer if it ends before; it never becomes shorter. A page that is not filled and does not
    /// end the file stays unread.
    ///
    /// This waits for a READ of the same pages that the server has yet to reply to: call it from a
    /// handler only while nobody has the inode open.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the inode. `EINVAL` for what is not a regular file (the
    /// root, for one; kernels before May 2026 took it), for more data than fits a message (nearly
    /// 2 GiB), and for an end behind 2^63 - 1, where no file ends.
    pub fn store(&self, node: NodeId, offset: u64, data: &[u8]) -> io::Result<()> {
        let invalid = || io::Error::from(Errno::INVAL);
        let size = u32::try_from(data.len()).map_err(|_| invalid())?;
        // The kernel would not look.
        let end = offset.checked_add(size.into()).ok_or_else(invalid)?;
        i64::try_from(end).map_err(|_| invalid())?;
        let head = NotifyStore { nodeid: node.0, offset, size, padding: 0 };
        self.notify(abi::notify::STORE, &head, data)
    }

    /// Makes the kernel forget what it cached for `name` in `parent`.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the directory or the name; `ENOTEMPTY`-like errors of
    /// directories in use as mount points.
    pub fn invalidate_entry(&self, parent: NodeId, name: Name<'_>) -> io::Result<()> {
        let head = NotifyInvalEntry { parent: parent.0, namelen: name_len(name), flags: 0 };
        self.notify(abi::notify::INVAL_ENTRY, &head, name.as_c_str().to_bytes_with_nul())
    }

    /// Makes the kernel ask again for `name` in `parent` before it uses it the next time. Unlike
    /// [`Connection::invalidate_entry`] it leaves what is in use, and what is mounted there, in its
    /// place. Linux 6.2 and later; earlier ones forget the name.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the directory or the name.
    pub fn expire_entry(&self, parent: NodeId, name: Name<'_>) -> io::Result<()> {
        let flags = abi::notify::EXPIRE_ONLY;
        let head = NotifyInvalEntry { parent: parent.0, namelen: name_len(name), flags };
        self.notify(abi::notify::INVAL_ENTRY, &head, name.as_c_str().to_bytes_with_nul())
    }

    /// Tells the kernel that `name` in `parent`, which was `child`, is deleted. Watchers are told.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the directory, the name, or another inode by it.
    pub fn delete(&self, parent: NodeId, child: NodeId, name: Name<'_>) -> io::Result<()> {
        let namelen = name_len(name);
        let head = NotifyDelete { parent: parent.0, child: child.0, namelen, padding: 0 };
        self.notify(abi::notify::DELETE, &head, name.as_c_str().to_bytes_with_nul())
    }

    /// Asks the kernel to send again all requests that were received and not answered, marked
    /// ([`crate::Request::resent`]): of this session, which is still there. That is for a server that
    /// lost the replies of requests (a thread of its own that died with them): each is served once
    /// more, and what is still sent in reply to its first arrival is refused (`false`). Nobody can take
    /// over from a session that has ended: a new one begins with a mount of its own.
    ///
    /// # Errors
    /// `EINVAL` from kernels without [`InitFlags::HAS_RESEND`]. `EOPNOTSUPP` over io_uring, whose
    /// requests the kernel does not send again.
    pub fn resend(&self) -> io::Result<()> {
        if self.transport().is_some_and(|report| report.in_use == TransportInUse::Uring) {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.notify(abi::notify::RESEND, &(), &[])
    }

    /// What tells when the requests have been served that the kernel has sent before this call.
    ///
    /// A close returns before the server knows of it, and another request may overtake its RELEASE.
    /// Whoever knows that a close has returned calls this, and finds its RELEASE served once
    /// [`Passing::is_over`]. Over /dev/fuse without [`crate::SessionConfig::spin`] nothing is known
    /// of the workers, and it is over at once.
    #[must_use]
    pub fn passing(&self) -> Passing {
        Passing::ask(&self.shared.queues)
    }

    fn notify<T: IntoBytes + Immutable>(&self, code: i32, head: &T, rest: &[u8]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + size_of::<T>() + rest.len();
        let len = u32::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let header = OutHeader { len, error: code, unique: 0 };
        let parts = [header.as_bytes(), head.as_bytes(), rest].map(IoSlice::new);
        self.shared.control.notify(&parts)
    }

    pub(crate) fn interrupts(&self) -> Arc<Interrupts> {
        // A session has at least one queue, and all share one table.
        Arc::clone(&self.shared.queues[0].interrupts)
    }

    /// The session is over. Only the first call does something.
    pub(crate) fn close(&self) {
        if self.shared.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(registrar) = &self.shared.registrar {
            registrar.end();
        }
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
/// Handles that were opened with it go on working: the kernel holds the file for them. In a copy of the
/// process (fork) dropping it does nothing.
#[derive(Debug)]
pub struct BackingFile {
    id: BackingId,
    maker: Maker,
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
        if self.maker.was_copied() {
            return;
        }
        let shared = &self.connection.shared;
        if let Some((registrar, _)) = self.connection.registrar() {
            registrar.release(self.id.0);
            return;
        }
        match shared.control.close_backing(self.id.0) {
            // The connection was closed first, and its registrations went with it.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BADF) => {}
            Err(error) => tracing::debug!(id = self.id.0, %error, "backing file not closed"),
            Ok(()) => {}
        }
    }
}
