//! What a view has done, counted without a shared cache line.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use serde::Serialize;

use crate::links::LinksStatus;
use crate::locks::LockStatus;
use crate::masked::MaskedStatus;
use crate::shares::ShareStatus;
use crate::watch::WatchStatus;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counts since the start, by decision and by operation.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts { $($(#[$doc])* pub $name: u64),+ }

        #[derive(Debug, Default)]
        struct Shard { $($name: AtomicU64),+ }

        /// What can be counted.
        #[expect(non_camel_case_types, reason = "one name for the counter and for its field")]
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Count { $($name),+ }

        impl Shard {
            fn slot(&self, count: Count) -> &AtomicU64 {
                match count { $(Count::$name => &self.$name),+ }
            }
        }

        impl Counters {
            /// All shards added up.
            pub(crate) fn counts(&self) -> Counts {
                let mut sum = Counts::default();
                for shard in &self.shards {
                    $(sum.$name += shard.$name.load(Ordering::Relaxed);)+
                }
                sum
            }
        }
    };
}

counters! {
    /// Opens and creations granted in passthrough mode.
    open_passthrough,
    /// Opens of small files, granted in passthrough mode but read from the view's page cache.
    open_cached,
    /// Small files that were handed to the kernel before anybody opened them.
    read_ahead,
    /// Of those, files that were opened then.
    read_ahead_used,
    /// Opens and creations served by this process because the policy says so.
    open_userspace,
    /// Opens and creations served by this process because passthrough cannot be had.
    open_fallback,
    /// Of those, opens of files that this process may only read, while somebody else registers files
    /// for it.
    open_only_read,
    /// Refused with `EACCES`.
    refused_deny,
    /// Refused with `EROFS`.
    refused_read_only,
    /// Renames and links refused because they would weaken a decision.
    refused_weakening,
    /// Look-ups of hidden names.
    hidden,
    /// Granted by rules that are only recorded, which would have refused.
    would_refuse,
    /// LOOKUP requests.
    lookup,
    /// GETATTR and STATX requests.
    getattr,
    /// SETATTR requests.
    setattr,
    /// OPEN requests.
    open,
    /// CREATE and TMPFILE requests.
    create,
    /// READ requests.
    read,
    /// Bytes read through this process.
    read_bytes,
    /// WRITE requests.
    write,
    /// Bytes written through this process.
    write_bytes,
    /// READDIR and READDIRPLUS requests.
    readdir,
    /// Files that were listed without their attributes.
    listed_by_name,
    /// Requests that make, remove or rename names.
    change_names,
    /// Requests on extended attributes.
    xattr,
    /// Everything else.
    other,
}

impl Count {
    /// The class of a request that this decides ([`DECISIONS`]); `None` for what decides nothing.
    pub(crate) fn class(self) -> Option<u8> {
        match self {
            Self::open_passthrough => Some(1),
            Self::open_userspace => Some(2),
            Self::open_fallback => Some(3),
            Self::refused_deny => Some(4),
            Self::refused_read_only => Some(5),
            Self::refused_weakening => Some(6),
            Self::hidden => Some(7),
            Self::open_cached => Some(8),
            _ => None,
        }
    }
}

/// The decisions that a request's latency is counted under, by the request's class
/// ([`tollgate_fuse::OperationLatency::class`]).
pub const DECISIONS: [&str; tollgate_fuse::CLASSES] = [
    "done",
    "passthrough",
    "userspace",
    "fallback",
    "denied",
    "read-only",
    "weakening",
    "hidden",
    "cached",
];

/// Counters, one set per worker (folded into sixteen).
#[derive(Debug)]
pub(crate) struct Counters {
    shards: [CachePadded<Shard>; 16],
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self { shards: Default::default() }
    }

    pub(crate) fn add(&self, worker: usize, count: Count, n: u64) {
        self.shards[worker % self.shards.len()].slot(count).fetch_add(n, Ordering::Relaxed);
    }
}

/// The feature that a view lacks whose sealed files another server writes, or that cannot tell.
pub const WRITING_SEALED: &str = "writing sealed files";
/// Why, where that is so.
pub const ANOTHER_WRITES: &str = "another server writes them";

/// Something that could not be had, and why. Names of files are in it as they are: who prints it makes
/// them safe for a terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// What is missing.
    pub feature: String,
    /// Why.
    pub reason: String,
}

/// State of a view at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// What happened since the start.
    pub counts: Counts,
    /// Inodes that the kernel remembers.
    pub nodes: u64,
    /// Descriptors in use.
    pub descriptors_used: usize,
    /// Most descriptors that may be in use.
    pub descriptors_max: usize,
    /// What callers share, and how much of it one user may take.
    pub shares: Vec<ShareStatus>,
    /// Handles whose reads and writes come to this process.
    pub userspace_handles: usize,
    /// Directories being listed.
    pub directory_handles: usize,
    /// Locks that are waited for.
    pub locks: LockStatus,
    /// Files that have several names.
    pub links: LinksStatus,
    /// What is watched behind the view.
    pub watch: WatchStatus,
    /// Secrets that were masked in what was read.
    pub masked: MaskedStatus,
    /// Whether passthrough is used.
    pub passthrough: bool,
    /// Files that fell back to user space although the policy allows passthrough.
    pub fallbacks: u64,
    /// What is missing, with the reason.
    pub unavailable: Vec<Unavailable>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_add_up() {
        let counters = Counters::new();
        for worker in 0..40 {
            counters.add(worker, Count::lookup, 2);
        }
        counters.add(3, Count::read_bytes, 4096);
        let counts = counters.counts();
        assert_eq!((counts.lookup, counts.read_bytes, counts.open), (80, 4096, 0));
    }
}
