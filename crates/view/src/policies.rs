//! The policy that is in force, and those that were before it.
//!
//! A request borrows the policy that it is judged by for as long as it runs, and a new policy must
//! not make it wait, nor count its readers: so a policy stays where it is when another follows it,
//! until the view ends. Asking for the one in force is a load of an index.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tollgate_policy::Policy;

/// Most policies that one view can have had; see [`Policies::replace`].
pub(crate) const MAX_POLICIES: usize = 1024;

/// What judges a request.
pub(crate) struct InForce {
    /// What is refused.
    pub(crate) policy: Arc<Policy>,
    /// The whole policy, where some of its rules are only recorded.
    pub(crate) trial: Option<Arc<Policy>>,
}

impl std::fmt::Debug for InForce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InForce").field("rules", &self.policy.rules().len()).finish_non_exhaustive()
    }
}

impl InForce {
    fn new(policy: Arc<Policy>) -> Self {
        match policy.enforced() {
            None => Self { policy, trial: None },
            Some(enforced) => Self { policy: Arc::new(enforced), trial: Some(policy) },
        }
    }

    /// Nothing can be refused or recorded, and no mode depends on anything.
    pub(crate) fn is_trivial(&self) -> bool {
        self.policy.is_trivial() && self.trial.is_none()
    }
}

/// No more policies fit.
#[derive(Debug)]
pub(crate) struct Full;

/// Every policy that this view has had, the last of which is in force.
pub(crate) struct Policies {
    all: Box<[OnceLock<InForce>]>,
    /// Index of the one in force.
    current: AtomicUsize,
    replacing: Mutex<()>,
}

impl Policies {
    pub(crate) fn new(policy: Arc<Policy>) -> Self {
        let all: Box<[_]> = (0..MAX_POLICIES).map(|_| OnceLock::new()).collect();
        let _ = all[0].set(InForce::new(policy));
        Self { all, current: AtomicUsize::new(0), replacing: Mutex::new(()) }
    }

    /// The one in force now. Another may be at the next call.
    pub(crate) fn current(&self) -> &InForce {
        let policy = self.all[self.current.load(Ordering::Acquire)].get();
        policy.expect("a policy is stored before its index")
    }

    /// How many policies there were before the one in force: what was remembered of an earlier one
    /// is not good any more.
    pub(crate) fn epoch(&self) -> usize {
        self.current.load(Ordering::Acquire)
    }

    /// Puts `policy` in force for every question asked from now on. Those that were replaced keep
    /// their memory until the view ends; there can be [`MAX_POLICIES`].
    pub(crate) fn replace(&self, policy: Arc<Policy>) -> Result<(), Full> {
        let _one_at_a_time = self.replacing.lock();
        let next = self.epoch() + 1;
        let place = self.all.get(next).ok_or(Full)?;
        place.set(InForce::new(policy)).map_err(|_| Full)?;
        self.current.store(next, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Arc<Policy> {
        Arc::new(Policy::parse(text, "test").unwrap())
    }

    #[test]
    fn what_was_borrowed_stays_when_another_policy_follows() {
        let policies = Policies::new(policy("[[rule]]\npath = 'a'\naction = 'deny'"));
        let old = policies.current();
        policies.replace(policy("")).unwrap();
        assert_eq!((old.policy.rules().len(), policies.current().policy.rules().len()), (1, 0));
        assert_eq!(policies.epoch(), 1);
    }

    #[test]
    fn rules_that_are_only_recorded_refuse_nothing() {
        let rule = "[[rule]]\npath = 'a'\naction = 'deny'\nmode = 'audit'";
        let policies = Policies::new(policy(rule));
        let current = policies.current();
        assert!(current.policy.is_trivial() && !current.is_trivial());
    }

    #[test]
    fn there_is_a_last_one() {
        let policies = Policies::new(policy(""));
        for _ in 1..MAX_POLICIES {
            policies.replace(policy("")).unwrap();
        }
        assert!(policies.replace(policy("")).is_err());
        assert_eq!(policies.epoch(), MAX_POLICIES - 1);
    }
}
