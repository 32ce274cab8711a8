//! Open handles by number.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use tollgate_fuse::{Caller, FileHandle};

use crate::appends::Appends;
use crate::budget::Held;
use crate::lower::DirStream;
use crate::mapped::MappedPages;
use crate::road::Made;

/// The number says that the kernel reads and writes the file itself: such a handle has no state.
const PASSTHROUGH: u64 = 1 << 63;
/// The number says that each close of a descriptor of the handle is reported (FLUSH).
const FLUSHES: u64 = 1 << 62;
/// The number says that the file was opened for reading and writing.
const IN_PLACE: u64 = 1 << 61;

/// The number says that the kernel reads the file from the view's page cache, and that it is only
/// read: such a handle has no state either.
const SMALL: u64 = 1 << 60;

/// The number says that the file was opened to be executed; of handles of every kind.
const EXECUTES: u64 = 1 << 59;

/// The number says that the file was opened to be written; of handles without a descriptor.
const WRITES: u64 = 1 << 58;

/// Whether the kernel reads and writes the file itself.
pub(crate) fn is_passthrough(handle: FileHandle) -> bool {
    handle.0 & PASSTHROUGH != 0
}

/// Whether it is a handle of a small file that is only read (see [`crate::small`]).
pub(crate) fn is_small(handle: FileHandle) -> bool {
    !is_passthrough(handle) && handle.0 & SMALL != 0
}

/// The handle of an open for execution.
pub(crate) fn to_execute(handle: FileHandle) -> FileHandle {
    FileHandle(handle.0 | EXECUTES)
}

/// Whether the number says that the file was opened to be executed.
pub(crate) fn executes(handle: FileHandle) -> bool {
    handle.0 & EXECUTES != 0
}

/// Whether this process has a descriptor for the handle.
pub(crate) fn has_descriptor(handle: FileHandle) -> bool {
    handle.0 & (PASSTHROUGH | SMALL) == 0
}

/// Whether the kernel reports each close of a descriptor of the handle.
pub(crate) fn flushes(handle: FileHandle) -> bool {
    has_descriptor(handle) || handle.0 & FLUSHES != 0
}

/// Whether the number says that the file was opened for reading and writing: it can be mapped to
/// be written, and locked in every way.
pub(crate) fn is_in_place(handle: FileHandle) -> bool {
    is_passthrough(handle) && handle.0 & IN_PLACE != 0
}

/// Whether the number says that the kernel writes the file itself for who opened it.
pub(crate) fn is_written_below(handle: FileHandle) -> bool {
    is_passthrough(handle) && handle.0 & WRITES != 0
}

/// What the number of a handle without state says of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// The kernel is to report each close.
    pub(crate) flushes: bool,
    /// It was opened for reading and writing.
    pub(crate) in_place: bool,
    /// It was opened for writing.
    pub(crate) writes: bool,
}

/// Numbers for handles without state: each its own, so that a lock knows the handle that it
/// was taken through. Counted per worker, so that no cache line is shared.
#[derive(Debug, Default)]
pub(crate) struct PassthroughHandles([crossbeam_utils::CachePadded<AtomicU64>; Self::COUNTERS]);

impl PassthroughHandles {
    const COUNTERS: usize = 16;

    /// A handle of a file that `worker` opens.
    pub(crate) fn next(&self, worker: usize, kind: Kind) -> FileHandle {
        let flag = |is: bool, bit| if is { bit } else { 0 };
        let flags = flag(kind.flushes, FLUSHES) | flag(kind.in_place, IN_PLACE);
        FileHandle(PASSTHROUGH | flags | flag(kind.writes, WRITES) | self.number(worker))
    }

    /// A handle of a small file that is only read.
    pub(crate) fn next_small(&self, worker: usize) -> FileHandle {
        FileHandle(SMALL | self.number(worker))
    }

    fn number(&self, worker: usize) -> u64 {
        let counter = worker % Self::COUNTERS;
        let count = self.0[counter].fetch_add(1, Ordering::Relaxed);
        let number = count * Self::COUNTERS as u64 + counter as u64;
        assert!(number < WRITES, "fewer files are opened than could be counted in a century");
        number
    }
}

