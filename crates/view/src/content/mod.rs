//! Files whose bytes the view makes: secrets masked, or plain text of what is encrypted below.
//!
//! Such a file is open in [`IoMode::Direct`](crate::mode::IoMode): the kernel asks for each range,
//! keeps no page of it but for mappings, and never sees the lower file. What the bytes are is a
//! [`Content`]; how its requests run beside each other is [`crate::road`].

mod redacted;
mod redactors;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_policy::{Made, Mode};

use crate::admission::Subject;
use crate::lower::Version;
use crate::road::{Lane, Part, Room};
use crate::table::Node;

use redactors::Redactors;

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

    /// Writes, and returns how many bytes were written.
    ///
    /// # Errors
    /// `EROFS` for what is only read.
    fn write(&self, _data: &[u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    /// Cuts the file, or makes it longer by zeroes.
    ///
    /// # Errors
    /// `EROFS` for what is only read.
    fn set_len(&self, _len: u64) -> Result<(), Errno> {
        Err(Errno::ROFS)
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

/// A lower file that is to be opened as [`Content`].
pub(crate) struct ToOpen<'a> {
    /// Open for reading; for reading and writing if it is to be written.
    pub(crate) fd: Arc<OwnedFd>,
    /// Handles of one inode that need state in common find it by this.
    #[expect(dead_code, reason = "for sealed files")]
    pub(crate) node: &'a Arc<Node>,
    /// It was made by this request: it has no bytes, and needs what a file of its kind has.
    pub(crate) is_new: bool,
    pub(crate) writes: bool,
}

/// What opens such files.
#[derive(Default)]
pub(crate) struct Contents {
    redactors: Redactors,
}

impl Contents {
    /// Opens `file` as `how` says.
    ///
    /// # Errors
    /// `EACCES` for a file that must not be shown: of two domains at once, or too large to be
    /// masked.
    pub(crate) fn open(&self, file: ToOpen<'_>, how: &How) -> Result<Arc<dyn Content>, Errno> {
        match how {
            How::Redacted(made) => {
                if file.writes || file.is_new {
                    return Err(Errno::ROFS);
                }
                redacted::open(file, self.redactors.of(&made.redactions))
            }
            How::Sealed(made) => match &made.domains[..] {
                [_domain] => Err(Errno::OPNOTSUPP),
                _ => Err(Errno::ACCESS),
            },
        }
    }
}

/// How the bytes of a file are made.
#[derive(Clone, Debug)]
pub(crate) enum How {
    Redacted(Made),
    Sealed(Made),
}

impl How {
    /// How those of `subject` are; `None` if they are the lower file's own.
    pub(crate) fn of(subject: &Subject<'_>) -> Option<Self> {
        match subject.mode() {
            Mode::Redacted => Some(Self::Redacted(subject.made())),
            Mode::Sealed => Some(Self::Sealed(subject.made())),
            Mode::Passthrough | Mode::Userspace => None,
        }
    }
}
