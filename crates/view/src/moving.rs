//! Names that are being moved by the view itself.
//!
//! A lookup asks the lower file system where an inode is and then notes the place. If a rename of
//! the view happens between the two, the note would put the inode back to its old place, where
//! other rules may hold. Renames therefore announce themselves, and a lookup that was overtaken is
//! made again while no rename can be under way. Lookups share nothing that anybody writes unless
//! names are moved.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Debug, Default)]
pub(crate) struct Moving {
    /// Renames and links compare decisions under old and new paths. Moving a directory changes the
    /// paths of everything below it, so it excludes them: write for directories, read for the rest.
    turn: RwLock<()>,
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Moving {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.turn.read()
    }

    /// No name is moved by the view as long as the guard lives.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, ()> {
        self.turn.write()
    }

    /// Names are about to be moved, until the guard is dropped: after the places are noted. The
    /// nodes that are moved are to be looked for after this.
    pub(crate) fn begin(&self) -> InMotion<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        InMotion(self)
    }

    /// A moment at which nothing is being moved; `None` if something is.
    pub(crate) fn moment(&self) -> Option<Moment> {
        // In this order: equal numbers mean that nothing was under way at the second look.
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(Moment(ended))
    }

    /// Whether no move has begun since. What was noted before this is seen by those that begin
    /// later.
    pub(crate) fn is_still(&self, moment: &Moment) -> bool {
        fence(Ordering::SeqCst);
        self.begun.load(Ordering::SeqCst) == moment.0
    }
}

#[derive(Debug)]
pub(crate) struct Moment(u64);

#[derive(Debug)]
pub(crate) struct InMotion<'a>(&'a Moving);

impl Drop for InMotion<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_is_noticed_while_it_runs_and_afterwards() {
        let moving = Moving::default();
        let before = moving.moment().unwrap();
        assert!(moving.is_still(&before));
        let first = moving.begin();
        assert!(moving.moment().is_none() && !moving.is_still(&before));
        let second = moving.begin();
        drop(first);
        assert!(moving.moment().is_none());
        drop(second);
        assert!(!moving.is_still(&before));
        assert!(moving.is_still(&moving.moment().unwrap()));
    }
}
