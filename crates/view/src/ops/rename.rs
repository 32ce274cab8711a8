//! Moving names.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{FileType, RenameFlags};
use rustix::io::Errno;
use tollgate_fuse::{Name, NodeId, Request};
use tollgate_policy::{InodeFacts, Kind, Operation};

use super::linked::MAX_LOOKS;
use super::names::LastName;
use super::spot::{Existing, Spot};
use super::stricter::is_open_freely;
use crate::admission::Refusal;
use crate::arrivals::Came;
use crate::audit::Detail;
use crate::links::Change;
use crate::lower::Stat;
use crate::making::{HeldOff, lies_in};
use crate::moving::Turn;
use crate::table::Node;
use crate::view::View;

/// What came of a request to rename.
pub(super) enum Renamed {
    Done,
    /// This file has to be closed before.
    AfterClose(Arc<Node>),
}

impl View {
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
            self.prepare_at(&Existing::at(&from, node.as_ref(), &stat))?;
            if let Some(target) = &target {
                self.prepare_at(&Existing::at(&to, victim.as_ref(), target))?;
            }
            if may_wait && let Some(open) = self.open_too_freely(&from, &to, &stat) {
                return Ok(Renamed::AfterClose(open));
            }
            self.names.pass();
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
        let source = Existing::at(&from, node.as_ref(), &stat);
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let mut held_off = [None, None];
        if !self.admission.is_trivial() {
            held_off[0] = self.admit_rename(req, &source, &to, looked)?;
            if let Some(target) = &target {
                let over = Existing::at(&to, victim.as_ref(), target);
                self.permit_at(req, &over, Operation::Write, "rename", Turn::Held(looked))?;
                if exchange {
                    held_off[1] = self.admit_rename(req, &over, &from, looked)?;
                }
            }
        }
        if moves_dir {
            self.admit_no_mount(req, &from, "rename")?;
            self.admit_no_mount(req, &to, "rename")?;
        }
        let source = self.about_to_move(source)?;
        let over = target.as_ref().filter(|_| exchange);
        let over = over.map(|target| Existing::at(&to, victim.as_ref(), target));
        let over = over.map(|over| self.about_to_move(over)).transpose()?;
        let last = match &target {
            Some(target) if !exchange && target.key() != stat.key() => {
                self.about_to_lose_a_name(req, victim.as_ref(), target);
                self.before_last_name(&to, victim.as_ref(), target)?
            }
            _ => LastName(None),
        };
        let copying = [node.as_ref(), victim.as_ref().filter(|_| exchange)]
            .map(|moved| moved.and_then(|moved| self.copying(moved)));
        let (old, new) = (name.as_c_str(), new_name.as_c_str());
        let rename = || {
            self.powers.as_caller(req.caller(), || {
                rustix::fs::renameat_with(from.fd.as_fd(), old, to.fd.as_fd(), new, flags)
            })
        };
        // A directory that changes its rules.
        let is_watched = held_off.iter().any(Option::is_some);
        let (renamed, came) = match is_watched {
            true => self.arrivals.over(from.below(), to.below(), rename),
            false => (rename(), Came::default()),
        };
        drop(copying);
        last.settle(renamed.is_ok(), &self.contents);
        renamed
            .map_err(|errno| self.failed_name(req, "rename", from.at(), Some(to.at()), errno))?;
        let arrived = self.must_have_arrived(req, &source, &to, over.as_ref(), (looked, came));
        let [there, here] = arrived.inspect_err(|_| {
            if let Some(target) = target.as_ref().filter(|_| !exchange) {
                self.note_replaced(&to, victim.as_ref(), target);
            }
        })?;
        let (stat, node) = there.map_or((stat, node), |there| (there.stat, there.node));
        let (target, victim) = here.map_or((target, victim), |here| (Some(here.stat), here.node));
        self.note_names(&from, &to, &stat, target.as_ref(), exchange)?;
        self.note_rename(&from, &to, node.as_ref(), victim.as_ref(), exchange);
        if moves_dir {
            self.paths.directory_moved();
        }
        drop(moving);
        if moves_dir {
            let victim = exchange.then_some(victim.as_ref());
            self.moved_to_other_rules([Some(node.as_ref()), victim].into_iter().flatten());
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

    /// What was at `to` is gone, though the rename is refused.
    fn note_replaced(&self, to: &Spot<'_>, victim: Option<&Arc<Node>>, target: &Stat) {
        if let Some(victim) = victim {
            victim.gone_from(&to.dir, to.name);
        }
        self.twins.iter().for_each(|twins| twins.left(to.dir.id, to.name));
        if let Ok(path) = self.paths.of_child(&to.dir, to.name) {
            self.name_removed(target, &path);
        }
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
        match victim {
            Some(victim) if exchange => victim.moved((&to.dir, to.name), (&from.dir, from.name)),
            Some(victim) => victim.gone_from(&to.dir, to.name),
            None => {}
        }
        if let Some(node) = node {
            node.moved((&from.dir, from.name), (&to.dir, to.name));
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

    /// May the inode at `from` take the name `to`? Nothing is made below it until the guard is dropped. A
    /// weaker decision is `EXDEV`, so that `mv` copies through the view, where each byte is judged again;
    /// unless it could not remove all that it copied, and would leave two halves.
    pub(super) fn admit_rename(
        &self,
        req: &Request<'_>,
        at: &Existing<'_>,
        to: &Spot<'_>,
        looked: Instant,
    ) -> Result<Option<HeldOff<'_>>, Errno> {
        let Existing { node, stat, .. } = *at;
        let subject = self.subject_at(at, Turn::Held(looked))?;
        let target = subject.moved_to(self.paths.of_child(&to.dir, to.name)?, || at.head())?;
        let (old, moved) = (subject.path(), Detail::To(target.path()));
        self.permit_detailed(req, &subject, [Operation::Write], ("rename", old, moved))?;
        self.permit_detailed(req, &target, [Operation::Create], ("rename", old, moved))?;
        if let Some(node) = node {
            self.must_not_part(req, node, &subject, "rename")?;
        }
        let is_dir = stat.file_type() == FileType::Directory;
        let held = if is_dir { self.hold_off_below(stat, old, target.path()) } else { None };
        if is_dir && let Some(refusal) = self.made_below(req, &at.below(), old, target.path())? {
            return Err(self.refused(req, refusal, "rename", old, moved));
        }
        // What was moved already may be known by names that others have taken from it.
        let weaker = subject.first_name_weakens_to(&target)
            || !std::ptr::eq(at.here, at.spot) && subject.any_name_weakens_to(&target)
            || is_dir && self.subtree_weakens(&at.below(), old, target.path())?
            || node.is_some_and(|node| self.is_open_more_freely(node, &subject, &target))
            || is_dir && self.subtree_is_open_more_freely(old, target.path());
        let refusal = Refusal { errno: Errno::XDEV, rule: None };
        if weaker {
            let kept = if is_dir { self.kept_below(req, &at.below(), old)? } else { None };
            return Err(self.refused(req, kept.unwrap_or(refusal), "rename", old, moved));
        }
        if subject.any_name_would_weaken_to(&target) {
            self.would_refuse(req, refusal, "rename", old, moved);
        }
        Ok(held)
    }

    /// Where other rules may hold below `new`, nothing is made below a directory from before that is
    /// looked at until its paths are known to be other ones.
    fn hold_off_below(&self, stat: &Stat, old: &[u8], new: &[u8]) -> Option<HeldOff<'_>> {
        if self.admission.policy().subtree_move_is_neutral(old, new) {
            return None;
        }
        let top = stat.key();
        let lies_below = |dir| self.node(dir).ok().is_none_or(|dir| lies_in(&dir, &top));
        Some(self.making.hold_off(top, lies_below))
    }
}
