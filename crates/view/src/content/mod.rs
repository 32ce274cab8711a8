//! Files whose bytes the view makes: secrets masked, or plain text of what is encrypted below.
//!
//! Such a file is open in [`IoMode::Direct`](crate::mode::IoMode): the kernel asks for each range,
//! keeps no page of it but for mappings, and never sees the lower file. What the bytes are is a
//! [`Content`]; how its requests run beside each other is [`crate::road`].

pub(crate) mod asker;
mod committer;
mod damaged;
mod lost;
mod lower_store;
pub(crate) mod open;
mod redacted;
mod redactors;
mod sealed;
mod sealing;
mod times;
pub(crate) mod to_open;

use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use tollgate_seal::Task;

use crate::lower::Version;
use crate::road::lane::Lane;
use crate::road::memory::{Part, Room};

/// Runs the parts of a write on behalf of the caller, beside each other where that is worth it.
pub(crate) struct Beside<'r> {
    /// How many parts are run at a time.
    pub(crate) ways: usize,
    /// Calls each once. A part that the caller's identity could not be taken for is left out.
    pub(crate) run: &'r dyn Fn(&mut [Task<'_>]),
}

/// Runs what changes the lower file as the one who asked for it, and once more if it was refused to
/// that one for want of a group.
pub(crate) type AsAsker<'r> =
    &'r dyn Fn(&mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno>;

/// The bytes of an open file, made from those of the lower file. Its methods run on work queues,
/// several at a time, on behalf of the server itself.
pub(crate) trait Content: Send + Sync + 'static {
    /// The queue that its requests run on.
    fn lane(&self) -> Lane;

    /// Bytes of the file as it is shown. Must not depend on how large the file is: it is asked for
    /// each request.
    fn size(&self) -> Result<u64, Errno>;

    /// What tells whether bytes made earlier are still those of the file. `None`: they must be made
    /// again, as something may change without being told.
    fn version(&self) -> Result<Option<Version>, Errno>;

    /// Makes the bytes of `range`, at most [`Room::MOST`] of them, in a buffer that `room` has.
    /// Fewer are the end of the file.
    fn read(&self, range: Range<u64>, room: Room) -> Result<Part, Errno>;

    /// As [`Content::read`], into `buffer`, on the transport's thread: `None` if that would wait for
    /// anything, if it is much work, or if it fails.
    fn read_at_once(&self, _buffer: &mut [u8], _offset: u64) -> Option<usize> {
        None
    }

    /// As [`Content::write`], as [`Content::read_at_once`] is. All of `data` or nothing is written.
    fn write_at_once(&self, _data: &[u8], _offset: u64) -> Option<usize> {
        None
    }

    /// Writes, and returns how many bytes were written. Nothing in `data` is to be used afterwards.
    /// What is written below is written by tasks of `beside`.
    ///
    /// # Errors
    /// `EROFS` for what is only read.
    fn write(&self, _data: &mut [u8], _offset: u64, _beside: &Beside<'_>) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    /// Cuts the file, or makes it longer by zeroes.
    ///
    /// # Errors
    /// `EROFS` for what is only read.
    fn set_len(&self, _len: u64, _as_asker: AsAsker<'_>) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Makes a range zero; the size stays.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for what is only read.
    fn punch(&self, _range: Range<u64>, _as_asker: AsAsker<'_>) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Where the next data or hole is. That all is data is always right.
    ///
    /// # Errors
    /// `ENXIO` behind the end, and where no data follows.
    fn seek(&self, to: SeekFrom) -> Result<u64, Errno> {
        seek_in_data(self.size()?, to)
    }

    /// Returns when all that was written is durable.
    fn commit(&self, _data_only: bool) -> Result<(), Errno> {
        Ok(())
    }

    /// A descriptor of the file is closed. Errors of writing that nobody heard of yet are told.
    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }
}

/// lseek(2) for data and holes in a file of `size` bytes without holes.
pub(crate) fn seek_in_data(size: u64, to: SeekFrom) -> Result<u64, Errno> {
    match to {
        SeekFrom::Data(offset) | SeekFrom::Hole(offset) if offset >= size => Err(Errno::NXIO),
        SeekFrom::Data(offset) => Ok(offset),
        SeekFrom::Hole(_) => Ok(size),
        _ => Err(Errno::INVAL),
    }
}
