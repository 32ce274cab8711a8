//! Page-aligned memory for requests and replies.
//!
//! The kernel pins the pages of a buffer while it copies: alignment keeps a small request within one
//! page and a large payload off a page more than it needs.
#![expect(unsafe_code, reason = "aligned allocation")]

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Zeroed, page-aligned memory of a fixed size. Pages that were never touched cost nothing.
#[derive(Debug)]
pub struct PageBuffer {
    start: NonNull<u8>,
    layout: Layout,
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
    pub fn new(len: usize) -> Self {
        let rounded = len.max(1).next_multiple_of(PAGE_BYTES);
        let Ok(layout) = Layout::from_size_align(rounded, PAGE_BYTES) else {
            panic!("a buffer of {len} bytes is more than the address space holds");
        };
        // SAFETY: the layout's size is not zero, by `max(1)` and rounding up.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { alloc::handle_alloc_error(layout) };
        Self { start, layout }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `layout.size()` bytes, initialised by `alloc_zeroed`, owned by
        // `self`; the shared borrow of `self` excludes writers for as long as the slice lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; the exclusive borrow of `self` excludes everybody else.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this very layout and is freed once.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Where a worker builds long replies: a page for the headers, then data from a page boundary on.
#[derive(Debug)]
pub struct ReplyArea {
    buffer: PageBuffer,
    /// Bytes of data that may hold something since the last [`ReplyArea::clear`].
    used: usize,
}

impl ReplyArea {
    /// An area for `data_len` bytes of data.
    pub fn new(data_len: usize) -> Self {
        Self { buffer: PageBuffer::new(PAGE_BYTES + data_len), used: 0 }
    }

    /// Most bytes of data that a reply from this area can carry.
    pub fn capacity(&self) -> usize {
        self.buffer.len() - PAGE_BYTES
    }

    /// The first `len` bytes of data (at most [`ReplyArea::capacity`]), zero or as left by the current
    /// request.
    pub(crate) fn data(&mut self, len: usize) -> &mut [u8] {
        let len = len.min(self.capacity());
        self.used = self.used.max(len);
        &mut self.buffer[PAGE_BYTES..PAGE_BYTES + len]
    }

    /// `head` and the first `len` bytes of data in one piece.
    pub(crate) fn with_head(&mut self, head: &[u8], len: usize) -> &[u8] {
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

/// What a worker owns: memory for a request and for its reply.
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

    /// Buffers for payloads of `max_payload` bytes, which is `max_write`, plus one page for headers.
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
