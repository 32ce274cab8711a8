//! Stores that every processor has.
#![expect(unsafe_code, reason = "kernels write through raw pointers")]

use std::ptr;

/// Bytes that a descending kernel writes as one block.
const BLOCK: usize = 64;

/// Clears `[start, start + len)` with the compiler's memset, which is the C library's.
///
/// # Safety
/// The range is writable.
pub(super) unsafe fn clear_up(start: *mut u8, len: usize) {
    // SAFETY: the caller vouches for the range.
    unsafe { ptr::write_bytes(start, 0, len) }
}

/// Clears `[start, start + len)` from its end. The stores are volatile because the compiler turns a
/// descending loop of plain ones into an ascending memset.
///
/// # Safety
/// The range is writable.
pub(super) unsafe fn clear_down(start: *mut u8, len: usize) {
    let mut left = len;
    // Down to a multiple of 8 bytes from the end's unaligned rest.
    // SAFETY: every store lies below `start + len` and, as `left` only falls to 0, at or above
    // `start`; the eight-byte stores are aligned because the loop before stops at a multiple of 8.
    unsafe {
        while left > 0 && !(start.wrapping_add(left) as usize).is_multiple_of(8) {
            left -= 1;
            start.add(left).write_volatile(0);
        }
        while left >= BLOCK {
            for _ in 0..BLOCK / 8 {
                left -= 8;
                start.add(left).cast::<u64>().write_volatile(0);
            }
        }
        while left > 0 {
            left -= 1;
            start.add(left).write_volatile(0);
        }
    }
}

/// Copies with the compiler's memcpy, which is the C library's.
///
/// # Safety
/// Both ranges of `len` bytes are valid and do not overlap.
pub(super) unsafe fn copy_up(to: *mut u8, from: *const u8, len: usize, _prefetch_bytes: usize) {
    // SAFETY: the caller vouches for both ranges.
    unsafe { ptr::copy_nonoverlapping(from, to, len) }
}

/// Copies from the end, in blocks of 64 bytes.
///
/// # Safety
/// Both ranges of `len` bytes are valid and do not overlap.
pub(super) unsafe fn copy_down(to: *mut u8, from: *const u8, len: usize, _prefetch_bytes: usize) {
    let mut left = len;
    while left > 0 {
        let block = left.min(BLOCK);
        left -= block;
        // SAFETY: `left + block` never exceeds `len`, so both blocks lie in the caller's ranges.
        unsafe { ptr::copy_nonoverlapping(from.add(left), to.add(left), block) }
    }
}
