//! Workers as the queue knows them: a number, a home and what they are doing about work.

use std::time::Instant;

use crate::placement::ShardId;

/// A worker of one queue. Numbers are reused after a worker has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u32);

impl WorkerId {
    /// As an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The right, and the duty, to start a worker thread: hand it to [`WakeQueue::worker`] on the new
/// thread, or to [`WakeQueue::abandon`] when there can be none.
///
/// [`WakeQueue::worker`]: crate::WakeQueue::worker
/// [`WakeQueue::abandon`]: crate::WakeQueue::abandon
#[derive(Debug)]
#[must_use = "pushes rely on this worker: start it, or abandon the claim"]
pub struct Claim {
    pub(crate) worker: WorkerId,
    pub(crate) home: ShardId,
}

impl Claim {
    /// The number of the worker to be.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.worker
    }

    /// Its home.
    #[must_use]
    pub fn home(&self) -> ShardId {
        self.home
    }
}

/// What the queue needs from whoever owns its threads. A closure that starts a worker is one.
pub trait Host {
    /// Starts a thread that hands the claim to [`WakeQueue::worker`](crate::WakeQueue::worker), or
    /// gives the claim back to [`WakeQueue::abandon`](crate::WakeQueue::abandon).
    fn grow(&self, claim: Claim);

    /// The worker found nothing to do for as long as it may look, and is about to sleep. It is on
    /// the list of sleepers already, so the sleep ends at once when an item has come since.
    fn before_sleep(&self, worker: &Worker) {
        _ = worker;
    }

    /// The worker was woken.
    fn after_sleep(&self, worker: &Worker) {
        _ = worker;
    }
}

impl<F: Fn(Claim)> Host for F {
    fn grow(&self, claim: Claim) {
        self(claim);
    }
}

/// A worker's side of the queue. Owned by its thread.
#[derive(Debug)]
pub struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) home: ShardId,
    /// Counted among the searchers.
    pub(crate) searching: bool,
    /// On loan to a pod that has more work than it can do.
    pub(crate) outside: bool,
    /// Pulls since the last look at the other shards.
    pub(crate) pulls: u32,
    /// Pulls between two such looks.
    pub(crate) look_every: u32,
    pub(crate) slept_since: Option<Instant>,
}

impl Worker {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// Its home shard.
    #[must_use]
    pub fn home(&self) -> ShardId {
        self.home
    }

    /// Whether it slept before it got its latest item.
    #[must_use]
    pub fn slept(&self) -> bool {
        self.slept_since.is_some()
    }

    /// When it fell asleep before it got its latest item, if it did: for the first time, if it woke
    /// up in vain in between.
    #[must_use]
    pub fn slept_since(&self) -> Option<Instant> {
        self.slept_since
    }
}

/// What a worker gets when it asks for work.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// Run this.
    Item(T),
    /// Idle for too long: end the thread.
    Retired,
    /// The queue is closed and empty: end the thread.
    Closed,
}
