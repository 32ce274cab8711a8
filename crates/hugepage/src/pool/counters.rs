//! What the pool counts.

use crate::engine::Store;
use crate::sync::{AtomicU64, Ordering};

/// The counters of one CPU, so that no two CPUs share them. Relaxed: each is exact, but two need
/// not be of the same moment.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Counters {
    counts: [AtomicU64; Count::ALL.len()],
    cleared_bytes: [AtomicU64; Store::ALL.len()],
}

/// One counter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    PreCleared,
    Inline,
    Uncleared,
    Background,
    Waits,
    Refusals,
    Extra,
    Leaks,
    Backed,
    Released,
    IdlePanics,
    BackgroundPanics,
}

impl Count {
    const ALL: [Self; 12] = [
        Self::PreCleared,
        Self::Inline,
        Self::Uncleared,
        Self::Background,
        Self::Waits,
        Self::Refusals,
        Self::Extra,
        Self::Leaks,
        Self::Backed,
        Self::Released,
        Self::IdlePanics,
        Self::BackgroundPanics,
    ];
}

impl Counters {
    pub(super) fn new() -> Self {
        let zero = |()| AtomicU64::new(0);
        Self {
            counts: [(); Count::ALL.len()].map(zero),
            cleared_bytes: [(); Store::ALL.len()].map(zero),
        }
    }

    pub(super) fn add(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn cleared(&self, store: Store, bytes: usize) {
        self.cleared_bytes[store as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_to(&self, stats: &mut PoolStats) {
        let get = |count: Count| self.counts[count as usize].load(Ordering::Relaxed);
        stats.pre_cleared += get(Count::PreCleared);
        stats.inline_clears += get(Count::Inline);
        stats.uncleared += get(Count::Uncleared);
        stats.background_clears += get(Count::Background);
        stats.waits += get(Count::Waits);
        stats.refusals += get(Count::Refusals);
        stats.base_page_buffers += get(Count::Extra);
        stats.leaks += get(Count::Leaks);
        stats.backed += get(Count::Backed);
        stats.released += get(Count::Released);
        stats.idle_panics += get(Count::IdlePanics);
        stats.background_panics += get(Count::BackgroundPanics);
        for (store, bytes) in Store::ALL.into_iter().zip(&self.cleared_bytes) {
            let bytes = bytes.load(Ordering::Relaxed);
            match stats.cleared_bytes.iter_mut().find(|(each, _)| *each == store) {
                Some((_, sum)) => *sum += bytes,
                None if bytes > 0 => stats.cleared_bytes.push((store, bytes)),
                None => {}
            }
        }
    }
}

/// What a pool has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Takes that got zeroes without clearing: a buffer that was cleared before, or base pages that the
    /// kernel had just given (these count as `base_page_buffers`, too).
    pub pre_cleared: u64,
    /// Takes that had to clear part of a buffer first.
    pub inline_clears: u64,
    /// Takes that needed no cleared bytes, because their owner fills the buffer.
    pub uncleared: u64,
    /// Buffers that the cleaner or [`super::Pool::dirty`]'s caller cleared.
    pub background_clears: u64,
    /// Takes that waited.
    pub waits: u64,
    /// Takes that got nothing.
    pub refusals: u64,
    /// Takes that got base pages beyond the pool.
    pub base_page_buffers: u64,
    /// Buffers that the leak check withdrew.
    pub leaks: u64,
    /// Takes that had to ask the kernel for the buffer's memory.
    pub backed: u64,
    /// Buffers whose memory [`super::Pool::trim`] gave back to the kernel.
    pub released: u64,
    /// Calls of [`super::CleanerOptions::idle`] that panicked. The cleaner takes them for `false`.
    pub idle_panics: u64,
    /// Calls of [`super::Background::run_after`] that panicked.
    pub background_panics: u64,
    /// Bytes cleared by each kind of store.
    pub cleared_bytes: Vec<(Store, u64)>,
}
