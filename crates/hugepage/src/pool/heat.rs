//! Whether a buffer is still in the cache when it is cleared.
//!
//! A buffer counts as hot while three things hold: it is cleared below the same last-level cache as
//! it was given back; less than half of that cache was given back to the pool since; and less time
//! has passed than other programs need to replace the cache at [`OTHERS_BYTES_PER_SECOND`]. The
//! first two are the pool's own traffic. The third stands for everybody else's, which the pool
//! cannot see.

use crate::plan::Heat;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::sys;

/// What all other users of a cache are taken to bring into it, in bytes per second: a guess on the
/// low side for a busy machine. 32 MiB are replaced in 34 ms.
const OTHERS_BYTES_PER_SECOND: u64 = 1_000_000_000;

/// Stands for a buffer that never was given back, or that its owner called cold.
const COLD: u32 = u32::MAX;

/// The traffic through one last-level cache.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct CacheTraffic {
    given_back_bytes: AtomicU64,
}

impl CacheTraffic {
    pub(super) fn new() -> Self {
        Self { given_back_bytes: AtomicU64::new(0) }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.given_back_bytes.load(Ordering::Relaxed)
    }
}

/// When and where a buffer was given back. Written and read by its holder alone.
#[derive(Debug)]
pub(super) struct Stamp {
    cache: AtomicU32,
    cache_bytes: AtomicU64,
    time_ns: AtomicU64,
}

impl Stamp {
    pub(super) fn new() -> Self {
        Self {
            cache: AtomicU32::new(COLD),
            cache_bytes: AtomicU64::new(0),
            time_ns: AtomicU64::new(sys::coarse_time_ns()),
        }
    }

    /// The buffer is given back below cache number `cache`, `bytes` of it used.
    pub(super) fn note(&self, cache: usize, traffic: &CacheTraffic, bytes: usize, heat: Heat) {
        let before = traffic.given_back_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let number = match heat {
            Heat::Hot => u32::try_from(cache).expect("fewer caches than CPUs"),
            Heat::Cold => COLD,
        };
        self.cache.store(number, Ordering::Relaxed);
        self.cache_bytes.store(before + bytes as u64, Ordering::Relaxed);
        self.time_ns.store(sys::coarse_time_ns(), Ordering::Relaxed);
    }

    /// Whether the buffer is likely in cache number `cache` of `llc_bytes`.
    pub(super) fn heat(&self, cache: usize, traffic: &CacheTraffic, llc_bytes: usize) -> Heat {
        let here = usize::try_from(self.cache.load(Ordering::Relaxed)).is_ok_and(|at| at == cache);
        if !here {
            return Heat::Cold;
        }
        let llc_bytes = llc_bytes as u64;
        let since = traffic.bytes().wrapping_sub(self.cache_bytes.load(Ordering::Relaxed));
        let kept_ns = llc_bytes.saturating_mul(1_000_000_000) / OTHERS_BYTES_PER_SECOND;
        if since <= llc_bytes / 2 && self.idle_ns() < kept_ns { Heat::Hot } else { Heat::Cold }
    }

    /// Time since the buffer was given back, in nanoseconds.
    pub(super) fn idle_ns(&self) -> u64 {
        sys::coarse_time_ns().saturating_sub(self.time_ns.load(Ordering::Relaxed))
    }
}
