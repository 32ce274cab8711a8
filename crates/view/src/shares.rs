//! What the callers of a view share, and how much of it one user may take.
//!
//! A caller that takes all it can get must leave enough for the others. A fixed part for each user
//! would be too small for the only user of a view, and too large for one of a hundred. So a user may
//! hold as much as is free: alone half of all, two of them a third each, and as much stays free for
//! whoever comes next. (Switches share their buffers among ports in this way, as "dynamic
//! thresholds".)

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use serde::Serialize;

/// Users that are told apart: those whose numbers differ by a multiple of this count as one. No user
/// can make this table grow.
const SLOTS: usize = 4096;

/// A number of equal things that callers take and give back.
#[derive(Debug)]
pub(crate) struct Shares {
    of: &'static str,
    max: usize,
    taken: AtomicUsize,
    /// What each user has taken.
    users: Box<[AtomicUsize]>,
    refused: AtomicU64,
    last_refused: AtomicU32,
}

/// How much of something is taken, and what one user may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShareStatus {
    /// What is shared.
    pub of: &'static str,
    /// Most that all callers together may hold.
    pub max: usize,
    /// What they hold.
    pub taken: usize,
    /// Most that one user may hold at this moment, if it holds nothing yet: less if others hold
    /// much.
    pub one_user: usize,
    /// How often a user was refused more.
    pub refused: u64,
    /// The user who was refused last.
    pub last_refused_uid: Option<u32>,
}

impl Shares {
    /// `max` of what is called `of` in reports.
    pub(crate) fn new(of: &'static str, max: usize) -> Arc<Self> {
        Arc::new(Self {
            of,
            max,
            taken: AtomicUsize::new(0),
            users: (0..SLOTS).map(|_| AtomicUsize::new(0)).collect(),
            refused: AtomicU64::new(0),
            last_refused: AtomicU32::new(0),
        })
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// One for user `uid`, until the guard is dropped; `None` if that would be more than is left for
    /// others.
    pub(crate) fn take(self: &Arc<Self>, uid: u32) -> Option<Taken> {
        let mut taken = self.none(uid);
        taken.set(1).then_some(taken)
    }

    /// Nothing yet, for user `uid`.
    pub(crate) fn none(self: &Arc<Self>, uid: u32) -> Taken {
        Taken { shares: Arc::clone(self), uid: Some(uid), count: 0 }
    }

    /// One for the view itself; `None` once half is taken.
    pub(crate) fn take_for_nobody(self: &Arc<Self>) -> Option<Taken> {
        let mut taken = Taken { shares: Arc::clone(self), uid: None, count: 0 };
        (self.taken() < self.max / 2 && taken.set(1)).then_some(taken)
    }

    /// State at this moment.
    pub(crate) fn status(&self) -> ShareStatus {
        let (taken, refused) = (self.taken(), self.refused.load(Ordering::Relaxed));
        let last = self.last_refused.load(Ordering::Relaxed);
        ShareStatus {
            of: self.of,
            max: self.max,
            taken,
            one_user: self.max.saturating_sub(taken) / 2,
            refused,
            last_refused_uid: (refused > 0).then_some(last),
        }
    }

    fn user(&self, uid: u32) -> &AtomicUsize {
        &self.users[uid as usize % SLOTS]
    }

    fn add(&self, uid: Option<u32>, more: usize) -> bool {
        let all = self.taken.fetch_add(more, Ordering::Relaxed) + more;
        let free = self.max.checked_sub(all);
        let own = uid.map_or(0, |uid| self.user(uid).fetch_add(more, Ordering::Relaxed) + more);
        if free.is_some_and(|free| own <= free) {
            return true;
        }
        self.sub(uid, more);
        if let Some(uid) = uid {
            self.last_refused.store(uid, Ordering::Relaxed);
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        false
    }

    fn sub(&self, uid: Option<u32>, less: usize) {
        let before = self.taken.fetch_sub(less, Ordering::Relaxed);
        debug_assert!(before >= less, "more {} given back than were taken", self.of);
        if let Some(uid) = uid {
            self.user(uid).fetch_sub(less, Ordering::Relaxed);
        }
    }
}

/// What one user took. It is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    shares: Arc<Shares>,
    uid: Option<u32>,
    count: usize,
}

impl Taken {
    /// Holds `count` from now on, or what it held before if that would be too much (`false`).
    pub(crate) fn set(&mut self, count: usize) -> bool {
        if count > self.count && !self.shares.add(self.uid, count - self.count) {
            return false;
        }
        if count < self.count {
            self.shares.sub(self.uid, self.count - count);
        }
        self.count = count;
        true
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// One more of the same, for the same user.
    pub(crate) fn another(&self) -> Option<Self> {
        let mut taken = Self { shares: Arc::clone(&self.shares), uid: self.uid, count: 0 };
        taken.set(1).then_some(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_for(shares: &Arc<Shares>, uid: u32) -> Vec<Taken> {
        std::iter::from_fn(|| shares.take(uid)).collect()
    }

    #[test]
    fn a_user_takes_as_much_as_it_leaves() {
        let shares = Shares::new("things", 60);
        let first = all_for(&shares, 1000);
        assert_eq!(first.len(), 30);
        let second = all_for(&shares, 1001);
        assert_eq!((second.len(), shares.taken()), (15, 45));
        let status = shares.status();
        assert_eq!((status.one_user, status.refused), (7, 2));
        assert_eq!(status.last_refused_uid, Some(1001));
        drop(first);
        assert_eq!(all_for(&shares, 1001).len(), 15, "45 are free: half of them");
        drop(second);
        assert_eq!(shares.taken(), 0);
    }

    #[test]
    fn a_part_grows_within_the_share_and_is_given_back() {
        let shares = Shares::new("things", 100);
        let mut taken = shares.none(7);
        assert!(taken.set(50) && !taken.set(51), "half of all");
        assert_eq!(shares.taken(), 50);
        assert!(taken.set(10));
        assert!(taken.another().is_some());
        assert_eq!(shares.taken(), 10);
        drop(taken);
        assert_eq!(shares.taken(), 0);
    }

    #[test]
    fn the_view_itself_leaves_half() {
        let shares = Shares::new("things", 10);
        let own: Vec<_> = std::iter::from_fn(|| shares.take_for_nobody()).collect();
        assert_eq!((own.len(), all_for(&shares, 0).len()), (5, 2));
        assert_eq!(shares.status().last_refused_uid, Some(0));
    }
}
