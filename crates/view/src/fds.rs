//! Descriptors on lower inodes, within a stated maximum.
//!
//! A descriptor for every inode that the kernel remembers does not scale: a kernel source tree has
//! more files than a process may have descriptors. Here a node is found again by parent and name,
//! component by component, and the inode that is found is compared with the one that was meant.
//! What stays open:
//!
//! | descriptor | how many | at the maximum |
//! |---|---|---|
//! | of directories (`O_PATH`, or what they were listed with) and of files that are open | half of the maximum | the longest unused is closed, and reopened by name when needed |
//! | `O_PATH` of inodes whose last name is gone | what the kernel still refers to | `EMFILE` for the unlink's later users |
//! | real descriptors: user-space handles, directory handles, locks | the rest, in [shares](crate::shares) | `EMFILE`, `ENOLCK` |
//!
//! A file served by passthrough costs none: the kernel holds its own reference to the backing file.
//! Where somebody else registers the files, one that is open to be written costs one (see
//! [`crate::writers`]), as long as less than half of the maximum is held; beyond it such a file is
//! opened when it is needed.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::budget::{Budget, Held};
use crate::lower::{self, Stat, path_of};
use crate::shares::ShareStatus;
use crate::table::{Node, Place, Places};

/// Deeper paths than this are taken for a loop (trees moved about behind our back). The policy knows
/// paths of at most half as many components.
const MAX_DEPTH: usize = 1 << 16;
/// The descriptor of the root, which is always open.
const ROOT: usize = 1;
/// What /proc appends to the path of an inode without a name.
const DELETED: &[u8] = b" (deleted)";

/// Finds lower inodes again and keeps descriptors for the busy ones.
pub(crate) struct Descriptors {
    root: Arc<OwnedFd>,
    /// DIR lies on an overlay: a file has other numbers after its first change.
    on_overlay: bool,
    /// What handles hold; the cache may have half of the rest.
    budget: Budget,
    /// Nodes whose descriptor may be closed, oldest first.
    cached: Mutex<VecDeque<Weak<Node>>>,
    /// Where DIR was when its path was asked for; empty before that.
    root_path: RwLock<Vec<u8>>,
}

impl Descriptors {
    pub(crate) fn new(root: OwnedFd, on_overlay: bool, budget: Budget) -> Self {
        let root_path = RwLock::default();
        let root = Arc::new(root);
        Self { root, on_overlay, budget, cached: Mutex::default(), root_path }
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
        if let Some(fd) = self.kept(node) {
            return Ok(fd);
        }
        if node.is_dir() {
            return self.dir(node);
        }
        let found = Arc::new(self.find(node)?.0);
        // Not the one that is kept, if any: it was no use.
        self.keep(node, Arc::clone(&found));
        Ok(found)
    }

    /// The same for one use, without leaving it in the cache: for files that are asked about once.
    pub(crate) fn path_once(&self, node: &Arc<Node>) -> Result<Arc<OwnedFd>, Errno> {
        // Not in a match on the guard: `find` takes the parents' locks.
        let kept = self.kept(node);
        kept.map_or_else(|| self.find(node).map(|(fd, _)| Arc::new(fd)), Ok)
    }

    /// The same with attributes, which had to be looked at to know it again.
    pub(crate) fn path_and_stat(&self, node: &Arc<Node>) -> Result<(Arc<OwnedFd>, Stat), Errno> {
        match self.kept(node) {
            Some(fd) => {
                let stat = lower::stat_fd(fd.as_fd())?;
                Ok((fd, stat))
            }
            None => self.find(node).map(|(fd, stat)| (Arc::new(fd), stat)),
        }
    }

    /// Keeps `fd` for `node`, whose last name is about to go or which never had one.
    pub(crate) fn pin(node: &Node, fd: Arc<OwnedFd>) {
        let mut slot = node.fd.lock();
        // With the slot locked: who takes a descriptor out of it looks at this afterwards.
        node.pinned.store(true, Ordering::Relaxed);
        slot.get_or_insert(fd);
    }

    fn kept(&self, node: &Node) -> Option<Arc<OwnedFd>> {
        if node.is_root() {
            return Some(Arc::clone(&self.root));
        }
        let kept = node.fd.lock().clone()?;
        if node.has_further_names() && self.has_left(kept.as_fd()) {
            return None;
        }
        node.fd_used.store(true, Ordering::Relaxed);
        Some(kept)
    }

    /// Whether `fd` names an inode by a path outside of DIR; `false` where the kernel does not say.
    fn has_left(&self, fd: BorrowedFd<'_>) -> bool {
        let (Some(root), Some(here)) = (path_of(self.root.as_fd()), path_of(fd)) else {
            return false;
        };
        below(&root, &here).is_none()
    }

