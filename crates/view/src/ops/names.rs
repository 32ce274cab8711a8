//! Making and removing names.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;
use tollgate_fuse::{Entry, Name, NodeId, Request};
use tollgate_policy::{HEAD_LEN, Operation};

use super::linked::MAX_LOOKS;
use super::spot::{Existing, Spot};
use crate::admission::{Refusal, Subject};
use crate::audit::Detail;
use crate::content::open::Contents;
use crate::fds::Descriptors;
use crate::idle::retire_now;
use crate::links::Change;
use crate::lower::{self, ProcPath, Stat};
use crate::making::{BeingMade, lies_in};
use crate::moving::Turn;
use crate::paths::KnownPaths;
use crate::stats::Count;
use crate::table::Node;
use crate::view::View;

impl View {
    /// A name is about to be made in `dir`, until the guard is dropped: what it is judged by is to be asked
    /// for after this. Where rules hold everywhere alike, nothing is to be done.
    pub(super) fn begin_to_make(
        &self,
        req: &Request<'_>,
        dir: &Arc<Node>,
    ) -> Option<BeingMade<'_>> {
        let tells = self.admission.policy().tells_names_apart();
        tells.then(|| self.making.begin(req.worker(), dir.id, |moved| lies_in(dir, moved)))
    }

    /// Makes a name by `make` as the caller and returns its entry.
    pub(super) fn make_entry(
        &self,
        req: &Request<'_>,
        (what, parent, name): (&'static str, NodeId, Name<'_>),
        umask: u32,
        kind: FileType,
        make: impl Fn(BorrowedFd<'_>, &CStr) -> Result<(), Errno>,
    ) -> Result<Entry, Errno> {
        self.count(req, Count::change_names);
        let spot = self.spot(parent, name)?;
        let making = self.begin_to_make(req, &spot.dir);
        if !self.admission.is_trivial() {
            let path = self.paths.of_child(&spot.dir, name)?;
            let subject = self.admission.new_name(path, kind.as_raw_mode());
            self.permit_subject(req, &subject, [Operation::Create], what)?;
        }
        let made = self.make(req, umask, || make(spot.fd.as_fd(), name.as_c_str()));
        if made == Err(Errno::EXIST) {
            // Names may have to be searched for.
            drop(making);
            self.refuse_hidden(req, (&spot.dir, spot.fd.as_fd()), name, what)?;
            return Err(self.failed_name(req, what, spot.at(), None, Errno::EXIST));
        }
        made.map_err(|errno| self.failed_name(req, what, spot.at(), None, errno))?;
        let around = spot.dir.watched.level();
        let stat = spot.stat()?;
        let (node, _) = self.remember(&stat, &spot.dir, name);
        drop(making);
        self.record_name(req, what, spot.at(), None, Ok(Some(&node)));
        Ok(self.entry(around, &node, &stat, req.caller().pid))
    }

    pub(crate) fn do_mkdir(
        &self,
        req: &Request<'_>,
        at: (NodeId, Name<'_>),
        mode: u32,
        umask: u32,
    ) -> Result<Entry, Errno> {
        let bits = Mode::from_raw_mode(mode & 0o7777);
        self.make_entry(req, ("mkdir", at.0, at.1), umask, FileType::Directory, |dir, name| {
            rustix::fs::mkdirat(dir, name, bits)
        })
    }

    pub(crate) fn do_symlink(
        &self,
        req: &Request<'_>,
        at: (NodeId, Name<'_>),
        target: &CStr,
    ) -> Result<Entry, Errno> {
        self.make_entry(req, ("symlink", at.0, at.1), 0, FileType::Symlink, |dir, name| {
            rustix::fs::symlinkat(target, dir, name)
        })
    }

    pub(crate) fn do_remove(
        &self,
        req: &Request<'_>,
        parent: NodeId,
        name: Name<'_>,
        directory: bool,
    ) -> Result<(), Errno> {
        self.count(req, Count::change_names);
        let what = if directory { "rmdir" } else { "unlink" };
        let spot = self.spot(parent, name)?;
        let stat = spot.stat()?;
        let node = spot.node_of(&self.table, &stat);
        let at = Existing::at(&spot, node.as_ref(), &stat);
        self.permit_at(req, &at, Operation::Write, what, Turn::Free)?;
        if directory {
            self.admit_no_mount(req, &spot, what)?;
        }
        let has_further_names = self.has_names_to_find(&stat);
        // Who opens it by another name does so before this one is gone, or waits until it is noted that it is.
        let turn = has_further_names.then(|| self.names.read());
        let last = self.before_last_name(&spot, node.as_ref(), &stat)?;
        self.about_to_lose_a_name(req, node.as_ref(), &stat);
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let remove = || rustix::fs::unlinkat(spot.fd.as_fd(), name.as_c_str(), flags);
        let removed = self.powers.as_caller(req.caller(), remove);
        last.settle(removed.is_ok(), &self.contents);
        removed.map_err(|errno| self.failed_name(req, what, spot.at(), None, errno))?;
        if let Some(node) = &node {
            node.gone_from(&spot.dir, name);
            self.twins.iter().for_each(|twins| twins.left(spot.dir.id, name));
        }
        if has_further_names {
            self.name_removed(&stat, &self.paths.of_child(&spot.dir, name)?);
        } else {
            self.last_name_removed(&stat);
        }
        drop(turn);
        self.record_name(req, what, spot.at(), None, Ok(node.as_ref()));
        Ok(())
    }

    /// Asks the policy about a name that exists, and about every other name of its inode.
    pub(super) fn permit_at(
        &self,
        req: &Request<'_>,
        at: &Existing<'_>,
        operation: Operation,
        what: &'static str,
        turn: Turn,
    ) -> Result<(), Errno> {
        if self.admission.is_trivial() {
            return Ok(());
        }
        let subject = self.subject_at(at, turn)?;
        self.permit_subject(req, &subject, [operation], what)
    }

    /// What the policy judges for a name that exists, its path first.
    pub(super) fn subject_at(&self, at: &Existing<'_>, turn: Turn) -> Result<Subject<'_>, Errno> {
        let Existing { spot, node, stat, .. } = *at;
        if let (Some(node), Turn::Free) = (node, turn) {
            self.settle_names(node, stat);
        }
        let names = self.all_names(self.paths_at(at)?, stat, Some(&spot.dir), turn);
        self.admission.subject(names, stat, None, || at.head())
    }

    fn paths_at(&self, at: &Existing<'_>) -> Result<KnownPaths, Errno> {
        let here = self.paths.of_child(&at.spot.dir, at.spot.name)?;
        let mut others = at.node.map(|node| self.paths.of(node)).transpose()?.unwrap_or_default();
        others.retain(|path| *path != here);
        Ok(std::iter::once(here).chain(others).collect())
    }

    /// Has all names of a file known before a lock of [`View::names`] is taken.
    pub(super) fn prepare_at(&self, at: &Existing<'_>) -> Result<(), Errno> {
        if let Some(node) = at.node {
            self.settle_names(node, at.stat);
        }
        if self.has_names_to_find(at.stat) {
            self.prepare_names(self.paths_at(at)?, at.stat, &at.spot.dir);
        }
        Ok(())
    }

    /// A name of a file with these attributes is about to go.
    pub(super) fn about_to_lose_a_name(
        &self,
        req: &Request<'_>,
        node: Option<&Arc<Node>>,
        stat: &Stat,
    ) {
        if let Some(node) = node.filter(|node| stat.nlink() > 1 && !node.is_dir()) {
            self.recent_unlinks.add(node.id, req.caller().pid);
        }
    }

    /// The name at `spot` is about to go. If it is the inode's last one and the kernel remembers
    /// the inode, whoever still has it open, or stands in it, needs a way to it that is no name.
    pub(super) fn before_last_name<'n>(
        &self,
        spot: &Spot<'_>,
        node: Option<&'n Arc<Node>>,
        stat: &Stat,
    ) -> Result<LastName<'n>, Errno> {
        let Some(node) = node else { return Ok(LastName(None)) };
        if stat.nlink() > 1 && !node.is_dir() {
            return Ok(LastName(None));
        }
        if !self.admission.is_trivial() {
            node.keep_path(self.paths.of_child(&spot.dir, spot.name)?);
        }
        self.closer.before_removal();
        let kept = node.fd.lock().clone();
        // Nobody has it open: the registration would only keep the file's space.
        retire_now(node);
        let fd = match kept {
            Some(fd) => fd,
            None => Arc::new(
                self.fds.retrying(|| lower::open_path(spot.fd.as_fd(), spot.name.as_c_str()))?,
            ),
        };
        // Others may have put another one in its place. The kernel looks the name up again.
        if !self.fds.is_of(node, &lower::stat_fd(fd.as_fd())?) {
            return Err(Errno::STALE);
        }
        Descriptors::pin(node, fd);
        Ok(LastName(Some(node)))
    }

    pub(crate) fn do_link(
        &self,
        req: &Request<'_>,
        id: NodeId,
        new_parent: NodeId,
        new_name: Name<'_>,
    ) -> Result<Entry, Errno> {
        self.count(req, Count::change_names);
        let node = self.node(id)?;
        let spot = self.spot(new_parent, new_name)?;
        // Before the lock: names may have to be searched for.
        let sealed = self.if_sealed(&node)?;
        let mut looks = 0;
        let (before, looked, names) = loop {
            looks += 1;
            let mut before = self.stat(&node)?;
            let looked = Instant::now();
            if !self.admission.is_trivial() {
                // Before the lock, too. What it is judged by has to be of the moment at which its name
                // was there: others may have removed that, and made it anew.
                let newer = self.settled_name(&node, &before)?;
                before = newer.unwrap_or(before);
                drop(self.subject_in_turn(&node, &before, Turn::Free)?);
            }
            let names = self.names.read();
            let settled = before.changed();
            let is_as_it_was =
                self.is_as_it_was(&mut before, || self.stat(&node).map(Some), looked)?;
            // The one name that it has by now may be none of those that it was met by.
            let has_its_name = before.nlink() > 1 || before.changed() == settled;
            if is_as_it_was && has_its_name || looks == MAX_LOOKS && before.nlink() > 1 {
                break (before, looked, names);
            }
            if looks == MAX_LOOKS {
                return Err(Errno::STALE);
            }
        };
        // Before it is asked whether the file is open: who opens it meanwhile judges it again.
        let moving = self.names.begin();
        // An inode whose last name is gone is judged by that, and none is to be kept of it.
        let known = if node.place().is_some() { self.paths.of(&node)? } else { KnownPaths::new() };
        if !self.admission.is_trivial() {
            self.admit_link(req, (&node, &before), &spot, looked)?;
        }
        let from = self.fds.path_once(&node)?;
        let copying = self.copying(&node);
        let linked = self.powers.as_caller(req.caller(), || link_fd(from.as_fd(), &spot));
        drop(copying);
        if linked == Err(Errno::NOENT) && is_replaced(&node, from.as_fd()) {
            // The kernel looks the name up again.
            return Err(Errno::STALE);
        }
        if linked == Err(Errno::EXIST) {
            // Names may have to be searched for.
            drop((moving, names));
            self.refuse_hidden(req, (&spot.dir, spot.fd.as_fd()), new_name, "link")?;
            self.record_link(req, &node, spot.at(), linked.err());
            return Err(Errno::EXIST);
        }
        if let (Some(held), Ok(())) = (&sealed, linked)
            && let Err(error) = self.must_lead_here(&node)
        {
            // It would be a name of a file that has none else.
            let _ = rustix::fs::unlinkat(&spot.fd, spot.name.as_c_str(), AtFlags::empty());
            drop((moving, names));
            // The kernel tries once more, when it is settled which file has the name.
            let _ = self.must_lead_here_again(&node, held);
            self.record_link(req, &node, spot.at(), Some(error));
            return Err(error);
        }
        self.record_link(req, &node, spot.at(), linked.err());
        linked?;
        let around = spot.dir.watched.level();
        let stat = spot.stat()?;
        self.linked_as(&node, &stat);
        if self.has_names_to_find(&stat) {
            let made = self.paths.of_child(&spot.dir, new_name)?;
            let change = Change { made: Some(&made), known: &known, ..Change::default() };
            self.names_changed(&before, &change, Some(&stat));
        }
        let (known, _) = self.remember(&stat, &spot.dir, new_name);
        drop((moving, names));
        // The descriptor from before it had a name does not tell where it is.
        known.unpin(|| {
            let open = || lower::open_path(spot.fd.as_fd(), new_name.as_c_str());
            let fd = self.fds.retrying(open).ok()?;
            let is_it = self.fds.is_of(&known, &lower::stat_fd(fd.as_fd()).ok()?);
            is_it.then(|| Arc::new(fd))
        });
        Ok(self.entry_of_link(around, &known, &stat))
    }

    /// A further name must not open what the inode's other names keep closed (invariant 3).
    fn admit_link(
        &self,
        req: &Request<'_>,
        (node, stat): (&Arc<Node>, &Stat),
        spot: &Spot<'_>,
        looked: Instant,
    ) -> Result<(), Errno> {
        let subject = self.subject_in_turn(node, stat, Turn::Held(looked))?;
        self.must_not_part(req, node, &subject, "link")?;
        let path = self.paths.of_child(&spot.dir, spot.name)?;
        let read_head = || lower::read_head(self.fds.path_once(node)?.as_fd(), HEAD_LEN);
        let target = subject.moved_to(path, read_head)?;
        let (old, to) = (subject.path(), Detail::To(target.path()));
        self.permit_detailed(req, &target, [Operation::Create], ("link", old, to))?;
        let refusal = Refusal { errno: Errno::PERM, rule: None };
        if subject.any_name_weakens_to(&target) {
            return Err(self.refused(req, refusal, "link", old, to));
        }
        if subject.any_name_would_weaken_to(&target) {
            self.would_refuse(req, refusal, "link", old, to);
        }
        if self.is_open_more_freely(node, &subject, &target) {
            let refusal = Refusal { errno: Errno::XDEV, rule: None };
            return Err(self.refused(req, refusal, "link", old, to));
        }
        Ok(())
    }

    /// Refuses to move or remove a directory that something is mounted on, or below. The kernel
    /// does so for the mount point itself, where it sees the mount; a directory above it would
    /// take the mount along to a name that other rules may cover.
    pub(super) fn admit_no_mount(
        &self,
        req: &Request<'_>,
        spot: &Spot<'_>,
        what: &'static str,
    ) -> Result<(), Errno> {
        let anchors = self.table.anchors();
        // The kernel moves the dentry that it has at this name, whatever is there by now: its own idea
        // of where mounts are counts. Paths alone tell until all are made.
        let mut carries = anchors.carry(spot.dir.id, spot.name);
        if !carries && self.mount_points.is_empty() && !anchors.may_grow() {
            return Ok(());
        }
        let path = self.paths.of_child(&spot.dir, spot.name)?;
        let moved = Path::new(OsStr::from_bytes(&path));
        carries |= self.mount_points.iter().any(|point| point.starts_with(moved))
            || anchors.may_grow() && anchors.may_lie_below(moved);
        if carries {
            let refusal = Refusal { errno: Errno::BUSY, rule: None };
            return Err(self.refused(req, refusal, what, &path, Detail::None));
        }
        Ok(())
    }
}

/// An inode that may lose its last name, pinned until the outcome is known.
pub(super) struct LastName<'n>(pub(super) Option<&'n Arc<Node>>);

impl LastName<'_> {
    pub(super) fn settle(self, gone: bool, contents: &Contents) {
        match self.0 {
            Some(node) if gone => contents.removed(node),
            Some(node) => node.unpin(|| None),
            None => {}
        }
    }
}

/// Whether a file that is known by a name has none any more below: another one has come in its place.
fn is_replaced(node: &Node, fd: BorrowedFd<'_>) -> bool {
    node.place().is_some() && lower::stat_fd(fd).is_ok_and(|stat| stat.nlink() == 0)
}

/// Gives what `from` names the name at `spot`. The direct form needs a capability; the other goes
/// through the descriptor's magic link, which leads to the very inode.
fn link_fd(from: BorrowedFd<'_>, spot: &Spot<'_>) -> Result<(), Errno> {
    let (dir, name) = (spot.fd.as_fd(), spot.name.as_c_str());
    match rustix::fs::linkat(from, c"", dir, name, AtFlags::EMPTY_PATH) {
        Err(Errno::NOENT | Errno::PERM) => {
            let path = ProcPath::of(from);
            rustix::fs::linkat(rustix::fs::CWD, path.as_c_str(), dir, name, AtFlags::SYMLINK_FOLLOW)
        }
        result => result,
    }
}
