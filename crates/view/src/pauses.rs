//! Requests that wait a moment for a file to be closed, each on a thread of its own.
//!
//! A close is reported to the server without anybody waiting for it: a file that its user has closed,
//! or whose user has ended, may still count as open here. Who asks for what only that stands in the
//! way of is worth a short wait, but not on a thread that serves requests: whoever asked for it
//! again and again would keep these from all others.
//!
//! [`Pauses::end`] waits until nobody waits any more, and whoever waits then is woken: it sets
//! `ended` under the lock under which [`Pause::wait`] looks before it sleeps.

use std::sync::Arc;
use std::time::Duration;

use crate::shares::{ShareStatus, Shares, Taken};
use crate::sync::{Condvar, Mutex, now};

/// Requests that wait at the same time, of one user half if alone. Further ones are served without a
/// wait.
const MAX: usize = 128;

/// How often a request looks: after a quarter of the time that it has waited, within these bounds.
const SOONEST: Duration = Duration::from_millis(1);
const LATEST: Duration = Duration::from_millis(5);

pub(crate) struct Pauses {
    shares: Arc<Shares>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Requests that wait, or are served after their wait.
    begun: usize,
    ended: bool,
}

/// Why a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// There is nothing to wait for, or no more patience.
    Enough,
    /// The caller got a signal.
    Interrupted,
    /// The session ends: nobody hears the answer.
    Ended,
}

impl Default for Pauses {
    fn default() -> Self {
        let shares = Shares::new("requests that wait for closes", MAX);
        Self { shares, state: Mutex::default(), changed: Condvar::default() }
    }
}

impl Pauses {
    pub(crate) fn shares(&self) -> ShareStatus {
        self.shares.status()
    }

    /// A request of user `uid` may wait until this is dropped; `None` if too many do, or all ends.
    pub(crate) fn begin(self: &Arc<Self>, uid: u32) -> Option<Pause> {
        let taken = self.shares.take(uid)?;
        let mut state = self.state.lock();
        if state.ended {
            return None;
        }
        state.begun += 1;
        drop(state);
        Some(Pause { pauses: Arc::clone(self), _taken: taken })
    }

    /// No request waits from now on. Returns when the last one was served.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        self.changed.notify_all();
        while state.begun > 0 {
            self.changed.wait(&mut state);
        }
    }
}

/// One request that may wait.
pub(crate) struct Pause {
    pauses: Arc<Pauses>,
    _taken: Taken,
}

impl Pause {
    /// Returns once `is_over` says so, or `interrupted`, or all ends.
    pub(crate) fn wait(
        &self,
        is_over: impl Fn() -> bool,
        interrupted: impl Fn() -> bool,
    ) -> Waited {
        let begun = now();
        loop {
            // Without the lock: these may have to wait for others.
            if interrupted() {
                return Waited::Interrupted;
            }
            if is_over() {
                return Waited::Enough;
            }
            let mut state = self.pauses.state.lock();
            if state.ended {
                return Waited::Ended;
            }
            let waited = now().saturating_duration_since(begun);
            let pause = (waited / 4).clamp(SOONEST, LATEST);
            self.pauses.changed.wait_until(&mut state, now() + pause);
        }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        let mut state = self.pauses.state.lock();
        state.begun -= 1;
        if state.ended {
            self.pauses.changed.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_user_leaves_room_and_a_pause_that_is_dropped_is_given_back() {
        let pauses = Arc::<Pauses>::default();
        let own: Vec<_> = std::iter::from_fn(|| pauses.begin(1000)).collect();
        assert_eq!(own.len(), MAX / 2);
        assert!(pauses.begin(1001).is_some());
        drop(own);
        assert_eq!(pauses.shares().taken, 0);
    }

    #[test]
    fn a_wait_ends_by_what_it_waits_for_by_a_signal_or_with_the_session() {
        let pauses = Arc::<Pauses>::default();
        let pause = pauses.begin(0).unwrap();
        assert_eq!(pause.wait(|| true, || false), Waited::Enough);
        assert_eq!(pause.wait(|| true, || true), Waited::Interrupted);
        let waits = thread::spawn(move || pause.wait(|| false, || false));
        pauses.end();
        assert_eq!(waits.join().unwrap(), Waited::Ended);
        assert!(pauses.begin(0).is_none(), "nobody would end it");
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p tollgate-view --release --lib models`.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;

    /// A wait that nobody wakes, or an end that waits for one that is over, is a deadlock that the
    /// model reports.
    #[test]
    fn who_waits_learns_of_the_end_which_waits_for_it() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let pauses = Arc::<Pauses>::default();
            let served = Arc::new(AtomicUsize::new(0));
            let waits: Vec<_> = (0..2)
                .map(|uid| {
                    let (pauses, served) = (Arc::clone(&pauses), Arc::clone(&served));
                    thread::spawn(move || {
                        let pause = pauses.begin(uid)?;
                        served.fetch_add(1, Ordering::SeqCst);
                        let waited = pause.wait(|| false, || false);
                        served.fetch_sub(1, Ordering::SeqCst);
                        Some(waited)
                    })
                })
                .collect();
            pauses.end();
            assert_eq!(served.load(Ordering::SeqCst), 0, "somebody is still served");
            for wait in waits {
                let waited = wait.join().unwrap();
                assert!(matches!(waited, None | Some(Waited::Ended)), "{waited:?}");
            }
        });
    }
}
