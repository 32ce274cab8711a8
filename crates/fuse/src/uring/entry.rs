//! The memory of one ring entry, shared with the kernel.
//!
//! ```text
//! page 0        struct fuse_uring_req_header (288 bytes) ... room for a reply's head
//! from page 1   payload: | names and data of the request | gap | the reply is built here |
//! ```
//!
//! The kernel takes a reply's body from the start of the payload, where the request's names and
//! data lie. A handler may hold references to those while it replies, so the body is built behind
//! them, and the owner of the ring moves it to the start when it submits the reply: by then the
//! handler has returned. A READ has no names or data; its reply is built in place and is not moved.
//!
//! # Who may access the memory
//!
//! | the entry is | kernel | owner of the ring | thread with the reply |
//! |---|---|---|---|
//! | available (registered or submitted) | writes | nothing | nothing |
//! | being served | nothing | reads the request, lends the reply area; or a helper does so in its place | writes behind the request |
//! | finished (its bit is set in the commit queue) | nothing | moves the body, submits | nothing |
//!
//! [`Entry::claim`] admits one thread to the reply of a request: it clears `unique`, which was set
//! when the request began to be served.
#![expect(unsafe_code, reason = "memory shared with the kernel and between threads")]

use std::cell::UnsafeCell;
use std::io::{self, IoSlice};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, OutHeader, opcode};
use crate::buffer::{PAGE_BYTES, PageBuffer, ReplyArea};
use crate::message::Message;
use crate::operation::{Dialect, Operation};
use crate::transport::RawRequest;
use crate::uring::commit::Missing;

/// Room for the header and arguments of an operation, each.
const HEADER_PART_BYTES: usize = 128;
/// Where the operation's fixed arguments are in `struct fuse_uring_req_header`.
const OP_IN: usize = 128;
/// Where `struct fuse_uring_ent_in_out` is.
const ENT_IN_OUT: usize = 256;
const COMMIT_ID: usize = ENT_IN_OUT + 8;
const PAYLOAD_SIZE: usize = ENT_IN_OUT + 16;
/// Size of `struct fuse_uring_req_header` in bytes.
pub(crate) const REQ_HEADER_BYTES: usize = 288;
/// Distance between the request's names and data and the reply's body: the head of an ioctl reply
/// (32 bytes with the header) lies before the body.
const GAP_BYTES: usize = 64;
/// Room for a reply behind a request of full size. Such a request's reply is short.
const REPLY_BYTES: usize = PAGE_BYTES;
const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();

/// A finished reply, until the owner submits it.
#[derive(Debug, Default)]
struct Finished {
    header: OutHeader,
    /// Where the body lies in the entry's memory, and its length.
    body_at: usize,
    body_len: usize,
}

/// How a request is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// At once.
    Quick,
    /// It may wait for a disk or a lock, for any length of time.
    Waits,
    /// It moves a lot of data: others should not wait behind it.
    Moves,
    /// The ring's owner made the kernel send it, see `nudge.rs`.
    Nudge,
    /// At once; or it is a nudge, if this is the thread that made it.
    Statfs(u32),
    /// At once; the kernel knows this regular file.
    Open(u64),
}

/// One entry of a ring.
#[derive(Debug)]
pub(crate) struct Entry {
    memory: PageBuffer,
    /// The queue that it is registered with.
    pub(crate) queue: u16,
    /// The request being served; 0 if there is none, or its reply was claimed.
    unique: AtomicU64,
    /// Written before `unique`.
    reply_at: UnsafeCell<usize>,
    finished: UnsafeCell<Finished>,
    /// Up to where a helper lent the payload to its handler. Written before the helper's step.
    lent: UnsafeCell<usize>,
    missing: Missing,
}

// SAFETY: the table in the module's text says who accesses the cells and the memory when. Ownership
// passes from the owner to a helper by the lock of the hand-over, to the thread with the reply by
// `unique` (Release in `begin`, Acquire in `claim`), and back by `missing` (AcqRel) and the commit
// queue (Release in `push`, Acquire in `drain`).
unsafe impl Sync for Entry {}