/// A file handle whose reads and writes come to this process.
#[derive(Debug)]
pub(crate) struct UserFile {
    /// The lower file; of one whose bytes the view makes nobody reads or writes through it but who
    /// makes them.
    pub(crate) fd: Arc<OwnedFd>,
    /// What makes its bytes, if they are not those of the lower file.
    pub(crate) made: Option<Arc<Made>>,
    /// Who opened it: pages that the kernel kept are written on their behalf.
    pub(crate) opener: Caller,
    /// Where it can be written.
    pub(crate) appends: Option<Arc<Appends>>,
    /// The lower file is append-only: `fd` appends whatever is written, so nothing else may be.
    pub(crate) append_only: bool,
    /// Where it can be written, and what is written does not go through the kernel's pages.
    pub(crate) mapped: Option<Arc<MappedPages>>,
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
            next: AtomicU64::new(1),
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
        let number = handle.0 & !EXECUTES;
        self.shard(number).lock().get(&number).cloned().ok_or(Errno::BADF)
    }

    pub(crate) fn remove(&self, handle: FileHandle) -> Option<Arc<T>> {
        let number = handle.0 & !EXECUTES;
        self.shard(number).lock().remove(&number)
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

    fn kind(flushes: bool, in_place: bool) -> Kind {
        Kind { flushes, in_place, writes: in_place }
    }

    #[test]
    fn a_handle_is_found_until_it_is_removed() {
        let handles = Handles::new();
        let numbers: Vec<_> = (0..100).map(|value| handles.insert(value)).collect();
        assert!(!numbers.iter().any(|number| is_passthrough(*number)));
        assert_eq!(*handles.get(numbers[41]).unwrap(), 41);
        assert_eq!(handles.remove(numbers[41]).as_deref(), Some(&41));
        assert_eq!(handles.get(numbers[41]).unwrap_err(), Errno::BADF);
        assert_eq!((handles.remove(numbers[41]), handles.len()), (None, 99));
    }

    #[test]
    fn a_handle_to_execute_is_of_its_kind_and_found_as_any() {
        let handles = Handles::new();
        let user = to_execute(handles.insert(41));
        let [passed, small] = [
            PassthroughHandles::default().next(3, kind(true, true)),
            PassthroughHandles::default().next_small(3),
        ];
        assert!([user, to_execute(passed), to_execute(small)].into_iter().all(executes));
        assert!(!executes(passed) && !executes(small) && !executes(FileHandle(7)));
        assert!(is_passthrough(to_execute(passed)) && is_in_place(to_execute(passed)));
        assert!(is_small(to_execute(small)) && !is_small(user) && has_descriptor(user));
        assert_eq!(handles.get(user).as_deref(), Ok(&41));
        assert_eq!((handles.remove(user).as_deref(), handles.len()), (Some(&41), 0));
    }

    #[test]
    fn small_handles_are_neither_passthrough_nor_in_the_table() {
        let handle = PassthroughHandles::default().next_small(3);
        assert!(is_small(handle) && !is_passthrough(handle) && !has_descriptor(handle));
        assert!(!flushes(handle) && !is_in_place(handle));
        let table = Handles::new().insert(());
        assert!(has_descriptor(table) && !is_small(table));
        assert!(!has_descriptor(PassthroughHandles::default().next(3, kind(true, false))));
    }

    #[test]
    fn passthrough_handles_say_what_they_are_and_differ() {
        let handles = PassthroughHandles::default();
        let numbers: Vec<_> =
            (0..100).map(|n| handles.next(n, kind(n % 3 == 0, n % 2 == 0))).collect();
        for (n, number) in numbers.iter().enumerate() {
            assert!(is_passthrough(*number));
            assert_eq!((flushes(*number), is_in_place(*number)), (n % 3 == 0, n % 2 == 0));
            assert_eq!(is_written_below(*number), n % 2 == 0);
        }
        let distinct: std::collections::HashSet<_> = numbers.iter().collect();
        assert_eq!(distinct.len(), numbers.len());
        let user = FileHandle(7);
        assert!(flushes(user) && !is_passthrough(user) && !is_in_place(user));
        assert!(!is_written_below(user));
    }
}
