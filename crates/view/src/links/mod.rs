//! Files with several names (hard links), and all the names of each.
//!
//! The policy judges an inode by the strictest of its names, so all have to be known, also those
//! that nobody asked for and those that are hidden. They are searched for once, at the start, and
//! kept up to date by the view's own changes. What others change is noticed when an inode is
//! judged: its number of links and its change time tell whether anything happened to its names
//! since they were confirmed. They are then looked at again, and if one is missing the tree is
//! searched again.
//!
//! A name that a complete search does not find lies outside of DIR, where no rule covers it; it is
//! counted (`elsewhere`). Where no complete search was possible, an inode of which not every name is
//! known is judged as if it had a name under every rule.
//!
//! Nothing of this happens, and nothing is kept, where no rule can tell two names apart.

mod beneath;
mod look;
mod record;
mod verify;
mod walk;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::io::Errno;
use serde::Serialize;
use tollgate_policy::Policy;

use crate::lower::{Key, Stat};
use crate::memory;
use record::{Record, State};
use walk::{Outcome, Walk};

/// Most bytes that the names may take, about a million of them. Beyond it a search gives up.
const MAX_BYTES: usize = 256 << 20;
/// What a name takes beside its text: its place in two tables, and the record of its inode.
const NAME_OVERHEAD: usize = 200;
/// Longest search while requests wait for it.
const MAX_SEARCH: Duration = Duration::from_secs(10);
/// After a search that gave up, none is made for so long.
const PAUSE: Duration = Duration::from_secs(60);
const SHARDS: usize = 64;

/// What is known of files with several names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinksStatus {
    /// Files that have several names and at least one of them in DIR.
    pub files: usize,
    /// Their names in DIR.
    pub names: usize,
    /// Memory that they take, about, and the most that they may take.
    pub bytes: usize,
    /// The most that [`LinksStatus::bytes`] may be.
    pub bytes_max: usize,
    /// Searches of the tree so far. The first is made at the start, unless no rule can tell names
    /// apart.
    pub searches: u64,
    /// How long the last search took.
    pub last_search_ms: u64,
    /// Names that the last search looked at.
    pub searched: u64,
    /// Directories that the last search could not read.
    pub unreadable: u64,
    /// Whether the last search was complete. If not, files of which not every name is known are
    /// judged as if every rule covered them.
    pub complete: bool,
}

#[cfg(test)]
type OnLook = Box<dyn FnMut(&[u8]) + Send>;

/// The names of files that have several.
pub(crate) struct Links {
    shards: [Mutex<FxHashMap<Key, Record>>; SHARDS],
    bytes: AtomicUsize,
    bytes_max: usize,
    threads: usize,
    /// One search at a time; when the last one gave up.
    turn: Mutex<Option<Instant>>,
    last: Mutex<Last>,
    searches: AtomicU64,
    full: AtomicBool,
    /// Removed names that go on counting.
    removed: AtomicUsize,
    /// Tells what happens to the links of a file that is looked at.
    watch: look::Watch,
    /// Is told of each name that is looked at, when it was.
    #[cfg(test)]
    on_look: Mutex<Option<OnLook>>,
}

#[derive(Default)]
struct Last {
    outcome: Outcome,
    begun: Option<SystemTime>,
    took: Duration,
}

/// Which tree to search: DIR, or what is mounted below it.
pub(crate) struct Top<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) path: &'a [u8],
}

/// What a search came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Searched {
    /// Every name was looked at.
    pub(crate) is_complete: bool,
    /// So that none can have been moved past the search.
    pub(crate) is_of_one_moment: bool,
    /// No directory was moved past it, as far as it read directories more than once.
    pub(crate) directories_stayed: bool,
}

/// What looking at the known names of an inode came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Looked {
    /// All its names are known.
    pub(crate) all_known: bool,
    /// One that was known is not there any more.
    pub(crate) lost: bool,
    /// There were enough, but others went on changing them: perhaps not all at one moment. A further
    /// look may tell.
    pub(crate) unsure: bool,
}