    /// Whether the inode that `fd` names is at one of `paths`, relative to DIR, by the name that it was opened by;
    /// `None` where the kernel does not say, or that name is gone.
    pub(crate) fn is_shown_at(&self, fd: BorrowedFd<'_>, paths: &[Vec<u8>]) -> Option<bool> {
        // Also the end of a name may be so.
        let has_name = |path: &Vec<u8>| !path.ends_with(DELETED);
        let here = path_of(fd).filter(has_name)?;
        let is_one = |root: &[u8]| {
            let path = below(root, &here);
            path.is_some_and(|path| paths.iter().any(|known| known == path))
        };
        let known = self.root_path.read();
        if !known.is_empty() && is_one(&known) {
            return Some(true);
        }
        drop(known);
        // Others may have moved DIR.
        let root = path_of(self.root.as_fd()).filter(has_name)?;
        let is_one = is_one(&root);
        *self.root_path.write() = root;
        Some(is_one)
    }

    /// Whether the descriptor that is kept of `node`, a file with further names, names it by a path
    /// outside of DIR, where this process may not open it.
    pub(crate) fn is_out_of_reach(&self, node: &Node) -> bool {
        if !node.has_further_names() {
            return false;
        }
        let kept = node.fd.lock().clone();
        kept.is_some_and(|fd| {
            self.has_left(fd.as_fd())
                && self.retrying(|| lower::reopen_once(fd.as_fd())).err() == Some(Errno::ACCESS)
        })
    }

    /// Leaves `fd` in the cache, unless the node has one by now; returns the one that is there.
    fn keep(&self, node: &Arc<Node>, fd: Arc<OwnedFd>) -> Arc<OwnedFd> {
        let is_listed = {
            let mut slot = node.fd.lock();
            if let Some(known) = &*slot {
                return Arc::clone(known);
            }
            *slot = Some(Arc::clone(&fd));
            // Where another one was dropped otherwise, the node is still in the list.
            node.fd_listed.swap(true, Ordering::Relaxed)
        };
        if !is_listed {
            self.cached.lock().push_back(Arc::downgrade(node));
        }
        self.trim(self.max() / 2 - ROOT);
        fd
    }

