//! Descriptors on lower inodes, within a stated maximum.
//!
//! A descriptor for every inode that the kernel remembers does not scale: a kernel source tree has
//! more files than a process may have descriptors. Here a node is found again by parent and name,
//! component by component, and the inode that is found is compared with the one that was meant.
//! What stays open:
//!
//! | descriptor | how many | at the maximum |
//! |---|---|---|
//! | `O_PATH` of directories and of files that are open | half of the maximum | the longest unused is closed, and reopened by name when needed |
//! | `O_PATH` of inodes whose last name is gone | what the kernel still refers to | `EMFILE` for the unlink's later users |
//! | real descriptors: user-space handles, directory handles | the rest | `EMFILE` |
//!
//! A file served by passthrough costs none: the kernel holds its own reference to the backing file.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::budget::{Budget, Held};
use crate::lower;
use crate::table::Node;

/// Deeper paths than this are taken for a loop (trees moved about behind our back).
const MAX_DEPTH: usize = 4096;
/// The descriptor of the root, which is always open.
const ROOT: usize = 1;

/// Finds lower inodes again and keeps descriptors for the busy ones.
pub(crate) struct Descriptors {
    root: Arc<OwnedFd>,
    /// What handles hold; the cache may have half of the rest.
    budget: Arc<Budget>,
    /// Nodes whose descriptor may be closed, oldest first.
    cached: Mutex<VecDeque<Weak<Node>>>,
}

impl Descriptors {
    pub(crate) fn new(root: OwnedFd, budget: Arc<Budget>) -> Self {
        Self { root: Arc::new(root), budget, cached: Mutex::new(VecDeque::new()) }
    }

    pub(crate) fn max(&self) -> usize {
        self.budget.max()
    }

    /// Descriptors in use: handles and cache.
    pub(crate) fn used(&self) -> usize {
        let cached = self.cached.lock().iter().filter(|weak| weak.strong_count() > 0).count();
        self.budget.held() + cached + ROOT
    }

    pub(crate) fn root(&self) -> &Arc<OwnedFd> {
        &self.root
    }

    /// An `O_PATH` descriptor of `node`.
    ///
    /// # Errors
    /// `ESTALE` when none of its names leads to it any more; `EMFILE` when even an emptied cache
    /// leaves no descriptor.
    pub(crate) fn path(&self, node: &Arc<Node>) -> Result<Arc<OwnedFd>, Errno> {
        self.path_at_depth(node, 0)
    }

    /// The same for one use, without leaving it in the cache: for files that are asked about once.
    pub(crate) fn path_once(&self, node: &Arc<Node>) -> Result<Arc<OwnedFd>, Errno> {
        if node.is_root() {
            return Ok(Arc::clone(&self.root));
        }
        // Not in a match on the guard: `find` takes the parents' locks.
        let kept = node.fd.lock().clone();
        kept.map_or_else(|| self.find(node, 0).map(Arc::new), Ok)
    }

    /// Keeps `fd` for `node`, whose last name is about to go or which never had one.
    pub(crate) fn pin(node: &Node, fd: Arc<OwnedFd>) {
        node.pinned.store(true, Ordering::Relaxed);
        node.fd.lock().get_or_insert(fd);
    }

    fn path_at_depth(&self, node: &Arc<Node>, depth: usize) -> Result<Arc<OwnedFd>, Errno> {
        if node.is_root() {
            return Ok(Arc::clone(&self.root));
        }
        let kept = node.fd.lock().clone();
        if let Some(fd) = kept {
            node.fd_used.store(true, Ordering::Relaxed);
            return Ok(fd);
        }
        let found = Arc::new(self.find(node, depth)?);
        {
            let mut slot = node.fd.lock();
            if let Some(fd) = &*slot {
                return Ok(Arc::clone(fd));
            }
            *slot = Some(Arc::clone(&found));
        }
        self.cached.lock().push_back(Arc::downgrade(node));
        self.trim(self.max() / 2 - ROOT);
        Ok(found)
    }

    /// Walks to `node` by the names it is known under.
    fn find(&self, node: &Arc<Node>, depth: usize) -> Result<OwnedFd, Errno> {
        if depth > MAX_DEPTH {
            return Err(Errno::STALE);
        }
        let mut failure = Errno::STALE;
        for place in node.places() {
            let parent = match self.path_at_depth(&place.parent, depth + 1) {
                Ok(parent) => parent,
                Err(e) => {
                    failure = e;
                    continue;
                }
            };
            match self.open(parent.as_fd(), &place.name) {
                Ok(fd) if lower::stat_fd(fd.as_fd())?.key() == node.key => return Ok(fd),
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(e) => failure = e,
            }
        }
        Err(failure)
    }

    fn open(
        &self,
        parent: std::os::fd::BorrowedFd<'_>,
        name: &std::ffi::CStr,
    ) -> Result<OwnedFd, Errno> {
        self.retrying(|| lower::open_path(parent, name))
    }

    /// Runs `open`, and once more with an emptied cache if the process ran out of descriptors.
    pub(crate) fn retrying<T>(&self, open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.trim(0);
                open()
            }
            result => result,
        }
    }

    /// Counts a real descriptor, until the guard is dropped. Past half the maximum, cached
    /// descriptors make room for it.
    ///
    /// # Errors
    /// `EMFILE` at the maximum.
    pub(crate) fn hold(&self) -> Result<Held, Errno> {
        let guard = self.budget.hold()?;
        let held = self.budget.held();
        if held > self.max() / 2 {
            self.trim(self.max().saturating_sub(held + ROOT));
        }
        Ok(guard)
    }

    /// Counts a descriptor that is worth keeping but not needed: `None` once half the maximum is
    /// held.
    pub(crate) fn hold_if_cheap(&self) -> Option<Held> {
        if self.budget.held() >= self.max() / 2 { None } else { self.hold().ok() }
    }

    /// Closes cached descriptors, the longest unused first, until at most `keep` are left.
    fn trim(&self, keep: usize) {
        let mut cached = self.cached.lock();
        let mut chances = cached.len();
        while cached.len() > keep {
            let Some(weak) = cached.pop_front() else { return };
            let Some(node) = weak.upgrade() else { continue };
            if node.pinned.load(Ordering::Relaxed) {
                continue;
            }
            if chances > 0 && node.fd_used.swap(false, Ordering::Relaxed) {
                chances -= 1;
                cached.push_back(weak);
                continue;
            }
            // try_lock: whoever holds it is using the descriptor right now.
            if let Some(mut slot) = node.fd.try_lock() {
                *slot = None;
            } else {
                cached.push_back(weak);
                if chances == 0 {
                    return;
                }
                chances -= 1;
            }
        }
    }
}

impl std::fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descriptors").field("budget", &self.budget).finish_non_exhaustive()
    }
}