/// Whether `path` is certainly no name of the inode `key` beneath `root`.
pub(crate) fn is_no_name(root: BorrowedFd<'_>, path: &[u8], key: &Key) -> bool {
    match beneath::stat(root, path) {
        Ok(stat) => stat.key() != *key,
        Err(errno) => matches!(errno, Errno::NOENT | Errno::NOTDIR),
    }
}

/// Attributes of what `path` leads to beneath `root`, if it is there and leads through no link.
pub(crate) fn stat_beneath(root: BorrowedFd<'_>, path: &[u8]) -> Option<Stat> {
    beneath::stat(root, path).ok()
}

impl Links {
    /// `threads` search side by side.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            bytes: AtomicUsize::new(0),
            bytes_max: MAX_BYTES,
            threads,
            turn: Mutex::new(None),
            last: Mutex::default(),
            searches: AtomicU64::new(0),
            full: AtomicBool::new(false),
            removed: AtomicUsize::new(0),
            watch: look::Watch::default(),
            #[cfg(test)]
            on_look: Mutex::default(),
        }
    }

    /// Searches the whole tree before anything is served, however long it takes. Returns the path
    /// of a directory that takes two spellings of a name for one, if there is any: the search ends
    /// there.
    pub(crate) fn begin(
        &self,
        root: BorrowedFd<'_>,
        progress: Option<&(dyn Fn(u64) + Sync)>,
    ) -> Option<Vec<u8>> {
        self.watch.begin();
        let top = Top { fd: root, path: b"" };
        let at = Instant::now();
        let searched = self.walk(&top, None, progress);
        if searched.is_complete {
            for shard in &self.shards {
                for record in shard.lock().values_mut() {
                    // What was moved past the search is searched for when the file is opened.
                    record.conclude_as_seen(at, searched.is_of_one_moment);
                }
            }
        }
        // What it noted of the directories is free again.
        memory::give_back();
        self.last.lock().outcome.caseless.take()
    }

    /// The path of a directory that takes two spellings of a name for one, if there is any: as at the
    /// start, however long the search takes.
    pub(crate) fn caseless_below(&self, root: BorrowedFd<'_>) -> Option<Vec<u8>> {
        let _alone = self.turn.lock();
        self.walk(&Top { fd: root, path: b"" }, None, None);
        memory::give_back();
        self.last.lock().outcome.caseless.take()
    }

    /// Searches `top` again, unless a search has just given up.
    pub(crate) fn search(&self, top: &Top<'_>) -> Searched {
        let mut gave_up = self.turn.lock();
        if gave_up.is_some_and(|at| at.elapsed() < PAUSE) {
            return Searched::default();
        }
        let searched = self.walk(top, Some(Instant::now() + MAX_SEARCH), None);
        *gave_up = (!searched.is_complete).then(Instant::now);
        searched
    }

    /// As if a search had just given up.
    #[cfg(test)]
    pub(crate) fn give_up(&self) {
        *self.turn.lock() = Some(Instant::now());
    }

    fn walk(
        &self,
        top: &Top<'_>,
        deadline: Option<Instant>,
        progress: Option<&(dyn Fn(u64) + Sync)>,
    ) -> Searched {
        let found = |path: Vec<u8>, stat: &Stat| self.found(&path, stat);
        let (begun, begun_at) = (Instant::now(), Some(SystemTime::now()));
        let walk = Walk {
            top: top.fd,
            path: top.path,
            threads: self.threads,
            deadline,
            found: &found,
            progress,
        };
        let outcome = walk.run();
        let is_complete = outcome.is_complete();
        let directories_stayed = !outcome.directories_moved;
        let is_of_one_moment = outcome.is_of_one_moment;
        let searched = Searched { is_complete, is_of_one_moment, directories_stayed };
        if !is_complete {
            tracing::debug!(?outcome, "not every name of files with several names could be found");
        }
        self.searches.fetch_add(1, Ordering::Relaxed);
        *self.last.lock() = Last { outcome, begun: begun_at, took: begun.elapsed() };
        searched
    }

    fn found(&self, path: &[u8], stat: &Stat) -> bool {
        if self.is_full() {
            return false;
        }
        let mut shard = self.shard(&stat.key()).lock();
        let record = shard.entry(stat.key()).or_default();
        if record.find(path, State::of(stat)) {
            self.count(path);
        }
        true
    }

    fn is_full(&self) -> bool {
        let full = self.bytes.load(Ordering::Relaxed) >= self.bytes_max;
        if full && !self.full.swap(true, Ordering::Relaxed) {
            let bytes = self.bytes_max;
            tracing::warn!("the names of files with several names take {bytes} bytes");
        }
        full
    }

    fn count(&self, path: &[u8]) {
        self.bytes.fetch_add(path.len() + NAME_OVERHEAD, Ordering::Relaxed);
    }

    fn count_out(&self, path: &[u8]) {
        self.bytes.fetch_sub(path.len() + NAME_OVERHEAD, Ordering::Relaxed);
    }

    /// The names to judge `stat` by, if all were there within `fresh` before the moment at which the
    /// request `looked`, or later, and nothing happened to them since.
    pub(crate) fn confirmed(
        &self,
        stat: &Stat,
        fresh: Duration,
        looked: Instant,
        policy: &Arc<Policy>,
    ) -> Option<Vec<Vec<u8>>> {
        let mut shard = self.shard(&stat.key()).lock();
        let record = shard.get_mut(&stat.key())?;
        record.is_confirmed(State::of(stat), fresh, looked).then(|| record.judged(policy))
    }

    /// Whether names count, so that all were searched for.
    pub(crate) fn are_searched(&self) -> bool {
        self.searches.load(Ordering::Relaxed) > 0
    }

    /// Whether removed names of some file go on counting.
    pub(crate) fn keeps_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed) > 0
    }

    /// The removed names of an inode that go on counting.
    pub(crate) fn removed(&self, key: &Key) -> Vec<Vec<u8>> {
        let shard = self.shard(key).lock();
        let removed = shard.get(key).into_iter().flat_map(Record::removed);
        removed.map(|path| path.to_vec()).collect()
    }

    /// Whether an inode may have names that lie outside of DIR.
    pub(crate) fn is_elsewhere(&self, key: &Key) -> bool {
        self.shard(key).lock().get(key).is_none_or(Record::is_elsewhere)
    }

    /// Whether an inode has names here.
    pub(crate) fn has_names(&self, key: &Key) -> bool {
        self.shard(key).lock().get(key).is_some_and(|record| !record.has_no_names())
    }

    /// Whether more names are known than an inode with the attributes `stat` has.
    pub(crate) fn has_lost_names(&self, stat: &Stat) -> bool {
        if self.bytes.load(Ordering::Relaxed) == 0 {
            // None is known of any file.
            return false;
        }
        let shard = self.shard(&stat.key()).lock();
        shard.get(&stat.key()).is_some_and(|record| record.len() as u64 > stat.nlink().into())
    }

    /// Whether `path` is known to be a name of the inode.
    pub(crate) fn has_name(&self, key: &Key, path: &[u8]) -> bool {
        self.shard(key).lock().get(key).is_some_and(|record| record.has_name(path))
    }

    /// Whether an inode is judged by several names here.
    pub(crate) fn has_several_names(&self, key: &Key) -> bool {
        self.shard(key).lock().get(key).is_some_and(Record::has_several_names)
    }

    /// What `other`, of another directory, knows to have names outside of it, and a complete search
    /// of this one has not met, has none here: it is not searched for. Unless its names changed since that
    /// search began.
    pub(crate) fn learn_absent(&self, other: &Self) {
        let begun = {
            let last = self.last.lock();
            let is_good = last.outcome.is_complete() && last.outcome.is_of_one_moment;
            last.begun.filter(|_| is_good)
        };
        let Some(begun) = begun else { return };
        for shard in &other.shards {
            let elsewhere: Vec<_> = shard
                .lock()
                .iter()
                .filter_map(|(key, record)| Some((*key, record.known_elsewhere()?)))
                .filter(|(_, (state, _))| walk::is_before(state.changed(), begun))
                .collect();
            for (key, (state, at)) in elsewhere {
                let mut own = self.shard(&key).lock();
                own.entry(key).or_insert_with(|| Record::absent(state, at));
            }
        }
    }

    /// The names that are known of `key`, those to judge it by; not all may be there any more.
    pub(crate) fn judged(&self, key: &Key, policy: &Arc<Policy>) -> Vec<Vec<u8>> {
        let mut shard = self.shard(key).lock();
        shard.get_mut(key).map(|record| record.judged(policy)).unwrap_or_default()
    }

    /// A name of the inode that lay in another directory is not there any more, and may be here: it
    /// is searched for before the inode is judged the next time.
    pub(crate) fn doubt(&self, key: &Key) {
        let mut shard = self.shard(key).lock();
        if let Some(record) = shard.get_mut(key) {
            record.doubt();
            if record.is_empty() {
                shard.remove(key);
            }
        }
    }

    fn names(&self, key: &Key) -> Vec<Box<[u8]>> {
        let shard = self.shard(key).lock();
        shard.get(key).into_iter().flat_map(Record::names).map(Into::into).collect()
    }

    /// The inode was met under a name. If it is one of those that are kept and the name is new,
    /// its names are looked at again before it is judged the next time.
    pub(crate) fn sighted<E>(
        &self,
        key: &Key,
        path: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let mut shard = self.shard(key).lock();
        if let Some(record) = shard.get_mut(key) {
            let path = path()?;
            if record.add(&path) {
                self.count(&path);
            }
        }
        Ok(())
    }

    /// The view changed the inode's names: `removed` is gone, `made` is there, and it has the
    /// attributes `after`. `known` are its other names, as far as the view met them.
    pub(crate) fn changed(&self, before: &Stat, change: &Change<'_>, after: Option<&Stat>) {
        let mut shard = self.shard(&before.key()).lock();
        let record = shard.entry(before.key()).or_default();
        let confirmed = match before.nlink() {
            // Its only name is known.
            0 | 1 => Some(Instant::now()),
            _ => record.confirmed_at(State::of(before)),
        };
        // At the maximum it is not kept: the inode then has a name that is not known.
        let added = change.known.iter().map(Vec::as_slice).chain(change.made);
        added.filter(|path| !self.is_full() && record.add(path)).for_each(|path| self.count(path));
        if let Some(path) = change.removed.filter(|path| record.remove(path)) {
            self.count_out(path);
        }
        // Asked here, so that of two names that go at once one sees that the other is gone.
        if let (Some(path), Some((policy, keep))) = (change.removed, change.keep_removed)
            && keep(record.judged(policy))
            && record.keep_removed(path)
        {
            self.removed.fetch_add(1, Ordering::Relaxed);
            self.count(path);
        }
        if let Some(after) = after {
            record.follow(State::of(after), confirmed);
        }
        let is_over = record.has_no_names() || after.is_some_and(|after| after.nlink() < 2);
        if is_over && record.removed().is_empty() {
            record.names().for_each(|path| self.count_out(path));
            shard.remove(&before.key());
        }
    }

    /// The inode has gone, after its last name: none of those that go on counting does any more.
    pub(crate) fn gone(&self, key: &Key) {
        let mut shard = self.shard(key).lock();
        let Some(record) = shard.remove(key) else { return };
        record
            .names()
            .chain(record.removed().iter().map(AsRef::as_ref))
            .for_each(|path| self.count_out(path));
        self.removed.fetch_sub(record.removed().len(), Ordering::Relaxed);
    }

    /// A directory moved within the view: `new_path` gives the names below it their new paths.
    pub(crate) fn directory_moved(&self, new_path: &dyn Fn(&[u8]) -> Option<Vec<u8>>) {
        for shard in &self.shards {
            for record in shard.lock().values_mut() {
                let (gone, made) =
                    (|path: &[u8]| self.count_out(path), |path: &[u8]| self.count(path));
                record.rename(new_path, gone, made);
            }
        }
    }

    /// Attributes of the inode, by one of the names that are kept, other than `not`.
    pub(crate) fn stat_by_name(
        &self,
        root: BorrowedFd<'_>,
        key: &Key,
        not: Option<&[u8]>,
    ) -> Option<Stat> {
        let names = self.names(key);
        let mut others = names.iter().filter(|name| Some(&***name) != not);
        others.find_map(|name| beneath::stat(root, name).ok().filter(|stat| stat.key() == *key))
    }

    pub(crate) fn status(&self) -> LinksStatus {
        let (mut files, mut names) = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock();
            files += shard.values().filter(|record| !record.has_no_names()).count();
            names += shard.values().map(Record::len).sum::<usize>();
        }
        let last = self.last.lock();
        LinksStatus {
            files,
            names,
            bytes: self.bytes.load(Ordering::Relaxed),
            bytes_max: self.bytes_max,
            searches: self.searches.load(Ordering::Relaxed),
            last_search_ms: u64::try_from(last.took.as_millis()).unwrap_or(u64::MAX),
            searched: last.outcome.names,
            unreadable: last.outcome.unreadable,
            complete: last.outcome.is_complete(),
        }
    }

    /// Why not every name is known, if a search was made and was not complete.
    pub(crate) fn incomplete(&self) -> Option<String> {
        let last = self.last.lock();
        let why = match &last.outcome.unreadable_example {
            _ if last.outcome.is_complete() => return None,
            Some(path) if !last.outcome.gave_up => {
                let (more, path) = (last.outcome.unreadable, path.escape_ascii());
                format!("{more} directories cannot be read, `{path}` for example")
            }
            _ => format!("there are too many names (at most {} bytes are kept)", self.bytes_max),
        };
        Some(format!(
            "{why}; files of which not every name is known are judged as if every rule covered them"
        ))
    }

    fn shard(&self, key: &Key) -> &Mutex<FxHashMap<Key, Record>> {
        &self.shards[key.spread(SHARDS)]
    }
}

