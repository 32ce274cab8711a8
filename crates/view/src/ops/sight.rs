//! A name in a directory, looked up: what it leads to, and that the inode is there.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::FileType;
use rustix::io::Errno;
use tollgate_fuse::Name;

use super::admit::HiddenBy;
use crate::borders;
use crate::lower::{self, Stat};
use crate::moving::{Moment, Turn};
use crate::table::{Node, Place, Sighting};
use crate::view::View;
use crate::watched::Level;

/// What a name leads to.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once, and most are inodes")]
pub(crate) enum Sight {
    Nothing,
    /// Something of this mode that must look as if it did not exist, by this rule.
    Hidden {
        mode: u32,
        by: HiddenBy,
    },
    /// An inode, with one lookup counted.
    Inode(Seen),
}

pub(crate) struct Seen {
    pub(crate) node: Arc<Node>,
    pub(crate) stat: Stat,
    /// How closely the directory was watched before that was looked at.
    pub(crate) around: Level,
    /// It was known by this name.
    pub(crate) known: bool,
}

/// A lookup that a rename of the view overtook, with the node that it may have put to a wrong place.
struct Overtaken(Option<Arc<Node>>);

impl View {
    /// Counts a lookup of an inode that the view itself has just made, or named, as `name` in
    /// `dir`. The kernel keeps others from moving that name until the reply.
    pub(crate) fn remember(
        &self,
        stat: &Stat,
        dir: &Arc<Node>,
        name: Name<'_>,
    ) -> (Arc<Node>, bool) {
        let (node, sighting) = self.table.remember(stat, dir, name, true);
        self.twins.iter().for_each(|twins| self.met(twins, dir, name, &node));
        match &sighting {
            Sighting::Replaced { left } => self.directory_left(&node, left.as_ref()),
            Sighting::Moved { left } if node.is_dir() => {
                self.directory_left(&node, left.as_ref());
            }
            _ => {}
        }
        self.anchor(&node, dir, name);
        (node, matches!(sighting, Sighting::Known))
    }

    /// Notes in the table of nodes what was found, and counts the lookup.
    fn noted(
        &self,
        stat: &Stat,
        (dir, fd): (&Arc<Node>, BorrowedFd<'_>),
        name: Name<'_>,
        settled: bool,
    ) -> (Arc<Node>, Sighting) {
        let Some(twins) = self.twins.as_ref().filter(|_| stat.file_type() != FileType::Directory)
        else {
            return self.table.remember(stat, dir, name, settled);
        };
        if let Some(copied) = self.copied_by_others(twins, dir, name, stat) {
            self.table.copied(&copied, stat.key());
        }
        let (node, sighting) = if self.stands_apart(twins, (dir, fd), name, stat) {
            self.table.remember_apart(stat, dir, name)
        } else {
            self.table.remember(stat, dir, name, settled)
        };
        self.met(twins, dir, name, &node);
        (node, sighting)
    }

    /// A directory is not at this place any more, where others have moved it from.
    pub(crate) fn directory_left(&self, node: &Arc<Node>, place: Option<&Place>) {
        self.paths.directory_moved();
        place.iter().for_each(|place| self.left_names.add(place));
        // Nobody tells of that where neither of its directories is watched.
        self.moved_to_other_rules([Some(node)]);
    }

    /// Names below these directories may be hidden now, or no longer: what is cached of them goes. `None` is
    /// one that the table does not have.
    pub(super) fn moved_to_other_rules<'a>(
        &self,
        dirs: impl IntoIterator<Item = Option<&'a Arc<Node>>>,
    ) {
        if let Some(watch) = self.watch.as_ref().filter(|_| self.admission.policy().can_hide()) {
            watch.moved(dirs);
        }
    }

    /// While mounts are being made: those on `node`, which is `name` in `dir`, and below stay there.
    fn anchor(&self, node: &Arc<Node>, dir: &Arc<Node>, name: Name<'_>) {
        if node.is_dir()
            && self.table.anchors().may_grow()
            && let Ok(path) = self.paths.of_child(dir, name)
        {
            self.table.anchor(node, dir, name, &path);
        }
    }

    /// The inode is met under this name, which may be a further one that others gave it.
    fn named(&self, dir: &Arc<Node>, name: Name<'_>, stat: &Stat) -> Result<(), Errno> {
        if self.has_names_to_find(stat) {
            self.links.sighted(&stat.key(), || self.paths.of_child(dir, name))?;
        }
        Ok(())
    }

    /// Looks `name` up in `dir`, whose descriptor is `fd`, and notes where the inode is.
    ///
    /// # Errors
    /// `ESTALE` also for a directory that something is mounted on, or below, if it has moved with
    /// `dir`: the kernel then lets go of it, and of the mount.
    pub(crate) fn sight(
        &self,
        dir: &Arc<Node>,
        fd: BorrowedFd<'_>,
        name: Name<'_>,
    ) -> Result<Sight, Errno> {
        self.admit_uncovered(dir)?;
        let sight = self.sight_in(dir, fd, name)?;
        if let Sight::Inode(Seen { node, .. }) = &sight {
            let settled = if node.is_anchored() { self.settle_place_now(dir) } else { Ok(()) };
            if let Err(errno) = settled.and_then(|()| self.admit_uncovered(node)) {
                self.do_forget(node.id, 1);
                return Err(errno);
            }
        }
        Ok(sight)
    }

