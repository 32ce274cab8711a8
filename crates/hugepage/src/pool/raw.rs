//! Buffers for those whom Rust does not see: the kernel, a C library.
#![expect(unsafe_code, reason = "hands out addresses")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::buffer::{Buffer, Parts, state::Taken};
use super::core::Core;
use super::handle::Pool;
use crate::error::Error;
use crate::sync::Ordering;

/// A buffer whose bytes somebody else reads or writes, such as the kernel for an asynchronous
/// request. It has no access to the bytes itself. Dropped without
/// [`into_buffer`](Self::into_buffer) it stays taken, and keeps the memory of its pool mapped.
#[must_use = "a raw buffer that is dropped stays taken for ever"]
pub struct RawBuffer(ManuallyDrop<Parts>);

/// Most bytes that io_uring registers in one piece.
const PIECE_MAX: usize = 1 << 30;

impl Buffer<Taken> {
    /// Takes the buffer out of the care of its type.
    pub fn into_raw(self) -> RawBuffer {
        RawBuffer(ManuallyDrop::new(self.into_parts()))
    }

    /// As [`RawBuffer::piece`].
    #[must_use]
    pub fn piece(&self) -> Option<usize> {
        piece_of(self.parts())
    }
}

impl RawBuffer {
    /// The first byte. Valid until [`into_buffer`](Self::into_buffer).
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.0.slot.start
    }

    /// Bytes from [`start`](Self::start) on that may be read and written.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Which of [`Pool::pieces`] the buffer lies in: for io_uring, the index of its registered
    /// buffer. `None` for memory beyond the pool ([`super::AtMaximum::BasePages`]).
    #[must_use]
    pub fn piece(&self) -> Option<usize> {
        piece_of(&self.0)
    }

    /// The buffer again. All of it counts as written.
    ///
    /// # Safety
    /// Nobody uses [`start`](Self::start) any more: each request that was given it has completed.
    pub unsafe fn into_buffer(self) -> Buffer<Taken> {
        let mut parts = ManuallyDrop::into_inner(self.0);
        parts.written = parts.len;
        Buffer::from_parts(parts)
    }
}

impl Pool {
    /// The memory of the pool in pieces of whole buffers, at most 1 GiB each, as
    /// `IORING_REGISTER_BUFFERS` takes them; [`Buffer::piece`] says which one a buffer is in.
    ///
    /// The kernel keeps the pages of what is registered. So from this call on
    /// [`trim`](Self::trim) gives nothing back; call it before the pool is trimmed for the first
    /// time, and register before the first buffer is taken. Registration faults all memory in, and
    /// counts against RLIMIT_MEMLOCK without CAP_IPC_LOCK.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for buffers of more than 1 GiB.
    pub fn pieces(&self) -> Result<Vec<NonNull<[u8]>>, Error> {
        let core = self.core();
        if let Some(class) = core.classes.iter().find(|class| class.buffer_bytes > PIECE_MAX) {
            let bytes = class.buffer_bytes;
            return Err(Error::TooLarge {
                what: "a registered buffer",
                bytes,
                limit_bytes: PIECE_MAX,
                limit: "what io_uring registers in one piece".into(),
                way_out: "register no pool with such buffers".into(),
            });
        }
        core.pinned.store(true, Ordering::Relaxed);
        let mut pieces = Vec::new();
        for class in &core.classes {
            for shelf in &class.shelves {
                let (all, step) =
                    (shelf.records.len() * class.buffer_bytes, step(class.buffer_bytes));
                pieces.extend((0..all).step_by(step).map(|offset| {
                    NonNull::slice_from_raw_parts(shelf.region.at(offset), step.min(all - offset))
                }));
            }
        }
        Ok(pieces)
    }
}

/// Bytes of a piece: as many whole buffers as fit.
fn step(buffer_bytes: usize) -> usize {
    (PIECE_MAX / buffer_bytes).max(1) * buffer_bytes
}

