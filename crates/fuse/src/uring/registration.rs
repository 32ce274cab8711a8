//! All rings of a session are registered, or none is used.

use std::sync::Arc;

use crate::sync::{Condvar, Mutex};
use crate::uring::unavailable::UringUnavailable;

/// Where the threads of all rings meet after they have registered theirs. The kernel sends no
/// request to a ring before every CPU's queue has an entry, so that a single ring that fails must
/// make all threads fall back to /dev/fuse.
#[derive(Debug)]
pub(crate) struct Registration {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Rings that have not arrived.
    missing: usize,
    failure: Option<UringUnavailable>,
}

impl Registration {
    pub(crate) fn new(rings: usize) -> Arc<Self> {
        let state = Mutex::new(State { missing: rings, failure: None });
        Arc::new(Self { state, changed: Condvar::new() })
    }

    /// A place for one ring. There must be as many as [`Registration::new`] was told.
    pub(crate) fn arrival(self: &Arc<Self>) -> Arrival {
        Arrival { registration: Some(Arc::clone(self)) }
    }

    fn arrive(&self, result: Result<(), UringUnavailable>) {
        let mut state = self.state.lock();
        debug_assert!(state.missing > 0, "more arrivals than rings");
        state.missing -= 1;
        if let Err(reason) = result {
            state.failure.get_or_insert(reason);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Whether a ring has failed already, so that none is used.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().failure.is_some()
    }

    /// Waits until all rings have arrived, and returns the first failure.
    pub(crate) fn outcome(&self) -> Result<(), UringUnavailable> {
        let mut state = self.state.lock();
        while state.missing > 0 {
            state = self.changed.wait(state);
        }
        state.failure.clone().map_or(Ok(()), Err)
    }
}

/// One ring's obligation to arrive. Dropping it counts as a failure: the thread ended before it
/// could register.
#[derive(Debug)]
pub(crate) struct Arrival {
    registration: Option<Arc<Registration>>,
}

impl Arrival {
    /// Reports this ring's result, waits for all others, and returns the first failure.
    pub(crate) fn wait_for_others(
        mut self,
        result: Result<(), UringUnavailable>,
    ) -> Result<(), UringUnavailable> {
        let Some(registration) = self.registration.take() else { return result };
        registration.arrive(result);
        registration.outcome()
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            registration.arrive(Err(UringUnavailable::Thread));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_failure_reaches_everybody() {
        let registration = Registration::new(3);
        let arrivals = [(); 3].map(|()| registration.arrival());
        let threads: Vec<_> = arrivals
            .into_iter()
            .enumerate()
            .map(|(i, arrival)| {
                let result = if i == 1 { Err(UringUnavailable::Kernel) } else { Ok(()) };
                std::thread::spawn(move || arrival.wait_for_others(result))
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Err(UringUnavailable::Kernel));
        }
    }

    #[test]
    fn a_thread_that_ends_early_is_a_failure() {
        let registration = Registration::new(2);
        let (survivor, dead) = (registration.arrival(), registration.arrival());
        let survivor = std::thread::spawn(move || survivor.wait_for_others(Ok(())));
        drop(dead);
        assert_eq!(survivor.join().unwrap(), Err(UringUnavailable::Thread));
        assert_eq!(registration.outcome(), Err(UringUnavailable::Thread));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::model::{check, run};

    #[test]
    fn loom_everybody_learns_of_a_failure_and_nobody_waits_for_ever() {
        check(|| {
            let registration = loom::sync::Arc::new(Registration {
                state: Mutex::new(State { missing: 2, failure: None }),
                changed: Condvar::new(),
            });
            let other = run(&registration, |registration| {
                registration.arrive(Err(UringUnavailable::Kernel));
                registration.outcome()
            });
            registration.arrive(Ok(()));
            assert_eq!(registration.outcome(), Err(UringUnavailable::Kernel));
            assert_eq!(other.join().unwrap(), Err(UringUnavailable::Kernel));
        });
    }
}
