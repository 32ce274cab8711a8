//! A name of a file with several, where the lower file system shows one inode number for inodes that
//! differ ([`crate::twins`]).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;
use tollgate_fuse::{Name, Request};
use tollgate_policy::HEAD_LEN;

use crate::admission::{Refusal, Subject};
use crate::audit::Detail;
use crate::lower::{self, Stat};
use crate::table::Node;
use crate::view::View;

impl View {
    /// Whether what `name` in `dir`, whose descriptor is `fd`, leads to is another inode than those which
    /// are known by its key.
    pub(super) fn stands_apart(
        &self,
        dir: &Arc<Node>,
        fd: BorrowedFd<'_>,
        name: Name<'_>,
        stat: &Stat,
    ) -> bool {
        let Some(twins) = &self.twins else { return false };
        let key = stat.key();
        if stat.nlink() < 2 || stat.file_type() == FileType::Directory {
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

    /// A change of a file by one of its names gives this name a file of its own, if they are of a lower
    /// layer. That has the same content, and the rules about the other names do not cover it any more.
    ///
    /// # Errors
    /// `EPERM` where one of them is stricter.
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
        let path = subject.path();
        let alone = subject.moved_to(path.to_vec(), || lower::read_head(here.as_fd(), HEAD_LEN))?;
        if !subject.any_name_weakens_to(&alone) {
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
        Err(self.refused(req, refusal, what, path, Detail::None))
    }
}
