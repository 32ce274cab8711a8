//! Open handles by number.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use tollgate_fuse::FileHandle;

use crate::budget::Held;
use crate::lower::DirStream;

/// The handle of every passthrough file: it needs no state, its number says what it is.
pub(crate) const PASSTHROUGH_HANDLE: FileHandle = FileHandle(0);

/// A file handle whose reads and writes come to this process.
#[derive(Debug)]
pub(crate) struct UserFile {
    pub(crate) fd: OwnedFd,
    pub(crate) _held: Held,
}

/// A directory handle.
#[derive(Debug)]
pub(crate) struct OpenDir {
    pub(crate) stream: Mutex<DirStream>,
    pub(crate) _held: Held,
}

/// Open handles of one kind. Each holds a descriptor, so there are at most as many as the
/// [`crate::budget::Budget`] allows.
pub(crate) struct Handles<T> {
    shards: Box<[crossbeam_utils::CachePadded<Mutex<HandleMap<T>>>]>,
    next: AtomicU64,
}

type HandleMap<T> = rustc_hash::FxHashMap<u64, Arc<T>>;

impl<T> Handles<T> {
    const SHARDS: usize = 16;

    pub(crate) fn new() -> Self {
        Self {
            shards: (0..Self::SHARDS).map(|_| Default::default()).collect(),
            next: AtomicU64::new(PASSTHROUGH_HANDLE.0 + 1),
        }
    }

    pub(crate) fn insert(&self, value: T) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let before = self.shard(number).lock().insert(number, Arc::new(value));
        assert!(before.is_none(), "handle {number} was given out twice");
        FileHandle(number)
    }

    /// # Errors
    /// `EBADF` for a handle that is not open here.
    pub(crate) fn get(&self, handle: FileHandle) -> Result<Arc<T>, Errno> {
        self.shard(handle.0).lock().get(&handle.0).cloned().ok_or(Errno::BADF)
    }

    pub(crate) fn remove(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.shard(handle.0).lock().remove(&handle.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    #[expect(clippy::cast_possible_truncation, reason = "the remainder is below SHARDS")]
    fn shard(&self, number: u64) -> &Mutex<HandleMap<T>> {
        &self.shards[(number % Self::SHARDS as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_found_until_it_is_removed() {
        let handles = Handles::new();
        let numbers: Vec<_> = (0..100).map(|value| handles.insert(value)).collect();
        assert!(!numbers.contains(&PASSTHROUGH_HANDLE));
        assert_eq!(*handles.get(numbers[41]).unwrap(), 41);
        assert_eq!(handles.remove(numbers[41]).as_deref(), Some(&41));
        assert_eq!(handles.get(numbers[41]).unwrap_err(), Errno::BADF);
        assert_eq!((handles.remove(numbers[41]), handles.len()), (None, 99));
    }
}
