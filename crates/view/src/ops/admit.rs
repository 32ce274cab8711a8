//! From a node to a verdict: what the operations ask before they act.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::FileType;
use rustix::io::Errno;
use tollgate_fuse::{FileHandle, Name, Request};
use tollgate_policy::{HEAD_LEN, Kind};

use crate::admission::{Asked, Granted, Hidden, Refusal, Subject};
use crate::audit::{AuditLevel, Detail, Outcome};
use crate::free_to_read;
use crate::lower::{self, MOUNT_ROOT, Stat};
use crate::mounts::{self, Mount, Refused};
use crate::moving::Turn;
use crate::paths::{KnownPaths, Names};
use crate::stats::{Count, Unavailable};
use crate::table::Node;
use crate::view::View;
use crate::watch::Watch;

use super::linked::MAX_LOOKS;

/// By what a name is hidden.
pub(crate) struct HiddenBy {
    pub(crate) rule: Box<str>,
    /// Because of another name of the file, which others may remove: nothing of that is seen in this
    /// one's directory.
    pub(crate) further_name: bool,
}

impl View {
    /// What the policy judges, for an inode that exists and has the attributes `stat`.
    pub(crate) fn subject_of(&self, node: &Arc<Node>, stat: &Stat) -> Result<Subject<'_>, Errno> {
        let mut stat = self.settled_name(node, stat)?.unwrap_or(*stat);
        let names = self.names_by_now(node, &mut stat, |now| self.settled_name(node, now))?;
        let read_head = || lower::read_head(self.fds.path_once(node)?.as_fd(), HEAD_LEN);
        self.admission.subject(names, &stat, None, read_head)
    }

    /// Brings up to date where `node` is known. Returns attributes that are newer than `stat`, if it is to be
    /// judged by those.
    pub(crate) fn settled_name(
        &self,
        node: &Arc<Node>,
        stat: &Stat,
    ) -> Result<Option<Stat>, Errno> {
        self.settle(node, stat)?;
        self.must_have_its_name(node, stat)
    }

    /// The same for who opens it. `None` for a file that is only `read`, if all may read it at its place:
    /// nothing else depends on the policy then. What rules about content said of a file before is not
    /// asked again as long as it holds the same.
    pub(crate) fn subject_to_open(
        &self,
        node: &Arc<Node>,
        stat: &Stat,
        read: bool,
    ) -> Result<Option<Subject<'_>>, Errno> {
        // Before anything that it depends on is looked at.
        let (epoch, moves) = (free_to_read::epoch(&self.admission, &self.paths), node.moves());
        self.settle(node, stat)?;
        let newer = self.must_have_its_name(node, stat)?;
        let may_be_free = self.may_be_free_to_read(newer.as_ref().unwrap_or(stat));
        if read && may_be_free && newer.is_none() && node.was_free_to_read(epoch) {
            return Ok(None);
        }
        let mut stat = newer.unwrap_or(*stat);
        let names = self.names_by_now(node, &mut stat, |now| self.settled_name(node, now))?;
        let stat = &stat;
        let version = stat.version();
        let known = node.known_content.of(version);
        let mut stays = false;
        let read_head = || {
            let path = self.fds.path_once(node)?;
            let Some((fd, now)) = lower::open_head(path.as_fd())? else { return Ok(None) };
            // Nobody had it open before its bytes are read, to write it without another time.
            stays = self.small.suits(stat)
                && now.version() == version
                && lower::is_not_written(fd.as_fd());
            lower::head_of(fd.as_fd(), &now, HEAD_LEN)
        };
        let subject = self.admission.subject(names, stat, known.as_ref(), read_head)?;
        if stays && let Some(known) = subject.known_content(version) {
            node.known_content.keep(known);
        }
        if may_be_free && subject.is_free_to_read() {
            node.keep_free_to_read(epoch, moves);
        }
        Ok(Some(subject))
    }

    /// Whether nothing but its place and the policy decides on reading a regular file: it has one name, no
    /// others are, or were, known, and the audit log does not have each open.
    fn may_be_free_to_read(&self, stat: &Stat) -> bool {
        stat.nlink() == 1
            && stat.file_type() == FileType::RegularFile
            && !self.admission.has_neighbours()
            && !self.links.keeps_removed()
            && !self.links.has_lost_names(stat)
            && !self.audits(AuditLevel::Opens)
    }

    /// The same for who has it open: where it has lost its name, the last decision stays.
    pub(crate) fn subject_of_open(
        &self,
        node: &Arc<Node>,
        stat: &Stat,
    ) -> Result<Subject<'_>, Errno> {
        self.settle(node, stat)?;
        self.subject_in_turn(node, stat, Turn::Free)
    }

    /// Brings up to date where `node` is known.
    fn settle(&self, node: &Arc<Node>, stat: &Stat) -> Result<(), Errno> {
        let dir = node.parent();
        self.settle_place(dir.as_ref().filter(|_| !node.is_dir()).unwrap_or(node))?;
        self.settle_place(node)?;
        self.settle_names(node, stat);
        Ok(())
    }

    pub(crate) fn subject_in_turn(
        &self,
        node: &Arc<Node>,
        stat: &Stat,
        turn: Turn,
    ) -> Result<Subject<'_>, Errno> {
        let names = self.names_in_turn(node, stat, turn)?;
        let read_head = || lower::read_head(self.fds.path_once(node)?.as_fd(), HEAD_LEN);
        self.admission.subject(names, stat, None, read_head)
    }

    fn names_in_turn(&self, node: &Arc<Node>, stat: &Stat, turn: Turn) -> Result<Names<'_>, Errno> {
        let dir = node.parent();
        Ok(self.all_names(self.paths.of(node)?, stat, dir.as_ref(), turn))
    }

    /// The names of `node`. Where not all were found, the links that `stat` counts may have gone meanwhile, as those of a
    /// file that was renamed over: then it is looked at again, and so is, by `settled`, where it is known.
    ///
    /// # Errors
    /// `ESTALE` if others have taken its last name: the kernel looks the name up again.
    fn names_by_now(
        &self,
        node: &Arc<Node>,
        stat: &mut Stat,
        settled: impl Fn(&Stat) -> Result<Option<Stat>, Errno>,
    ) -> Result<Names<'_>, Errno> {
        let mut looks = 1;
        loop {
            let names = self.names_in_turn(node, stat, Turn::Free)?;
            if names.are_known() || looks == MAX_LOOKS {
                return Ok(names);
            }
            let now = self.stat(node)?;
            if (now.changed(), now.nlink()) == (stat.changed(), stat.nlink()) {
                return Ok(names);
            }
            if now.nlink() == 0 && !node.pinned.load(Ordering::Relaxed) {
                return Err(Errno::STALE);
            }
            *stat = settled(&now)?.unwrap_or(now);
            looks += 1;
        }
    }

    /// A mount that is found below DIR is entered unless it shows again what DIR shows.
    ///
    /// # Errors
    /// `EACCES`
    pub(crate) fn admit_mount(
        &self,
        dir: BorrowedFd<'_>,
        name: Name<'_>,
        stat: &Stat,
    ) -> Result<(), Errno> {
        if !stat.has_attribute(MOUNT_ROOT) || !self.admission.tells_names_apart() {
            return Ok(());
        }
        let table = mounts::read()?;
        let refused = match self.mount_there(&table, dir, name, stat)? {
            Some(it) => self.refused_mount(&table, it)?,
            None => Some(Refused::Changed),
        };
        match refused {
            None => Ok(()),
            Some(reason) => {
                let parent = lower::path_of(dir).unwrap_or_default();
                let (parent, name) = (parent.escape_ascii(), name.as_bytes().escape_ascii());
                tracing::warn!("the mount at `{parent}/{name}` is not entered: {reason}");
                Err(Errno::ACCESS)
            }
        }
    }

    /// The mount that was found at `name` in `dir`. On a copy of DIR's mounts it is not in the table itself:
    /// then the one that it was copied from; `None` if that is not there any more.
    fn mount_there<'t>(
        &self,
        table: &'t [Mount],
        dir: BorrowedFd<'_>,
        name: Name<'_>,
        stat: &Stat,
    ) -> Result<Option<&'t Mount>, Errno> {
        let Some(before) = self.copied_mounts() else {
            return mounts::with_id(table, stat.mount_id()).map(Some);
        };
        // The copy's root has the path `/`.
        let above = lower::path_of(dir).ok_or(Errno::ACCESS)?;
        let above = Path::new(OsStr::from_bytes(&above));
        let below = above.strip_prefix("/").map_err(|_| Errno::ACCESS)?;
        let point = below.join(OsStr::from_bytes(name.as_bytes()));
        Ok(mounts::still_at(table, &self.place_in_table()?, &point, before))
    }

    /// The path of DIR in the table.
    fn place_in_table(&self) -> Result<PathBuf, Errno> {
        let place = lower::path_of(self.found()).ok_or(Errno::ACCESS)?;
        Ok(PathBuf::from(OsString::from_vec(place)))
    }

    /// Why the mount `it`, found below DIR, is not entered.
    fn refused_mount(&self, table: &[Mount], it: &Mount) -> Result<Option<Refused>, Errno> {
        let place = self.place_in_table()?;
        if self.admission.policy().tells_names_apart() {
            let root = lower::stat_fd(self.found())?.mount_id();
            if let Some(refused) = mounts::refused(table, it, root, &place)? {
                return Ok(Some(refused));
            }
        }
        for other in self.neighbours.iter().flat_map(|all| all.directories_beside(&place)) {
            if let Some(refused) = mounts::refused_beside(table, it, other.mount_id, &other.path)? {
                return Ok(Some(refused));
            }
        }
        Ok(None)
    }

    /// The mounts below DIR that are not entered at this moment.
    pub(crate) fn mounts_not_shown(&self) -> Vec<Unavailable> {
        let (Ok(place), Ok(table)) = (self.place_in_table(), mounts::read()) else {
            return Vec::new();
        };
        if !self.admission.tells_names_apart() {
            return Vec::new();
        }
        let is_copied = |it: &Mount| {
            let point = it.point().strip_prefix(&place).ok()?;
            mounts::still_at(&table, &place, point, self.copied_mounts()?)
        };
        let refused = |it: &Mount| match self.copied_mounts() {
            Some(_) if is_copied(it).is_none() => Some(Refused::Changed),
            _ => self.refused_mount(&table, it).ok()?,
        };
        let refused = mounts::refused_below(&table, &place, refused);
        let unavailable = |(point, reason): (PathBuf, Refused)| Unavailable {
            feature: format!("what is mounted at `{}`", point.display()),
            reason: reason.to_string(),
        };
        refused.into_iter().map(unavailable).collect()
    }

    /// Checks what is `asked` for on an inode that exists; nothing to do if the policy cannot
    /// refuse.
    pub(crate) fn permit(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        asked: impl Into<Asked>,
        what: &'static str,
    ) -> Result<(), Errno> {
        self.permit_through(req, node, None, asked, what)
    }

    /// The same for who has it open as `handle`, if there is one.
    pub(crate) fn permit_through(
        &self,
        req: &Request<'_>,
        node: &Arc<Node>,
        handle: Option<FileHandle>,
        asked: impl Into<Asked>,
        what: &'static str,
    ) -> Result<(), Errno> {
        if self.admission.is_trivial() {
            return Ok(());
        }
        let subject = self.unless_overtaken(|| {
            let stat = self.stat(node)?;
            match handle {
                Some(_) => self.subject_of_open(node, &stat),
                None => self.subject_of(node, &stat),
            }
        })?;
        let asked = asked.into();
        let permitted = self.permit_subject(req, &subject, [asked], what);
        if asked.changes() && permitted.is_ok() {
            self.must_not_part(req, node, &subject, what)?;
        }
        self.note_if_hidden(node, permitted.err());
        permitted
    }

    /// The kernel asked about `node`, which it was shown, and got this error: a file may be hidden since,
    /// because of a name elsewhere.
    pub(crate) fn note_if_hidden(&self, node: &Node, error: Option<Errno>) {
        if let Some(watch) = self.watch.as_ref().filter(|_| error == Some(Errno::NOENT)) {
            watch.hidden_since(node.id);
        }
    }

    /// The kernel asks for attributes of `node`, by a name that it keeps. Where nobody tells of names elsewhere,
    /// others may have given the file one since by which it is hidden: then the name is looked up again.
    pub(crate) fn look_whether_hidden(&self, node: &Arc<Node>, stat: &Stat) {
        let is_told = self.watch.as_ref().is_none_or(Watch::reports_files);
        if is_told || !self.can_hide() || !self.has_names_to_find(stat) {
            return;
        }
        let Some(place) = node.place() else { return };
        let Ok(name) = Name::new(&place.name) else { return };
        if let Ok(Some(_)) = self.hidden_by(&place.parent, name, stat, Turn::Free) {
            self.note_if_hidden(node, Some(Errno::NOENT));
        }
    }

    pub(crate) fn permit_subject(
        &self,
        req: &Request<'_>,
        subject: &Subject<'_>,
        asked: impl IntoIterator<Item = impl Into<Asked>>,
        what: &'static str,
    ) -> Result<(), Errno> {
        let path = subject.path();
        self.permit_detailed(req, subject, asked, (what, path, Detail::None))
    }

    /// The same; a refusal is recorded under this path, with this detail.
    pub(crate) fn permit_detailed(
        &self,
        req: &Request<'_>,
        subject: &Subject<'_>,
        asked: impl IntoIterator<Item = impl Into<Asked>>,
        (what, path, detail): (&'static str, &[u8], Detail<'_>),
    ) -> Result<(), Errno> {
        match self.admission.check(subject, asked, req.caller()) {
            Ok(Granted(None)) => Ok(()),
            Ok(Granted(Some(refusal))) => {
                self.would_refuse(req, refusal, what, path, detail);
                Ok(())
            }
            Err(refusal) => Err(self.refused(req, refusal, what, path, detail)),
        }
    }

    /// Counts and records what a rule that is only recorded would have refused.
    pub(crate) fn would_refuse(
        &self,
        req: &Request<'_>,
        refusal: Refusal<'_>,
        what: &'static str,
        path: &[u8],
        detail: Detail<'_>,
    ) {
        self.count(req, Count::would_refuse);
        let outcome = Outcome::WouldRefuse(refusal.errno);
        self.record_refusal(req, outcome, refusal.rule, what, path, detail);
    }

    /// Counts and records a refusal; returns its error.
    pub(crate) fn refused(
        &self,
        req: &Request<'_>,
        refusal: Refusal<'_>,
        what: &'static str,
        path: &[u8],
        detail: Detail<'_>,
    ) -> Errno {
        let count = match refusal.errno {
            Errno::ROFS => Count::refused_read_only,
            Errno::XDEV | Errno::PERM | Errno::BUSY => Count::refused_weakening,
            _ => Count::refused_deny,
        };
        self.count(req, count);
        let outcome = Outcome::Refused(refusal.errno);
        self.record_refusal(req, outcome, refusal.rule, what, path, detail);
        refusal.errno
    }

    /// The same by its path alone, for what cannot be looked at or is not to be entered: something of the type
    /// `mode`, as far as that is known.
    pub(crate) fn hidden_by_path(
        &self,
        dir: &Arc<Node>,
        name: Name<'_>,
        mode: u32,
    ) -> Result<Option<HiddenBy>, Errno> {
        if !self.can_hide() {
            return Ok(None);
        }
        let path = self.paths.of_child(dir, name)?;
        Ok(match self.admission.hidden(&path, mode) {
            Hidden::Yes(rule) => Some(HiddenBy { rule: rule.into(), further_name: false }),
            Hidden::No | Hidden::WouldBe(_) => None,
        })
    }

    /// By what a name that exists must look as if it did not, if there is such a rule.
    pub(crate) fn hidden_by(
        &self,
        dir: &Arc<Node>,
        name: Name<'_>,
        stat: &Stat,
        turn: Turn,
    ) -> Result<Option<HiddenBy>, Errno> {
        if !self.can_hide() {
            return Ok(None);
        }
        let path = self.paths.of_child(dir, name)?;
        let by = |path: &[u8]| match self.admission.hidden(path, stat.mode()) {
            Hidden::Yes(rule) => Some(Box::from(rule)),
            Hidden::No | Hidden::WouldBe(_) => None,
        };
        if let Some(rule) = by(&path) {
            // For the other names of a file, whichever name it was hidden by before.
            if self.has_names_to_find(stat) {
                let path = || Ok::<_, Errno>(path.clone());
                self.links.sighted(&stat.key(), path)?;
            }
            return Ok(Some(HiddenBy { rule, further_name: false }));
        }
        if !self.has_names_to_find(stat) {
            return Ok(None);
        }
        // An inode that is hidden under one name is hidden under all.
        let names = self.all_names(KnownPaths::from_iter([path]), stat, Some(dir), turn);
        let hidden = |rule| HiddenBy { rule, further_name: true };
        if let Some(rule) = names.paths.iter().find_map(|path| by(path)) {
            return Ok(Some(hidden(rule)));
        }
        let kind = Kind::from_mode(stat.mode());
        let elsewhere = names.elsewhere.names.iter().find_map(|(rules, path)| {
            let rule = rules.policy.hidden(path, kind)?;
            Some(hidden(Box::from(rules.policy.rule(rule).name())))
        });
        Ok(elsewhere)
    }

    /// A name could not be made in `dir` because it exists: one that is hidden cannot be made,
    /// whichever name of its inode says so.
    pub(crate) fn refuse_hidden(
        &self,
        req: &Request<'_>,
        (dir, fd): (&Arc<Node>, BorrowedFd<'_>),
        name: Name<'_>,
        what: &'static str,
    ) -> Result<(), Errno> {
        if !self.can_hide() {
            return Ok(());
        }
        let Ok(stat) = lower::stat_at(fd, name.as_c_str()) else { return Ok(()) };
        let hidden = self.hidden_by(dir, name, &stat, Turn::Free)?;
        let Some(HiddenBy { rule, .. }) = hidden else { return Ok(()) };
        let path = self.paths.of_child(dir, name)?;
        let refusal = Refusal { errno: Errno::ACCESS, rule: Some(&*rule) };
        Err(self.refused(req, refusal, what, &path, Detail::None))
    }

    /// Whether some name may have to look as if it did not exist.
    pub(crate) fn can_hide(&self) -> bool {
        let mut others = self.neighbours();
        self.admission.policy().can_hide()
            || others.any(|other| other.policies.current().policy.can_hide())
    }

    /// Counts and records that somebody asked for a name that is hidden by `rule`.
    pub(crate) fn conceal(
        &self,
        req: &Request<'_>,
        dir: &Arc<Node>,
        name: Name<'_>,
        rule: &str,
    ) -> Result<(), Errno> {
        let path = self.paths.of_child(dir, name)?;
        self.count(req, Count::hidden);
        self.admission.concealed.add(dir.id, name);
        let outcome = Outcome::Refused(Errno::NOENT);
        self.record_refusal(req, outcome, Some(rule), "lookup", &path, Detail::None);
        Ok(())
    }

    /// Records that a name which somebody asked for would be hidden by a rule that is only
    /// recorded.
    pub(crate) fn would_conceal(
        &self,
        req: &Request<'_>,
        dir: &Arc<Node>,
        name: Name<'_>,
        mode: u32,
    ) -> Result<(), Errno> {
        if !self.admission.would_hide() {
            return Ok(());
        }
        let path = self.paths.of_child(dir, name)?;
        if let Hidden::WouldBe(rule) = self.admission.hidden(&path, mode) {
            let refusal = Refusal { errno: Errno::NOENT, rule: Some(rule) };
            self.would_refuse(req, refusal, "lookup", &path, Detail::None);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, WatchMode};
    use crate::fds::Descriptors;
    use tollgate_fuse::{Caller, NodeId};
    use tollgate_policy::{Operation, Policy};

    /// Its links were counted, and by the time that they are looked for it has none: that is no name
    /// under a denied place.
    #[test]
    fn a_file_that_was_renamed_over_meanwhile_is_not_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "old").unwrap();
        std::fs::hard_link(at("file"), at("link")).unwrap();
        let policy = Policy::parse("[[rule]]\npath = 'vault'\naction = 'deny'\n", "p.toml");
        let policy = Arc::new(policy.unwrap());
        let root = std::fs::File::open(dir.path()).unwrap();
        // What was seen before does not count.
        let attr_timeout = std::time::Duration::ZERO;
        let config = Config { policy, watch: WatchMode::Off, attr_timeout, ..Config::default() };
        let view = View::open(root.try_clone().unwrap().into(), config).unwrap();
        let stat = lower::stat_at(root.as_fd(), c"file").unwrap();
        let top = view.node(NodeId::ROOT).unwrap();
        let (node, _) = view.remember(&stat, &top, Name::new(c"file").unwrap());
        let may_read = || {
            let subject = view.subject_of(&node, &stat).unwrap();
            let caller = Caller { uid: 0, gid: 0, pid: 0 };
            view.admission.check(&subject, [Operation::Read], caller).is_ok()
        };
        assert!(may_read());
        // As while others change directories all the time.
        view.links.give_up();
        std::fs::remove_file(at("link")).unwrap();
        // One is left, and known.
        assert!(may_read());
        // As a rename of the view does.
        Descriptors::pin(&node, Arc::new(lower::open_path(root.as_fd(), c"file").unwrap()));
        std::fs::write(at("new"), "new").unwrap();
        std::fs::rename(at("new"), at("file")).unwrap();
        assert!(may_read());
    }
}
