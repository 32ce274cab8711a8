//! Locks are the lower file's: whoever locks a file, inside or outside the view, excludes everyone
//! else.
//!
//! Each owner in the view has an open file description of its own on the lower file
//! ([`description`]), so that the lower file system keeps owners apart. A request that has to wait
//! is taken off the threads that serve requests: a thread of its own waits in the kernel, up to a
//! maximum of them; further requests are tried every few milliseconds ([`shared`]).
//!
//! What ends a lock besides unlocking: FLUSH, which the kernel sends at each close of a handle that
//! was opened so ([`wants_closes`]), for locks of the closing process; RELEASE, for locks that were
//! taken through the handle; the end of the process, where no FLUSH is sent.

mod description;
mod file;
mod grant;
mod keeper;
mod left;
mod range;
mod shared;
#[cfg(test)]
mod tests;
mod waits;
mod who;

use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;
use tollgate_fuse::{FileHandle, Passing};

pub(crate) use description::{Class, Description, Wanted};
use file::InTheWay;
pub(crate) use file::{Ask, FileLocks, OwnerId, Source};
pub(crate) use grant::Grant;
pub(crate) use range::{Kind, Range};

use crate::patience::Patience;
use crate::shares::{ShareStatus, Shares, Taken};
use shared::Shared;

/// A close returns before the kernel reports that it was the last one of its handle. A lock that
/// such a handle holds is tried again for this long before a caller who would not wait hears of it,
const CLOSING: Duration = Duration::from_millis(5);

/// and, where a later request can overtake the report, until it must have been served, for at most
/// this long: a thread that serves it may have to wait for a CPU, or for the lower file system.
const CLOSING_MOST: Duration = Duration::from_secs(2);

/// Most pieces that all owners together may have locked, in blocks: a million, of 32 bytes each.
const MAX_BLOCKS: usize = (1 << 20) / range::Pieces::BLOCK;

/// Locks that wait, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LockStatus {
    /// Requests that wait for a lock.
    pub waiting: usize,
    /// Threads that wait in the kernel for them.
    pub threads: usize,
}

/// The locks of a view.
pub(crate) struct Locks {
    shared: Arc<Shared>,
    /// Blocks of pieces that owners have locked.
    pieces: Arc<Shares>,
}

impl Locks {
    /// # Errors
    /// `EMFILE` without a descriptor for waking a thread.
    pub(crate) fn new() -> Result<Self, Errno> {
        let pieces = Shares::new("blocks of 64 locked ranges", MAX_BLOCKS);
        Ok(Self { shared: Arc::new(Shared::new()?), pieces })
    }

    pub(crate) fn status(&self) -> LockStatus {
        LockStatus { waiting: self.shared.waits.len(), threads: self.shared.threads() }
    }

    /// How much users hold.
    pub(crate) fn shares(&self) -> [ShareStatus; 2] {
        [self.pieces.status(), self.shared.waits.shares()]
    }

    /// Counts the pieces of an owner of user `uid`.
    pub(crate) fn room(&self, uid: u32) -> Taken {
        self.pieces.none(uid)
    }

    /// Locks or unlocks without waiting.
    ///
    /// # Errors
    /// `EAGAIN` if somebody's lock is in the way: [`Locks::wait`] has to follow.
    pub(crate) fn set(
        &self,
        file: &Arc<FileLocks>,
        ask: &Ask,
        source: &impl Source,
    ) -> Result<(), Errno> {
        let done = file.set(ask, source);
        // A request that is not among the waits yet fetches its description later.
        if self.shared.waits.len() > 0 && file.has_left(ask.id) {
            self.shared.leave(file, ask.id);
        }
        done?;
        self.shared.watch(file, ask.id);
        // Unlocked, or shared with others from now on.
        if ask.wanted.kind != Some(Kind::Write) {
            self.retry();
        }
        Ok(())
    }

    /// The lock is there; answers, after pages of the file that the kernel holds are dropped.
    pub(crate) fn give(&self, grant: Grant) {
        self.shared.granter.give(grant);
    }

    /// A request that got `EAGAIN` waits, if the caller wants to, or is refused. `closes` tells when
    /// closes that returned before it have been served.
    pub(crate) fn wait(
        &self,
        unique: u64,
        wants_to_wait: bool,
        grant: Grant,
        closes: impl FnOnce() -> Option<Passing>,
    ) {
        if wants_to_wait {
            return self.shared.wait(unique, grant, None);
        }
        let tried = grant.file.try_again(&grant.ask);
        if tried == Err(InTheWay::MayBeClosing) {
            let patience = Patience::begin(CLOSING, CLOSING_MOST, closes());
            return self.shared.wait(unique, grant, Some(patience));
        }
        grant.file.wait_ends(grant.ask.id);
        match tried {
            Err(InTheWay::Stays(error)) => grant.refuse(error),
            _ => self.shared.give(grant),
        }
    }

    /// The caller of request `unique` got a signal.
    pub(crate) fn interrupted(&self, unique: u64) {
        if let Some(wait) = self.shared.waits.get(unique) {
            self.shared.cancel(&wait);
        }
    }

    /// Process `owner` closed a descriptor of the file.
    pub(crate) fn flushed(&self, file: &FileLocks, owner: u64) {
        file.flushed(owner);
        self.retry();
    }

    /// Nobody has `handle` open any more.
    pub(crate) fn released(&self, file: &FileLocks, handle: FileHandle) {
        file.released(handle);
        self.retry();
    }

    /// A lock ended: who is tried from time to time is tried now.
    fn retry(&self) {
        if self.shared.waits.len() > 0 {
            self.shared.nudge();
        }
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        for wait in self.shared.waits.all() {
            self.shared.cancel(&wait);
        }
        self.shared.keeper.end();
    }
}

/// Whether the kernel is to report each close of a file that is opened with `flags`. It costs a
/// request, and without it a close does not end the locks of a process that has the file open
/// elsewhere. Databases and lock files are opened to be read and written in place, or were locked
/// before; others do without.
pub(crate) fn wants_closes(flags: OFlags, locks: Option<&Arc<FileLocks>>) -> bool {
    let made_new = OFlags::TRUNC | OFlags::EXCL | OFlags::TMPFILE;
    let in_place = flags & OFlags::ACCMODE == OFlags::RDWR && !flags.intersects(made_new);
    in_place || locks.is_some_and(|locks| locks.ranges_used())
}
