//! What a rename has moved, where others put something in the place of what was judged.
//!
//! A rename is judged by what is at the old name, and the kernel moves what is there afterwards. Others,
//! who change DIR directly, can put a file there in between that may not get the new name. So it is
//! looked at what has arrived, while no name can be looked up in the view and before the kernel knows of
//! it: another file than the one that was judged is judged as if it had been asked to be moved, by the
//! old name and by those that it is known by. What may not be there goes back.
//!
//! Others may as well have put it there themselves, after the rename. Of directories the kernel tells
//! (`arrivals.rs`). Where it does not, it goes back only to a name that allows nothing that the new one does
//! not, and under which nothing is kept from being made.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, RenameFlags};
use rustix::io::Errno;
use tollgate_fuse::{Name, Request};

use super::spot::{Existing, Spot};
use super::subtree::{Beneath, Top, may_weaken};
use crate::arrivals::Came;
use crate::lower::{self, Key, Stat};
use crate::table::{Node, Place};
use crate::view::View;

/// Times that two names are exchanged back which others go on changing, and names that are tried for
/// what finds its own taken.
const TRIES: usize = 100;

/// Bytes of a name that are kept in the one that is given instead.
const KEPT_OF_NAME: usize = 200;

/// What is at a name after a rename.
pub(super) struct Arrived {
    pub(super) stat: Stat,
    pub(super) node: Option<Arc<Node>>,
}

/// Whether what is at a name has come there from the other one; `None` if that is not known.
type CameThere<'a> = &'a dyn Fn(&Stat) -> Option<bool>;

/// What may not be where a rename has moved it, and the error that a rename of it would have got.
struct Misplaced(Box<Stat>, Errno);

/// What was judged, and a descriptor that names it where its number may change as it is moved.
pub(super) struct Judged<'a> {
    pub(super) at: Existing<'a>,
    fd: Option<OwnedFd>,
}

impl Judged<'_> {
    fn is(&self, stat: &Stat) -> bool {
        let key = stat.key();
        let is_now = |fd: &OwnedFd| lower::stat_fd(fd.as_fd()).is_ok_and(|now| now.key() == key);
        key == self.at.stat.key() || self.fd.as_ref().is_some_and(is_now)
    }
}

