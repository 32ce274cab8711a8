//! Directories and open files that others moved behind the view.
//!
//! Whoever stands in a directory, or has a file open, keeps it when somebody renames it, or a
//! directory above it, directly in the lower file system. It would go on being judged by its old
//! place until its new name is looked up. So the kernel is asked from time to time what the path of
//! its descriptor is, which is one system call; if it is another than the one it is judged by, the
//! inode is lost: requests about it return `ESTALE`, and a lookup finds it at its new place.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;

use crate::lower::path_of;
use crate::table::Node;
use crate::view::View;

impl View {
    /// Compares where `node` is with where it is known to be, at most once in the time that
    /// attributes may be cached.
    ///
    /// # Errors
    /// `ESTALE` if it was moved behind the view.
    pub(crate) fn settle_place(&self, node: &Arc<Node>) -> Result<(), Errno> {
        if !self.admission.policy().tells_names_apart() || node.is_root() || !self.is_due(node) {
            return Ok(());
        }
        self.settle_place_now(node)
    }

    /// The same at once, whatever the policy.
    ///
    /// # Errors
    /// `ESTALE` if it was moved behind the view.
    pub(crate) fn settle_place_now(&self, node: &Arc<Node>) -> Result<(), Errno> {
        if node.is_root() {
            return Ok(());
        }
        let Some(fd) = self.fd_to_locate(node) else { return Ok(()) };
        let Ok(known) = self.paths.of(node) else { return Ok(()) };
        if known.len() > 1 || node.place().is_none() {
            // Further names are looked after by `links/`; without a name the last decision stays.
            return Ok(());
        }
        if !self.is_elsewhere(node, fd.as_fd(), &known) {
            return Ok(());
        }
        // A rename of the view itself may be under way.
        let _still = self.names.write();
        let known = self.paths.of(node)?;
        if !self.is_elsewhere(node, fd.as_fd(), &known) {
            return Ok(());
        }
        let left = node.place();
        node.lost();
        self.directory_left(node, left.as_ref());
        Err(Errno::STALE)
    }

    /// Whether `node`, which `fd` names, is not at the path that is `known` of it.
    fn is_elsewhere(&self, node: &Arc<Node>, fd: BorrowedFd<'_>, known: &[Vec<u8>]) -> bool {
        match self.fds.is_shown_at(fd, known) {
            Some(is_there) => !is_there,
            // A longer path than the kernel tells (`PATH_MAX`) is walked. One without a name keeps the
            // last decision.
            None => path_of(fd).is_none() && !self.fds.is_where_it_was(node),
        }
    }

    fn is_due(&self, node: &Node) -> bool {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1);
        let now = milliseconds(self.clock.elapsed()) + 1;
        let timeout = milliseconds(self.attr_timeout.min(Duration::from_secs(1)));
        let last = node.located.load(Ordering::Relaxed);
        if last != 0 && now.saturating_sub(last) < timeout {
            return false;
        }
        node.located.store(now, Ordering::Relaxed);
        // The first time it has just been found by name.
        last != 0 || timeout == 0
    }

    /// A file that is not open is found by its name each time.
    fn fd_to_locate(&self, node: &Arc<Node>) -> Option<Arc<std::os::fd::OwnedFd>> {
        if node.is_dir() {
            return self.fds.path(node).ok();
        }
        node.fd.lock().clone()
    }
}
