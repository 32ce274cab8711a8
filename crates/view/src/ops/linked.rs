//! Files with several names, as the operations meet them: which names a file is judged by, and what
//! becomes of them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use rustix::fs::FileType;
use rustix::io::Errno;
use tollgate_fuse::Name;
use tollgate_policy::{InodeFacts, Kind};

use crate::links::{Change, Searched, Top, is_no_name, stat_beneath};
use crate::lower::{self, MOUNT_ROOT, Stat};
use crate::moving::Turn;
use crate::neighbours::{Elsewhere, Place};
use crate::paths::{KnownPaths, Names};
use crate::table::{self, Node};
use crate::view::View;

/// Times that one rename or link looks at the names of a file that goes on changing meanwhile. Then
/// it is judged as if a name were missing.
pub(crate) const MAX_LOOKS: usize = 10;
/// Times that a request looks again in all views of the server because one of them lost a name.
/// Then a name counts as missing.
const MAX_ROUNDS: usize = 3;

impl View {
    /// Whether the names of a file with these attributes have to be known.
    pub(crate) fn has_names_to_find(&self, stat: &Stat) -> bool {
        stat.nlink() > 1
            && stat.file_type() != FileType::Directory
            && self.admission.tells_names_apart()
    }

    /// The names to judge an inode by: `paths`, under which it is known, with its further names if
    /// it has any. `dir` is the directory that the first name is in.
    pub(crate) fn all_names(
        &self,
        paths: KnownPaths,
        stat: &Stat,
        dir: Option<&Arc<Node>>,
        turn: Turn,
    ) -> Names<'_> {
        if self.neighbours.is_none() {
            return self.look_for_names(paths, stat, dir, turn).0;
        }
        let (mut names, mut lost) = self.look_for_names(paths.clone(), stat, dir, turn);
        for _ in 0..MAX_ROUNDS {
            if !lost {
                return names;
            }
            // What another view lost may be here, or in one that was asked before.
            (names, lost) = self.look_for_names(paths.clone(), stat, dir, turn);
        }
        names.all_known &= !lost;
        names
    }

    /// Looks once; also whether another view lost a name meanwhile.
    fn look_for_names(
        &self,
        paths: KnownPaths,
        stat: &Stat,
        dir: Option<&Arc<Node>>,
        turn: Turn,
    ) -> (Names<'_>, bool) {
        let looked = match turn {
            Turn::Held(looked) => looked,
            Turn::Free => Instant::now(),
        };
        let (mut paths, all_known) = if !self.has_names_to_find(stat)
            && (turn != Turn::Free || !self.links.has_lost_names(stat))
        {
            (self.with_removed(paths, stat), true)
        } else if let Some(judged) = self.confirmed_names(stat, looked) {
            (self.first_and(paths, judged, stat), true)
        } else if turn == Turn::Free && self.find_names(&paths, stat, dir) {
            let judged = self.links.judged(&stat.key(), self.admission.shared_policy());
            (self.first_and(paths, judged, stat), true)
        } else {
            (self.known_names(paths, stat), false)
        };
        let (elsewhere, lost) = self.names_elsewhere(stat, turn, looked, &mut paths);
        (Names { paths, all_known, elsewhere }, lost)
    }

    /// The path by which a file was met, and its names as they were confirmed. Other places that it is
    /// known at were not confirmed: they are no names any more. Nor is the path, if it leads nowhere.
    fn first_and(&self, mut paths: KnownPaths, judged: Vec<Vec<u8>>, stat: &Stat) -> KnownPaths {
        paths.truncate(1);
        let (key, root) = (stat.key(), self.fds.root());
        let is_stale = !judged.is_empty()
            && !judged.contains(&paths[0])
            && !self.links.has_name(&key, &paths[0])
            && is_no_name(root.as_fd(), &paths[0], &key);
        if is_stale {
            paths.clear();
        }
        let others: Vec<_> = judged.into_iter().filter(|path| !paths.contains(path)).collect();
        paths.extend(others);
        paths
    }

    /// The names of a file in the other views of the same server. Those of `paths`, but the first,
    /// that lie where one of these is mounted are its own.
    fn names_elsewhere(
        &self,
        stat: &Stat,
        turn: Turn,
        looked: Instant,
        paths: &mut KnownPaths,
    ) -> (Elsewhere<'_>, bool) {
        let mut elsewhere = Elsewhere::default();
        if self.neighbours.is_none() || stat.file_type() == FileType::Directory {
            return (elsewhere, false);
        }
        let known = paths.len();
        let mut is_first = true;
        paths.retain(|path| std::mem::take(&mut is_first) || !self.place.is_covered(path));
        // Others may have moved a view to where it looks like a part of this one: then all names are
        // known here, and count there all the same.
        let key = stat.key();
        let is_known_elsewhere = || self.neighbours().any(|other| other.links.has_names(&key));
        let may_have_some = stat.nlink() > 1
            && (paths.len() < known || self.links.is_elsewhere(&key) || is_known_elsewhere());
        let now = || self.met_by(paths, stat);
        let mut lost_one = false;
        for other in self.neighbours() {
            if !may_have_some {
                other.add_removed(&stat.key(), &mut elsewhere);
            } else if other.add_names(stat, turn, looked, now, &mut elsewhere) {
                lost_one = true;
                self.links.doubt(&stat.key());
                self.neighbours()
                    .filter(|third| !std::ptr::eq(*third, other))
                    .for_each(|third| third.links.doubt(&stat.key()));
            }
        }
        (elsewhere, lost_one)
    }

    /// Attributes that a file has now, by one of `paths` or of its names here.
    fn met_by(&self, paths: &KnownPaths, stat: &Stat) -> Option<Stat> {
        let (root, key) = (self.fds.root(), stat.key());
        let met = |path: &Vec<u8>| stat_beneath(root.as_fd(), path);
        let by_path = paths.iter().filter_map(met).find(|now| now.key() == key);
        by_path.or_else(|| self.links.stat_by_name(root.as_fd(), &key, None))
    }

    /// The other views of the same server.
    pub(crate) fn neighbours(&self) -> impl Iterator<Item = &Place> {
        self.neighbours.iter().flat_map(|all| all.others(&self.place))
    }

    /// Brings `stat` of a file with several names up to date, in the turn of a request that looked
    /// at them at the moment `looked`. False if the file changed while the request waited, by its
    /// own writer say, so that the names are not known to be complete: they can be looked at again.
    pub(crate) fn is_as_it_was(
        &self,
        stat: &mut Stat,
        now: impl FnOnce() -> Result<Option<Stat>, Errno>,
        looked: Instant,
    ) -> Result<bool, Errno> {
        if self.admission.is_trivial() || !self.has_names_to_find(stat) {
            return Ok(true);
        }
        let Some(now) = now()? else { return Ok(false) };
        let before = std::mem::replace(stat, now);
        let is_same = before.key() == now.key() && before.changed() == now.changed();
        if is_same {
            return Ok(true);
        }
        let beside = || self.neighbours().all(|other| other.is_confirmed(&now, looked));
        let is_known = self.confirmed_names(&now, looked).is_some();
        Ok(is_known && (!self.links.is_elsewhere(&now.key()) || beside()))
    }

    /// A file of one name is judged by removed ones too, if those were stricter.
    fn with_removed(&self, mut paths: KnownPaths, stat: &Stat) -> KnownPaths {
        if self.links.keeps_removed() && stat.file_type() != FileType::Directory {
            paths.extend(self.links.removed(&stat.key()));
        }
        paths
    }

    /// Whether some caller could get more of the inode if it had the name `removed` no longer: none
    /// of the names that are `left` is as strict for everyone.
    fn weakens_without(
        &self,
        stat: &Stat,
        removed: &[u8],
        mut left: Vec<Vec<u8>>,
        is_elsewhere: bool,
    ) -> bool {
        let policy = self.admission.shared_policy();
        let inode =
            InodeFacts { kind: Kind::from_mode(stat.mode()), size: stat.size(), head: None };
        let from = policy.at(removed);
        left.retain(|path| path != removed && !self.place.is_covered(path));
        if left.is_empty() {
            // Names in other views have rules that cannot be compared with these.
            return is_elsewhere;
        }
        left.iter().all(|path| {
            let to = policy.at(path);
            !from.is_like(&to) && from.weakens(&inode, &to, &inode)
        })
    }

    /// Drops places of a file that others have removed, or moved away, directly in DIR: it would go on
    /// being judged by them. To be asked without a lock of [`View::names`].
    pub(crate) fn settle_names(&self, node: &Arc<Node>, stat: &Stat) {
        if self.admission.is_trivial() || !node.has_further_names() {
            return;
        }
        // Of confirmed names the first place is added to, whatever it is.
        let is_name = |paths: KnownPaths| self.links.has_name(&stat.key(), &paths[0]);
        if node.places().len() as u64 <= stat.nlink().into()
            && self.confirmed_names(stat, Instant::now()).is_some()
            && self.paths.of(node).is_ok_and(is_name)
        {
            return;
        }
        // The view's own moves note places after they were made.
        let _still = self.names.write();
        let places = node.places();
        let gone = self.gone_places(node, stat, &places);
        // If none is left, where the file is now is not known: all go on counting.
        if gone.len() < places.len() {
            for place in gone {
                let _ = Name::new(&place.name).map(|name| node.gone_from(&place.parent, name));
            }
        }
    }

    /// Of these places of a file, those that are none any more.
    fn gone_places<'p>(
        &self,
        node: &Node,
        stat: &Stat,
        places: &'p [table::Place],
    ) -> Vec<&'p table::Place> {
        // `None`: in a directory that is not found, the name may be there all the same.
        let is_there = |place: &table::Place| {
            let dir = self.fds.path(&place.parent).ok()?;
            match lower::stat_at(dir.as_fd(), &place.name) {
                Ok(found) => Some(self.fds.is_of(node, &found)),
                Err(errno) => (errno == Errno::NOENT).then_some(false),
            }
        };
        let mut looked: Vec<_> = places.iter().map(|place| (place, is_there(place))).collect();
        // A directory may be known twice: it was forgotten, and met again by another name. Then its
        // files have two places that are one name, of which one path leads there.
        let mut there = FxHashMap::<_, u32>::default();
        for (place, _) in looked.iter().filter(|(_, is_there)| *is_there == Some(true)) {
            *there.entry((place.parent.key, &place.name)).or_default() += 1;
        }
        let root = self.fds.root();
        for (place, is_there) in looked.iter_mut().filter(|(_, is_there)| *is_there == Some(true)) {
            let is_twice = there.get(&(place.parent.key, &place.name)).is_some_and(|n| *n > 1);
            let path = || self.paths.of_child(&place.parent, Name::new(&place.name).ok()?).ok();
            let is_no_name =
                |path: Vec<u8>| node.keys().all(|key| is_no_name(root.as_fd(), &path, &key));
            if is_twice && path().is_some_and(is_no_name) {
                *is_there = Some(false);
            }
        }
        let all_are_there = there.len() as u64 >= stat.nlink().into();
        let is_gone = |is_there: Option<bool>| !is_there.unwrap_or(!all_are_there);
        let gone = looked.iter().filter(|(_, there)| is_gone(*there));
        gone.map(|(place, _)| *place).collect()
    }

    /// Finds the names of an inode before a lock of [`View::names`] is taken.
    pub(crate) fn prepare_names(&self, paths: KnownPaths, stat: &Stat, dir: &Arc<Node>) {
        let _ = self.all_names(paths, stat, Some(dir), Turn::Free);
    }

    fn confirmed_names(&self, stat: &Stat, looked: Instant) -> Option<Vec<Vec<u8>>> {
        let policy = self.admission.shared_policy();
        self.links.confirmed(stat, self.attr_timeout, looked, policy)
    }

    fn known_names(&self, mut paths: KnownPaths, stat: &Stat) -> KnownPaths {
        for path in self.links.judged(&stat.key(), self.admission.shared_policy()) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        paths
    }

    fn find_names(&self, paths: &KnownPaths, stat: &Stat, dir: Option<&Arc<Node>>) -> bool {
        let search = || self.search_around(dir).unwrap_or_default();
        let looked = self.place.find(paths, stat, search, || None);
        if looked.lost {
            self.neighbours().for_each(|other| other.links.doubt(&stat.key()));
        }
        looked.all_known
    }

    /// Searches the file system that `dir` lies in: DIR, or what is mounted below it.
    fn search_around(&self, dir: Option<&Arc<Node>>) -> Result<Searched, Errno> {
        let mut here = dir.cloned();
        while let Some(node) = here.filter(|node| !node.is_root()) {
            let fd = self.fds.path(&node)?;
            if lower::stat_fd(fd.as_fd())?.has_attribute(MOUNT_ROOT) {
                let path = self.paths.of(&node)?;
                return Ok(self.links.search(&Top { fd: fd.as_fd(), path: &path[0] }));
            }
            here = node.place().map(|place| place.parent);
        }
        let root = self.fds.root();
        Ok(self.links.search(&Top { fd: root.as_fd(), path: b"" }))
    }

    /// The view changed the names of an inode that had the attributes `before`.
    pub(crate) fn names_changed(&self, before: &Stat, change: &Change<'_>, after: Option<&Stat>) {
        let had_several = self.has_names_to_find(before);
        let has_several = after.is_some_and(|after| self.has_names_to_find(after));
        if had_several || has_several {
            self.links.changed(before, change, after);
        }
    }

    /// The name `removed` of an inode that had the attributes `before` is gone.
    pub(crate) fn name_removed(&self, before: &Stat, removed: &[u8]) {
        if self.has_names_to_find(before) {
            let root = self.fds.root();
            let after = self.links.stat_by_name(root.as_fd(), &before.key(), Some(removed));
            let key = before.key();
            let is_elsewhere = self.neighbours().any(|other| other.links.has_names(&key));
            let keep = |left| self.weakens_without(before, removed, left, is_elsewhere);
            let change = Change {
                removed: Some(removed),
                keep_removed: Some((self.admission.shared_policy(), &keep)),
                ..Change::default()
            };
            self.links.changed(before, &change, after.as_ref());
        } else {
            self.last_name_removed(before);
        }
    }

    /// The name of an inode that had the attributes `before` is gone, and it had no other. Whoever has it open goes
    /// on being judged by all that it had, until the kernel forgets it.
    pub(crate) fn last_name_removed(&self, before: &Stat) {
        let key = before.key();
        let may_be_judged = || self.table.find(&key).is_some();
        if self.links.keeps_removed() && before.nlink() < 2 && !may_be_judged() {
            self.links.gone(&key);
        }
    }

    /// The kernel forgot `node`, which lost its last name.
    pub(crate) fn forgotten_by_all(&self, node: &Node) {
        if !self.links.keeps_removed() {
            return;
        }
        let fd = node.fd.lock().clone();
        let is_gone =
            |fd: Arc<OwnedFd>| lower::stat_fd(fd.as_fd()).is_ok_and(|stat| stat.nlink() == 0);
        if fd.is_some_and(is_gone) {
            node.keys().for_each(|key| self.links.gone(&key));
        }
    }
}
