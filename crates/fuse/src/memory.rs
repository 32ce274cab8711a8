//! A transport in memory: the other end, [`Kernel`], is played by a test.
//!
//! It keeps the kernel's rules that a server can break: a reply needs a request that was received
//! and not answered yet (`ENOENT` otherwise), its length must be in its header, its error within
//! range (`EINVAL`). The notification `FUSE_NOTIFY_RESEND` puts every request that was received and
//! not answered back to the head of the queue, with [`abi::UNIQUE_RESEND`] in its id; a reply with
//! the former id is then refused.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, InHeader, InitIn, InitInExt, OutHeader, opcode};
use crate::buffer::{BufferSize, Buffers};
use crate::init::InitFlags;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::transport::{
    Control, NoObserver, Queue, QueueConfig, RawRequest, ReceiveError, Received, ReplySink,
    Transport, TransportInUse, TransportReport,
};

/// Requests that can wait to be received; [`Kernel::send`] refuses more. Those that are sent again,
/// which were counted once already, come on top.
pub const MAX_QUEUED: usize = 1024;

/// A connected pair: the transport for a session, and the kernel's end.
#[must_use]
pub fn pair() -> (MemoryTransport, Kernel) {
    let wire = Arc::new(Wire::default());
    (MemoryTransport { wire: Arc::clone(&wire) }, Kernel { wire })
}

#[derive(Debug, Default)]
struct Wire {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Vec<u8>>,
    replies: VecDeque<Vec<u8>>,
    notifications: VecDeque<Vec<u8>>,
    /// Received and not answered: the requests by their ids.
    pending: BTreeMap<u64, Vec<u8>>,
    backings: BTreeMap<u32, OwnedFd>,
    next_backing: u32,
    wakes: u64,
    unmounted: bool,
    aborted: bool,
    closed: bool,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn change<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let result = f(&mut self.lock());
        self.changed.notify_all();
        result
    }
}

/// The session's end.
#[derive(Debug)]
pub struct MemoryTransport {
    wire: Arc<Wire>,
}

impl Transport for MemoryTransport {
    type Queue = MemoryQueue;

    fn open(&mut self, config: &QueueConfig) -> io::Result<MemoryQueue> {
        let buffers = 2 * config.threads;
        let size = BufferSize::within(config.max_payload_bytes, config.buffer_bytes, buffers);
        Ok(MemoryQueue {
            wire: Arc::clone(&self.wire),
            wakes_seen: 0,
            buffers: Buffers::new(size),
            observer: NoObserver,
        })
    }

    fn open_others(
        &mut self,
        _agreed: InitFlags,
        config: &QueueConfig,
    ) -> io::Result<Vec<MemoryQueue>> {
        (1..config.threads).map(|_| self.open(config)).collect()
    }

    fn control(&self) -> Arc<dyn Control> {
        Arc::new(End(Arc::clone(&self.wire)))
    }

    fn report(&self) -> TransportReport {
        TransportReport {
            in_use: TransportInUse::Memory,
            reason: None,
            rings: None,
            uring_unavailable: None,
        }
    }
}

/// One worker's queue; all take from the same line, as queues of `/dev/fuse` do.
#[derive(Debug)]
pub struct MemoryQueue {
    wire: Arc<Wire>,
    wakes_seen: u64,
    buffers: Buffers,
    observer: NoObserver,
}

impl Queue for MemoryQueue {
    fn receive(&mut self) -> Result<Received<'_>, ReceiveError> {
        let mut state = self.wire.lock();
        let request = loop {
            match next(&mut state, &mut self.wakes_seen)? {
                Some(request) => break request,
                None => state = self.wire.changed.wait(state),
            }
        };
        drop(state);
        let len = request.len();
        let buffers = &mut self.buffers;
        let Some(space) = buffers.request.get_mut(..len) else {
            return Err(ReceiveError::Io(io::ErrorKind::FileTooLarge.into()));
        };
        space.copy_from_slice(&request);
        buffers.received = len;
        Ok(Received {
            raw: RawRequest::Contiguous(&buffers.request[..len]),
            area: &mut buffers.reply,
            observer: &mut self.observer,
        })
    }

    fn finish(&mut self, _handler_ns: u64) {
        self.buffers.clear();
    }

    fn sink(&self) -> Arc<dyn ReplySink> {
        Arc::new(End(Arc::clone(&self.wire)))
    }
}

fn next(state: &mut State, wakes_seen: &mut u64) -> Result<Option<Vec<u8>>, ReceiveError> {
    if state.aborted {
        return Err(ReceiveError::Aborted);
    }
    if state.unmounted {
        return Err(ReceiveError::Unmounted);
    }
    if state.wakes != *wakes_seen {
        *wakes_seen = state.wakes;
        return Err(ReceiveError::Retry);
    }
    let Some(request) = state.requests.pop_front() else { return Ok(None) };
    if let Ok((header, _)) = InHeader::read_from_prefix(&request)
        && ![opcode::FORGET, opcode::BATCH_FORGET].contains(&header.opcode)
    {
        state.pending.insert(header.unique, request.clone());
    }
    Ok(Some(request))
}

/// INTERRUPTs are not sent again: the kernel does not count them among its requests.
fn resend(state: &mut State) {
    for (unique, mut request) in std::mem::take(&mut state.pending).into_iter().rev() {
        match InHeader::mut_from_prefix(&mut request) {
            Ok((header, _)) if header.opcode != opcode::INTERRUPT => {
                header.unique = unique | abi::UNIQUE_RESEND;
                state.requests.push_front(request);
            }
            _ => drop(state.pending.insert(unique, request)),
        }
    }
}