    /// A descriptor of directory `node` to list it with, at its beginning and for this caller alone.
    /// If none is kept of the node, this one is: what is listed is used next.
    ///
    /// # Errors
    /// `ENOTDIR`; `ESTALE` when the directory is not, or no longer, where it is known to be.
    pub(crate) fn listable(&self, node: &Arc<Node>) -> Result<Arc<OwnedFd>, Errno> {
        if !node.is_dir() {
            return Err(Errno::NOTDIR);
        }
        if let Some(kept) = self.kept(node) {
            return self.retrying(|| lower::open_dir(kept.as_fd(), c".")).map(Arc::new);
        }
        let place = node.place().ok_or(Errno::STALE)?;
        let parent = self.path(&place.parent)?;
        let fd = match self.retrying(|| lower::open_dir(parent.as_fd(), &place.name)) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(Errno::STALE),
            fd => Arc::new(fd?),
        };
        if !node.is(&lower::stat_fd(fd.as_fd())?.key()) {
            return Err(Errno::STALE);
        }
        // Whoever came first keeps theirs.
        let _kept = self.keep(node, Arc::clone(&fd));
        Ok(fd)
    }

    /// Climbs from directory `node` to one whose descriptor is kept, and walks back down. Not by
    /// recursion: callers decide how deep a tree is.
    fn dir(&self, node: &Arc<Node>) -> Result<Arc<OwnedFd>, Errno> {
        let (mut climbed, mut here) = (SmallVec::<[_; 4]>::new(), Arc::clone(node));
        let mut fd = loop {
            if let Some(fd) = self.kept(&here) {
                break fd;
            }
            if climbed.len() >= MAX_DEPTH {
                return Err(Errno::STALE);
            }
            let place = here.place().ok_or(Errno::STALE)?;
            climbed.push((here, place.name));
            here = place.parent;
        };
        while let Some((node, name)) = climbed.pop() {
            let (found, _) = self.open_node(fd.as_fd(), &name, &node)?;
            fd = self.keep(&node, Arc::new(found));
        }
        Ok(fd)
    }

    /// Walks to the file `node` by the names it is known under.
    ///
    /// # Errors
    /// `ESTALE` when none of them leads to it.
    pub(crate) fn find(&self, node: &Arc<Node>) -> Result<(OwnedFd, Stat), Errno> {
        let places = node.places();
        let by = |place: &Place| {
            let parent = self.path(&place.parent)?;
            self.open_node(parent.as_fd(), &place.name, node)
        };
        if let [place] = &places[..] {
            return by(place);
        }
        // The descriptor that is kept of a directory goes with it wherever others move it. What is
        // found through one that left DIR can be named, but a server that shut itself in may not open
        // it: such places come last.
        let (mut failure, mut moved) = (Errno::STALE, Places::new());
        for place in places {
            if !self.is_where_it_was(&place.parent) {
                moved.push(place);
                continue;
            }
            match by(&place) {
                Ok(found) => return Ok(found),
                Err(e) => failure = e,
            }
        }
        moved.iter().map(by).find(Result::is_ok).unwrap_or(Err(failure))
    }

    /// Whether the names by which `node`, a directory or a file with one, is known still lead to it,
    /// from the root on.
    pub(crate) fn is_where_it_was(&self, node: &Arc<Node>) -> bool {
        let mut here = Arc::clone(node);
        for _ in 0..MAX_DEPTH {
            if here.is_root() {
                return true;
            }
            let Some(Place { parent, name }) = here.place() else { return false };
            let Ok(fd) = self.path(&parent) else { return false };
            if !lower::stat_at(fd.as_fd(), &name).is_ok_and(|stat| self.is_of(&here, &stat)) {
                return false;
            }
            here = parent;
        }
        false
    }

    /// Opens `name` in `parent`.
    ///
    /// # Errors
    /// `ESTALE` if it is not, or no longer, the name of `node`.
    fn open_node(
        &self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        node: &Node,
    ) -> Result<(OwnedFd, Stat), Errno> {
        let fd = match self.retrying(|| lower::open_path(parent, name)) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(Errno::STALE),
            fd => fd?,
        };
        let stat = lower::stat_fd(fd.as_fd())?;
        if self.is_of(node, &stat) { Ok((fd, stat)) } else { Err(Errno::STALE) }
    }

    /// Whether `stat`, found by a name, is of the inode of `node`. If the numbers of that have changed, its
    /// descriptor tells.
    pub(crate) fn is_of(&self, node: &Node, stat: &Stat) -> bool {
        let key = stat.key();
        let is_copied = || {
            let kept = node.fd.lock().clone();
            kept.is_some_and(|fd| lower::stat_fd(fd.as_fd()).is_ok_and(|now| now.key() == key))
        };
        node.is(&key) || self.on_overlay && is_copied()
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

    /// Counts a real descriptor of user `uid`, until the guard is dropped. Past half the maximum,
    /// cached descriptors make room for it.
    ///
    /// # Errors
    /// `EMFILE` at the user's share.
    pub(crate) fn hold(&self, uid: u32) -> Result<Held, Errno> {
        Ok(self.make_room(self.budget.hold(uid)?))
    }

    /// The same for a lock.
    ///
    /// # Errors
    /// `ENOLCK` at the user's share.
    pub(crate) fn hold_for_lock(&self, uid: u32) -> Result<Held, Errno> {
        Ok(self.make_room(self.budget.hold_for_lock(uid)?))
    }

    /// How much users hold.
    pub(crate) fn shares(&self) -> [ShareStatus; 2] {
        self.budget.status()
    }

    fn make_room(&self, guard: Held) -> Held {
        let held = self.budget.held();
        if held > self.max() / 2 {
            self.trim(self.max().saturating_sub(held + ROOT));
        }
        guard
    }

    /// Counts a descriptor that is worth keeping but not needed: `None` once half the maximum is
    /// held.
    pub(crate) fn hold_if_cheap(&self) -> Option<Held> {
        self.budget.hold_if_cheap()
    }

    /// Closes cached descriptors, the longest unused first, until at most `keep` are left.
    fn trim(&self, keep: usize) {
        let mut cached = self.cached.lock();
        let mut chances = cached.len();
        while cached.len() > keep {
            let Some(weak) = cached.pop_front() else { return };
            let Some(node) = weak.upgrade() else { continue };
            if node.pinned.load(Ordering::Relaxed) {
                // It has a descriptor, so that nobody is about to leave one in the cache.
                node.fd_listed.store(false, Ordering::Relaxed);
                continue;
            }
            if chances > 0 && node.fd_used.swap(false, Ordering::Relaxed) {
                chances -= 1;
                cached.push_back(weak);
                continue;
            }
            // try_lock: whoever holds one is using the descriptor right now.
            if let (Some(io), Some(mut slot)) = (node.io.try_lock(), node.fd.try_lock()) {
                node.fd_listed.store(false, Ordering::Relaxed);
                // For who has it open it is kept, and counted, until that ends.
                if !io.keeps() && !node.pinned.load(Ordering::Relaxed) {
                    *slot = None;
                }
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

/// What follows `root` in `path`, without the slash between them.
fn below<'p>(root: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let root = if root == b"/" { b"" } else { root };
    path.strip_prefix(root)?.strip_prefix(b"/")
}
