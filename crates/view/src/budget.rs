//! How many descriptors the view may hold, and who holds them.

use std::sync::Arc;

use rustix::io::Errno;

use crate::shares::{ShareStatus, Shares, Taken};

/// Fewest descriptors that a view works with: fewer cannot walk a tree.
const FEWEST: usize = 32;

/// Counts descriptors that are in use and cannot be closed at will.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Most descriptors the view takes, over all kinds.
    max: usize,
    held: Arc<Shares>,
    /// Those of locks, which may be half of all: locks last longer than listings.
    locks: Arc<Shares>,
}

impl Budget {
    /// `max` is what the view may use of the process's limit; at least 32 are used regardless.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.max(FEWEST);
        let (held, locks) = (Shares::new("descriptors", max), Shares::new("locks", max / 2));
        Self { max, held, locks }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    pub(crate) fn held(&self) -> usize {
        self.held.taken()
    }

    /// Counts one descriptor of a handle of user `uid`. It counts until the guard is dropped.
    ///
    /// # Errors
    /// `EMFILE` at the user's share.
    pub(crate) fn hold(&self, uid: u32) -> Result<Held, Errno> {
        let descriptor = self.held.take(uid).ok_or(Errno::MFILE)?;
        Ok(Held { descriptor, lock: None })
    }

    /// Counts one descriptor of a lock of user `uid`.
    ///
    /// # Errors
    /// `ENOLCK` at the user's share.
    pub(crate) fn hold_for_lock(&self, uid: u32) -> Result<Held, Errno> {
        let lock = self.locks.take(uid).ok_or(Errno::NOLCK)?;
        let descriptor = self.held.take(uid).ok_or(Errno::NOLCK)?;
        Ok(Held { descriptor, lock: Some(lock) })
    }

    /// Counts one descriptor that the view keeps for its own convenience; `None` once half of all
    /// are held.
    pub(crate) fn hold_if_cheap(&self) -> Option<Held> {
        Some(Held { descriptor: self.held.take_for_nobody()?, lock: None })
    }

    pub(crate) fn status(&self) -> [ShareStatus; 2] {
        [self.held.status(), self.locks.status()]
    }
}

/// One descriptor, counted.
#[derive(Debug)]
pub(crate) struct Held {
    descriptor: Taken,
    lock: Option<Taken>,
}

impl Held {
    /// One descriptor more, for the same purpose and user.
    pub(crate) fn another(&self) -> Option<Self> {
        let lock = match &self.lock {
            Some(lock) => Some(lock.another()?),
            None => None,
        };
        Some(Self { descriptor: self.descriptor.another()?, lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_refused_and_counted_out_again() {
        let budget = Budget::new(0);
        let held: Vec<_> = std::iter::from_fn(|| budget.hold(1000).ok()).collect();
        assert_eq!((held.len(), budget.held()), (FEWEST / 2, FEWEST / 2));
        assert_eq!(budget.hold(1000).unwrap_err(), Errno::MFILE);
        assert!(budget.hold(0).is_ok(), "another user");
        drop(held);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn locks_leavedescriptors_for_listings_of_the_same_user() {
        let budget = Budget::new(400);
        let locks: Vec<_> = std::iter::from_fn(|| budget.hold_for_lock(1000).ok()).collect();
        assert_eq!(locks.len(), 100, "a quarter");
        assert_eq!(budget.hold_for_lock(1000).unwrap_err(), Errno::NOLCK);
        assert!(locks[0].another().is_none() && budget.hold(1000).is_ok());
    }
}
