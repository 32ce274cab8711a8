//! Requests that wait for a lock, and who waits for whom.
//!
//! Lock order: the table of waits before the holders of a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::io::Errno;

use crate::locks::description::Class;
use crate::locks::file::{Ask, FileLocks, OwnerId};
use crate::locks::grant::Grant;
use crate::locks::left::Left;
use crate::patience::Patience;
use crate::shares::{ShareStatus, Shares, Taken};

/// A request that waits.
pub(crate) struct Wait {
    unique: u64,
    pub(crate) ask: Ask,
    pub(crate) file: Arc<FileLocks>,
    grant: Mutex<Option<Grant>>,
    /// Counts it while it waits.
    counted: Mutex<Option<Taken>>,
    cancelled: AtomicBool,
    /// Whether the thread waits on a description that its owner has left.
    pub(crate) left: Left,
    /// The thread that waits in the kernel for it; 0 for none.
    pub(crate) thread: AtomicI32,
    /// Nobody waits in the kernel: it is tried from time to time.
    pub(crate) tried: AtomicBool,
    /// When trying ends.
    pub(crate) patience: Option<Patience>,
}

impl Wait {
    pub(crate) fn new(unique: u64, grant: Grant, patience: Option<Patience>) -> Self {
        Self {
            unique,
            ask: grant.ask,
            file: Arc::clone(&grant.file),
            grant: Mutex::new(Some(grant)),
            counted: Mutex::new(None),
            cancelled: AtomicBool::new(false),
            left: Left::new(),
            thread: AtomicI32::new(0),
            tried: AtomicBool::new(false),
            patience,
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    pub(crate) fn is_tried(&self) -> bool {
        self.tried.load(Ordering::SeqCst)
    }

    /// The caller got a signal.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// The owner has another description now: the thread is to wait on that.
    pub(crate) fn leave(&self) {
        self.left.tell();
        self.wake();
    }

    /// Whether the thread has to leave its system call.
    pub(crate) fn has_to_wake(&self) -> bool {
        self.is_cancelled() || self.left.is_told()
    }

    /// Ends the system call in which a thread waits for it. The thread may be about to begin it, so
    /// this has to be repeated as long as it [has to wake](Self::has_to_wake).
    pub(crate) fn wake(&self) {
        let thread = self.thread.load(Ordering::SeqCst);
        if thread != 0 {
            tollgate_fuse::blocking::interrupt(thread);
        }
    }

    /// INTERRUPT came before the request waited.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.grant.lock().as_ref().is_some_and(Grant::interrupted)
    }

    /// It does not begin.
    pub(crate) fn refuse(&self, error: Errno) {
        self.file.wait_ends(self.ask.id);
        if let Some(grant) = self.take() {
            grant.refuse(error);
        }
    }

    fn take(&self) -> Option<Grant> {
        self.grant.lock().take()
    }
}

/// All requests that wait, by number.
pub(crate) struct Waits {
    all: Mutex<FxHashMap<u64, Arc<Wait>>>,
    shares: Arc<Shares>,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            shares: Shares::new("requests that wait for locks", Self::MAX),
        }
    }
}

impl Waits {
    /// Requests that may wait at the same time, shared among users; further ones get `ENOLCK`. Below the number of
    /// replies that the transport can tell of a signal.
    pub(crate) const MAX: usize = 1000;

    pub(crate) fn shares(&self) -> ShareStatus {
        self.shares.status()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.lock().len()
    }

    pub(crate) fn get(&self, unique: u64) -> Option<Arc<Wait>> {
        self.all.lock().get(&unique).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Wait>> {
        self.all.lock().values().cloned().collect()
    }

    /// `wait` begins, after [`FileLocks::set`] said `EAGAIN`.
    ///
    /// # Errors
    /// `EDEADLK` if it waits for a process that waits, directly or through others, for it;
    /// `ENOLCK` at the user's share.
    pub(crate) fn begin(&self, wait: &Arc<Wait>) -> Result<(), Errno> {
        let counted = self.shares.take(wait.ask.uid).ok_or(Errno::NOLCK)?;
        let mut all = self.all.lock();
        if wait.patience.is_none() && is_deadlock(&all, wait) {
            return Err(Errno::DEADLK);
        }
        *wait.counted.lock() = Some(counted);
        let before = all.insert(wait.unique, Arc::clone(wait));
        assert!(before.is_none(), "request {} waits twice", wait.unique);
        Ok(())
    }

    /// `wait` is over: who takes the grant answers, and nobody else.
    pub(crate) fn end(&self, wait: &Wait) -> Option<Grant> {
        let grant = wait.take()?;
        *wait.counted.lock() = None;
        self.all.lock().remove(&wait.unique);
        wait.file.wait_ends(wait.ask.id);
        Some(grant)
    }
}

/// Whether a process that `wait` waits for waits for its owner. Open file descriptions do not take
/// part, as in the kernel: another thread may unlock them.
fn is_deadlock(all: &FxHashMap<u64, Arc<Wait>>, wait: &Wait) -> bool {
    if wait.ask.id.class != Class::Ranges || !wait.file.is_process(wait.ask.id) {
        return false;
    }
    let mut waiting: FxHashMap<OwnerId, Vec<&Wait>> = FxHashMap::default();
    for other in all.values().filter(|other| other.patience.is_none()) {
        waiting.entry(other.ask.id).or_default().push(other);
    }
    let mut seen = FxHashSet::default();
    let mut open = wait.file.blocking_processes(&wait.ask);
    while let Some(owner) = open.pop() {
        if owner == wait.ask.id {
            return true;
        }
        if seen.insert(owner) {
            for other in waiting.get(&owner).into_iter().flatten() {
                open.extend(other.file.blocking_processes(&other.ask));
            }
        }
    }
    false
}
