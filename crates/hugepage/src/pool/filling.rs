//! Taking a buffer that its owner fills: nothing is cleared first.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use super::buffer::{Buffer, Parts, check_len, state::Taken};
use crate::error::Error;
use crate::plan::{Heat, SMALL_BYTES};
use crate::sys;

/// A buffer on its way to an owner who writes it from the start before he reads it, so that what an
/// earlier owner left in it need not be cleared: bytes that were not written cannot be read.
///
/// ```
/// # use tollgate_hugepage::Pool;
/// # fn main() -> Result<(), tollgate_hugepage::Error> {
/// let pool = Pool::builder().class(4096, 2).build()?;
/// let mut filling = pool.take_to_fill(4096)?;
/// filling.append(b"from the ")?;
/// filling.append(b"start")?;
/// let buffer = filling.finish()?;
/// assert_eq!(&buffer[..], b"from the start");
/// # Ok(()) }
/// ```
#[must_use = "a buffer that is dropped goes back to its pool"]
pub struct Filling {
    /// `None` only once it is finished.
    parts: Option<Parts>,
    /// Bytes at the start that are written.
    filled: usize,
    /// Bytes at the start that somebody had the chance to write.
    touched: usize,
}

impl Filling {
    /// A buffer of which `parts.len` bytes may be filled.
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts: Some(parts), filled: 0, touched: 0 }
    }

    fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("only `finish` takes the parts out")
    }

    /// Bytes written so far.
    #[must_use]
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes that may still be written.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.parts().len - self.filled
    }

    /// Writes `bytes` behind those that are there.
    ///
    /// # Errors
    /// [`Error::TooLong`], with the buffer as it was.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let end = self.filled.saturating_add(bytes.len());
        check_len(end.max(1), self.parts().len)?;
        let start = self.filled;
        let parts = self.parts.as_mut().expect("only `finish` takes the parts out");
        let to = parts.slot.bytes_mut(start..end);
        if bytes.len() <= SMALL_BYTES {
            // Stores past the cache are slow for a few bytes, which their reader then misses.
            to.copy_from_slice(bytes);
        } else {
            parts.pool.plan.copier(Heat::Hot).copy(to, bytes)?;
        }
        (self.filled, self.touched) = (end, self.touched.max(end));
        Ok(())
    }

    /// Reads up to `most` bytes of `file` from `offset` (`pread`) behind those that are there.
    /// Returns how many: fewer at the end of the file or where the kernel stopped early, 0 at its
    /// end.
    ///
    /// # Errors
    /// [`Error::TooLong`] when `most` does not fit; [`Error::System`] when the kernel refuses. The
    /// bytes that were there stay.
    pub fn read_at(&mut self, file: impl AsFd, offset: u64, most: usize) -> Result<usize, Error> {
        let end = self.filled.saturating_add(most);
        check_len(end.max(1), self.parts().len)?;
        let (start, spare) = (self.filled, self.spare_to(end));
        let fd = file.as_fd().as_raw_fd();
        let read = sys::read_at(fd, spare, offset);
        let read = read.map_err(|errno| Error::System { call: "pread", errno })?;
        debug_assert!(read <= most);
        self.filled = start + read;
        Ok(read)
    }

    /// The bytes behind those that are there, for a writer of the caller's, who then says how many
    /// with [`Filling::advance`]. They may hold an earlier owner's bytes: do not read them.
    pub fn spare_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let end = self.parts().len;
        self.spare_to(end)
    }

    fn spare_to(&mut self, end: usize) -> &mut [MaybeUninit<u8>] {
        // Whether all of it is written or not, it must be cleared before someone sees zeroes there.
        self.touched = self.touched.max(end);
        let start = self.filled;
        let parts = self.parts.as_mut().expect("only `finish` takes the parts out");
        parts.slot.spare_mut(start..end)
    }

    /// Counts `bytes` more as written.
    ///
    /// # Safety
    /// The first `bytes` of [`Filling::spare_mut`] were written since it was called.
    ///
    /// # Panics
    /// When there is no room for so many.
    #[expect(unsafe_code, reason = "the caller vouches that bytes were written")]
    pub unsafe fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.remaining(), "{bytes} of {} bytes left", self.remaining());
        self.filled += bytes;
    }

    /// Hands the buffer to its owner. Its length is what was written.
    ///
    /// # Errors
    /// [`Error::Zero`] when nothing was.
    pub fn finish(mut self) -> Result<Buffer<Taken>, Error> {
        check_len(self.filled, self.parts().len)?;
        let mut parts = self.parts.take().expect("a filling is finished once");
        parts.slot.written(self.touched);
        parts.slot.heat = Heat::Hot;
        (parts.len, parts.written) = (self.filled, self.filled);
        Ok(Buffer::from_parts(parts))
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if let Some(Parts { mut slot, pool, .. }) = self.parts.take() {
            slot.written(self.touched);
            pool.put_back(slot, self.touched);
        }
    }
}

impl fmt::Debug for Filling {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Filling({} of {} bytes)", self.filled, self.parts().len)
    }
}
