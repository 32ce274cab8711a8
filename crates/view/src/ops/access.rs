//! What an open asks for.

use rustix::fs::OFlags;
use tollgate_policy::Operation;

use crate::admission::Asked;
use crate::mode::Uses;

/// `FMODE_EXEC`: who executes a file opens it with this. The kernel takes it from nobody else.
const TO_EXECUTE: u32 = 0x20;

/// What open(2) was asked for.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub(super) flags: OFlags,
}

impl Access {
    pub(super) fn new(flags: u32) -> Self {
        Self { flags: OFlags::from_bits_retain(flags) }
    }

    pub(super) fn reads(self) -> bool {
        (self.flags & OFlags::ACCMODE) != OFlags::WRONLY
    }

    pub(super) fn writes(self) -> bool {
        self.writes_through() || self.truncates()
    }

    /// The handle is one to write through.
    pub(super) fn writes_through(self) -> bool {
        (self.flags & OFlags::ACCMODE) != OFlags::RDONLY
    }

    /// A mapping that can be written needs both.
    pub(super) fn is_in_place(self) -> bool {
        (self.flags & OFlags::ACCMODE) == OFlags::RDWR
    }

    pub(super) fn truncates(self) -> bool {
        self.flags.contains(OFlags::TRUNC)
    }

    /// The handle is to read alone, and the file is emptied all the same.
    pub(super) fn only_empties(self) -> bool {
        (self.flags & OFlags::ACCMODE) == OFlags::RDONLY && self.truncates()
    }

    pub(super) fn executes(self) -> bool {
        self.flags.bits() & TO_EXECUTE != 0
    }

    /// What the handle can be used for.
    pub(super) fn uses(self) -> Uses {
        Uses { reads: self.reads(), writes: self.writes_through() }
    }

    /// What the policy is asked for.
    pub(super) fn asked(self) -> impl Iterator<Item = Asked> {
        let read = self.reads().then_some(Asked::To(Operation::Read));
        let write = match self.truncates() {
            true => Asked::To(Operation::Write),
            false => Asked::ChangeInPart,
        };
        read.into_iter().chain(self.writes().then_some(write))
    }

    pub(super) fn appends(self) -> bool {
        self.flags.contains(OFlags::APPEND)
    }

    /// All that the handle can do is to make the file longer.
    pub(super) fn only_appends(self) -> bool {
        self.appends() && !self.reads() && !self.truncates()
    }

    /// The same for a file whose bytes the view makes: what it writes it has to read.
    pub(super) fn made(self) -> Self {
        let access = if self.writes() { OFlags::RDWR } else { OFlags::RDONLY };
        Self { flags: (self.flags - OFlags::ACCMODE) | access }
    }

    /// The same for one that is to be made: its first bytes are written here, whatever the caller
    /// may do.
    pub(super) fn made_new(self) -> Self {
        Self { flags: (self.flags - OFlags::ACCMODE) | OFlags::RDWR }
    }

    /// The flags for a lower descriptor that this process reads and writes itself. The kernel sends
    /// offsets, so `O_APPEND` must not move them (ten appends of 3,000 bytes once left 50,312
    /// bytes); `O_DIRECT` would demand aligned buffers of requests that need none; `O_TRUNC` was
    /// done.
    pub(super) fn lower(self) -> OFlags {
        let kept = OFlags::ACCMODE | OFlags::SYNC | OFlags::DSYNC | OFlags::NOATIME;
        (self.flags & kept) | OFlags::CLOEXEC
    }
}