impl View {
    /// What is about to be moved.
    ///
    /// # Errors
    /// `ESTALE` if others have put something else in its place.
    pub(super) fn about_to_move<'a>(&self, at: Existing<'a>) -> Result<Judged<'a>, Errno> {
        // An overlay copies files up, and others number directories by their paths.
        let may_change = self.twins.is_some() || at.stat.file_type() == FileType::Directory;
        if !may_change || !self.admission.tells_names_apart() {
            return Ok(Judged { at, fd: None });
        }
        let (dir, name) = at.here.below();
        let fd = self.fds.retrying(|| lower::open_path(dir, name))?;
        if lower::stat_fd(fd.as_fd())?.key() != at.stat.key() {
            return Err(Errno::STALE);
        }
        Ok(Judged { at, fd: Some(fd) })
    }

    /// What has come to `to` instead of what was `judged` to be moved there, if something has and may be
    /// there; and the same the other way, if the two were exchanged. To be asked in the turn of the
    /// rename.
    ///
    /// # Errors
    /// What a rename of it would have got, or `ESTALE` for a directory, which is not looked through once
    /// more: the kernel looks the names up again. It was moved back then.
    pub(super) fn must_have_arrived(
        &self,
        req: &Request<'_>,
        judged: &Judged<'_>,
        to: &Spot<'_>,
        exchanged: Option<&Judged<'_>>,
        (looked, came): (Instant, Came),
    ) -> Result<[Option<Arrived>; 2], Errno> {
        if !self.admission.tells_names_apart() {
            return Ok([None, None]);
        }
        let from = judged.at.spot;
        let came_here = |stat: &Stat| came.came_to_old(&stat.key());
        let came_there = |stat: &Stat| came.came_to_new(&stat.key());
        let there = self.arrived(req, judged, to, (looked, &came_there));
        let here = exchanged
            .map_or(Ok(None), |other| self.arrived(req, other, from, (looked, &came_here)));
        let errno = match (&there, &here) {
            (Err(Misplaced(_, errno)), _) | (_, Err(Misplaced(_, errno))) => *errno,
            (Ok(_), Ok(_)) => {
                let arrived = [there.ok().flatten(), here.ok().flatten()];
                if arrived[0].is_some() {
                    self.note_instead_of(judged, to);
                }
                if let (Some(other), true) = (exchanged, arrived[1].is_some()) {
                    self.note_instead_of(other, from);
                }
                return Ok(arrived);
            }
        };
        match (exchanged, &there) {
            (None, Err(misplaced)) => self.send_back(from, to, &misplaced.0),
            (None, Ok(_)) => {}
            (Some(other), _) => {
                let is_either = |stat: &Stat| judged.is(stat) || other.is(stat);
                let refused = RefCell::new(Vec::new());
                for (at, arrived) in [&here, &there].into_iter().enumerate() {
                    if let Err(Misplaced(stat, _)) = arrived {
                        refused.borrow_mut().push((at, stat.key()));
                    }
                }
                // Each is asked about once.
                let may_stay = |at: usize, stat: &Stat| {
                    let asked = (at, stat.key());
                    if is_either(stat) {
                        return true;
                    }
                    if refused.borrow().contains(&asked) {
                        return false;
                    }
                    let (judged, to, came): (_, _, CameThere<'_>) =
                        if at == 0 { (other, from, &came_here) } else { (judged, to, &came_there) };
                    let may_stay =
                        self.judge_arrived(req, judged, to, stat, (looked, came)).is_ok();
                    if !may_stay {
                        refused.borrow_mut().push(asked);
                    }
                    may_stay
                };
                let at_from = |stat: &Stat| may_stay(0, stat);
                let at_to = |stat: &Stat| may_stay(1, stat);
                self.exchange_back(from, to, [&at_from, &at_to]);
            }
        }
        Err(errno)
    }

    fn arrived(
        &self,
        req: &Request<'_>,
        judged: &Judged<'_>,
        to: &Spot<'_>,
        told: (Instant, CameThere<'_>),
    ) -> Result<Option<Arrived>, Misplaced> {
        // Others may have taken it away again.
        let Ok(stat) = to.stat() else { return Ok(None) };
        if judged.is(&stat) {
            return Ok(None);
        }
        match self.judge_arrived(req, judged, to, &stat, told) {
            Ok(node) => Ok(Some(Arrived { stat, node })),
            Err(errno) => Err(Misplaced(Box::new(stat), errno)),
        }
    }

    /// Judges what is at `to` as if it had been asked to be moved from where another was `judged`.
    fn judge_arrived(
        &self,
        req: &Request<'_>,
        judged: &Judged<'_>,
        to: &Spot<'_>,
        stat: &Stat,
        (looked, came): (Instant, CameThere<'_>),
    ) -> Result<Option<Arc<Node>>, Errno> {
        let from = judged.at.spot;
        let path = |spot: &Spot<'_>| self.paths.of_child(&spot.dir, spot.name);
        let (old, new) = (path(from)?, path(to)?);
        let goes_back = match came(stat) {
            Some(came) => came,
            None => self.gives_no_more(&new, &old, (to, stat)),
        };
        if !goes_back {
            return Ok(None);
        }
        if stat.file_type() == FileType::Directory {
            let top = Top { at: to.below(), key: stat.key() };
            let is_neutral = self.admission.policy().subtree_move_is_neutral(&old, &new);
            // Else others may have put it there.
            let is_told = came(stat).is_some();
            let stays = is_neutral && self.gives_no_more(&old, &new, (to, stat))
                || !is_told && self.may_not_go_back(req, &top, &new, &old);
            let (at, to) = (from.at(), Some(to.at()));
            let stale = || Err(self.failed_name(req, "rename", at, to, Errno::STALE));
            return if stays { Ok(None) } else { stale() };
        }
        let node = from.node_of(&self.table, stat);
        let at = Existing { spot: from, node: node.as_ref(), stat, here: to };
        let none_below = self.admit_rename(req, &at, to, looked)?;
        drop(none_below);
        Ok(node)
    }

    /// Whether the directory `top`, which others may have put where it is, would open something there, or make a
    /// name that is kept from being made.
    fn may_not_go_back(&self, req: &Request<'_>, top: &Top<'_>, new: &[u8], old: &[u8]) -> bool {
        self.subtree_weakens(top, new, old).unwrap_or(true)
            || !matches!(self.made_below(req, top, new, old), Ok(None))
    }

    /// Another file than `judged` was moved from its name to `to`: the kernel, which takes it for that,
    /// is to look.
    fn note_instead_of(&self, judged: &Judged<'_>, to: &Spot<'_>) {
        let Existing { spot, node, .. } = judged.at;
        if let Some(node) = node {
            node.gone_from(&spot.dir, spot.name);
        }
        self.look_again(to);
    }

    /// What has come to `to` may not be there: it goes back to `from`, or aside where that is taken.
    fn send_back(&self, from: &Spot<'_>, to: &Spot<'_>, stat: &Stat) {
        self.send_one_back(from, to, stat);
        self.look_again(from);
        self.look_again(to);
    }

    fn send_one_back(&self, from: &Spot<'_>, to: &Spot<'_>, stat: &Stat) {
        let path = |name: Name<'_>| self.paths.of_child(&from.dir, name).ok();
        let is_as_strict = |name: &CStr| {
            let paths = path(from.name).zip(Name::new(name).ok().and_then(path));
            paths.is_some_and(|(old, new)| self.gives_no_more(&old, &new, (to, stat)))
        };
        let names = names_back(from.name.as_c_str(), is_as_strict);
        match put_back((from.below(), names), to.below(), &stat.key()) {
            Ok(Some(name)) if *name != *from.name.as_c_str() => {
                let dir = self.paths.of_child(&from.dir, from.name).unwrap_or_default();
                let (dir, name) = (dir.escape_ascii(), name.to_bytes().escape_ascii());
                tracing::warn!(
                    "what others put at `{dir}` was moved by a rename, and is `{name}` now"
                );
            }
            Ok(_) => {}
            Err(errno) => {
                let path = self.paths.of_child(&to.dir, to.name).unwrap_or_default();
                let path = path.escape_ascii();
                tracing::error!(
                    "what others put at a name that was renamed stays at `{path}`: {errno}"
                );
            }
        }
    }

    /// The same after two names were exchanged. `may_stay` says so of what is at the first, and at the
    /// second.
    fn exchange_back(&self, from: &Spot<'_>, to: &Spot<'_>, may_stay: [&dyn Fn(&Stat) -> bool; 2]) {
        let wrong = || {
            let found = [from, to].map(|spot| spot.stat().ok());
            let wrong = |at: usize| found[at].filter(|stat| !may_stay[at](stat));
            [wrong(0), wrong(1)]
        };
        for _ in 0..TRIES {
            if wrong().iter().all(Option::is_none) {
                break;
            }
            let ((dir, name), (other, other_name)) = (from.below(), to.below());
            let exchange = RenameFlags::EXCHANGE;
            if rustix::fs::renameat_with(dir, name, other, other_name, exchange).is_err() {
                break;
            }
        }
        let [at_from, at_to] = wrong();
        if let Some(stat) = at_to {
            self.send_one_back(from, to, &stat);
        }
        if let Some(stat) = at_from {
            self.send_one_back(to, from, &stat);
        }
        self.look_again(from);
        self.look_again(to);
    }

    /// Whether the rules about the path `new` give no more of what is `here` than those about `old`.
    fn gives_no_more(&self, old: &[u8], new: &[u8], (here, stat): (&Spot<'_>, &Stat)) -> bool {
        let head = || Existing::at(here, None, stat).head().ok().flatten();
        !may_weaken(self.admission.policy(), old, new, stat, head)
    }

    /// The kernel may take what is there now for something else.
    fn look_again(&self, spot: &Spot<'_>) {
        let (parent, name) = (Arc::clone(&spot.dir), spot.name.as_c_str().into());
        self.left_names.add(&Place { parent, name });
    }
}

/// Names for what goes back to `name`: that itself, then some beside it, those first that are
/// `as_strict`.
fn names_back(name: &CStr, as_strict: impl Fn(&CStr) -> bool) -> Vec<CString> {
    let bytes = name.to_bytes();
    // A rule may go by the beginning of the name, or by its end.
    let (start, end) =
        (&bytes[..bytes.len().min(KEPT_OF_NAME)], bytes.len() - bytes.len().min(KEPT_OF_NAME));
    let suffixed = |n: usize| [start, format!(".moved-{n}").as_bytes()].concat();
    let prefixed = |n: usize| [format!("moved-{n}.").as_bytes(), &bytes[end..]].concat();
    let beside = (1..=TRIES).map(suffixed).chain((1..=TRIES).map(prefixed));
    let mut beside: Vec<_> = beside.filter_map(|name| CString::new(name).ok()).collect();
    beside.sort_by_cached_key(|name| !as_strict(name));
    std::iter::once(name.to_owned()).chain(beside).collect()
}

/// Moves the inode of `key` from where it is `now` to the first of these `names` in `dir` that is free.
/// Returns the name; `None` if others have moved it already.
fn put_back(
    ((dir, _), names): (Beneath<'_>, Vec<CString>),
    now: Beneath<'_>,
    key: &Key,
) -> Result<Option<CString>, Errno> {
    let is_it = |(dir, name): Beneath<'_>| lower::stat_at(dir, name).map(|stat| stat.key() == *key);
    for name in names {
        let back = (dir, &*name);
        for _ in 0..TRIES {
            if is_it(now) != Ok(true) {
                return Ok(None);
            }
            match move_to_free(now, back) {
                Err(Errno::EXIST) => break,
                moved => moved?,
            }
            // Unless others have put it there once more, in the meantime.
            if is_it(now) != Ok(true) {
                return Ok(Some(name));
            }
        }
    }
    Err(Errno::EXIST)
}

/// Renames, and replaces nothing.
fn move_to_free((dir, name): Beneath<'_>, (to, new): Beneath<'_>) -> Result<(), Errno> {
    match rustix::fs::renameat_with(dir, name, to, new, RenameFlags::NOREPLACE) {
        // Not every file system can.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(dir, name, to, new, AtFlags::empty())?;
            rustix::fs::unlinkat(dir, name, AtFlags::empty())
        }
        moved => moved,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd;

    use super::*;

    fn put(taken: &[&str]) -> (Option<CString>, Vec<String>) {
        let base = tempfile::tempdir().unwrap();
        for name in taken {
            fs::write(base.path().join(name), "taken").unwrap();
        }
        fs::write(base.path().join("now"), "it").unwrap();
        let dir = File::open(base.path()).unwrap();
        let key = lower::stat_at(dir.as_fd(), c"now").unwrap().key();
        let names = names_back(c"a.pem", |name| name.to_bytes().ends_with(b".pem"));
        let put = put_back(((dir.as_fd(), c"a.pem"), names), (dir.as_fd(), c"now"), &key).unwrap();
        let at = put.as_ref().map(|name| base.path().join(name.to_str().unwrap()));
        assert!(at.is_none_or(|at| fs::read(at).unwrap() == b"it"));
        for name in taken {
            assert_eq!(fs::read(base.path().join(name)).unwrap(), b"taken");
        }
        let names = fs::read_dir(base.path()).unwrap();
        (put, names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect())
    }

    #[test]
    fn what_goes_back_gets_its_name_or_one_that_is_as_strict() {
        assert_eq!(put(&[]), (Some(c"a.pem".to_owned()), vec!["a.pem".to_owned()]));
        assert_eq!(put(&["a.pem"]).0, Some(c"moved-1.a.pem".to_owned()));
        assert_eq!(put(&["a.pem", "moved-1.a.pem"]).0, Some(c"moved-2.a.pem".to_owned()));
    }

    #[test]
    fn what_others_moved_meanwhile_stays_there() {
        let base = tempfile::tempdir().unwrap();
        fs::write(base.path().join("it"), "").unwrap();
        fs::write(base.path().join("now"), "another").unwrap();
        let dir = File::open(base.path()).unwrap();
        let key = lower::stat_at(dir.as_fd(), c"it").unwrap().key();
        let names = names_back(c"old", |_| true);
        let put = put_back(((dir.as_fd(), c"old"), names), (dir.as_fd(), c"now"), &key);
        assert_eq!(put, Ok(None));
        assert_eq!(fs::read(base.path().join("now")).unwrap(), b"another");
    }

    #[test]
    fn long_names_are_cut() {
        let name = CString::new(vec![b'x'; 255]).unwrap();
        let names = names_back(&name, |_| true);
        assert!(names.iter().all(|name| name.to_bytes().len() <= 255));
    }
}
