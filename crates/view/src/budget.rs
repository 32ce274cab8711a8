//! How many descriptors the view may hold, and who holds them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

/// Fewest descriptors that a view works with: fewer cannot walk a tree.
const FEWEST: usize = 32;

/// Counts descriptors that are in use and cannot be closed at will.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Most descriptors the view takes, over all kinds.
    max: usize,
    held: AtomicUsize,
}

impl Budget {
    /// `max` is what the view may use of the process's limit; at least 32 are used regardless.
    pub(crate) fn new(max: usize) -> Self {
        Self { max: max.max(FEWEST), held: AtomicUsize::new(0) }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Counts one descriptor. It counts until the guard is dropped.
    ///
    /// # Errors
    /// `EMFILE` at the maximum.
    pub(crate) fn hold(self: &Arc<Self>) -> Result<Held, Errno> {
        let before = self.held.fetch_add(1, Ordering::Relaxed);
        // Made first, so that a refusal counts it out again.
        let guard = Held(Arc::clone(self));
        if before + 1 >= self.max { Err(Errno::MFILE) } else { Ok(guard) }
    }
}

/// One descriptor, counted.
#[derive(Debug)]
pub(crate) struct Held(Arc<Budget>);

impl Drop for Held {
    fn drop(&mut self) {
        let before = self.0.held.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "more descriptors given back than were taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_is_refused_and_counted_out_again() {
        let budget = Arc::new(Budget::new(0));
        let held: Vec<_> = std::iter::from_fn(|| budget.hold().ok()).collect();
        assert_eq!((held.len(), budget.held()), (FEWEST - 1, FEWEST - 1));
        assert_eq!(budget.hold().unwrap_err(), Errno::MFILE);
        drop(held);
        assert_eq!(budget.held(), 0);
    }
}
