//! What a region is to be.

use tollgate_topology::NodeId;

use super::backing::{Backing, Prefault};
use crate::machine::Machine;

/// What a region is to be. Made by [`Region::options`](crate::Region::options).
#[derive(Clone, Debug)]
#[must_use]
pub struct RegionOptions {
    pub(crate) len: usize,
    pub(crate) ladder: Vec<Backing>,
    pub(crate) node: Option<(NodeId, bool)>,
    pub(crate) prefault: Prefault,
    pub(crate) lock: bool,
    pub(crate) dont_dump: bool,
    pub(crate) wipe_on_fork: bool,
    pub(crate) dont_fork: bool,
    pub(crate) shareable: bool,
    /// What the region is part of, for errors.
    pub(crate) what: &'static str,
    /// Bytes that the same pool has mapped before and that count against the same limits.
    pub(crate) charged_before: usize,
    pub(crate) machine: Machine,
}

impl RegionOptions {
    /// The rungs to try, in this order. The standard ladder is hugetlb of 1 GiB (for whole
    /// multiples of it), hugetlb of 2 MiB, transparent huge pages, base pages.
    pub fn ladder(mut self, ladder: &[Backing]) -> Self {
        self.ladder = ladder.to_vec();
        self
    }

    /// Only this backing: anything else is an error.
    pub fn exactly(self, backing: Backing) -> Self {
        self.ladder(&[backing])
    }

    /// Takes pages from `node` where it has any left.
    pub fn prefer_node(mut self, node: NodeId) -> Self {
        self.node = Some((node, false));
        self
    }

    /// Takes pages from `node` only.
    pub fn bind_node(mut self, node: NodeId) -> Self {
        self.node = Some((node, true));
        self
    }

    /// When the pages are faulted in; at once through their last byte unless set.
    pub fn prefault(mut self, prefault: Prefault) -> Self {
        self.prefault = prefault;
        self
    }

    /// Keeps the pages out of swap (`mlock2` with `MLOCK_ONFAULT`).
    pub fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Keeps the bytes out of core dumps (`MADV_DONTDUMP`).
    pub fn dont_dump(mut self, dont_dump: bool) -> Self {
        self.dont_dump = dont_dump;
        self
    }

    /// A child of `fork` finds zeroes (`MADV_WIPEONFORK`). Hugetlb cannot do it, so the ladder
    /// passes over it and says so.
    pub fn wipe_on_fork(mut self, wipe_on_fork: bool) -> Self {
        self.wipe_on_fork = wipe_on_fork;
        self
    }

    /// A child of `fork` does not get the memory at all (`MADV_DONTFORK`): touching it there is a
    /// SIGSEGV, unless the child has mapped something at that address since. It may drop its copy of
    /// the region, which leaves alone what is there. The parent's pages are then never shared, so they are not copied when written after
    /// a fork, and devices go on using the same ones.
    pub fn dont_fork(mut self, dont_fork: bool) -> Self {
        self.dont_fork = dont_fork;
        self
    }

    /// Maps a file without a name (`memfd`), so that the memory can be handed to another process,
    /// see [`super::Region::descriptor`]. A child of `fork` does not get the mapping, since it
    /// would write to the same pages. Excludes [`wipe_on_fork`](Self::wipe_on_fork). Transparent
    /// huge pages then depend on the setting for shared memory (`shmem_enabled`), which is off by
    /// default.
    pub fn shareable(mut self, shareable: bool) -> Self {
        self.shareable = shareable;
        self
    }

    /// [`lock`](Self::lock), [`dont_dump`](Self::dont_dump) and
    /// [`wipe_on_fork`](Self::wipe_on_fork): for buffers that hold secrets.
    pub fn secret(self) -> Self {
        self.lock(true).dont_dump(true).wipe_on_fork(true)
    }

    /// Reads the machine's state from elsewhere, for tests.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.machine = machine;
        self
    }
}
