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
        let rounded = len.max(1).next_multiple_of(PAGE_BYTES);
        let Ok(layout) = Layout::from_size_align(rounded, PAGE_BYTES) else {
            panic!("a buffer of {len} bytes is more than the address space holds");
        };
        // SAFETY: without an address the kernel chooses a free range, so no memory in use is
        // affected.
        let mapped = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(ptr::null_mut(), rounded, access, MapFlags::PRIVATE)
        };
        let start = mapped.ok().and_then(|start| NonNull::new(start.cast::<u8>()));
        let Some(start) = start else { alloc::handle_alloc_error(layout) };
        debug_assert_eq!(start.as_ptr() as usize % PAGE_BYTES, 0, "mappings start at a page");
        Self { start, len: rounded }
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

/// Where a worker builds long replies: a page for the headers, then data from a page boundary on.
#[derive(Debug)]
pub struct ReplyArea {
    buffer: PageBuffer,
    /// Bytes of data that may have been written since the last [`ReplyArea::clear`].
    used: usize,
}

impl ReplyArea {
    /// An area for `data_len` bytes of data.
    #[must_use]
    pub fn new(data_len: usize) -> Self {
        Self { buffer: PageBuffer::new(PAGE_BYTES + data_len), used: 0 }
    }

    /// Most bytes of data that a reply from this area can carry.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.len() - PAGE_BYTES
    }

    /// The first `len` bytes of data (at most [`ReplyArea::capacity`]), zero or as left by the
    /// current request.
    pub(crate) fn data(&mut self, len: usize) -> &mut [u8] {
        let len = len.min(self.capacity());
        self.used = self.used.max(len);
        &mut self.buffer[PAGE_BYTES..PAGE_BYTES + len]
    }

    /// `head` and the first `len` bytes of data in one piece.
    pub(crate) fn with_head(&mut self, head: &[u8], len: usize) -> &[u8] {
        debug_assert!(len <= self.used, "{len} bytes sent, {} lent", self.used);
        let start = PAGE_BYTES - head.len();
        self.buffer[start..PAGE_BYTES].copy_from_slice(head);
        &self.buffer[start..PAGE_BYTES + len]
    }

    /// Wipes the data, so that it does not outlive its request.
    pub(crate) fn clear(&mut self) {
        let used = std::mem::take(&mut self.used);
        self.buffer[PAGE_BYTES..PAGE_BYTES + used].fill(0);
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
}

impl Buffers {
    /// Smallest payload that the buffers are made for: an extended attribute of 64 KiB and its name
    /// must fit whatever `max_write` is.
    const MIN_PAYLOAD_BYTES: usize = 128 << 10;

    /// Buffers for payloads of `max_payload` bytes, which is `max_write`, plus one page for
    /// headers.
    #[must_use]
    pub fn new(max_payload: usize) -> Self {
        let payload = max_payload.max(Self::MIN_PAYLOAD_BYTES);
        Self {
            request: PageBuffer::new(payload + PAGE_BYTES),
            reply: ReplyArea::new(payload),
            received: 0,
        }
    }

    /// Wipes what the last request and its reply left.
    pub(crate) fn clear(&mut self) {
        debug_assert!(self.received <= self.request.len(), "more received than there is room for");
        let received = std::mem::take(&mut self.received).min(self.request.len());
        self.request[..received].fill(0);
        self.reply.clear();
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
    }

    #[test]
    fn a_cleared_area_shows_nothing_of_the_last_reply() {
        let mut area = ReplyArea::new(8192);
        area.data(8192).fill(7);
        area.data(10)[0] = 8;
        area.clear();
        assert!(area.data(8192).iter().all(|&b| b == 0));
    }

    #[test]
    fn the_head_lies_directly_before_the_data() {
        let mut area = ReplyArea::new(64);
        area.data(3).copy_from_slice(b"abc");
        assert_eq!(area.with_head(b"head", 3), b"headabc");
    }
}
