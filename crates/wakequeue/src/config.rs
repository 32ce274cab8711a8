//! Settings of a queue, and what can be wrong with them.

use std::num::NonZero;
use std::time::Duration;

/// The fewest slots of a ring: the algorithm needs two.
pub const MIN_CAPACITY: usize = 2;
/// The most items a shard can be made for.
pub const MAX_CAPACITY: usize = 1 << 24;

/// Settings of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Items per shard, a power of two. When a shard is full the pusher chooses: be refused
    /// ([`push`](crate::WakeQueue::push) gives the item back, which it may then run itself) or
    /// wait ([`push_blocking`](crate::WakeQueue::push_blocking)).
    pub shard_capacity: usize,
    /// The most workers of the pods that see each other, blocked ones included; each pod has its
    /// share, by CPUs. A strict pod has them all. Beyond it, items wait.
    pub max_workers: u16,
    /// The most workers of a pod that search at once; half its CPUs, at least one, by default.
    pub max_searchers: Option<NonZero<u16>>,
    /// How long a worker without work looks in its own pod only, before it takes from other pods
    /// that have more work than they can do. A worker that slept has waited long enough.
    pub steal_after: Duration,
    /// How long a worker without work keeps looking before it sleeps. Zero on battery, or where
    /// CPUs are shared with others.
    pub spin: Duration,
    /// How long a worker sleeps before it leaves. `None`: for ever.
    pub retire_after: Option<Duration>,
    /// Workers that stay at each shard once started, however idle.
    pub keep_per_shard: u16,
    /// How long a worker sleeps before it leaves while the queue
    /// [rests](crate::WakeQueue::set_resting).
    pub rest_after: Duration,
}

impl Default for Config {
    /// 8,192 items per shard, at most 256 workers, 50 us of searching, the first 5 us of them in
    /// the worker's own pod, five minutes of idleness.
    fn default() -> Self {
        Self {
            shard_capacity: 8192,
            max_workers: 256,
            max_searchers: None,
            steal_after: Duration::from_micros(5),
            spin: Duration::from_micros(50),
            retire_after: Some(Duration::from_secs(300)),
            keep_per_shard: 1,
            rest_after: Duration::from_secs(1),
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let capacity = self.shard_capacity;
        if !capacity.is_power_of_two() || !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
            return Err(ConfigError::Capacity { capacity });
        }
        if self.max_workers == 0 {
            return Err(ConfigError::MaxWorkers);
        }
        Ok(())
    }
}

/// Settings that make no queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a size that a ring can have.
    #[error(
        "shard capacity {capacity}: must be a power of two from {MIN_CAPACITY} to {MAX_CAPACITY}"
    )]
    Capacity {
        /// What was asked for.
        capacity: usize,
    },
    /// Nobody could ever work.
    #[error("max_workers 0: at least one worker is needed")]
    MaxWorkers,
    /// A shard nobody serves.
    #[error("shard {shard} has no workers: give it at least one")]
    NoWorkers {
        /// Which.
        shard: usize,
    },
    /// No shards, or too many.
    #[error("{count} shards: must be from 1 to {max}")]
    Shards {
        /// How many were asked for.
        count: usize,
        /// The most.
        max: usize,
    },
    /// A pod that no shard belongs to.
    #[error("pod {pod} has no shard: number the pods from 0 without gaps")]
    EmptyPod {
        /// Which.
        pod: usize,
    },
    /// An invalid list of neighbours.
    #[error("the near list of shard {shard} is wrong: {why}")]
    Near {
        /// Whose.
        shard: usize,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Why an item was not pushed. It comes back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError<T> {
    /// The shard holds as many items as it can.
    #[error("the shard is full")]
    Full(T),
    /// [`close`](crate::WakeQueue::close) was called.
    #[error("the queue is closed")]
    Closed(T),
}

impl<T> PushError<T> {
    /// The item.
    pub fn into_item(self) -> T {
        match self {
            Self::Full(item) | Self::Closed(item) => item,
        }
    }

    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> PushError<U> {
        match self {
            Self::Full(item) => PushError::Full(change(item)),
            Self::Closed(item) => PushError::Closed(change(item)),
        }
    }
}

impl<T> std::fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

/// The queue is closed. Here is the item again.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the queue is closed")]
pub struct Closed<T>(pub T);

impl<T> std::fmt::Debug for Closed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Closed(..)")
    }
}