#[derive(Debug)]
struct End(Arc<Wire>);

impl ReplySink for End {
    fn commit(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.0.change(|state| {
            let (header, _) = OutHeader::read_from_prefix(&bytes).map_err(|_| Errno::INVAL)?;
            if header.len as usize != bytes.len() || !(-511..=0).contains(&header.error) {
                return Err(Errno::INVAL.into());
            }
            if state.closed || state.pending.remove(&header.unique).is_none() {
                return Err(Errno::NOENT.into());
            }
            state.replies.push_back(bytes);
            Ok(())
        })
    }

    fn close(&self) {
        self.0.change(|state| state.closed = true);
    }
}

impl Control for End {
    fn notify(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.0.change(|state| {
            let header = OutHeader::read_from_prefix(&bytes);
            if header.is_ok_and(|(header, _)| header.error == abi::notify::RESEND) {
                resend(state);
            }
            state.notifications.push_back(bytes);
        });
        Ok(())
    }

    fn open_backing(&self, fd: BorrowedFd<'_>) -> io::Result<u32> {
        let fd = fd.try_clone_to_owned()?;
        Ok(self.0.change(|state| {
            state.next_backing += 1;
            state.backings.insert(state.next_backing, fd);
            state.next_backing
        }))
    }

    fn close_backing(&self, id: u32) -> io::Result<()> {
        let closed = self.0.change(|state| state.backings.remove(&id));
        closed.map(drop).ok_or_else(|| Errno::NOENT.into())
    }

    fn wake(&self, _tid: i32) {
        self.0.change(|state| state.wakes += 1);
    }
}

/// [`MAX_QUEUED`] requests are waiting already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{MAX_QUEUED} requests are waiting already")]
pub struct Full;

/// The kernel's end.
#[derive(Debug)]
pub struct Kernel {
    wire: Arc<Wire>,
}

impl Kernel {
    /// Queues a request, as raw bytes.
    ///
    /// # Errors
    /// [`Full`].
    pub fn send(&self, request: &[u8]) -> Result<(), Full> {
        self.wire.change(|state| {
            if state.requests.len() >= MAX_QUEUED {
                return Err(Full);
            }
            state.requests.push_back(request.to_vec());
            Ok(())
        })
    }

    /// Queues an INIT that offers `flags` at protocol version 7.`minor`.
    ///
    /// # Errors
    /// [`Full`].
    pub fn send_init(&self, minor: u32, flags: InitFlags) -> Result<(), Full> {
        let half = |bits: u64| u32::try_from(bits & 0xffff_ffff).unwrap_or(0);
        let init = InitIn { major: 7, minor, max_readahead: 128 << 10, flags: half(flags.bits()) };
        let ext = InitInExt { flags2: half(flags.bits() >> 32), unused: [0; 11] };
        self.send(&request(opcode::INIT, 2, 0, &[init.as_bytes(), ext.as_bytes()]))
    }

    /// The next reply: header and body. `None` if none came in time.
    #[must_use]
    pub fn reply(&self, patience: Duration) -> Option<(OutHeader, Vec<u8>)> {
        let bytes = self.take(patience, |state| state.replies.pop_front())?;
        let (header, body) = OutHeader::read_from_prefix(&bytes).ok()?;
        Some((header, body.to_vec()))
    }

    /// The next notification, as raw bytes.
    #[must_use]
    pub fn notification(&self, patience: Duration) -> Option<Vec<u8>> {
        self.take(patience, |state| state.notifications.pop_front())
    }

    fn take<T>(&self, patience: Duration, f: impl Fn(&mut State) -> Option<T>) -> Option<T> {
        let start = Instant::now();
        let mut state = self.wire.lock();
        loop {
            let left = patience.saturating_sub(start.elapsed());
            match f(&mut state) {
                None if !left.is_zero() => state = self.wire.changed.wait_timeout(state, left),
                found => return found,
            }
        }
    }

    /// Requests that were received and not answered.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.wire.lock().pending.len()
    }

    /// Backing files that are registered.
    #[must_use]
    pub fn backings(&self) -> usize {
        self.wire.lock().backings.len()
    }

    /// Ends the connection as an unmount does.
    pub fn unmount(&self) {
        self.wire.change(|state| state.unmounted = true);
    }

    /// Ends the connection as fusectl's `abort` does: what is pending is over.
    pub fn abort(&self) {
        self.wire.change(|state| {
            state.aborted = true;
            state.pending.clear();
        });
    }
}

/// The bytes of a request by user 1000, group 1000, thread 4242, with `args` concatenated.
#[must_use]
pub fn request(code: u32, unique: u64, node: u64, args: &[&[u8]]) -> Vec<u8> {
    let len = size_of::<InHeader>() + args.iter().map(|part| part.len()).sum::<usize>();
    let header = InHeader {
        len: u32::try_from(len).unwrap_or(u32::MAX),
        opcode: code,
        unique,
        nodeid: node,
        uid: 1000,
        gid: 1000,
        pid: 4242,
        total_extlen: 0,
        padding: 0,
    };
    [header.as_bytes()].into_iter().chain(args.iter().copied()).flatten().copied().collect()
}