/// Whether a removed name goes on counting beside those that are left.
pub(crate) type Keeps<'a> = dyn Fn(Vec<Vec<u8>>) -> bool + 'a;

/// What became of an inode's names.
#[derive(Default)]
pub(crate) struct Change<'a> {
    pub(crate) removed: Option<&'a [u8]>,
    /// Whether some caller could get more by the names that are left, those that this policy is to judge, without the
    /// removed one: then it goes on counting.
    pub(crate) keep_removed: Option<(&'a Arc<Policy>, &'a Keeps<'a>)>,
    pub(crate) made: Option<&'a [u8]>,
    pub(crate) known: &'a [Vec<u8>],
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("status", &self.status()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::lower::stat_at;

    pub(super) struct Tree {
        begun: Instant,
        pub(super) dir: tempfile::TempDir,
        pub(super) root: std::fs::File,
        pub(super) links: Links,
        pub(super) policy: Arc<Policy>,
    }

    impl Tree {
        pub(super) fn new(names: &[&str]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            for directory in ["a", "b"] {
                std::fs::create_dir(dir.path().join(directory)).unwrap();
            }
            std::fs::write(dir.path().join(names[0]), "").unwrap();
            for name in &names[1..] {
                std::fs::hard_link(dir.path().join(names[0]), dir.path().join(name)).unwrap();
            }
            let root = std::fs::File::open(dir.path()).unwrap();
            let policy = "[[rule]]\npath = 'b'\naction = 'deny'\n";
            let policy = Arc::new(Policy::parse(policy, "p.toml").unwrap());
            let (links, begun) = (Links::new(2), Instant::now());
            links.begin(root.as_fd(), None);
            Self { begun, dir, root, links, policy }
        }

        pub(super) fn stat(&self, name: &str) -> Stat {
            let (above, name) = name.split_once('/').unwrap_or((".", name));
            let dir = std::fs::File::open(self.dir.path().join(above)).unwrap();
            stat_at(dir.as_fd(), &std::ffi::CString::new(name).unwrap()).unwrap()
        }

        fn verify(&self, stat: &Stat, searched: bool) -> bool {
            let searched = searched.then_some(stat.nlink());
            self.links.verify(self.root.as_fd(), stat, &[], searched).all_known
        }

        fn confirmed(&self, name: &str) -> Option<Vec<String>> {
            // For who looked at them before.
            let (stat, looked) = (self.stat(name), self.begun);
            let names = self.links.confirmed(&stat, Duration::ZERO, looked, &self.policy)?;
            let mut names: Vec<_> =
                names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect();
            names.sort();
            Some(names)
        }
    }

    #[test]
    fn a_search_confirms_all_names_and_a_change_unconfirms_them() {
        let tree = Tree::new(&["one", "a/two", "b/three"]);
        assert_eq!(tree.confirmed("one").unwrap(), ["a/two", "b/three", "one"]);
        std::fs::rename(tree.dir.path().join("a/two"), tree.dir.path().join("b/two")).unwrap();
        assert_eq!(tree.confirmed("one"), None);
        let stat = tree.stat("one");
        assert!(!tree.verify(&stat, false), "one is missing");
        let top = Top { fd: tree.root.as_fd(), path: b"" };
        assert!(tree.links.search(&top).is_complete);
        assert!(tree.verify(&stat, true));
        assert_eq!(tree.confirmed("one").unwrap(), ["b/three", "b/two", "one"]);
    }

    #[test]
    fn names_outside_are_counted() {
        let outside = tempfile::tempdir().unwrap();
        let tree = Tree::new(&["one", "a/two"]);
        std::fs::hard_link(tree.dir.path().join("one"), outside.path().join("x")).unwrap();
        let stat = tree.stat("one");
        assert!(!tree.verify(&stat, false));
        assert!(tree.verify(&stat, true));
        assert_eq!(tree.confirmed("one").unwrap(), ["a/two", "one"]);
    }

    /// Where it is by now a further search finds.
    #[test]
    fn a_name_that_leaves_after_the_search_is_not_elsewhere() {
        let tree = Tree::new(&["one", "a/two"]);
        let top = Top { fd: tree.root.as_fd(), path: b"" };
        let moved = |from: &str, to: &str| {
            std::fs::rename(tree.dir.path().join(from), tree.dir.path().join(to)).unwrap();
        };
        moved("a/two", "b/two");
        assert!(!tree.verify(&tree.stat("one"), false));
        assert!(tree.links.search(&top).is_complete);
        moved("b/two", "b/three");
        assert!(!tree.verify(&tree.stat("one"), true), "`b/three` is missing");
        assert!(!tree.verify(&tree.stat("one"), false));
        // A directory above takes it along, which changes nothing of the file.
        assert!(tree.links.search(&top).is_complete);
        moved("b", "c");
        assert!(!tree.verify(&tree.stat("one"), true), "`c/three` is missing");
        assert!(tree.links.search(&top).is_complete);
        assert!(tree.verify(&tree.stat("one"), true));
        assert_eq!(tree.confirmed("one").unwrap(), ["c/three", "one"]);
    }

    #[test]
    fn a_name_that_is_made_after_the_search_is_not_elsewhere() {
        let tree = Tree::new(&["one", "a/two"]);
        let top = Top { fd: tree.root.as_fd(), path: b"" };
        let before = tree.stat("one");
        assert!(tree.links.search(&top).is_complete);
        std::fs::hard_link(tree.dir.path().join("one"), tree.dir.path().join("b/three")).unwrap();
        for stat in [before, tree.stat("one")] {
            let searched = Some(before.nlink());
            let looked = tree.links.verify(tree.root.as_fd(), &stat, &[], searched);
            assert!(!looked.all_known, "`b/three` is missing");
        }
    }

    #[test]
    fn at_the_maximum_of_memory_a_search_gives_up_and_none_follows_for_a_while() {
        let mut tree = Tree::new(&["one", "a/two"]);
        tree.links.bytes_max = 1;
        let top = Top { fd: tree.root.as_fd(), path: b"" };
        assert!(!tree.links.search(&top).is_complete && !tree.links.status().complete);
        assert!(tree.links.incomplete().unwrap().contains("too many names"));
        tree.links.bytes_max = MAX_BYTES;
        assert!(!tree.links.search(&top).is_complete);
        assert_eq!(tree.links.status().searches, 2);
    }

    #[test]
    fn of_many_names_one_for_each_set_of_rules_is_judged() {
        let names: Vec<_> = (0..40).map(|n| format!("a/{n}")).collect();
        let mut names: Vec<_> = names.iter().map(String::as_str).collect();
        names.push("b/one");
        let tree = Tree::new(&names);
        let judged = tree.confirmed("b/one").unwrap();
        assert_eq!(judged.len(), 2);
        assert!(judged[0].starts_with("a/") && judged[1] == "b/one");
        assert_eq!(tree.links.status().names, 41);
    }

    #[test]
    fn changes_of_our_own_keep_it_confirmed() {
        let tree = Tree::new(&["one", "a/two"]);
        let before = tree.stat("one");
        std::fs::hard_link(tree.dir.path().join("one"), tree.dir.path().join("b/x")).unwrap();
        let change = Change { made: Some(b"b/x"), ..Change::default() };
        tree.links.changed(&before, &change, Some(&tree.stat("one")));
        assert_eq!(tree.confirmed("one").unwrap(), ["a/two", "b/x", "one"]);
        let before = tree.stat("one");
        std::fs::rename(tree.dir.path().join("a"), tree.dir.path().join("c")).unwrap();
        tree.links
            .directory_moved(&|path| path.strip_prefix(b"a/").map(|rest| [b"c/", rest].concat()));
        for gone in ["c/two", "b/x"] {
            std::fs::remove_file(tree.dir.path().join(gone)).unwrap();
            let change = Change { removed: Some(gone.as_bytes()), ..Change::default() };
            tree.links.changed(&before, &change, Some(&tree.stat("one")));
        }
        assert_eq!((tree.links.status().files, tree.links.status().bytes), (0, 0));
    }

    #[test]
    fn the_bytes_of_names_follow_a_moved_directory() {
        let longer: &dyn Fn(&[u8]) -> Option<Vec<u8>> =
            &|path| path.strip_prefix(b"a/").map(|rest| [b"a-longer/", rest].concat());
        let shorter: &dyn Fn(&[u8]) -> Option<Vec<u8>> =
            &|path| path.strip_prefix(b"a/").map(<[u8]>::to_vec);
        let exchange: &dyn Fn(&[u8]) -> Option<Vec<u8>> = &|path| {
            let back = || path.strip_prefix(b"b/").map(|rest| [b"a/", rest].concat());
            path.strip_prefix(b"a/").map(|rest| [b"b/", rest].concat()).or_else(back)
        };
        // Two names become one: the second had been met under its new path before.
        let same: &dyn Fn(&[u8]) -> Option<Vec<u8>> =
            &|path| (path == b"a/one").then(|| b"b/three".to_vec());
        for (n, new_path) in [longer, shorter, exchange, same].into_iter().enumerate() {
            let tree = Tree::new(&["a/one", "a/two", "b/three"]);
            let key = tree.stat("a/one").key();
            tree.links.directory_moved(new_path);
            let names = tree.links.names(&key);
            let expected: usize = names.iter().map(|name| name.len() + NAME_OVERHEAD).sum();
            assert_eq!(tree.links.status().bytes, expected, "case {n}");
            let before = tree.stat("a/one");
            for name in &names {
                let change = Change { removed: Some(name), ..Change::default() };
                tree.links.changed(&before, &change, None);
            }
            assert_eq!((tree.links.status().files, tree.links.status().bytes), (0, 0), "case {n}");
        }
    }
}
