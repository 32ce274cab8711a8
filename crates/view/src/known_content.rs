//! What conditions on the content of a file said when it was opened last.
//!
//! Rules about content read the first bytes of a file for each open, and search them. As long as a file has
//! the times that it had then, it holds the same, and the answers are known. That is certain only of a file
//! that was settled, and that nobody had open for writing when its bytes were read: the same that makes the
//! kernel keep the pages of small files ([`crate::small`]).

use parking_lot::Mutex;
use tollgate_policy::Contents;

use crate::lower::Version;

/// Of one file.
#[derive(Debug, Default)]
pub(crate) struct KnownContent(Mutex<Option<Box<Known>>>);

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// Of the file whose bytes were read.
    pub(crate) version: Version,
    /// Which rules were asked: where they lie. Rules stay in place as long as the view, so no others are
    /// ever there.
    pub(crate) rules: usize,
    pub(crate) contents: Contents,
}

impl KnownContent {
    /// What is known of a file that has this version now.
    pub(crate) fn of(&self, version: Version) -> Option<Known> {
        let known = self.0.lock();
        known.as_deref().filter(|known| known.version == version).cloned()
    }

    /// Keeps what was found.
    pub(crate) fn keep(&self, known: Known) {
        *self.0.lock() = Some(Box::new(known));
    }
}
