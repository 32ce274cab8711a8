//! Who reads and who writes a file at the moment.

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks that are being written, and readers with the epoch in which each began.
///
/// An epoch ends where slots leave the map that may be used again, with its readers if it has any. They
/// are used when no reader of it or an earlier one is left: a reader looks into the map first and into
/// the store later, without a lock in between.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    writing: Vec<Range<u64>>,
    readers: BTreeMap<u64, usize>,
    epoch: u64,
}

impl Sharing {
    /// Whether nobody else writes any of `blocks`; then they are the caller's until
    /// [`Sharing::written`].
    pub(crate) fn claim(&mut self, blocks: &Range<u64>) -> bool {
        let overlaps = |other: &Range<u64>| other.start < blocks.end && blocks.start < other.end;
        let free = !self.writing.iter().any(overlaps);
        if free {
            self.writing.push(blocks.clone());
        }
        free
    }

    pub(crate) fn written(&mut self, blocks: &Range<u64>) {
        let at = self.writing.iter().position(|other| other == blocks);
        self.writing.swap_remove(at.expect("it was claimed"));
    }

    /// A reader begins; its epoch.
    pub(crate) fn enter(&mut self) -> u64 {
        *self.readers.entry(self.epoch).or_default() += 1;
        self.epoch
    }

    pub(crate) fn leave(&mut self, epoch: u64) {
        let count = self.readers.get_mut(&epoch).expect("it entered");
        *count -= 1;
        if *count == 0 {
            self.readers.remove(&epoch);
        }
    }

    /// The epoch of the reader that began first; `None` if nobody reads.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.readers.keys().next().copied()
    }

    /// The epoch from which on readers know nothing of what the map does not name now.
    pub(crate) fn learned(&mut self) -> u64 {
        self.epoch += u64::from(self.readers.contains_key(&self.epoch));
        self.epoch
    }
}