impl Entry {
    /// An entry whose payload has room for `payload_bytes`; `None` if there is no memory for it.
    pub(crate) fn new(queue: u16, payload_bytes: usize) -> Option<Self> {
        Some(Self {
            memory: PageBuffer::try_new(PAGE_BYTES + payload_bytes + REPLY_BYTES)?,
            queue,
            unique: AtomicU64::new(0),
            reply_at: UnsafeCell::new(0),
            finished: UnsafeCell::new(Finished::default()),
            lent: UnsafeCell::new(0),
            missing: Missing::default(),
        })
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.memory.len(), "offset {offset} is outside the entry");
        // SAFETY: the offset is within the mapping, see the assertion; callers pass constants below
        // a page, or positions that they checked against `payload_len`.
        unsafe { self.memory.start().add(offset) }
    }

    fn payload(&self) -> NonNull<u8> {
        self.at(PAGE_BYTES)
    }

    pub(crate) fn payload_len(&self) -> usize {
        self.memory.len() - PAGE_BYTES
    }

    /// The two pieces of memory to register.
    pub(crate) fn io_vectors(&self) -> [libc::iovec; 2] {
        let start = self.memory.start().as_ptr().cast();
        [
            libc::iovec { iov_base: start, iov_len: REQ_HEADER_BYTES },
            libc::iovec { iov_base: self.payload().as_ptr().cast(), iov_len: self.payload_len() },
        ]
    }

    /// Bytes of names and data that the kernel wrote.
    ///
    /// # Safety
    /// The caller owns the ring, and the entry has just been received; or it was handed to the
    /// caller, a helper, in that state.
    pub(crate) unsafe fn received_len(&self) -> usize {
        // SAFETY: within page 0, aligned to 8; the kernel is done with it, by the caller's promise.
        let len = unsafe { self.at(PAYLOAD_SIZE).cast::<u32>().read() };
        (len as usize).min(self.payload_len() - REPLY_BYTES)
    }

    /// The request in the entry, with `len` bytes of names and data.
    ///
    /// # Safety
    /// As [`Entry::received_len`]; and the entry is not submitted while the result is in use.
    unsafe fn request(&self, len: usize) -> RawRequest<'_> {
        // SAFETY: initialised memory within the mapping, which nobody writes while the entry is
        // being served: the reply is built behind `len`, or, if `len` is 0, in memory that no slice
        // covers.
        unsafe {
            RawRequest::Split {
                header: std::slice::from_raw_parts(self.at(0).as_ptr(), size_of::<InHeader>()),
                fixed: std::slice::from_raw_parts(self.at(OP_IN).as_ptr(), HEADER_PART_BYTES),
                rest: std::slice::from_raw_parts(self.payload().as_ptr(), len),
            }
        }
    }

    /// How the request is to be served.
    ///
    /// # Safety
    /// As [`Entry::received_len`].
    pub(crate) unsafe fn kind(&self) -> Kind {
        // SAFETY: as above; the results do not outlive this function.
        let request = unsafe { self.request(self.received_len()) };
        let RawRequest::Split { header, .. } = request else { return Kind::Quick };
        let header = InHeader::read_from_bytes(header);
        let code = header.as_ref().map_or(0, |header| header.opcode);
        // Most requests are decided by their operation code.
        match code {
            opcode::NOTIFY_REPLY => return Kind::Nudge,
            opcode::OPEN => return Kind::Open(header.map_or(0, |header| header.nodeid)),
            opcode::STATFS => return Kind::Statfs(header.map_or(0, |header| header.pid)),
            code if !opcode::MAY_TAKE_LONG.contains(&code) => return Kind::Quick,
            _ => {}
        }
        let takes_long = Message::parse(request)
            .and_then(|message| {
                Operation::decode(&message, Dialect::default()).map(|op| op.takes_long())
            })
            .unwrap_or(false);
        match code {
            _ if !takes_long => Kind::Quick,
            opcode::READ | opcode::WRITE => Kind::Moves,
            _ => Kind::Waits,
        }
    }

    /// The operation code of the request.
    ///
    /// # Safety
    /// The caller owns the ring, and the entry was received; its reply was not placed yet.
    pub(crate) unsafe fn operation(&self) -> u32 {
        // SAFETY: as above. Helpers read the header as well, and write behind it.
        let request = unsafe { self.request(0) };
        let RawRequest::Split { header, .. } = request else { return 0 };
        InHeader::read_from_bytes(header).map_or(0, |header| header.opcode)
    }

    /// The regular file that the request is about. The kernel knows it as long as the request lasts.
    ///
    /// # Safety
    /// The caller owns the ring, and the entry was received and is not submitted yet.
    pub(crate) unsafe fn regular_file(&self) -> Option<u64> {
        // SAFETY: as above. Helpers read the header as well, and write behind it.
        let request = unsafe { self.request(0) };
        let RawRequest::Split { header, .. } = request else { return None };
        let header = InHeader::read_from_bytes(header).ok()?;
        opcode::OF_REGULAR_FILES.contains(&header.opcode).then_some(header.nodeid)
    }

    /// The request whose reply is still to come; 0 if there is none.
    pub(crate) fn unique(&self) -> u64 {
        self.unique.load(Ordering::Relaxed)
    }

    /// Whether the request's reply is still to come.
    pub(crate) fn awaits_reply(&self) -> bool {
        self.unique() != 0
    }

    /// The request, the area in which its reply may be built, and where that starts in the payload.
    /// `stale` bytes of the payload may hold something of earlier requests; those behind this
    /// request are cleared before they are lent. `steps` is what [`Missing::begin`] takes.
    ///
    /// # Safety
    /// As [`Entry::received_len`]; and the entry is not submitted while the results are in use.
    pub(crate) unsafe fn begin(
        &self,
        len: usize,
        stale: usize,
        steps: usize,
    ) -> (RawRequest<'_>, ReplyArea, usize) {
        let reply_at = if len == 0 { 0 } else { (len + GAP_BYTES).next_multiple_of(GAP_BYTES) };
        // SAFETY: the entry is the caller's alone until `unique` is set below.
        unsafe { *self.reply_at.get() = reply_at };
        // SAFETY: by the caller's promise.
        let request = unsafe { self.request(len) };
        let RawRequest::Split { header, .. } = request else { unreachable!("made above") };
        let unique = InHeader::read_from_bytes(header).map_or(0, |header| header.unique);
        self.missing.begin(steps);
        let before = self.unique.swap(unique, Ordering::Release);
        debug_assert_eq!(before, 0, "the entry holds two requests");
        let capacity = self.payload_len() - reply_at;
        // SAFETY: `capacity` bytes from there on are within the mapping, with room for a head
        // before them (page 0, or the gap); only this request's reply uses them until it is
        // submitted.
        let area = unsafe {
            let start = self.at(PAGE_BYTES + reply_at);
            ReplyArea::lent(start, capacity, stale.saturating_sub(reply_at))
        };
        (request, area, reply_at)
    }

    /// The handler of a helper has returned, and used the payload up to `lent`. Returns whether the
    /// entry may be passed to the owner.
    ///
    /// # Safety
    /// The caller is the helper, and made no other such call for this request.
    pub(crate) unsafe fn handler_returned(&self, lent: usize) -> bool {
        // SAFETY: until the step below, the cell is the helper's.
        unsafe { *self.lent.get() = lent };
        self.missing.made_last(Missing::HANDLER)
    }

    /// The owner gives the request to a helper.
    pub(crate) fn give_to_helper(&self) {
        self.missing.begin(Missing::REPLY_AND_HANDLER);
    }

    /// Whether a helper that was given the request has yet to return from its handler.
    pub(crate) fn is_with_helper(&self) -> bool {
        self.missing.has_handler()
    }

    /// Whether the handler of a helper has returned, and the reply is still to come.
    pub(crate) fn lacks_only_the_reply(&self) -> bool {
        self.missing.is_reply()
    }

    /// Admits the caller to the reply of request `unique`; `false` if it is another entry's, or
    /// over.
    pub(crate) fn claim(&self, unique: u64) -> bool {
        let order = Ordering::Acquire;
        unique != 0
            && self.unique.load(Ordering::Relaxed) == unique
            && self.unique.compare_exchange(unique, 0, order, Ordering::Relaxed).is_ok()
    }

    /// The reply is recorded. Returns whether the entry may be passed to the owner.
    pub(crate) fn replied(&self) -> bool {
        self.missing.made_last(Missing::REPLY)
    }

    /// Records the reply. A body that was not built in this entry's memory is copied there. A body
    /// that is too long becomes the error `EIO`, which is returned as well.
    ///
    /// # Safety
    /// The caller claimed the reply, and calls [`Entry::replied`] afterwards.
    pub(crate) unsafe fn finish(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let header = parts.first().and_then(|part| OutHeader::read_from_prefix(part).ok());
        // SAFETY: between `claim` and the commit queue the cells are the caller's.
        let (finished, reply_at) = unsafe { (&mut *self.finished.get(), *self.reply_at.get()) };
        let Some((header, first)) = header else { return Err(Errno::INVAL.into()) };
        let len = first.len() + parts[1..].iter().map(|part| part.len()).sum::<usize>();
        *finished = Finished { header, body_at: PAGE_BYTES + reply_at, body_len: len };
        if let (1, Some(at)) = (parts.len(), self.offset_of(first)) {
            finished.body_at = at;
            return Ok(());
        }
        if len > self.payload_len() - reply_at {
            let (error, len) = (-Errno::IO.raw_os_error(), 16);
            let header = OutHeader { error, len, ..header };
            *finished = Finished { header, body_at: PAGE_BYTES, body_len: 0 };
            return Err(Errno::IO.into());
        }
        let mut to = self.at(PAGE_BYTES + reply_at).as_ptr();
        for part in std::iter::once(first).chain(parts[1..].iter().map(|part| &part[..])) {
            // SAFETY: the destination has room for `len` bytes, checked above, and lies behind the
            // request; the parts lie elsewhere, or were lent from there and are then one part
            // alone.
            unsafe {
                ptr::copy(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        Ok(())
    }

    /// Where `bytes` lie in the entry's memory, if they do.
    fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let at = (bytes.as_ptr() as usize).checked_sub(self.memory.start().as_ptr() as usize)?;
        (!bytes.is_empty() && at + bytes.len() <= self.memory.len()).then_some(at)
    }

    /// Puts the finished reply where the kernel looks for it. Returns the id to commit, and how
    /// many bytes of the payload may have been written since the request was received.
    ///
    /// # Safety
    /// The caller owns the ring and drained the entry from the commit queue.
    pub(crate) unsafe fn place(&self) -> (u64, usize) {
        // SAFETY: the commit queue passed the entry to the owner. All writes are within the
        // mapping: page 0 by the constants, the body by the check in `finish`.
        unsafe {
            let Finished { header, body_at, body_len } = &*self.finished.get();
            let (start, payload) = (self.memory.start().as_ptr(), self.payload().as_ptr());
            if *body_at != PAGE_BYTES {
                ptr::copy(start.add(*body_at), payload, *body_len);
            }
            let bytes = header.as_bytes();
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(0).as_ptr(), OUT_HEADER_BYTES);
            #[expect(clippy::cast_possible_truncation, reason = "less than the payload's length")]
            self.at(PAYLOAD_SIZE).cast::<u32>().write(*body_len as u32);
            let lent = std::mem::take(&mut *self.lent.get());
            let end = (body_at + body_len).saturating_sub(PAGE_BYTES).max(lent);
            (self.at(COMMIT_ID).cast::<u64>().read(), end)
        }
    }

    /// Clears the payload's bytes `from..to`, and returns pages behind `keep` to the system.
    ///
    /// # Safety
    /// The caller owns the ring, and the memory in this range is neither lent nor written by the
    /// kernel.
    pub(crate) unsafe fn clear(&self, from: usize, to: usize, keep: usize) {
        let page = PAGE_BYTES;
        // SAFETY: by the caller's promise.
        unsafe { self.memory.clear_shared(page + from, page + to, page + keep) };
    }
}
