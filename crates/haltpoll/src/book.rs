//! What the monitor decided and did, for `status`.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::status::State;

/// What the outside may know.
#[derive(Debug)]
pub(crate) struct Book {
    decision: Mutex<Decision>,
    pub(crate) bursts: AtomicU64,
    pub(crate) awake_ns: AtomicU64,
    pub(crate) cpu_ns: AtomicU64,
}

#[derive(Clone, Debug)]
pub(crate) struct Decision {
    pub(crate) state: State,
    pub(crate) reason: String,
    pub(crate) wake_ns: Option<u64>,
    pub(crate) held_ns: Option<u64>,
    pub(crate) lacks_permission: bool,
    pub(crate) suspended: u64,
    pub(crate) suspended_for: Option<String>,
}

impl Decision {
    /// Nothing is measured yet.
    pub(crate) fn new(state: State, reason: &str) -> Self {
        Self {
            state,
            reason: reason.to_owned(),
            wake_ns: None,
            held_ns: None,
            lacks_permission: false,
            suspended: 0,
            suspended_for: None,
        }
    }
}

impl Book {
    pub(crate) fn new(state: State, reason: &str) -> Self {
        let zero = || AtomicU64::new(0);
        let decision = Mutex::new(Decision::new(state, reason));
        Self { decision, bursts: zero(), awake_ns: zero(), cpu_ns: zero() }
    }

    pub(crate) fn decision(&self) -> MutexGuard<'_, Decision> {
        self.decision.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, state: State, reason: String) {
        let mut decision = self.decision();
        decision.state = state;
        decision.reason = reason;
    }
}
