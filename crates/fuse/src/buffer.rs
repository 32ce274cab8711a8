//! Page-aligned memory for requests and replies.
//!
//! The kernel pins the pages of a buffer while it copies: alignment keeps a small request within
//! one page and a large payload off a page more than it needs.
#![expect(unsafe_code, reason = "anonymous mappings")]

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags};

/// Alignment in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Zeroed, page-aligned memory of a fixed size, mapped privately. A page uses
/// physical memory from the first write to it.
#[derive(Debug)]
pub struct PageBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned by this value alone and has no thread affinity.
unsafe impl Send for PageBuffer {}
// SAFETY: a shared reference gives shared access to plain bytes only.
unsafe impl Sync for PageBuffer {}

impl PageBuffer {
    /// `len` zero bytes, rounded up to whole pages (at least one).
    ///
    /// # Panics
    /// If `len` is near `isize::MAX`. Aborts when memory is exhausted, as every allocation does.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let Some(buffer) = Self::try_new(len) else {
            let rounded = len.max(1).next_multiple_of(PAGE_BYTES);
            match Layout::from_size_align(rounded, PAGE_BYTES) {
                Ok(layout) => alloc::handle_alloc_error(layout),
                Err(_) => panic!("a buffer of {len} bytes is more than the address space holds"),
            }
        };
        buffer
    }

    /// As [`PageBuffer::new`]; `None` if there is not that much memory.
    pub(crate) fn try_new(len: usize) -> Option<Self> {
        let rounded = len.max(1).next_multiple_of(PAGE_BYTES);
        Layout::from_size_align(rounded, PAGE_BYTES).ok()?;
        // SAFETY: without an address the kernel chooses a free range, so no memory in use is
        // affected.
        let mapped = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(ptr::null_mut(), rounded, access, MapFlags::PRIVATE)
        };
        let start = NonNull::new(mapped.ok()?.cast::<u8>())?;
        debug_assert_eq!(start.as_ptr() as usize % PAGE_BYTES, 0, "mappings start at a page");
        Some(Self { start, len: rounded })
    }
}

impl PageBuffer {
    /// Where the memory starts, for memory that is shared with the kernel or among threads.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Clears the bytes `from..to`, and returns those behind `keep` to the system, page by page:
    /// they read as zeroes, and use no memory until they are written again.
    ///
    /// # Safety
    /// Nobody else accesses the range meanwhile.
    pub(crate) unsafe fn clear_shared(&self, from: usize, to: usize, keep: usize) {
        let to = to.min(self.len);
        let kept = keep.max(from).next_multiple_of(PAGE_BYTES).min(to);
        if from < kept {
            // SAFETY: the range is within the mapping, and the caller's alone.
            unsafe { ptr::write_bytes(self.start.as_ptr().add(from), 0, kept - from) };
        }
        if kept < to {
            // SAFETY: as above; the range starts at a page boundary of a private anonymous mapping.
            unsafe {
                let start = self.start.as_ptr().add(kept);
                let advice = rustix::mm::Advice::LinuxDontNeed;
                if cfg!(miri) || rustix::mm::madvise(start.cast(), to - kept, advice).is_err() {
                    ptr::write_bytes(start, 0, to - kept);
                }
            }
        }
    }

