//! Which programs that list directories use the attributes of the files in them.
//!
//! READDIRPLUS brings names and attributes, and the kernel makes an inode of each: more than half of
//! what the first `find -name` in a view costs, which looks at no file. The kernel asks so for every
//! directory, because it does not know what the program will do; nor does it tell whether attributes
//! that it has are used. So in some listings a few files come without attributes: if they are looked up,
//! the program gets all attributes from then on, and else only those of directories, into which it may
//! descend.
//!
//! Either error is cheap: attributes that nobody uses cost 5 us a file, those that are looked up one by
//! one 10 us (Zen 5), and each of these look-ups is counted here.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHasher};
use tollgate_fuse::{Name, NodeId};

/// Most programs that are remembered; the one that has listed nothing for longest makes room.
const MAX_WALKERS: usize = 32;
/// Most directories whose files were left without attributes that are remembered. Beyond it all are
/// forgotten: their files are looked up one by one.
const MAX_DIRECTORIES: usize = 1 << 16;

/// Directories that a program lists before anything is tried: many programs list one or two.
const LISTED_FIRST: u32 = 2;
/// Files of a directory that are left without attributes to see whether they are looked up.
const TRIED_FILES: u32 = 4;
/// In so many directories, and so many files in all: programs that descend at once come to a
/// directory's files after those in directories below.
const TRIED_DIRECTORIES: u32 = 8;
const TRIED_IN_ALL: u32 = 8;
/// Directories that a program which uses attributes lists before that is tried again.
const LISTED_BETWEEN: u32 = 64;
/// Of the files without attributes, one of so many may be looked up.
const LOOKED_UP: u32 = 4;
/// Files that are looked up by listings which the kernel has cached, until it has to list anew: a
/// program that uses attributes follows one that does not.
const LOOKED_UP_IN_ALL: u32 = 32;

/// Of how many files in a listing attributes are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Omit {
    First(u32),
    All,
}

/// All attributes are given.
pub(crate) const NOTHING: Omit = Omit::First(0);

impl Omit {
    /// Whether one more is, after `omitted`.
    pub(crate) fn covers(self, omitted: u32) -> bool {
        match self {
            Self::First(most) => omitted < most,
            Self::All => true,
        }
    }
}

/// What the kernel may have of the names in a directory. Kept in its node.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    lacks_attributes: AtomicBool,
    knows_files: AtomicBool,
    /// Of names that the kernel was told not to exist, some bits of a hash.
    missing: AtomicU64,
}

impl Listed {
    /// Whether it was listed last without the attributes of some files.
    pub(crate) fn lacks_attributes(&self) -> bool {
        self.lacks_attributes.load(Ordering::Relaxed)
    }

    /// It is listed, so or with all attributes. Returns how it was listed before.
    pub(crate) fn lack_attributes(&self, some: bool) -> bool {
        self.lacks_attributes.swap(some, Ordering::Relaxed)
    }

