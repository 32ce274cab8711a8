//! The views that one server shows side by side, and the names that a file of one has in the others.
//!
//! Each view knows the names below its own directory ([`crate::links`]). A file with names that are
//! not there may have them in the directory of a neighbour, whose rules decide over it as well: the
//! strictest name wins, whichever view it is in. So a view asks its neighbours about such files, and
//! about no others.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use rustix::io::Errno;
use smallvec::SmallVec;
use tollgate_fuse::{Connection, Name};

use crate::links::{Links, Looked, Searched, Top, stat_beneath};
use crate::lower::{self, Key, Stat};
use crate::moving::{Moving, Turn};
use crate::policies::{InForce, Policies};
use crate::table::Table;

/// Searches that one request makes at most: names that are moved by others while one runs make it
/// uncertain.
const MAX_SEARCHES: usize = 3;
/// How long one request waits, each time, for others to leave the links of a file alone: to look at them again. Together
/// longer than a file has to be left alone where the kernel cannot be asked to watch it.
const PAUSES_MS: [u64; 5] = [1, 2, 4, 8, 16];

/// The views of one server. A file that has names in several of their directories is judged by all
/// of these.
#[derive(Debug)]
pub struct Neighbours {
    /// Each once it is there.
    views: Box<[OnceLock<Arc<Place>>]>,
    /// From the start: while one of them is served already, no mount leads into another.
    directories: Vec<Directory>,
}

/// The directory of a view.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    /// The mount that it lies in.
    pub(crate) mount_id: u64,
}

impl Neighbours {
    /// For views of these directories.
    ///
    /// # Errors
    /// When one of them cannot be looked at.
    pub fn new(directories: &[BorrowedFd<'_>]) -> std::io::Result<Self> {
        let directory = |fd: &BorrowedFd<'_>| {
            let path = lower::path_of(*fd).ok_or(Errno::NAMETOOLONG)?;
            let mount_id = lower::stat_fd(*fd)?.mount_id();
            Ok(Directory { path: OsStr::from_bytes(&path).into(), mount_id })
        };
        Ok(Self {
            views: directories.iter().map(|_| OnceLock::new()).collect(),
            directories: directories.iter().map(directory).collect::<Result<_, Errno>>()?,
        })
    }

    /// The directories of all but the view of `own`.
    pub(crate) fn directories_beside<'s>(
        &'s self,
        own: &'s Path,
    ) -> impl Iterator<Item = &'s Directory> {
        self.directories.iter().filter(move |one| one.path != own)
    }

    /// Adds a view, whose directory was searched. What neither it nor the others met there is not
    /// searched for again.
    pub(crate) fn add(&self, new: &Arc<Place>) {
        for other in self.others(new) {
            other.links.learn_absent(&new.links);
            new.links.learn_absent(&other.links);
        }
        let is_added = self.views.iter().any(|slot| slot.set(Arc::clone(new)).is_ok());
        assert!(is_added, "there are more views than were announced");
    }

    fn all(&self) -> impl Iterator<Item = &Place> {
        self.views.iter().filter_map(OnceLock::get).map(Arc::as_ref)
    }

    pub(crate) fn others<'s>(&'s self, own: &'s Place) -> impl Iterator<Item = &'s Place> {
        self.all().filter(move |place| !std::ptr::eq(*place, own))
    }
}

/// Names of one file in neighbouring views, each with the rules that decide over it there.
#[derive(Default)]
pub(crate) struct Elsewhere<'v> {
    pub(crate) names: SmallVec<[(&'v InForce, Vec<u8>); 0]>,
    /// The rules of views in which it may have names that are not known.
    pub(crate) unknown: SmallVec<[&'v InForce; 0]>,
}

/// A view's directory: the names there, and the rules about them.
pub(crate) struct Place {
    pub(crate) table: Arc<Table>,
    /// Once there is one.
    pub(crate) connection: Arc<OnceLock<Connection>>,
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) links: Arc<Links>,
    pub(crate) moving: Arc<Moving>,
    pub(crate) policies: Arc<Policies>,
    /// How long names count that were seen.
    pub(crate) fresh: Duration,
    /// Where something else is mounted, another view say, the rules are not this one's.
    pub(crate) mount_points: Vec<PathBuf>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("links", &self.links).finish_non_exhaustive()
    }
}