    fn clear(&mut self, from: usize, to: usize, keep: usize) {
        // SAFETY: `self` is borrowed exclusively.
        unsafe { self.clear_shared(from, to, keep) };
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len` mapped bytes, initialised with zeroes by the kernel,
        // owned by `self`; the shared borrow of `self` excludes writers for as long as the slice
        // lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; the exclusive borrow of `self` excludes everybody else.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of the mapping made in `new`, which nobody else
        // unmaps and to which no reference outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of an owned mapping failed: {unmapped:?}");
    }
}

/// Where a worker builds long replies: data from a page boundary on, with room for a head before
/// it.
#[derive(Debug)]
pub struct ReplyArea {
    /// Start of the data.
    start: NonNull<u8>,
    capacity: usize,
    /// Bytes of data that were lent for the current request.
    used: usize,
    /// Bytes of data that may hold something of an earlier request.
    stale: usize,
    /// The memory, unless it was lent.
    owner: Option<PageBuffer>,
}

// SAFETY: the area is the only user of its memory, by ownership or by the promise made to `lent`.
unsafe impl Send for ReplyArea {}

impl ReplyArea {
    /// Room before the data, for a reply's header and the head of an ioctl's output.
    const HEAD_BYTES: usize = 32;

    /// An area for `data_len` bytes of data.
    #[must_use]
    pub fn new(data_len: usize) -> Self {
        let buffer = PageBuffer::new(PAGE_BYTES + data_len);
        // SAFETY: the buffer has a page before the data.
        let start = unsafe { buffer.start().add(PAGE_BYTES) };
        let capacity = buffer.len() - PAGE_BYTES;
        Self { start, capacity, used: 0, stale: 0, owner: Some(buffer) }
    }

    /// An area in memory that belongs to somebody else, whose first `stale` bytes may not be zero.
    ///
    /// # Safety
    /// The `capacity` bytes from `start` on, and 32 bytes before it, are initialised, and nothing
    /// else accesses them while the area is used.
    pub(crate) unsafe fn lent(start: NonNull<u8>, capacity: usize, stale: usize) -> Self {
        Self { start, capacity, used: 0, stale, owner: None }
    }

    /// Bytes of data that were lent for the current request.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Most bytes of data that a reply from this area can carry.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The first `len` bytes of data (at most [`ReplyArea::capacity`]), zero or as left by the
    /// current request.
    pub(crate) fn data(&mut self, len: usize) -> &mut [u8] {
        let len = len.min(self.capacity);
        let stale = self.stale.min(len);
        // SAFETY: within the area, which is initialised and exclusively borrowed.
        unsafe {
            if stale > self.used {
                ptr::write_bytes(self.start.as_ptr().add(self.used), 0, stale - self.used);
            }
            self.used = self.used.max(len);
            std::slice::from_raw_parts_mut(self.start.as_ptr(), len)
        }
    }

    /// `head` and the first `len` bytes of data in one piece.
    pub(crate) fn with_head(&mut self, head: &[u8], len: usize) -> &[u8] {
        assert!(len <= self.used && head.len() <= Self::HEAD_BYTES, "{len} of {} bytes", self.used);
        // SAFETY: there is room for the head before the data, and `len` bytes of it were lent.
        unsafe {
            let start = self.start.as_ptr().sub(head.len());
            ptr::copy_nonoverlapping(head.as_ptr(), start, head.len());
            std::slice::from_raw_parts(start, head.len() + len)
        }
    }

    /// Wipes the data, so that it does not outlive its request, and returns memory behind `keep`
    /// bytes to the system.
    pub(crate) fn clear(&mut self, keep: usize) {
        let used = std::mem::take(&mut self.used);
        if let Some(buffer) = &mut self.owner {
            buffer.clear(PAGE_BYTES, PAGE_BYTES + used, PAGE_BYTES + keep);
        }
    }
}

/// A queue's memory for one request and its reply.
#[derive(Debug)]
pub struct Buffers {
    /// Requests are received here.
    pub request: PageBuffer,
    /// Long replies are built here.
    pub reply: ReplyArea,
    /// Bytes of `request` that the transport filled.
    pub received: usize,
    /// Bytes of each buffer that may stay resident between requests.
    keep: usize,
}

impl Buffers {
    /// Buffers of this size. One page for headers is added to each.
    #[must_use]
    pub fn new(size: BufferSize) -> Self {
        Self {
            request: PageBuffer::new(size.payload_bytes() + PAGE_BYTES),
            reply: ReplyArea::new(size.payload_bytes()),
            received: 0,
            keep: size.keep_bytes,
        }
    }

    /// Wipes what the last request and its reply left.
    pub(crate) fn clear(&mut self) {
        debug_assert!(self.received <= self.request.len(), "more received than there is room for");
        let received = std::mem::take(&mut self.received);
        self.request.clear(0, received, self.keep);
        self.reply.clear(self.keep);
    }
}

/// How large the buffers of a session are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSize {
    /// Largest payload of a request or reply in bytes, which is `max_write`.
    pub max_payload_bytes: usize,
    /// Bytes of each buffer that may stay resident between requests. What a larger request used
    /// beyond is returned to the system.
    pub keep_bytes: usize,
}

impl BufferSize {
    /// Smallest payload that buffers are made for: an extended attribute of 64 KiB and its name
    /// must fit whatever `max_write` is.
    const MIN_PAYLOAD_BYTES: usize = 128 << 10;
    /// Least that each buffer may keep: returning a few pages costs more than it saves.
    const MIN_KEEP_BYTES: usize = 64 << 10;

    /// Buffers for payloads of `max_payload_bytes`, of which `buffers` together keep
    /// `budget_bytes`.
    #[must_use]
    pub fn within(max_payload_bytes: usize, budget_bytes: usize, buffers: usize) -> Self {
        let keep_bytes = (budget_bytes / buffers.max(1)).max(Self::MIN_KEEP_BYTES);
        Self { max_payload_bytes, keep_bytes }
    }

    pub(crate) fn payload_bytes(self) -> usize {
        Self::longest_reply(self.max_payload_bytes)
    }

    /// Bytes of data that the longest reply carries, where payloads are of `max_payload_bytes`.
    pub(crate) fn longest_reply(max_payload_bytes: usize) -> usize {
        max_payload_bytes.max(Self::MIN_PAYLOAD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zero_and_rounded_up() {
        let mut buffer = PageBuffer::new(4097);
        assert_eq!(buffer.as_ptr() as usize % PAGE_BYTES, 0);
        assert_eq!(buffer.len(), 8192);
        assert!(buffer.iter().all(|&b| b == 0));
        buffer[8191] = 1;
        assert_eq!(buffer[8191], 1);
        assert_eq!(PageBuffer::new(0).len(), PAGE_BYTES);
    }

    /// Resident pages, from the kernel's point of view.
    #[test]
    #[cfg_attr(miri, ignore = "mincore")]
    fn a_page_costs_memory_from_its_first_write() {
        let mut buffer = PageBuffer::new(64 * PAGE_BYTES);
        let resident = |buffer: &PageBuffer| {
            let mut pages = [0u8; 64];
            let start = buffer.as_ptr().cast_mut().cast();
            // SAFETY: the range is mapped, and `pages` has one byte for each of its pages.
            let rc = unsafe { libc::mincore(start, buffer.len(), pages.as_mut_ptr()) };
            assert_eq!(rc, 0);
            pages.iter().filter(|&&page| page & 1 != 0).count()
        };
        assert_eq!(resident(&buffer), 0);
        buffer[5 * PAGE_BYTES] = 1;
        assert_eq!(resident(&buffer), 1);
        buffer.fill(1);
        buffer.clear(0, 60 * PAGE_BYTES, 10 * PAGE_BYTES);
        assert_eq!(resident(&buffer), 14, "10 kept, 4 not asked for");
        assert!(buffer[..60 * PAGE_BYTES].iter().all(|&b| b == 0));
        assert!(buffer[60 * PAGE_BYTES..].iter().all(|&b| b == 1));
    }

    #[test]
    fn a_cleared_area_shows_nothing_of_the_last_reply() {
        let mut area = ReplyArea::new(8192);
        area.data(8192).fill(7);
        area.data(10)[0] = 8;
        area.clear(PAGE_BYTES);
        assert!(area.data(8192).iter().all(|&b| b == 0));
    }

    #[test]
    fn a_lent_area_shows_nothing_of_earlier_requests() {
        let mut buffer = PageBuffer::new(3 * PAGE_BYTES);
        buffer.fill(7);
        // SAFETY: a page lies before the data, and the buffer is used through the area alone.
        let mut area = unsafe {
            ReplyArea::lent(buffer.start().add(PAGE_BYTES), 2 * PAGE_BYTES, 2 * PAGE_BYTES)
        };
        area.data(10).fill(1);
        let data = area.data(8192);
        assert!(data[..10].iter().all(|&b| b == 1), "as left by the current request");
        assert!(data[10..].iter().all(|&b| b == 0));
    }

    #[test]
    fn the_head_lies_directly_before_the_data() {
        let mut area = ReplyArea::new(64);
        area.data(3).copy_from_slice(b"abc");
        assert_eq!(area.with_head(b"head", 3), b"headabc");
    }
}
