//! Making, removing and moving names.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, Mode, RenameFlags};
use rustix::io::Errno;
use tollgate_fuse::{Entry, Name, NodeId, Request};
use tollgate_policy::{HEAD_LEN, InodeFacts, Kind, Operation};

use super::linked::MAX_LOOKS;
use super::stricter::is_open_freely;
use super::subtree::Beneath;
use crate::admission::{Refusal, Subject};
use crate::audit::Detail;
use crate::fds::Descriptors;
use crate::idle::retire_now;
use crate::links::Change;
use crate::lower::{self, ProcPath, Stat};
use crate::moving::Turn;
use crate::ops::record::At;
use crate::paths::KnownPaths;
use crate::stats::Count;
use crate::table::{Node, Table};
use crate::view::View;

/// A name in a directory, with the directory's descriptor.
struct Spot<'a> {
    dir: Arc<Node>,
    fd: Arc<OwnedFd>,
    name: Name<'a>,
}

/// A name that exists, and what it leads to.
#[derive(Clone, Copy)]
struct Existing<'a> {
    spot: &'a Spot<'a>,
    node: Option<&'a Arc<Node>>,
    stat: &'a Stat,
}

impl Spot<'_> {
    /// For a walk over what lies below it.
    fn below(&self) -> Beneath<'_> {
        (self.fd.as_fd(), self.name.as_c_str())
    }

    /// For the audit log.
    fn at(&self) -> At<'_> {
        (&self.dir, self.name)
    }

    /// The node of what was found there.
    fn node_of(&self, table: &Table, stat: &Stat) -> Option<Arc<Node>> {
        table.find_at(&stat.key(), &self.dir, self.name)
    }

    fn stat(&self) -> Result<Stat, Errno> {
        lower::stat_at(self.fd.as_fd(), self.name.as_c_str())
    }

    /// The first bytes of what is there.
    fn head(&self) -> Result<Option<Vec<u8>>, Errno> {
        let fd = lower::open_path(self.fd.as_fd(), self.name.as_c_str())?;
        lower::read_head(fd.as_fd(), HEAD_LEN)
    }

    fn stat_if_there(&self) -> Result<Option<Stat>, Errno> {
        match self.stat() {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// What came of a request to rename.
pub(super) enum Renamed {
    Done,
    /// This file has to be closed before.
    AfterClose(Arc<Node>),
}

impl View {
    fn spot<'a>(&self, parent: NodeId, name: Name<'a>) -> Result<Spot<'a>, Errno> {
        let dir = self.node(parent)?;
        let fd = self.fds.path(&dir)?;
        self.settle_place(&dir)?;
        Ok(Spot { dir, fd, name })
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
        if !self.admission.is_trivial() {
            let path = self.paths.of_child(&spot.dir, name)?;
            let subject = self.admission.new_name(path, kind.as_raw_mode());
            self.permit_subject(req, &subject, [Operation::Create], what)?;
        }
        let made = self.make(req, umask, || make(spot.fd.as_fd(), name.as_c_str()));
        if made == Err(Errno::EXIST) {
            self.refuse_hidden(req, (&spot.dir, spot.fd.as_fd()), name, what)?;
        }
        made.map_err(|errno| self.failed_name(req, what, spot.at(), None, errno))?;
        let around = spot.dir.watched.level();
        let stat = spot.stat()?;
        let (node, _) = self.remember(&stat, &spot.dir, name);
        self.record_name(req, what, spot.at(), None, Ok(Some(&node)));
        Ok(self.entry(around, &node, &stat))
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
        let at = Existing { spot: &spot, node: node.as_ref(), stat: &stat };
        self.permit_at(req, &at, Operation::Write, what, Turn::Free)?;
        if directory {
            self.admit_no_mount(req, &spot, what)?;
        }
        let last = self.before_last_name(&spot, node.as_ref(), &stat)?;
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let remove = || rustix::fs::unlinkat(spot.fd.as_fd(), name.as_c_str(), flags);
        let removed = self.powers.as_caller(req.caller(), remove);
        last.settle(removed.is_ok());
        removed.map_err(|errno| self.failed_name(req, what, spot.at(), None, errno))?;
        self.record_name(req, what, spot.at(), None, Ok(node.as_ref()));
        if let Some(node) = &node {
            node.gone_from(&spot.dir, name);
            self.twins.iter().for_each(|twins| twins.left(spot.dir.id, name));
        }
        if self.has_names_to_find(&stat) {
            self.name_removed(&stat, &self.paths.of_child(&spot.dir, name)?);
        }
        Ok(())
    }

    /// Asks the policy about a name that exists, and about every other name of its inode.
    fn permit_at(
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
    fn subject_at(&self, at: &Existing<'_>, turn: Turn) -> Result<Subject<'_>, Errno> {
        let Existing { spot, node, stat } = *at;
        if let (Some(node), Turn::Free) = (node, turn) {
            self.settle_names(node, stat);
        }
        let names = self.all_names(self.paths_at(at)?, stat, Some(&spot.dir), turn);
        self.admission.subject(names, stat, None, || spot.head())
    }

    fn paths_at(&self, at: &Existing<'_>) -> Result<KnownPaths, Errno> {
        let here = self.paths.of_child(&at.spot.dir, at.spot.name)?;
        let mut others = at.node.map(|node| self.paths.of(node)).transpose()?.unwrap_or_default();
        others.retain(|path| *path != here);
        Ok(std::iter::once(here).chain(others).collect())
    }

    /// Has all names of a file known before a lock of [`View::names`] is taken.
    fn prepare_at(&self, at: &Existing<'_>) -> Result<(), Errno> {
        if let Some(node) = at.node {
            self.settle_names(node, at.stat);
        }
        if self.has_names_to_find(at.stat) {
            self.prepare_names(self.paths_at(at)?, at.stat, &at.spot.dir);
        }
        Ok(())
    }

    /// The name at `spot` is about to go. If it is the inode's last one and the kernel remembers
    /// the inode, whoever still has it open, or stands in it, needs a way to it that is no name.
    fn before_last_name<'n>(
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
        let kept = node.fd.lock().clone();
        // Nobody has it open: the registration would only keep the file's space.
        retire_now(node);
        let fd = match kept {
            Some(fd) => fd,
            None => Arc::new(
                self.fds.retrying(|| lower::open_path(spot.fd.as_fd(), spot.name.as_c_str()))?,
            ),
        };
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
        // An inode whose last name is gone is judged by that, and none is to be kept of it.
        let known = if node.place().is_some() { self.paths.of(&node)? } else { KnownPaths::new() };
        if !self.admission.is_trivial() {
            self.admit_link(req, (&node, &before), &spot, looked)?;
        }
        let moving = self.names.begin();
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
        known.unpin();
        Ok(self.entry(around, &known, &stat))
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

    /// Renames, unless a file has to be closed before and `may_wait` says that there is time for it.
    pub(super) fn do_rename(
        &self,
        req: &Request<'_>,
        (parent, name): (NodeId, Name<'_>),
        (new_parent, new_name): (NodeId, Name<'_>),
        flags: u32,
        may_wait: bool,
    ) -> Result<Renamed, Errno> {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL);
        }
        let (from, to) = (self.spot(parent, name)?, self.spot(new_parent, new_name)?);
        let mut looks = 0;
        let (stat, target, moves_dir, looked, _turn) = loop {
            looks += 1;
            let (mut stat, mut target) = (from.stat()?, to.stat_if_there()?);
            let moves_dir = [Some(&stat), target.as_ref()]
                .into_iter()
                .flatten()
                .any(|s| s.file_type() == FileType::Directory);
            let node = from.node_of(&self.table, &stat);
            let victim = target.as_ref().and_then(|t| to.node_of(&self.table, t));
            let looked = Instant::now();
            self.prepare_at(&Existing { spot: &from, node: node.as_ref(), stat: &stat })?;
            if let Some(target) = &target {
                self.prepare_at(&Existing { spot: &to, node: victim.as_ref(), stat: target })?;
            }
            if may_wait && let Some(open) = self.open_too_freely(&from, &to, &stat) {
                return Ok(Renamed::AfterClose(open));
            }
            let turn = if moves_dir {
                (None, Some(self.names.write()))
            } else {
                (Some(self.names.read()), None)
            };
            let mut is_as_it_was =
                self.is_as_it_was(&mut stat, || from.stat().map(Some), looked)?;
            if let Some(target) = &mut target {
                is_as_it_was &= self.is_as_it_was(target, || to.stat_if_there(), looked)?;
            }
            if is_as_it_was || looks == MAX_LOOKS {
                break (stat, target, moves_dir, looked, turn);
            }
        };
        let moving = self.names.begin();
        let node = from.node_of(&self.table, &stat);
        let victim = target.as_ref().and_then(|t| to.node_of(&self.table, t));
        let source = Existing { spot: &from, node: node.as_ref(), stat: &stat };
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if !self.admission.is_trivial() {
            self.admit_rename(req, &source, &to, looked)?;
            if let Some(target) = &target {
                let over = Existing { spot: &to, node: victim.as_ref(), stat: target };
                self.permit_at(req, &over, Operation::Write, "rename", Turn::Held(looked))?;
                if exchange {
                    self.admit_rename(req, &over, &from, looked)?;
                }
            }
        }
        if moves_dir {
            self.admit_no_mount(req, &from, "rename")?;
            self.admit_no_mount(req, &to, "rename")?;
        }
        let last = match &target {
            Some(target) if !exchange && target.key() != stat.key() => {
                self.before_last_name(&to, victim.as_ref(), target)?
            }
            _ => LastName(None),
        };
        let copying = [node.as_ref(), victim.as_ref().filter(|_| exchange)]
            .map(|moved| moved.and_then(|moved| self.copying(moved)));
        let (old, new) = (name.as_c_str(), new_name.as_c_str());
        let renamed = self.powers.as_caller(req.caller(), || {
            rustix::fs::renameat_with(from.fd.as_fd(), old, to.fd.as_fd(), new, flags)
        });
        drop(copying);
        last.settle(renamed.is_ok());
        renamed
            .map_err(|errno| self.failed_name(req, "rename", from.at(), Some(to.at()), errno))?;
        self.note_names(&from, &to, &stat, target.as_ref(), exchange)?;
        self.note_rename(&from, &to, node.as_ref(), victim.as_ref(), exchange);
        drop(moving);
        if moves_dir {
            self.paths.directory_moved();
            // Names below it may be hidden now, or no longer.
            if let Some(watch) = self.watch.as_ref().filter(|_| self.admission.policy().can_hide())
            {
                let victim = exchange.then_some(victim.as_ref());
                watch.moved([Some(node.as_ref()), victim].into_iter().flatten());
            }
        }
        if node.as_ref().is_some_and(|node| node.io.lock().is_open()) {
            self.written_in(&to.dir);
        }
        self.record_name(req, "rename", from.at(), Some(to.at()), Ok(node.as_ref()));
        if exchange {
            self.record_name(req, "rename", to.at(), Some(from.at()), Ok(victim.as_ref()));
        }
        Ok(Renamed::Done)
    }

    /// Refuses to move or remove a directory that something is mounted on, or below. The kernel
    /// does so for the mount point itself, where it sees the mount; a directory above it would
    /// take the mount along to a name that other rules may cover.
    fn admit_no_mount(
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

    /// The file at `from`, if it is open in a laxer mode than it would have at `to`. One that its
    /// caller has just closed may still count as open here.
    fn open_too_freely(&self, from: &Spot<'_>, to: &Spot<'_>, stat: &Stat) -> Option<Arc<Node>> {
        if self.admission.is_trivial() || stat.file_type() != FileType::RegularFile {
            return None;
        }
        let node = from.node_of(&self.table, stat).filter(|node| is_open_freely(node))?;
        let path = |spot: &Spot<'_>| self.paths.of_child(&spot.dir, spot.name);
        let (old, new) = (path(from).ok()?, path(to).ok()?);
        let facts = InodeFacts { kind: Kind::File, size: stat.size(), head: None };
        let mode = |path: &[u8]| self.admission.policy().at(path).mode(&facts).0;
        let is_stricter = mode(&new) > mode(&old) && mode(&new) >= tollgate_policy::Mode::Userspace;
        is_stricter.then_some(node)
    }

    /// Brings what is kept of files with several names up to date after a rename.
    fn note_names(
        &self,
        from: &Spot<'_>,
        to: &Spot<'_>,
        stat: &Stat,
        target: Option<&Stat>,
        exchange: bool,
    ) -> Result<(), Errno> {
        if !self.admission.tells_names_apart() {
            return Ok(());
        }
        let path = |spot: &Spot<'_>| self.paths.of_child(&spot.dir, spot.name);
        let (old, new) = (path(from)?, path(to)?);
        let is_dir = |stat: &Stat| stat.file_type() == FileType::Directory;
        if is_dir(stat) || target.is_some_and(is_dir) {
            let moved = |path: &[u8], from: &[u8], to: &[u8]| {
                let rest = path.strip_prefix(from).filter(|rest| rest.starts_with(b"/"))?;
                Some([to, rest].concat())
            };
            self.links.directory_moved(&|path| {
                let back = || moved(path, &new, &old).filter(|_| exchange);
                moved(path, &old, &new).or_else(back)
            });
        }
        let same = target.is_some_and(|target| target.key() == stat.key());
        if same && !exchange {
            return Ok(());
        }
        let there = |spot: &Spot<'_>| spot.stat().ok();
        let change = |removed, made| Change {
            removed: Some(removed),
            made: Some(made),
            ..Change::default()
        };
        if !same {
            self.names_changed(stat, &change(&old, &new), there(to).as_ref());
        }
        match target {
            Some(target) if exchange && !same => {
                self.names_changed(target, &change(&new, &old), there(from).as_ref());
            }
            Some(target) if !exchange => self.name_removed(target, &new),
            _ => {}
        }
        Ok(())
    }

    /// Brings the known names up to date after a rename.
    fn note_rename(
        &self,
        from: &Spot<'_>,
        to: &Spot<'_>,
        node: Option<&Arc<Node>>,
        victim: Option<&Arc<Node>>,
        exchange: bool,
    ) {
        let same = node.zip(victim).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        // Two names of one inode: rename(2) leaves both.
        if same && !exchange {
            return;
        }
        if let Some(victim) = victim {
            victim.gone_from(&to.dir, to.name);
            if exchange {
                victim.now_at(&from.dir, from.name);
            }
        }
        if let Some(node) = node {
            node.gone_from(&from.dir, from.name);
            node.now_at(&to.dir, to.name);
        }
        let Some(twins) = &self.twins else { return };
        twins.left(from.dir.id, from.name);
        if let Some(node) = node {
            self.met(twins, &to.dir, to.name, node);
        }
        if let Some(victim) = victim.filter(|_| exchange) {
            self.met(twins, &from.dir, from.name, victim);
        }
    }

    /// May the inode at `from` take the name `to`? A weaker decision is `EXDEV`, so that `mv`
    /// copies through the view, where each byte is judged again; unless it could not remove all that
    /// it copied, and would leave two halves.
    fn admit_rename(
        &self,
        req: &Request<'_>,
        at: &Existing<'_>,
        to: &Spot<'_>,
        looked: Instant,
    ) -> Result<(), Errno> {
        let Existing { spot: from, node, stat } = *at;
        let subject = self.subject_at(at, Turn::Held(looked))?;
        let target = subject.moved_to(self.paths.of_child(&to.dir, to.name)?, || from.head())?;
        let (old, moved) = (subject.path(), Detail::To(target.path()));
        self.permit_detailed(req, &subject, [Operation::Write], ("rename", old, moved))?;
        self.permit_detailed(req, &target, [Operation::Create], ("rename", old, moved))?;
        if let Some(node) = node {
            self.must_not_part(req, node, &subject, "rename")?;
        }
        let is_dir = stat.file_type() == FileType::Directory;
        if is_dir && let Some(refusal) = self.made_below(req, from.below(), old, target.path())? {
            return Err(self.refused(req, refusal, "rename", old, moved));
        }
        let weaker = subject.first_name_weakens_to(&target)
            || is_dir && self.subtree_weakens(from.below(), old, target.path())?
            || node.is_some_and(|node| self.is_open_more_freely(node, &subject, &target))
            || is_dir && self.subtree_is_open_more_freely(old, target.path());
        let refusal = Refusal { errno: Errno::XDEV, rule: None };
        if weaker {
            let kept = if is_dir { self.kept_below(req, from.below(), old)? } else { None };
            return Err(self.refused(req, kept.unwrap_or(refusal), "rename", old, moved));
        }
        if subject.any_name_would_weaken_to(&target) {
            self.would_refuse(req, refusal, "rename", old, moved);
        }
        Ok(())
    }
}

/// An inode that may lose its last name, pinned until the outcome is known.
struct LastName<'n>(Option<&'n Arc<Node>>);

impl LastName<'_> {
    fn settle(self, gone: bool) {
        if let (Some(node), false) = (self.0, gone) {
            node.unpin();
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
