//! Whether all names of a file are known: those that are kept are looked at, and counted.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::record::State;
use super::{Links, Looked, beneath};
use crate::lower::Stat;

impl Links {
    /// Looks whether the known names of the inode, and those of `own`, lead to it beneath `root`,
    /// and forgets those that do not. `searched`: a complete search has just been made, so that those
    /// that are missing lie elsewhere, unless one that it found has gone since.
    ///
    /// No rename of the view may be under way.
    pub(crate) fn verify(
        &self,
        root: BorrowedFd<'_>,
        stat: &Stat,
        own: &[Vec<u8>],
        searched: bool,
    ) -> Looked {
        let (key, at) = (stat.key(), Instant::now());
        let mut now = *stat;
        let mut is_there = |path: &[u8]| {
            let found = beneath::stat(root, path).ok().filter(|found| found.key() == key);
            found.inspect(|found| now = *found).is_some()
        };
        let mut candidates = self.names(&key);
        candidates.extend(own.iter().map(|path| path.clone().into_boxed_slice()));
        let (there, gone): (Vec<_>, Vec<_>) = candidates.iter().partition(|path| is_there(path));
        let mut shard = self.shard(&key).lock();
        let record = shard.entry(key).or_default();
        let mut lost = false;
        for path in gone.iter().filter(|path| record.remove(path)) {
            self.count_out(path);
            lost = true;
        }
        there.iter().filter(|path| record.add(path)).for_each(|path| self.count(path));
        if lost {
            // It may be one of those that were counted as elsewhere that is gone, and this one was moved.
            record.doubt();
        }
        let state = State::of(&now);
        if searched && !lost {
            record.conclude(state, at);
        }
        let all_known = record.confirm_if_complete(state, at);
        if record.is_empty() {
            shard.remove(&key);
        }
        Looked { all_known, lost }
    }
}
