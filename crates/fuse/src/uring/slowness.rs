//! Whether handlers that seemed quick wait for something: a disk, a lock, another file system.
//!
//! A handler that takes long waited, or its thread had to wait for a CPU. The second says nothing about
//! the next request, and helpers make it worse, as each of them has to be let in as well. So once a
//! handler took long, it is looked at whether the thread *slept* in the following ones.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::uring::switches::Switches;

/// How often handlers waited of late, of all rings: the disk that one of them waits for is most often
/// the next one's too.
///
/// One slow handler says little, because a thread that others keep from running is slow too. Two
/// within a few requests mean that handlers wait for something.
#[derive(Debug, Default)]
pub(crate) struct Slowness(AtomicU32);

impl Slowness {
    /// A handler that takes longer than this is slow. Most take 5 to 50 us.
    const SLOW_NS: u64 = 500_000;
    const SLOW_ADDS: u32 = 12;
    const LIMIT: u32 = 16;
    /// Quick requests in a row that end it.
    const MOST: u32 = 64;

    fn note(&self, waited: bool) {
        let now = self.0.load(Ordering::Relaxed);
        let next = match waited {
            true => (now + Self::SLOW_ADDS).min(Self::MOST),
            // Most often: nothing is written that other CPUs read.
            false if now == 0 => return,
            false => now - 1,
        };
        // Another thread's note may be lost: this is a measure, not a count.
        self.0.store(next, Ordering::Relaxed);
    }

    /// Whether to give requests to helpers.
    pub(crate) fn is_high(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= Self::LIMIT
    }

    /// Whether a handler was slow of late.
    fn is_suspected(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// A handler, as its thread sees it. One that was known to wait does not count.
#[derive(Debug, Default)]
pub(crate) struct Handler {
    /// How often the thread had slept before it; `None`: nobody looked.
    slept: Option<u64>,
}

impl Handler {
    /// It begins. Costs a system call where others were slow of late.
    pub(crate) fn begins(&mut self, slowness: &Slowness) {
        self.slept = slowness.is_suspected().then(|| Switches::of_this_thread().voluntary);
    }

    /// It took `ns`.
    pub(crate) fn ends(&mut self, slowness: &Slowness, ns: u64) {
        let slept = self.slept.take();
        let waited = || slept.is_none_or(|slept| Switches::of_this_thread().voluntary > slept);
        slowness.note(ns > Slowness::SLOW_NS && waited());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const MS: u64 = 1_000_000;

    fn handler(slowness: &Slowness, ns: u64, run: impl FnOnce()) {
        let mut handler = Handler::default();
        handler.begins(slowness);
        run();
        handler.ends(slowness, ns);
    }

    fn sleep() {
        std::thread::sleep(Duration::from_millis(1));
    }

    #[test]
    fn two_handlers_that_wait_close_together_count_and_one_does_not() {
        let slowness = Slowness::default();
        handler(&slowness, MS, sleep);
        assert!(!slowness.is_high());
        (0..20).for_each(|_| handler(&slowness, 5_000, || {}));
        handler(&slowness, MS, sleep);
        assert!(!slowness.is_high());
        handler(&slowness, MS, sleep);
        assert!(slowness.is_high());
        (0..64).for_each(|_| handler(&slowness, 5_000, || {}));
        assert!(!slowness.is_high());
    }

    #[test]
    #[cfg_attr(miri, ignore = "counts switches of threads")]
    fn a_thread_that_is_kept_from_running_does_not_wait() {
        let slowness = Slowness::default();
        handler(&slowness, MS, sleep);
        // Computes, for as long as that takes beside others.
        let compute = || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(1) {}
        };
        (0..4).for_each(|_| handler(&slowness, MS, compute));
        assert!(!slowness.is_high());
        handler(&slowness, MS, sleep);
        assert!(slowness.is_high(), "the suspicion is still there");
    }
}
