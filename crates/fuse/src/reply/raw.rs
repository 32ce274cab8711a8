//! A reply without its type: where it goes, and whether it went.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{IoctlOut, OutHeader, SizeOut};
use crate::buffer::{PageBuffer, ReplyArea};
use crate::counters::{self, QueueCounters};
use crate::encode::{Answer, MAX_ANSWER_BYTES};
use crate::forked::Maker;
use crate::interrupt::{DetachedIndex, Interrupts};
use crate::transport::SinkBox;

const HEADER_BYTES: usize = size_of::<OutHeader>();
const IOCTL_BYTES: usize = size_of::<IoctlOut>();
/// Most slices that [`super::Reply::vectored`] sends without an allocation.
const MAX_SLICES: usize = 16;

/// What the replies of one queue share.
#[derive(Debug)]
pub(crate) struct QueueState {
    pub(crate) sink: SinkBox,
    pub(crate) worker: usize,
    /// The process that serves.
    pub(crate) server: Maker,
    /// Bytes of data that a detached reply lends at most.
    pub(crate) longest_reply: usize,
    pub(crate) counters: QueueCounters,
    pub(crate) interrupts: Arc<Interrupts>,
}

impl QueueState {
    /// Sends a reply. A copy of the server answers nobody: the server does.
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.server.was_copied() {
            return Err(Errno::BADF.into());
        }
        self.sink.0.commit(parts)
    }
}

/// The queue of a reply: lent by the worker, or owned by a detached reply.
#[derive(Debug)]
enum QueueRef<'q> {
    Lent(&'q Arc<QueueState>),
    Owned(Arc<QueueState>, Option<DetachedIndex>),
}

impl QueueRef<'_> {
    fn get(&self) -> &Arc<QueueState> {
        match self {
            Self::Lent(queue) => queue,
            Self::Owned(queue, _) => queue,
        }
    }
}

/// What the data of a reply may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// So many bytes at most, which the caller has room for. The transports would refuse more in
    /// different ways.
    Data(u32),
    /// A length, and no data.
    Length,
}

impl Expected {
    /// The kernel asks for so many bytes of an attribute or of the list of them; 0 asks for a length.
    pub(crate) fn of_attribute(size: u32) -> Self {
        if size == 0 { Self::Length } else { Self::Data(size) }
    }

    fn takes(self, len: usize) -> bool {
        matches!(self, Self::Data(most) if len <= most as usize)
    }
}

/// The untyped part of a reply: where it goes, and whether it went.
#[derive(Debug)]
pub(crate) struct RawReply<'q> {
    queue: QueueRef<'q>,
    unique: u64,
    pub(super) area: Option<&'q mut ReplyArea>,
    /// Data is preceded by `struct fuse_ioctl_out`.
    pub(super) ioctl: bool,
    /// Of a reply with bytes.
    pub(super) expected: Expected,
    answered: bool,
}

impl<'q> RawReply<'q> {
    pub(crate) fn new(queue: &'q Arc<QueueState>, unique: u64, area: &'q mut ReplyArea) -> Self {
        Self {
            queue: QueueRef::Lent(queue),
            unique,
            area: Some(area),
            ioctl: false,
            expected: Expected::Data(u32::MAX),
            answered: false,
        }
    }

