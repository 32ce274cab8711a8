//! A name of a file with several, where the lower file system shows one inode number for inodes that
//! differ ([`crate::twins`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_fuse::{Name, Request};
use tollgate_policy::HEAD_LEN;

use crate::admission::{Refusal, Subject};
use crate::audit::Detail;
use crate::lower::{self, Stat};
use crate::table::Node;
use crate::twins::Twins;
use crate::view::View;

impl View {
    /// Whether what `name` in `dir`, whose descriptor is `fd`, leads to is another inode than those which
    /// are known by its key.
    pub(super) fn stands_apart(
        &self,
        twins: &Twins,
        (dir, fd): (&Arc<Node>, BorrowedFd<'_>),
        name: Name<'_>,
        stat: &Stat,
    ) -> bool {
        let key = stat.key();
        if stat.nlink() < 2 {
            return false;
        }
        let Some(known) = self.table.find_at(&key, dir, name) else { return false };
        if known.is_at(dir, name) {
            return false;
        }
        // Of a file that is in the upper layer, all names lead to one inode.
        if self.table.has_twins(&key) {
            return true;
        }
        // What is not found by its names is not what this name leads to, or is so no more.
        let Ok(before) = self.fds.path_once(&known) else { return true };
        let Ok(here) = lower::open_path(fd, name.as_c_str()) else { return false };
        twins.are_one(before.as_fd(), here.as_fd()) == Some(false)
    }

    /// Notes that the file `node` was met at `name` in `dir`.
    pub(super) fn met(&self, twins: &Twins, dir: &Node, name: Name<'_>, node: &Node) {
        if !node.is_dir() {
            twins.met(dir.id, name, node.id, |id| self.table.get(id).is_ok());
        }
    }

    /// The file that was met at `name` in `dir`, if `stat`, of what is there now, is of it: it has another key
    /// since.
    pub(super) fn copied_by_others(
        &self,
        twins: &Twins,
        dir: &Arc<Node>,
        name: Name<'_>,
        stat: &Stat,
    ) -> Option<Arc<Node>> {
        let known = self.table.get(twins.met_at(dir.id, name)?).ok()?;
        if known.is(&stat.key()) || !known.may_be_copied() || !known.is_at(dir, name) {
            return None;
        }
        let fd = known.fd.lock().clone()?;
        let now = lower::stat_fd(fd.as_fd()).ok()?;
        (now.key() == stat.key()).then_some(known)
    }

    /// The file `node` has got the name by which `stat` was found. With layers on different file systems an
    /// overlay shows it by another number there, and even as another inode.
    pub(super) fn linked_as(&self, node: &Arc<Node>, stat: &Stat) {
        if self.twins.is_some() && stat.nlink() > 1 {
            self.table.copied(node, stat.key());
        }
    }

    /// To be held while `node` is changed: an overlay may copy it up, and show another number since.
    pub(super) fn copying<'a>(&'a self, node: &'a Arc<Node>) -> Option<Copying<'a>> {
        self.twins.as_ref().filter(|_| node.may_be_copied())?;
        let fd = self.fds.path(node).ok()?;
        Some(Copying { view: self, node, fd })
    }

    /// A change of a file by one of its names gives this name a file of its own, if they are of a lower
    /// layer. Both files have the same content, and the rules about the names of one do not cover the other
    /// any more.
    ///
    /// # Errors
    /// `EPERM` where the rules about one of its names are stricter than those about another.
    pub(super) fn must_not_part(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        subject: &Subject<'_>,
        what: &'static str,
    ) -> Result<(), Errno> {
        let Some(twins) = &self.twins else { return Ok(()) };
        if !subject.has_further_names() {
            return Ok(());
        }
        let here = self.fds.path_once(node)?;
        if lower::stat_fd(here.as_fd())?.nlink() < 2 {
            return Ok(());
        }
        let parts = |path: &[u8]| {
            let read_head = || lower::read_head(here.as_fd(), HEAD_LEN);
            let alone = subject.moved_to(path.to_vec(), read_head)?;
            Ok::<_, Errno>(subject.any_name_weakens_to(&alone))
        };
        // The names that are left are judged without this one, which may be the strictest.
        let mut weaker = subject.all_paths().is_none();
        for path in subject.all_paths().into_iter().flatten() {
            weaker |= parts(path)?;
        }
        if !weaker {
            return Ok(());
        }
        let root = self.fds.root();
        let is_it = |other: &[u8]| match lower::open_path_beneath(root.as_fd(), other) {
            Ok(there) => twins.are_one(here.as_fd(), there.as_fd()) == Some(true),
            // A name that it had does not go with it either.
            Err(_) => false,
        };
        if subject.all_paths().is_some_and(|mut all| all.all(is_it)) {
            return Ok(());
        }
        let refusal = Refusal { errno: Errno::PERM, rule: None };
        Err(self.refused(req, refusal, what, subject.path(), Detail::None))
    }
}

/// A change of a file of an overlay.
pub(super) struct Copying<'a> {
    view: &'a View,
    node: &'a Arc<Node>,
    fd: Arc<OwnedFd>,
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        if let Ok(stat) = lower::stat_fd(self.fd.as_fd()) {
            self.view.table.copied(self.node, stat.key());
        }
    }
}