    /// A directory that another view is mounted over is shown where that is the case, and nowhere else:
    /// the rules of the other one hold for what is in it.
    ///
    /// # Errors
    /// `EACCES` for one that others have moved from beneath the mount.
    fn admit_uncovered(&self, node: &Node) -> Result<(), Errno> {
        let may_be_seen = node.is_anchored() || !self.covered.contains(&node.key);
        if may_be_seen || self.table.anchors().may_grow() { Ok(()) } else { Err(Errno::ACCESS) }
    }

    fn sight_in(
        &self,
        dir: &Arc<Node>,
        fd: BorrowedFd<'_>,
        name: Name<'_>,
    ) -> Result<Sight, Errno> {
        let looking = Looking { view: self, dir, fd, name };
        if self.admission.is_trivial() {
            // Places serve to find inodes, not to judge them.
            return looking.look_while_still();
        }
        self.settle_place(dir)?;
        let mut suspect = None;
        if let Some(moment) = self.names.moment() {
            match looking.look(Some(&moment))? {
                Ok(found) => return Ok(found),
                Err(Overtaken(node)) => suspect = node,
            }
        }
        let still = self.names.write();
        let found = looking.look_while_still();
        if let Some(node) = suspect {
            let is_there = matches!(&found, Ok(Sight::Inode(seen)) if seen.node.id == node.id);
            if !is_there {
                node.gone_from(dir, name);
            }
            drop(still);
            self.do_forget(node.id, 1);
        }
        found
    }
}

struct Looking<'a> {
    view: &'a View,
    dir: &'a Arc<Node>,
    fd: BorrowedFd<'a>,
    name: Name<'a>,
}

impl Looking<'_> {
    /// What cannot be looked at, or is not entered, for this reason; it may be hidden all the same.
    fn unless_hidden(&self, mode: u32, errno: Errno) -> Result<Result<Sight, Overtaken>, Errno> {
        let by = self.view.hidden_by_path(self.dir, self.name, mode)?;
        by.map(|by| Ok(Sight::Hidden { mode, by })).ok_or(errno)
    }

    fn look_while_still(&self) -> Result<Sight, Errno> {
        // Without a moment nothing overtakes it.
        self.look(None)?.or(Err(Errno::STALE))
    }

    /// Looks, beginning at `moment`; without one, names cannot be moved by the view meanwhile.
    fn look(&self, moment: Option<&Moment>) -> Result<Result<Sight, Overtaken>, Errno> {
        let (view, dir, name) = (self.view, self.dir, self.name);
        let around = dir.watched.level();
        let stat = match lower::stat_at(self.fd, name.as_c_str()) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(Ok(Sight::Nothing)),
            // Such as the mount point of a server that died.
            Err(e) => return self.unless_hidden(FileType::Directory.as_raw_mode(), e),
        };
        let borders = || borders::admit(dir.key.dev(), self.fd, name.as_c_str(), &stat);
        if let Err(e) = view.admit_mount(self.fd, name, &stat).and_then(|()| borders()) {
            return self.unless_hidden(stat.mode(), e);
        }
        let turn = if moment.is_some() { Turn::Free } else { Turn::Held(Instant::now()) };
        if let Some(by) = view.hidden_by(dir, name, &stat, turn)? {
            return Ok(Ok(Sight::Hidden { mode: stat.mode(), by }));
        }
        let (node, sighting) = view.noted(&stat, (dir, self.fd), name, moment.is_none());
        if let Sighting::Replaced { left } = &sighting {
            view.directory_left(&node, left.as_ref());
        }
        // The kernel is told of nothing then, and so forgets nothing.
        let named = || view.named(dir, name, &stat).inspect_err(|_| view.do_forget(node.id, 1));
        let overtaken = || moment.is_some_and(|moment| !view.names.is_still(moment));
        match &sighting {
            Sighting::New | Sighting::Replaced { .. } if overtaken() => {
                return Ok(Err(Overtaken(Some(node))));
            }
            Sighting::Known | Sighting::Replaced { .. } => {}
            // Where it is noted decides how it is judged: not while anything moves.
            Sighting::Moved { .. } if moment.is_some() => return Ok(Err(Overtaken(Some(node)))),
            Sighting::New => named()?,
            Sighting::Moved { left } if node.is_dir() => {
                view.directory_left(&node, left.as_ref());
            }
            Sighting::Moved { .. } => named()?,
        }
        view.anchor(&node, dir, name);
        let known = matches!(sighting, Sighting::Known);
        Ok(Ok(Sight::Inode(Seen { node, stat, around, known })))
    }
}