    /// The kernel gets to know a file in it.
    pub(crate) fn knows_file(&self) {
        if !self.knows_files.load(Ordering::Relaxed) {
            self.knows_files.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it may know one. What it has of that may be old; a listing with attributes renews it.
    pub(crate) fn knows_files(&self) -> bool {
        self.knows_files.load(Ordering::Relaxed)
    }

    /// The kernel is told that there is no such name.
    pub(crate) fn has_no(&self, name: Name<'_>) {
        self.missing.fetch_or(bit(name), Ordering::Relaxed);
    }

    /// Whether it may have been told so at some time.
    pub(crate) fn may_have_no(&self, name: Name<'_>) -> bool {
        self.missing.load(Ordering::Relaxed) & bit(name) != 0
    }
}

/// One of 64 bits.
fn bit(name: Name<'_>) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(name.as_c_str().to_bytes());
    1 << (hasher.finish() >> 58)
}

#[derive(Default)]
pub(crate) struct Walkers(Mutex<State>);

#[derive(Default)]
struct State {
    /// The one that listed last is the last one.
    walkers: VecDeque<Walker>,
    /// Directories that the kernel may have cached without attributes, and who listed them.
    directories: FxHashMap<NodeId, u32>,
    /// Files that were looked up in those.
    looked_up: u32,
}

/// A thread that lists.
struct Walker {
    tid: u32,
    stage: Stage,
}

enum Stage {
    /// It gets all attributes in so many more listings.
    Uses {
        left: u32,
    },
    Trying {
        directories: u32,
        omitted: u32,
    },
    /// It does not use them, but for so many of those that were left out.
    UsesNone {
        omitted: u32,
        looked_up: u32,
    },
}

impl Walkers {
    /// Thread `tid` begins to list a directory. One of another pid namespace has no number (0).
    pub(crate) fn lists(&self, tid: u32) -> Omit {
        if tid == 0 {
            return NOTHING;
        }
        let mut state = self.0.lock();
        let at = state.walkers.iter().position(|walker| walker.tid == tid);
        let known = at.and_then(|at| state.walkers.remove(at));
        let stage = Stage::Uses { left: LISTED_FIRST };
        let mut walker = known.unwrap_or(Walker { tid, stage });
        let omit = walker.stage.lists();
        if state.walkers.len() >= MAX_WALKERS {
            state.walkers.pop_front();
        }
        state.walkers.push_back(walker);
        omit
    }

    /// The kernel gets directory `dir` without the attributes of `count` files. With none it has all
    /// that it had not before.
    pub(crate) fn omits(&self, tid: u32, dir: NodeId, count: u32) {
        let mut state = self.0.lock();
        if count == 0 {
            state.directories.remove(&dir);
            return;
        }
        if state.directories.len() >= MAX_DIRECTORIES {
            state.directories.clear();
        }
        state.directories.insert(dir, tid);
        if let Some(walker) = state.walkers.iter_mut().find(|walker| walker.tid == tid) {
            walker.stage.omits(count);
        }
    }

    /// The kernel does not know `dir` any more.
    pub(crate) fn forgotten(&self, dir: NodeId) {
        self.0.lock().directories.remove(&dir);
    }

    /// A file is looked up in `dir`, of which the kernel did not have all attributes. Returns the
    /// directories that it should list anew, if that is due.
    pub(crate) fn looked_up(&self, dir: NodeId) -> Option<Vec<NodeId>> {
        let mut state = self.0.lock();
        let tid = *state.directories.get(&dir)?;
        if let Some(walker) = state.walkers.iter_mut().find(|walker| walker.tid == tid) {
            walker.stage.looked_up();
        }
        state.looked_up += 1;
        if state.looked_up < LOOKED_UP_IN_ALL {
            return None;
        }
        state.looked_up = 0;
        Some(state.directories.drain().map(|(dir, _)| dir).collect())
    }
}

impl Stage {
    fn lists(&mut self) -> Omit {
        match self {
            Self::Uses { left: 0 } => *self = Self::Trying { directories: 0, omitted: 0 },
            Self::Uses { left } => *left -= 1,
            Self::Trying { directories, omitted }
                if *directories >= TRIED_DIRECTORIES && *omitted >= TRIED_IN_ALL =>
            {
                *self = Self::UsesNone { omitted: 0, looked_up: 0 };
            }
            Self::Trying { directories, .. } => *directories += 1,
            Self::UsesNone { .. } => {}
        }
        match self {
            Self::Uses { .. } => NOTHING,
            Self::Trying { .. } => Omit::First(TRIED_FILES),
            Self::UsesNone { .. } => Omit::All,
        }
    }

    fn omits(&mut self, count: u32) {
        match self {
            Self::Uses { .. } => {}
            Self::Trying { omitted, .. } | Self::UsesNone { omitted, .. } => {
                *omitted = omitted.saturating_add(count);
            }
        }
    }

    fn looked_up(&mut self) {
        let uses = match self {
            Self::Uses { .. } => false,
            Self::Trying { .. } => true,
            Self::UsesNone { omitted, looked_up } => {
                *looked_up = looked_up.saturating_add(1);
                *looked_up > LOOKED_UP && *looked_up > *omitted / LOOKED_UP
            }
        };
        if uses {
            *self = Self::Uses { left: LISTED_BETWEEN };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    const FEW: Omit = Omit::First(TRIED_FILES);

    /// Lists `count` directories of ten files each, from node `first` on.
    fn list(walkers: &Walkers, tid: u32, first: u64, count: u64) -> Vec<Omit> {
        let each = |dir| {
            let omit = walkers.lists(tid);
            let omitted = (0..10).take_while(|&files| omit.covers(files)).count();
            walkers.omits(tid, NodeId(dir), u32::try_from(omitted).unwrap());
            omit
        };
        (first..first + count).map(each).collect()
    }

    #[test]
    fn who_looks_at_no_file_gets_names() {
        let walkers = Walkers::default();
        let omits = list(&walkers, 7, 1, 20);
        let tried = 2 + TRIED_DIRECTORIES as usize + 1;
        assert_eq!(omits[..2], [NOTHING; 2]);
        assert!(omits[2..tried].iter().all(|omit| *omit == FEW), "{omits:?}");
        assert!(omits[tried..].iter().all(|omit| *omit == Omit::All), "{omits:?}");
        assert_eq!(list(&walkers, 8, 100, 1), [NOTHING], "another program");
        assert_eq!(list(&walkers, 0, 200, 20), [NOTHING; 20], "nobody knows which program");
    }

    #[test]
    fn who_looks_up_what_was_left_out_gets_all() {
        let walkers = Walkers::default();
        assert_eq!(list(&walkers, 7, 1, 3), [NOTHING, NOTHING, FEW]);
        assert!(walkers.looked_up(NodeId(3)).is_none());
        let between = list(&walkers, 7, 4, u64::from(LISTED_BETWEEN));
        assert!(between.iter().all(|omit| *omit == NOTHING));
        assert_eq!(list(&walkers, 7, 100, 1), [FEW], "it is tried again");
    }

    #[test]
    fn a_few_files_may_be_looked_up() {
        let walkers = Walkers::default();
        list(&walkers, 7, 1, 20);
        // Ninety files were left out since: `find -name '*.rs' -exec grep` opens some.
        (0..22).for_each(|_| assert!(walkers.looked_up(NodeId(15)).is_none()));
        assert_eq!(list(&walkers, 7, 21, 1), [Omit::All]);
        (0..8).for_each(|_| assert!(walkers.looked_up(NodeId(16)).is_none()));
        assert_eq!(list(&walkers, 7, 22, 1), [NOTHING]);
    }

    #[test]
    fn a_tree_that_another_program_reads_is_listed_anew() {
        let walkers = Walkers::default();
        list(&walkers, 7, 1, 40);
        walkers.forgotten(NodeId(30));
        assert!((1..LOOKED_UP_IN_ALL).all(|_| walkers.looked_up(NodeId(20)).is_none()));
        let anew = walkers.looked_up(NodeId(21)).unwrap();
        assert!(anew.contains(&NodeId(40)) && !anew.contains(&NodeId(1)));
        assert!(!anew.contains(&NodeId(30)));
        assert!((0..100).all(|_| walkers.looked_up(NodeId(22)).is_none()), "nothing is left");
    }

    #[test]
    fn names_that_were_missing_are_told_from_most_others() {
        let names: Vec<_> = (0..100).map(|n| format!("name{n}\0")).collect();
        let names = names
            .iter()
            .map(|name| Name::new(CStr::from_bytes_with_nul(name.as_bytes()).unwrap()).unwrap());
        let listed = Listed::default();
        let ignored = [c".gitignore", c".ignore"].map(|name| Name::new(name).unwrap());
        ignored.iter().for_each(|name| listed.has_no(*name));
        assert!(ignored.iter().all(|name| listed.may_have_no(*name)));
        assert!(names.filter(|name| listed.may_have_no(*name)).count() < 20);
    }

    #[test]
    fn so_many_are_remembered() {
        let walkers = Walkers::default();
        list(&walkers, 7, 1, 20);
        (100..131).for_each(|tid| drop(list(&walkers, tid, 1_000, 1)));
        assert_eq!(list(&walkers, 7, 21, 1), [Omit::All]);
        (100..132).for_each(|tid| drop(list(&walkers, tid, 1_000, 1)));
        assert_eq!(list(&walkers, 7, 22, 1), [NOTHING]);
        let count = MAX_DIRECTORIES as u64 + 9;
        (0..count).for_each(|dir| walkers.omits(7, NodeId(dir), 1));
        assert!(walkers.0.lock().directories.len() <= MAX_DIRECTORIES);
    }
}
