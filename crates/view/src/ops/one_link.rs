//! Whether a file with one link has it under the name that it is judged by.
//!
//! A file is found by a name, or by a descriptor that was opened by one, and its links are counted afterwards.
//! If others remove that name in between, the link that is counted is another one, which nobody has met,
//! and whose rules may be stricter. So the name has to be there still when there is one link.
//!
//! * Links, renames and removals change a file's change time. If it is the same when the name is looked up once
//!   more, the name was there when the links were counted. That is asked once for each change time.
//! * A file that changed just now may change again without another time, so that a name which was gone may
//!   be back. Then the kernel is asked by what name a descriptor was opened: if that one is there
//!   afterwards, it was there all the time.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::lower::{self, Stat};
use crate::only_name::settled;
use crate::table::Node;
use crate::view::View;

impl View {
    /// Looks whether `node`, if it has one link, has the name that it is known by. Returns attributes that are newer than
    /// `stat`, if the file had to be found again.
    ///
    /// # Errors
    /// `ESTALE`: the kernel looks the name up again.
    pub(super) fn must_have_its_name(
        &self,
        node: &Arc<Node>,
        stat: &Stat,
    ) -> Result<Option<Stat>, Errno> {
        let is_due = stat.nlink() == 1 && !node.is_dir() && self.admission.tells_names_apart();
        let settled = settled(stat);
        if !is_due || settled.is_some_and(|at| node.only_name.was_seen(at)) {
            return Ok(None);
        }
        if let Some(at) = settled
            && self.is_unchanged_by_name(node, stat)
        {
            node.only_name.seen(at);
            return Ok(None);
        }
        // Not by a descriptor that is kept: it may have been opened by another name.
        let (fd, now) = self.fds.find(node)?;
        let paths = self.paths.of(node)?;
        let is_there = || {
            let shown = self.fds.is_shown_at(fd.as_fd(), &paths);
            shown.unwrap_or_else(|| self.is_unchanged_by_name(node, &now))
        };
        if now.nlink() > 1 || now.nlink() == 1 && is_there() {
            Ok(Some(now))
        } else {
            Err(Errno::STALE)
        }
    }

    /// Whether a name leads to `node`, to which nothing happened since `before`.
    fn is_unchanged_by_name(&self, node: &Node, before: &Stat) -> bool {
        node.places().iter().any(|place| {
            let dir = self.fds.path(&place.parent);
            let now = dir.and_then(|dir| lower::stat_at(dir.as_fd(), &place.name));
            now.is_ok_and(|now| self.fds.is_of(node, &now) && now.changed() == before.changed())
        })
    }
}