impl Place {
    /// Adds the names that a file with the attributes `stat`, which another view asks about, has
    /// here. That view looked at its names at the moment `looked`; `now` tells its attributes.
    /// Returns whether a name that was known here is gone, which may have come to another view.
    pub(crate) fn add_names<'v>(
        &'v self,
        stat: &Stat,
        turn: Turn,
        looked: Instant,
        now: impl Fn() -> Option<Stat>,
        elsewhere: &mut Elsewhere<'v>,
    ) -> bool {
        let in_force = self.policies.current();
        let mut lost = false;
        let confirmed = self.links.confirmed(stat, self.fresh, looked, &in_force.policy);
        let names = confirmed.unwrap_or_else(|| {
            // In its turn it may not wait for ours.
            let looked = (turn == Turn::Free).then(|| self.find(&[], stat, || self.search(), now));
            lost = looked.is_some_and(|looked| looked.lost);
            if !looked.is_some_and(|looked| looked.all_known) {
                elsewhere.unknown.push(in_force);
            }
            self.links.judged(&stat.key(), &in_force.policy)
        });
        let own = names.into_iter().filter(|path| !self.is_covered(path));
        elsewhere.names.extend(own.map(|path| (in_force, path)));
        lost
    }

    /// Adds names that were removed here and go on counting.
    pub(crate) fn add_removed<'v>(&'v self, key: &Key, elsewhere: &mut Elsewhere<'v>) {
        if self.links.keeps_removed() {
            let removed = self.links.removed(key).into_iter();
            elsewhere.names.extend(removed.map(|path| (self.policies.current(), path)));
        }
    }

    /// Whether the names of a file, as they were confirmed, are still those.
    pub(crate) fn is_confirmed(&self, stat: &Stat, looked: Instant) -> bool {
        let policy = &self.policies.current().policy;
        self.links.confirmed(stat, self.fresh, looked, policy).is_some()
    }

    /// Looks at the known names of an inode, and those of `known`, and searches for others with
    /// `search` if there are more. `now` tells its attributes, if it is met elsewhere.
    pub(crate) fn find(
        &self,
        known: &[Vec<u8>],
        stat: &Stat,
        search: impl Fn() -> Searched,
        now: impl Fn() -> Option<Stat>,
    ) -> Looked {
        let root = self.root.as_fd();
        let mut lost = false;
        let mut verify = |searched: Option<u32>| {
            let mut look = || {
                let _still = self.moving.write();
                let looked = self.links.verify(root, stat, known, searched);
                lost |= looked.lost;
                looked
            };
            let mut looked = look();
            for pause in PAUSES_MS {
                if !looked.unsure {
                    break;
                }
                std::thread::sleep(Duration::from_millis(pause));
                looked = look();
            }
            looked
        };
        let key = stat.key();
        let met = |path: &Vec<u8>| stat_beneath(root, path).filter(|stat| stat.key() == key);
        let mut looked = verify(None);
        let mut before = Some(*stat);
        for _ in 0..MAX_SEARCHES {
            // A search tells nothing of names that are known.
            if looked.all_known || looked.unsure {
                break;
            }
            let searched = search();
            if !searched.is_complete {
                break;
            }
            // What the search did not find lies elsewhere, unless names were moved meanwhile: all changes of
            // its names change its time, but for moves of directories above them.
            let by_name = self.links.stat_by_name(root, &key, None);
            let after = by_name.or_else(|| known.iter().find_map(met)).or_else(&now);
            let is_same = before.zip(after).is_some_and(|(before, after)| {
                (before.changed(), before.nlink()) == (after.changed(), after.nlink())
            });
            let none_moved = is_same && searched.directories_stayed;
            // One that was made meanwhile may have been made after the search.
            let links = match (before, after) {
                (Some(before), Some(after)) => {
                    (before.nlink() == after.nlink()).then_some(after.nlink())
                }
                (None, Some(_)) => None,
                (_, None) => Some(stat.nlink()),
            };
            looked = verify(links.filter(|_| none_moved || searched.is_of_one_moment));
            before = after;
        }
        Looked { lost, ..looked }
    }

    /// The kernel asks again for every name, and for all that it has of inodes whose contents it
    /// keeps: targets of symbolic links and listings. `ENOENT` for what it does not have is as
    /// good.
    pub(crate) fn expire(&self) {
        let Some(connection) = self.connection.get() else { return };
        for node in self.table.all() {
            for place in node.places() {
                if let Ok(name) = Name::new(&place.name) {
                    let _ = connection.expire_entry(place.parent.id, name);
                }
            }
            if node.is_dir() || node.kind == FileType::Symlink {
                let _ = connection.invalidate_inode(node.id, 0, 0);
            }
        }
    }

    fn search(&self) -> Searched {
        self.links.search(&Top { fd: self.root.as_fd(), path: b"" })
    }

    /// Whether something else is mounted where this name is.
    pub(crate) fn is_covered(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        self.mount_points.iter().any(|point| path.starts_with(point))
            || self.table.anchors().cover(path)
    }
}