fn piece_of(Parts { slot, pool, .. }: &Parts) -> Option<usize> {
    let (mine, offset) = pool.place_of(slot)?;
    Some(pieces_before(pool, slot.class, mine) + offset / step(slot.capacity))
}

/// Pieces of all shelves before one.
fn pieces_before(core: &Core, class: usize, shelf: usize) -> usize {
    let count = |class: usize, shelf: usize| {
        let class = &core.classes[class];
        (class.shelves[shelf].records.len() * class.buffer_bytes).div_ceil(step(class.buffer_bytes))
    };
    let others = (0..class)
        .flat_map(|class| (0..core.classes[class].shelves.len()).map(move |shelf| (class, shelf)));
    let others: usize = others.map(|(class, shelf)| count(class, shelf)).sum();
    others + (0..shelf).map(|shelf| count(class, shelf)).sum::<usize>()
}

impl fmt::Debug for RawBuffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RawBuffer({} bytes)", self.len())
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    use io_uring::{IoUring, opcode, types};

    use super::*;

    const KIB: usize = 1024;

    #[test]
    fn a_raw_buffer_comes_back_dirty_and_is_cleared() {
        let pool = Pool::builder().class(16 * KIB, 1).build().unwrap();
        let raw = pool.take(9 * KIB).unwrap().into_raw();
        assert!(matches!(pool.take(1), Err(Error::Exhausted { .. })));
        // SAFETY: the buffer has so many bytes, and nobody else uses it.
        unsafe { raw.start().write_bytes(7, raw.len()) };
        // SAFETY: as above.
        let buffer = unsafe { raw.into_buffer() };
        assert!(buffer.len() == 9 * KIB && buffer.iter().all(|byte| *byte == 7));
        drop(buffer);
        assert!(pool.take(16 * KIB).unwrap().iter().all(|byte| *byte == 0));
        // Dropped while somebody may still write: it stays taken, mapped though the pool goes.
        let raw = pool.take(KIB).unwrap().into_raw();
        let start = raw.start();
        drop((raw, pool));
        // SAFETY: the memory of a raw buffer stays mapped.
        unsafe { start.write(1) };
    }

    #[test]
    fn io_uring_reads_into_registered_buffers_of_every_class() {
        let pool = Pool::builder().class(16 * KIB, 3).class(64 * KIB, 2).build().unwrap();
        let mut ring = match IoUring::new(4) {
            Ok(ring) => ring,
            Err(error) => {
                eprintln!("io_uring cannot be tried here: {error}");
                return;
            }
        };
        let pieces = pool.pieces().unwrap();
        let iovec = |piece: &NonNull<[u8]>| libc::iovec {
            iov_base: piece.as_ptr().cast(),
            iov_len: piece.len(),
        };
        let iovecs: Vec<_> = pieces.iter().map(iovec).collect();
        // SAFETY: the pool outlives the ring's requests.
        unsafe { ring.submitter().register_buffers(&iovecs) }.unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 64 * KIB], 0).unwrap();
        for bytes in [10 * KIB, 60 * KIB, 16 * KIB, 64 * KIB, 1, 17 * KIB] {
            let raw = pool.take(bytes).unwrap().into_raw();
            let index = u16::try_from(raw.piece().unwrap()).unwrap();
            let (fd, len) = (types::Fd(file.as_raw_fd()), u32::try_from(raw.len()).unwrap());
            let read = opcode::ReadFixed::new(fd, raw.start().as_ptr(), len, index).build();
            // SAFETY: file and buffer live until the completion.
            unsafe { ring.submission().push(&read) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            let completion = ring.completion().next().unwrap();
            assert_eq!(completion.result(), i32::try_from(bytes).unwrap(), "{bytes} of {index}");
            // SAFETY: the only request has completed.
            let buffer = unsafe { raw.into_buffer() };
            assert!(buffer.iter().all(|byte| *byte == 7));
        }
        // What the kernel writes to must not be replaced by other pages.
        assert_eq!(pool.trim(Duration::ZERO).unwrap(), 0);
        let free = pool.take(64 * KIB).unwrap();
        assert!(free.iter().all(|byte| *byte == 0));
    }
}
