//! Memory that forgotten nodes leave behind.
//!
//! A walk of a large tree makes many small nodes, and forgetting frees them; the allocator keeps
//! their pages for later, which may never come. So after many were forgotten the allocator is asked
//! to give back what is free: by the sweeper, as it takes milliseconds and holds the allocator's
//! locks.
#![expect(unsafe_code, reason = "malloc_trim is the C library's")]

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts forgotten nodes until it is time to give memory back.
#[derive(Default)]
pub(crate) struct Trim {
    forgotten: AtomicU64,
}

impl Trim {
    /// Nodes forgotten before memory is given back. What fewer of them leave behind is below 4 MiB.
    const AFTER: u64 = 4096;

    /// Counts a forgotten node. Returns true once, when it is time.
    pub(crate) fn count(&self) -> bool {
        self.forgotten.fetch_add(1, Ordering::Relaxed) + 1 == Self::AFTER
    }

    /// Gives memory back if it is time.
    pub(crate) fn run_if_due(&self) {
        if self.forgotten.load(Ordering::Relaxed) >= Self::AFTER {
            self.forgotten.store(0, Ordering::Relaxed);
            give_back();
        }
    }
}

/// Other C libraries than GNU's give memory back by themselves.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer, may be called from any thread at any time, and leaves what is in
    // use alone.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_time_once_for_every_so_many() {
        let trim = Trim::default();
        let times = (0..Trim::AFTER * 2).filter(|_| trim.count()).count();
        assert_eq!(times, 1);
        trim.run_if_due();
        assert_eq!((0..Trim::AFTER - 1).filter(|_| trim.count()).count(), 0);
        assert!(trim.count());
    }
}
