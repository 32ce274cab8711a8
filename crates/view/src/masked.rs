//! How many secrets were masked, by detector: counted where they begin, so that a secret in two
//! requests counts once. What is read again counts again, and what is read ahead counts when it is
//! made.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Serialize, Serializer};
use tollgate_redact::{Detector, Found, Rule};

/// The known detectors, and all regular expressions of a policy together.
const KINDS: usize = Detector::ALL.len() + 1;
/// The name of those.
const OWN: &str = "regex";

/// Secrets that were masked, by detector. As JSON, an object with those that found any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masked([u64; KINDS]);

/// What was masked in a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MaskedStatus {
    /// Opens of files in which something was masked.
    pub opens: u64,
    /// By detector.
    pub secrets: Masked,
}

impl Masked {
    /// Counts one more, if it begins in the range that was masked.
    pub(crate) fn add(&mut self, found: &Found<'_>) {
        if found.began_before {
            return;
        }
        let kind = match found.rule {
            Rule::Named(detector) => Detector::ALL.iter().position(|known| *known == detector),
            Rule::Own(_) => None,
        };
        self.0[kind.unwrap_or(KINDS - 1)] += 1;
    }

    /// The name of each detector that found something, with how many.
    pub fn by_detector(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = Detector::ALL.into_iter().map(Detector::name).chain([OWN]);
        names.zip(self.0).filter(|(_, count)| *count > 0)
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; KINDS]
    }
}

impl Serialize for Masked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.by_detector())
    }
}

/// The same, by several threads.
#[derive(Debug, Default)]
pub(crate) struct MaskedCounter {
    opens: AtomicU64,
    secrets: [AtomicU64; KINDS],
}

impl MaskedCounter {
    pub(crate) fn add_open(&self) {
        self.opens.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, found: &Masked) {
        for (all, more) in self.secrets.iter().zip(found.0).filter(|(_, more)| *more > 0) {
            all.fetch_add(more, Ordering::Relaxed);
        }
    }

    pub(crate) fn secrets(&self) -> Masked {
        Masked(self.secrets.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }

    pub(crate) fn status(&self) -> MaskedStatus {
        MaskedStatus { opens: self.opens.load(Ordering::Relaxed), secrets: self.secrets() }
    }
}
