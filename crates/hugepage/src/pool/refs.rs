//! Who still needs the memory of a pool: a count of buffers in use that no two CPUs share.
//!
//! One counter for each CPU: a buffer that is taken counts up where its taker runs, one that is
//! given back counts down where its giver runs, so a counter alone can be negative and only the sum
//! means something. Nobody looks at the sum while the pool has a handle. When the last handle goes,
//! [`Refs::close`] marks each counter and adds what it read to a central one; from then on every
//! give-back counts there, and whoever brings it to zero is the last.
//!
//! *Exactly one is the last.* Each give-back is one read-modify-write of a counter, so it comes
//! either before the mark of that counter, and is part of what `close` adds, or after it, sees the
//! mark and counts centrally: never both, never neither. The central counter starts at a value that
//! give-backs cannot bring to zero; `close` takes that value off in the step that adds the sum. So
//! the central counter passes through zero once: in that step, if no buffer is out, else in a
//! give-back.
//!
//! *The last sees everything.* A give-back releases; `close` acquires each counter that it marks;
//! the central counter is changed with acquire and release. What any holder did to its buffer
//! therefore happens before the last one takes the memory apart.

use crate::sync::{AtomicUsize, Ordering};

/// Set in a counter once the pool has no handle left.
const CLOSED: usize = 1;
/// One buffer in a counter.
const ONE: usize = 2;
/// What the central counter starts with: more than there can be buffers.
const BIAS: usize = 1 << (usize::BITS - 2);

#[derive(Debug)]
pub(super) struct Refs {
    per_cpu: Box<[Counter]>,
    central: AtomicUsize,
}

/// On a cache line pair of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Counter(AtomicUsize);

impl Refs {
    /// Counters for `cpus` CPUs, at least one.
    pub(super) fn new(cpus: usize) -> Self {
        let counter = |_| Counter(AtomicUsize::new(0));
        Self { per_cpu: (0..cpus.max(1)).map(counter).collect(), central: AtomicUsize::new(BIAS) }
    }

    /// One more buffer is in use. The caller has a handle of the pool.
    pub(super) fn up(&self, cpu: usize) {
        let seen = self.counter(cpu).fetch_add(ONE, Ordering::Relaxed);
        debug_assert_eq!(seen & CLOSED, 0, "a buffer is taken from a pool without a handle");
    }

    /// One buffer fewer is in use. Returns whether it was the last one of a closed pool; if not,
    /// the pool may be gone when this returns.
    #[must_use]
    pub(super) fn down(&self, cpu: usize) -> bool {
        let seen = self.counter(cpu).fetch_sub(ONE, Ordering::AcqRel);
        if seen & CLOSED == 0 {
            return false;
        }
        let left = self.central.fetch_sub(1, Ordering::AcqRel);
        debug_assert_ne!(left, 0, "a buffer was given back twice");
        left == 1
    }

    /// The last handle is gone. Returns whether no buffer is in use either. Called once.
    #[must_use]
    pub(super) fn close(&self) -> bool {
        let mut in_use = 0usize;
        for Counter(counter) in &self.per_cpu {
            let seen = counter.fetch_or(CLOSED, Ordering::AcqRel);
            debug_assert_eq!(seen & CLOSED, 0, "a pool is closed once");
            // Sign-extended: a counter is negative where more was given back than taken.
            in_use = in_use.wrapping_add((seen.cast_signed() >> 1).cast_unsigned());
        }
        let change = in_use.wrapping_sub(BIAS);
        self.central.fetch_add(change, Ordering::AcqRel).wrapping_add(change) == 0
    }

    fn counter(&self, cpu: usize) -> &AtomicUsize {
        &self.per_cpu[cpu % self.per_cpu.len()].0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_is_found_whoever_it_is() {
        let refs = Refs::new(3);
        refs.up(0);
        refs.up(0);
        refs.up(1);
        assert!(!refs.down(2), "an open pool is never taken apart by a buffer");
        assert!(!refs.close());
        assert!(!refs.down(2));
        assert!(refs.down(7), "a CPU that came online later");
        assert!(Refs::new(0).close(), "no buffer is out");
    }
}
