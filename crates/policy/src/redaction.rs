//! What `redact` rules mask.

use tollgate_redact::{Detector, Detectors, OwnRegex, Redactor};

/// What a `redact` rule masks.
#[derive(Clone, Debug)]
pub struct Redaction {
    pub(crate) detectors: Vec<Detector>,
    pub(crate) regexes: Vec<OwnRegex>,
    pub(crate) max_size: u64,
}

impl Redaction {
    /// The detectors, in their own order.
    #[must_use]
    pub fn detectors(&self) -> &[Detector] {
        &self.detectors
    }

    /// The regular expressions.
    #[must_use]
    pub fn regexes(&self) -> &[OwnRegex] {
        &self.regexes
    }

    /// Larger files are denied, in bytes.
    #[must_use]
    pub fn max_size(&self) -> u64 {
        self.max_size
    }

    /// Whether it masks all that `other` masks, and denies what that denies.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let regex = |one: &OwnRegex| self.regexes.iter().any(|own| own.pattern() == one.pattern());
        self.max_size <= other.max_size
            && other.detectors.iter().all(|one| self.detectors.contains(one))
            && other.regexes.iter().all(regex)
    }

    /// What masks all that each of `all` masks, with the lowest of their limits.
    #[must_use]
    pub fn redactor_of<'a>(all: impl IntoIterator<Item = &'a Self>) -> Redactor {
        let mut detectors = Detectors::only(&[]);
        let mut max = u64::MAX;
        for one in all {
            detectors = detectors.and(&one.detectors);
            detectors = one.regexes.iter().cloned().fold(detectors, Detectors::and_own);
            max = max.min(one.max_size);
        }
        Redactor::new(detectors).with_file_max(max)
    }
}
