//! Where the sealed bytes are kept: the caller's file.

use std::io;
use std::ops::Range;

/// A file, or what stands for one. Several threads may use it at once, each on bytes of its own.
/// Writes become durable with [`Store::sync`]; before, a crash may
/// lose, tear or reorder them.
pub trait Store {
    /// Its length in bytes.
    ///
    /// # Errors
    /// What the file system says.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// What the file system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before, or what the file system says.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// As [`Store::read_at`], unless that would wait for a device: then `false`, and the caller has
    /// another way. A store that cannot tell says `false`.
    ///
    /// # Errors
    /// As [`Store::read_at`].
    fn read_at_once(&self, _buffer: &mut [u8], _offset: u64) -> io::Result<bool> {
        Ok(false)
    }

    /// Writes all of `bytes` at `offset`; the file grows as needed.
    ///
    /// # Errors
    /// What the file system says.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when everything written is durable.
    ///
    /// # Errors
    /// What the file system says.
    fn sync(&self) -> io::Result<()>;

    /// Gives the space of these bytes back, which nobody needs: they may read as zero from now on. The
    /// length stays.
    ///
    /// # Errors
    /// What the file system says; `Unsupported` if the store has no such thing, and is not asked again.
    fn give_back(&self, _bytes: Range<u64>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Cuts it: nobody needs what is behind `length`.
    ///
    /// # Errors
    /// As [`Store::give_back`].
    fn truncate(&self, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Store for std::fs::File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

impl<S: Store + ?Sized> Store for &S {
    fn len(&self) -> io::Result<u64> {
        (**self).len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_at(buffer, offset)
    }

    fn read_at_once(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        (**self).read_at_once(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        (**self).write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        (**self).sync()
    }

    fn give_back(&self, bytes: Range<u64>) -> io::Result<()> {
        (**self).give_back(bytes)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        (**self).truncate(length)
    }
}
