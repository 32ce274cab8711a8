//! What was written, could not be made durable, and is not there any more, for who asks next.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::io::Errno;

use crate::lower::Key;

/// Files that are remembered; of further ones the log alone tells.
const FILES_MAX: usize = 1024;

/// Files with changes that were lost behind a close: the next fsync of each is told, once.
#[derive(Default)]
pub(super) struct Lost(Mutex<FxHashMap<Key, Errno>>);

impl Lost {
    pub(super) fn add(&self, file: Key, error: Errno) {
        let mut files = self.0.lock();
        if files.len() < FILES_MAX || files.contains_key(&file) {
            files.insert(file, error);
        }
    }

    /// The error that nobody has heard of yet. Also for a new file, whose inode may be one that was
    /// there before.
    pub(super) fn take(&self, file: Key) -> Option<Errno> {
        self.0.lock().remove(&file)
    }
}
