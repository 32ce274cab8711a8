//! Cold memory to measure on, and the clock.

use std::time::Instant;

use anyhow::{Context, Result};
use tollgate_hugepage::{Backing, HUGE_2M, Region};

/// Size of the buffers in bytes.
pub(super) const PAGE: usize = HUGE_2M;

/// Buffers of 2 MiB, handed out one after the other in a ring, and memory to evict them with.
#[derive(Debug)]
pub(super) struct Arena {
    region: Region,
    next: usize,
    /// Twice the last-level cache. Reading it leaves nothing of the buffers in any cache. Clearing
    /// other buffers would not do: stores past the cache evict nothing.
    evictor: Region,
}

/// Buffers in the ring: twice as many as a sample uses.
const BUFFERS: usize = 64;

impl Arena {
    pub(super) fn new(llc_bytes: usize) -> Result<Self> {
        let map = |bytes: usize| {
            let bytes = bytes.next_multiple_of(PAGE);
            let region = Region::options(bytes).ladder(&[Backing::Thp, Backing::Base]).map();
            region.context("no memory to measure on")
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let buffers = BUFFERS.max(8 * threads);
        Ok(Self { region: map(buffers * PAGE)?, next: 0, evictor: map(2 * llc_bytes)? })
    }

    pub(super) fn bytes(&self) -> usize {
        self.region.len()
    }

    pub(super) fn backing(&self) -> String {
        self.region.report().backing.to_string()
    }

    /// The buffer that was used longest ago.
    pub(super) fn next(&mut self) -> &mut [u8] {
        self.next_many(1)
    }

    /// The next `count` buffers as one slice.
    pub(super) fn next_many(&mut self, count: usize) -> &mut [u8] {
        if self.next + count > self.region.len() / PAGE {
            self.next = 0;
        }
        let start = self.next * PAGE;
        self.next += count;
        &mut self.region.as_mut_slice()[start..start + count * PAGE]
    }

    /// All of it.
    pub(super) fn all(&mut self) -> &mut [u8] {
        self.region.as_mut_slice()
    }

    /// Makes every buffer cold.
    pub(super) fn cool(&self) {
        read(self.evictor.as_slice());
    }
}

/// Seconds that `work` takes.
pub(super) fn seconds(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64()
}

/// Mean of `count` samples of `sample`.
pub(super) fn mean(count: usize, mut sample: impl FnMut() -> f64) -> f64 {
    (0..count).map(|_| sample()).sum::<f64>() / count as f64
}

/// Median of `count` samples of `sample`: a sample during which another program ran does not count.
pub(super) fn typical(count: usize, mut sample: impl FnMut() -> f64) -> f64 {
    let mut samples: Vec<f64> = (0..count).map(|_| sample()).collect();
    samples.sort_by(f64::total_cmp);
    samples[count / 2]
}

/// Gigabytes per second of a 2 MiB buffer in `seconds`.
pub(super) fn gb_per_s(seconds: f64) -> f64 {
    PAGE as f64 / seconds / 1e9
}

/// Reads a byte of every cache line, in order.
pub(super) fn read(bytes: &[u8]) {
    let sum = bytes.iter().step_by(64).fold(0u64, |sum, byte| sum.wrapping_add(u64::from(*byte)));
    std::hint::black_box(sum);
}

/// Writes every byte with cached stores.
pub(super) fn write(bytes: &mut [u8]) {
    std::hint::black_box(bytes).fill(0x5A);
}