    pub(super) fn detach(mut self) -> RawReply<'static> {
        let queue = Arc::clone(self.queue.get());
        let index = match &mut self.queue {
            QueueRef::Lent(_) => Some(queue.interrupts.detach(queue.worker, self.unique)),
            // The new value gives it back.
            QueueRef::Owned(_, index) => index.take(),
        };
        let queue = QueueRef::Owned(queue, index);
        // The new value replies; this one must not.
        self.answered = true;
        let Self { unique, ioctl, expected, .. } = self;
        RawReply { queue, unique, area: None, ioctl, expected, answered: false }
    }

    pub(super) fn interrupted(&self) -> bool {
        match &self.queue {
            QueueRef::Lent(queue) => queue.interrupts.is_interrupted(queue.worker),
            QueueRef::Owned(queue, index) => {
                index.is_some_and(|index| queue.interrupts.is_detached_interrupted(index))
            }
        }
    }

    /// Header for a reply of `len` bytes after the header.
    fn header(&self, len: usize) -> Option<OutHeader> {
        let len = u32::try_from(len.checked_add(HEADER_BYTES)?).ok()?;
        Some(OutHeader { len, error: 0, unique: self.unique })
    }

    pub(crate) fn error(&mut self, errno: Errno) -> bool {
        // The kernel takes no other number.
        if !(1..512).contains(&errno.raw_os_error()) {
            return self.refused();
        }
        let header = self.error_header(errno);
        self.commit(&[IoSlice::new(header.as_bytes())])
    }

    fn error_header(&self, errno: Errno) -> OutHeader {
        OutHeader { error: wire_error(errno), len: 16, unique: self.unique }
    }

    pub(crate) fn answer<T: Answer>(&mut self, value: &T) -> bool {
        // Aligned so that the kernel pins one page, never two.
        #[repr(align(512))]
        struct Small([u8; HEADER_BYTES + MAX_ANSWER_BYTES]);
        let mut small = Small([0; _]);
        let Some((head, body)) = small.0.split_first_chunk_mut::<HEADER_BYTES>() else {
            return self.error(Errno::IO);
        };
        let len = match body.first_chunk_mut() {
            Some(body) => value.encode(body),
            None => return self.error(Errno::IO),
        };
        let Some(header) = self.header(len) else { return self.error(Errno::IO) };
        head.copy_from_slice(header.as_bytes());
        self.commit(&[IoSlice::new(&small.0[..HEADER_BYTES + len])])
    }

    /// Header and, for an ioctl, its head: the buffer and how much of it is used. `None` if nobody
    /// takes so much data.
    fn heads(&self, len: usize) -> Option<([u8; HEADER_BYTES + IOCTL_BYTES], usize)> {
        if !self.expected.takes(len) {
            return None;
        }
        let extra = if self.ioctl { IOCTL_BYTES } else { 0 };
        let header = self.header(len.checked_add(extra)?)?;
        let mut heads = [0; HEADER_BYTES + IOCTL_BYTES];
        heads[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        Some((heads, HEADER_BYTES + extra))
    }

    pub(super) fn length(&mut self, size: u32) -> bool {
        if self.expected != Expected::Length {
            return self.refused();
        }
        self.expected = Expected::Data(u32::MAX);
        self.slices(&[IoSlice::new(SizeOut { size, padding: 0 }.as_bytes())])
    }

    pub(super) fn slices(&mut self, data: &[IoSlice<'_>]) -> bool {
        let len = data.iter().fold(0, |len: usize, slice| len.saturating_add(slice.len()));
        let Some((heads, used)) = self.heads(len) else { return self.refused() };
        let head = IoSlice::new(&heads[..used]);
        if data.len() < MAX_SLICES {
            let mut all = [IoSlice::new(&[]); MAX_SLICES];
            all[0] = head;
            all[1..=data.len()].copy_from_slice(data);
            return self.commit(&all[..=data.len()]);
        }
        let all: Vec<_> = std::iter::once(head).chain(data.iter().copied()).collect();
        self.commit(&all)
    }

    pub(super) fn fill(
        &mut self,
        max: usize,
        f: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> bool {
        let Some(area) = self.area.take() else { return self.fill_own(max, f) };
        let lent = area.data(max);
        let max = lent.len();
        match f(lent) {
            Ok(len) if len > max => self.refused(),
            Ok(len) => self.send_area(area, len),
            Err(errno) => self.error(errno),
        }
    }

    pub(super) fn send_area(&mut self, area: &mut ReplyArea, len: usize) -> bool {
        let Some((heads, used)) = self.heads(len) else { return self.refused() };
        let bytes = area.with_head(&heads[..used], len);
        self.commit(&[IoSlice::new(bytes)])
    }

    /// A detached reply has no lent area.
    fn fill_own(&mut self, max: usize, f: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> bool {
        let max = max.min(self.queue.get().longest_reply);
        let Some(mut own) = PageBuffer::try_new(max) else { return self.error(Errno::NOMEM) };
        match f(&mut own[..max]) {
            Ok(len) => match own[..max].get(..len) {
                Some(filled) => self.slices(&[IoSlice::new(filled)]),
                None => self.refused(),
            },
            Err(errno) => self.error(errno),
        }
    }

    fn commit(&mut self, parts: &[IoSlice<'_>]) -> bool {
        self.answered = true;
        let queue = self.queue.get();
        match queue.send(parts) {
            Ok(()) => true,
            // The request is over.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                counters::add(&queue.counters.undelivered, 1);
                false
            }
            Err(_) => self.refused(),
        }
    }

    /// This reply cannot be sent, and its request may be pending still: its caller gets `EIO` instead,
    /// or would wait for ever.
    #[cold]
    pub(super) fn refused(&mut self) -> bool {
        self.answered = true;
        let queue = self.queue.get();
        counters::add(&queue.counters.undelivered, 1);
        let header = self.error_header(Errno::IO);
        // `ENOENT` if the refused reply has ended it; others if the session is over.
        let _ = queue.send(&[IoSlice::new(header.as_bytes())]);
        false
    }
}

impl Drop for RawReply<'_> {
    fn drop(&mut self) {
        if !self.answered {
            if !std::thread::panicking() {
                self.queue.get().counters.dropped.fetch_add(1, Ordering::Relaxed);
            }
            self.error(Errno::IO);
        }
        if let QueueRef::Owned(queue, Some(index)) = &self.queue {
            queue.interrupts.release(*index);
        }
    }
}

/// The kernel takes errors from -511 to 0 only, and ends nothing when it gets another.
fn wire_error(errno: Errno) -> i32 {
    match errno.raw_os_error() {
        raw @ 1..512 => -raw,
        _ => -Errno::IO.raw_os_error(),
    }
}
