//! What masks, for each set of rules that has a say in a file.

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_policy::Redaction;
use tollgate_redact::Redactor;

/// Redactors by what they mask. Preparing one takes far longer than opening a file.
#[derive(Default)]
pub(super) struct Redactors(Mutex<Vec<Known>>);

struct Known {
    /// Kept, so that the addresses stay theirs.
    of: Vec<Arc<Redaction>>,
    redactor: Arc<Redactor>,
}

impl Redactors {
    /// Most that are kept; beyond, the oldest is forgotten.
    const MAX: usize = 64;

    /// What masks all that each of `all` masks.
    pub(super) fn of(&self, all: &[Arc<Redaction>]) -> Arc<Redactor> {
        let mut known = self.0.lock();
        let same = |one: &&Known| {
            one.of.len() == all.len() && one.of.iter().zip(all).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        if let Some(found) = known.iter().find(same) {
            return Arc::clone(&found.redactor);
        }
        let redactor = Arc::new(Redaction::redactor_of(all.iter().map(AsRef::as_ref)));
        if known.len() == Self::MAX {
            known.remove(0);
        }
        known.push(Known { of: all.to_vec(), redactor: Arc::clone(&redactor) });
        redactor
    }
}
