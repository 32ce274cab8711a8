//! How a thread that waits hears that its owner has left the description it waits on.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};

/// The owner replaces its description, and tells afterwards. The thread forgets what it was told
/// before it fetches the description: who fetched the old one is told, and has to be woken until it
/// has fetched again.
#[derive(Debug)]
pub(crate) struct Left(AtomicBool);

impl Left {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// There is another description.
    pub(crate) fn tell(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// What was fetched may be an old description.
    pub(crate) fn is_told(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Fetches the description to wait on.
    pub(crate) fn fetch<T>(&self, fetch: impl FnOnce() -> T) -> T {
        self.0.store(false, Ordering::SeqCst);
        fetch()
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::Mutex;

    /// Nobody waits on an old description without being told.
    #[test]
    fn who_fetched_the_old_one_is_told() {
        loom::model(|| {
            let shared = Arc::new((Left::new(), Mutex::new(0)));
            let owners: Vec<_> = (1..3)
                .map(|new| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        *shared.1.lock() = new;
                        shared.0.tell();
                    })
                })
                .collect();
            let (left, description) = &*shared;
            let fetched = left.fetch(|| *description.lock());
            for owner in owners {
                owner.join().unwrap();
            }
            assert!(left.is_told() || fetched == *description.lock());
            assert_eq!(left.fetch(|| *description.lock()), *description.lock());
            assert!(!left.is_told());
        });
    }
}
