//! An open file description of the server's own, on which the lower file's locks are taken.
//!
//! Locks of byte ranges are open file description locks (`F_OFD_SETLK`): they belong to the
//! description and not to this process, so that two owners in the view exclude each other, and
//! closing some other descriptor of the file takes nothing away.
#![expect(unsafe_code, reason = "rustix has no open file description locks")]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::budget::Held;
use crate::locks::range::{Kind, LAST, Range};

/// What is locked: ranges of bytes (fcntl), or the file as such (flock). The kernel keeps them
/// apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Ranges,
    Whole,
}

/// What an owner asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) class: Class,
    pub(crate) range: Range,
    /// `None` unlocks.
    pub(crate) kind: Option<Kind>,
}

impl Wanted {
    /// The same range, unlocked.
    pub(crate) fn undone(self) -> Self {
        Self { kind: None, ..self }
    }
}

/// A lock that is in the way, as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) range: Range,
    pub(crate) kind: Kind,
    /// `None` for a lock that belongs to an open file description.
    pub(crate) pid: Option<u32>,
}

/// One open file description of a lower file.
#[derive(Debug)]
pub(crate) struct Description {
    fd: OwnedFd,
    writable: bool,
    held: Held,
}

impl Description {
    /// `fd` was opened for reading, and if `writable` for writing too: what locks of either kind
    /// need.
    pub(crate) fn new(fd: OwnedFd, writable: bool, held: Held) -> Self {
        Self { fd, writable, held }
    }

    /// Counts one descriptor more for whoever locks.
    pub(crate) fn hold_another(&self) -> Option<Held> {
        self.held.another()
    }

    /// Whether locks of this class and kind can be taken on it.
    pub(crate) fn serves(&self, wanted: &Wanted) -> bool {
        wanted.class == Class::Whole || wanted.kind != Some(Kind::Write) || self.writable
    }

    /// Locks or unlocks without waiting.
    ///
    /// # Errors
    /// `EAGAIN` if somebody else's lock is in the way.
    pub(crate) fn set(&self, wanted: &Wanted) -> Result<(), Errno> {
        match wanted.class {
            Class::Whole => rustix::fs::flock(&self.fd, whole(wanted.kind, false)),
            Class::Ranges => self
                .control(libc::F_OFD_SETLK, &mut as_flock(wanted))
                .map_err(|errno| if errno == Errno::ACCESS { Errno::AGAIN } else { errno }),
        }
    }

    /// Locks, and waits as long as it takes.
    ///
    /// # Errors
    /// `EINTR` if a signal came to this thread: then nothing was locked.
    pub(crate) fn wait(&self, wanted: &Wanted) -> Result<(), Errno> {
        match wanted.class {
            Class::Whole => rustix::fs::flock(&self.fd, whole(wanted.kind, true)),
            Class::Ranges => self.control(libc::F_OFD_SETLKW, &mut as_flock(wanted)),
        }
    }

    /// The first lock of somebody else that is in the way.
    pub(crate) fn test(&self, range: Range, kind: Kind) -> Result<Option<Found>, Errno> {
        let wanted = Wanted { class: Class::Ranges, range, kind: Some(kind) };
        let mut lock = as_flock(&wanted);
        self.control(libc::F_OFD_GETLK, &mut lock)?;
        let kind = match i32::from(lock.l_type) {
            libc::F_RDLCK => Kind::Read,
            libc::F_WRLCK => Kind::Write,
            _ => return Ok(None),
        };
        let start = u64::try_from(lock.l_start).map_err(|_| Errno::IO)?;
        let end = match u64::try_from(lock.l_len).map_err(|_| Errno::IO)? {
            0 => LAST,
            len => start + (len - 1),
        };
        let range = Range::new(start, end).ok_or(Errno::IO)?;
        Ok(Some(Found { range, kind, pid: u32::try_from(lock.l_pid).ok().filter(|pid| *pid > 0) }))
    }

    fn control(&self, command: i32, lock: &mut libc::flock) -> Result<(), Errno> {
        // SAFETY: the descriptor is open while `self` lives; the commands take a pointer to a
        // `struct flock`, which is borrowed exclusively for the call.
        let result = unsafe { libc::fcntl(self.fd.as_raw_fd(), command, std::ptr::from_mut(lock)) };
        if result == 0 { Ok(()) } else { Err(crate::lower::last_errno()) }
    }
}

fn whole(kind: Option<Kind>, wait: bool) -> FlockOperation {
    match (kind, wait) {
        (None, _) => FlockOperation::NonBlockingUnlock,
        (Some(Kind::Read), false) => FlockOperation::NonBlockingLockShared,
        (Some(Kind::Read), true) => FlockOperation::LockShared,
        (Some(Kind::Write), false) => FlockOperation::NonBlockingLockExclusive,
        (Some(Kind::Write), true) => FlockOperation::LockExclusive,
    }
}

fn as_flock(wanted: &Wanted) -> libc::flock {
    let kind = match wanted.kind {
        None => libc::F_UNLCK,
        Some(Kind::Read) => libc::F_RDLCK,
        Some(Kind::Write) => libc::F_WRLCK,
    };
    let Range { start, end } = wanted.range;
    // A length of 0 goes to the end of the file.
    let length = if end == LAST { 0 } else { end - start + 1 };
    let offset = |bytes| i64::try_from(bytes).expect("a range ends at i64::MAX");
    // SAFETY: `struct flock` is plain data for which zeroes are valid; `l_pid` has to be 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).expect("the kernel's field has 16 bits");
    lock.l_whence = i16::try_from(libc::SEEK_SET).expect("0");
    (lock.l_start, lock.l_len) = (offset(start), offset(length));
    lock
}
