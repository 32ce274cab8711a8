//! The inodes that the kernel remembers, and nothing else.
//!
//! A node enters with the first lookup that reaches the kernel and leaves with the FORGET that
//! takes its last reference, so the table is bounded by the kernel's own inode cache. Ids count
//! upwards and are never reused: a stale id is an error, never another file.
//!
//! Locks are one per shard, held for a look into a hash map. A request touches the shard of its
//! node's id (read lock) and, when it counts a lookup, the shard of the node's key.

mod node;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};
use rustc_hash::FxHashMap;
use rustix::fs::FileType;
use rustix::io::Errno;
use smallvec::SmallVec;
use tollgate_fuse::{Name, NodeId};

use crate::anchors::Anchors;
use crate::lower::{Key, Stat};
pub(crate) use node::{Node, Place, Places};

const SHARDS: usize = 64;

/// All nodes, by id and by lower identity.
pub(crate) struct Table {
    by_id: [RwLock<FxHashMap<u64, Arc<Node>>>; SHARDS],
    by_key: [Mutex<Shard>; SHARDS],
    /// Of inodes that share a key, all but the one in `by_key`: see `twins.rs`. Locked within a shard.
    twins: Mutex<FxHashMap<Key, Vec<Arc<Node>>>>,
    /// Keys in `twins`; changed with it locked.
    shared_keys: AtomicUsize,
    next_id: AtomicU64,
    len: AtomicU64,
    /// Directories that carry mounts.
    anchors: Anchors,
}

impl Table {
    /// A table that holds the root alone, which is never forgotten. Mounts are going to be made at
    /// `points`.
    pub(crate) fn new(root: &Stat, points: Vec<PathBuf>) -> Self {
        let table = Self {
            by_id: std::array::from_fn(|_| RwLock::default()),
            by_key: std::array::from_fn(|_| Mutex::default()),
            twins: Mutex::default(),
            shared_keys: AtomicUsize::new(0),
            next_id: AtomicU64::new(NodeId::ROOT.0 + 1),
            len: AtomicU64::new(1),
            anchors: Anchors::new(points),
        };
        let node = Node::new(NodeId::ROOT, root, Places::new());
        node.lookups.store(1, Ordering::Relaxed);
        node.pinned.store(true, Ordering::Relaxed);
        let node = Arc::new(node);
        table.id_shard(NodeId::ROOT).write().insert(NodeId::ROOT.0, Arc::clone(&node));
        table.key_shard(&node.key).lock().insert(node.key, node);
        table
    }

    /// Nodes in the table.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// The node with this id.
    ///
    /// # Errors
    /// `ESTALE` for an id that the kernel should have forgotten.
    pub(crate) fn get(&self, id: NodeId) -> Result<Arc<Node>, Errno> {
        self.id_shard(id).read().get(&id.0).cloned().ok_or(Errno::STALE)
    }

    /// The node of a lower inode, if the kernel remembers it; one of several that share the key.
    pub(crate) fn find(&self, key: &Key) -> Option<Arc<Node>> {
        self.key_shard(key).lock().get(key).cloned()
    }

    /// The node of the lower inode that was found at `name` in `parent`, if the kernel remembers it.
    pub(crate) fn find_at(
        &self,
        key: &Key,
        parent: &Arc<Node>,
        name: Name<'_>,
    ) -> Option<Arc<Node>> {
        let shard = self.key_shard(key).lock();
        let node = shard.get(key)?;
        let twin = self.twin_at(key, node, parent, name);
        Some(twin.unwrap_or_else(|| Arc::clone(node)))
    }

    /// Whether several nodes have this key.
    pub(crate) fn has_twins(&self, key: &Key) -> bool {
        self.shared_keys.load(Ordering::Relaxed) > 0 && self.twins.lock().contains_key(key)
    }

    /// Of the nodes that share `key` with `node`, the one that is known at `name` in `parent`, if that is
    /// not `node` itself. With the shard of the key locked.
    fn twin_at(
        &self,
        key: &Key,
        node: &Node,
        parent: &Arc<Node>,
        name: Name<'_>,
    ) -> Option<Arc<Node>> {
        if self.shared_keys.load(Ordering::Relaxed) == 0 || node.is_at(parent, name) {
            return None;
        }
        let twins = self.twins.lock();
        twins.get(key)?.iter().find(|twin| twin.is_at(parent, name)).cloned()
    }

    /// The nodes of the lower inode with this number: one, or more where it was used again, or is
    /// shared.
    pub(crate) fn of_inode(&self, dev: u64, ino: u64) -> SmallVec<[Arc<Node>; 1]> {
        let is_it = |key: &Key| key.dev() == dev && key.ino() == ino;
        let shard = self.by_key[Key::spread_of(dev, ino, SHARDS)].lock();
        let first = shard.iter().filter(|(key, _)| is_it(key));
        let mut all: SmallVec<_> = first.map(|(_, node)| Arc::clone(node)).collect();
        if self.shared_keys.load(Ordering::Relaxed) > 0 {
            let twins = self.twins.lock();
            all.extend(twins.iter().filter(|(key, _)| is_it(key)).flat_map(|(_, all)| all.clone()));
        }
        all
    }

    /// Counts one lookup of the inode `stat`, found at `name` in `parent`, and makes its node if
    /// needed. A node that is known elsewhere gets the place noted if nothing can have moved it
    /// since it was found (`settled`). One that is anchored elsewhere is left to the kernel until that
    /// forgets it, and the inode gets another.
    pub(crate) fn remember(
        &self,
        stat: &Stat,
        parent: &Arc<Node>,
        name: Name<'_>,
        settled: bool,
    ) -> (Arc<Node>, Sighting) {
        if stat.file_type() != FileType::Directory {
            parent.listed.knows_file();
        }
        let key = stat.key();
        let mut shard = self.key_shard(&key).lock();
        let mut known = shard.get(&key);
        let twin = known.and_then(|node| self.twin_at(&key, node, parent, name));
        if twin.is_some() {
            known = twin.as_ref();
        }
        let left = known.filter(|node| !self.may_be_at(node, parent, name)).cloned();
        if left.is_some() {
            shard.remove(&key);
        } else if let Some(node) = known {
            node.lookups.fetch_add(1, Ordering::Relaxed);
            let node = Arc::clone(node);
            drop(shard);
            if node.is_at(parent, name) {
                return (node, Sighting::Known);
            }
            let left = settled.then(|| node.seen_at(parent, name, stat.nlink())).flatten();
            return (node, Sighting::Moved { left });
        }
        let place = Place { parent: Arc::clone(parent), name: name.as_c_str().into() };
        let node = self.insert(&mut shard, stat, SmallVec::from_buf([place]));
        drop(shard);
        let Some(anchored) = left else { return (node, Sighting::New) };
        let left = anchored.place();
        anchored.lost();
        (node, Sighting::Replaced { left })
    }

    /// The same for a file of which it is known that it is another inode than those that have its key
    /// and were found elsewhere.
    pub(crate) fn remember_apart(
        &self,
        stat: &Stat,
        parent: &Arc<Node>,
        name: Name<'_>,
    ) -> (Arc<Node>, Sighting) {
        let key = stat.key();
        let mut shard = self.key_shard(&key).lock();
        let node = shard.get(&key).cloned();
        let is_known = |node: &Arc<Node>| {
            node.is_at(parent, name) || self.twin_at(&key, node, parent, name).is_some()
        };
        let Some(before) = node.filter(|node| !is_known(node)) else {
            // It was met before this came to it, or the others were forgotten.
            drop(shard);
            return self.remember(stat, parent, name, true);
        };
        parent.listed.knows_file();
        shard.remove(&key);
        let place = Place { parent: Arc::clone(parent), name: name.as_c_str().into() };
        let node = self.insert(&mut shard, stat, SmallVec::from_buf([place]));
        let mut twins = self.twins.lock();
        twins.entry(key).or_default().push(before);
        self.shared_keys.store(twins.len(), Ordering::Relaxed);
        (node, Sighting::New)
    }

    fn may_be_at(&self, node: &Node, parent: &Node, name: Name<'_>) -> bool {
        !node.is_anchored() || self.anchors.allows(node.id, parent.id, name)
    }

    /// What carries mounts.
    pub(crate) fn anchors(&self) -> &Anchors {
        &self.anchors
    }

    /// Anchors `node`, found as `name` in `parent`, at `path`, if a mount is going to be made there or
    /// below.
    pub(crate) fn anchor(&self, node: &Node, parent: &Node, name: Name<'_>, path: &[u8]) {
        if self.anchors.add(node.id, parent.id, name, path) {
            node.anchored.store(true, Ordering::Relaxed);
        }
    }

    /// All mounts are made.
    pub(crate) fn mounts_are_made(&self) {
        self.free(&self.anchors.complete());
    }

    fn free(&self, nodes: &[NodeId]) {
        for node in nodes.iter().filter_map(|id| self.get(*id).ok()) {
            node.anchored.store(false, Ordering::Relaxed);
        }
    }

    /// Counts one lookup of a new inode that has no name yet (`O_TMPFILE`).
    pub(crate) fn remember_unnamed(&self, stat: &Stat) -> Arc<Node> {
        let mut shard = self.key_shard(&stat.key()).lock();
        self.insert(&mut shard, stat, Places::new())
    }

    fn insert(&self, shard: &mut Shard, stat: &Stat, places: Places) -> Arc<Node> {
        let id = NodeId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let node = Node::new(id, stat, places);
        node.lookups.store(1, Ordering::Relaxed);
        let node = Arc::new(node);
        let same_key = shard.insert(node.key, Arc::clone(&node));
        debug_assert!(same_key.is_none(), "one node for each lower inode");
        let same_id = self.id_shard(id).write().insert(id.0, Arc::clone(&node));
        assert!(same_id.is_none(), "node id {} was given out twice", id.0);
        self.len.fetch_add(1, Ordering::Relaxed);
        node
    }

    /// The kernel drops `count` references. Returns the node when those were the last.
    ///
    /// A kernel that drops more than it took ends with a node that is gone, not with an overflow.
    pub(crate) fn forget(&self, id: NodeId, count: u64) -> Option<Arc<Node>> {
        if id == NodeId::ROOT {
            return None;
        }
        let node = self.get(id).ok()?;
        let mut shards = self.lock_shards_of(&node);
        let held = node.lookups.load(Ordering::Relaxed);
        node.lookups.store(held.saturating_sub(count), Ordering::Relaxed);
        if held > count || held == 0 {
            return None;
        }
        // Another node has the key if this one was anchored elsewhere, or is one of several inodes.
        for key in node.keys() {
            self.leave(shards.of(&key), &key, &node);
            shrink(shards.of(&key));
        }
        let mut by_id = self.id_shard(id).write();
        let removed = by_id.remove(&id.0);
        debug_assert!(removed.is_some(), "a node is in both maps or in none");
        shrink(&mut by_id);
        drop(by_id);
        drop(shards);
        self.len.fetch_sub(1, Ordering::Relaxed);
        if node.is_anchored() {
            self.free(&self.anchors.forgotten(id));
        }
        Some(node)
    }

    /// An overlay has copied up the file `node`, and shows it by this `key` as well.
    pub(crate) fn copied(&self, node: &Arc<Node>, key: Key) {
        if node.is(&key) {
            return;
        }
        let mut shards = self.lock_all([node.key, key]);
        let is_forgotten = self.id_shard(node.id).read().get(&node.id.0).is_none();
        if is_forgotten || node.copied.set(key).is_err() {
            return;
        }
        // Somebody may have met the copy before this was known.
        if let Some(met) = shards.of(&key).insert(key, Arc::clone(node)) {
            let mut twins = self.twins.lock();
            twins.entry(key).or_default().push(met);
            self.shared_keys.store(twins.len(), Ordering::Relaxed);
        }
    }

    /// `node` is not found by `key` any more.
    fn leave(&self, shard: &mut Shard, key: &Key, node: &Arc<Node>) {
        let is_first = shard.get(key).is_some_and(|found| Arc::ptr_eq(found, node));
        let twin = self.without_twin(key, node, is_first);
        if is_first {
            shard.remove(key);
        }
        if let Some(twin) = twin {
            shard.insert(*key, twin);
        }
    }

    /// `node` is not one of several that share `key` any more. If it was the `first`, this returns the
    /// one that takes its place.
    fn without_twin(&self, key: &Key, node: &Arc<Node>, first: bool) -> Option<Arc<Node>> {
        if self.shared_keys.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut all = self.twins.lock();
        let twins = all.get_mut(key)?;
        twins.retain(|twin| !Arc::ptr_eq(twin, node));
        let next = if first { twins.pop() } else { None };
        if twins.is_empty() {
            all.remove(key);
        }
        self.shared_keys.store(all.len(), Ordering::Relaxed);
        next
    }

    /// Every node at this moment.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        self.by_id
            .iter()
            .flat_map(|shard| shard.read().values().cloned().collect::<Vec<_>>())
            .collect()
    }

    #[expect(clippy::cast_possible_truncation, reason = "the remainder is below SHARDS")]
    fn id_shard(&self, id: NodeId) -> &RwLock<FxHashMap<u64, Arc<Node>>> {
        &self.by_id[(id.0 % SHARDS as u64) as usize]
    }

    fn key_shard(&self, key: &Key) -> &Mutex<Shard> {
        &self.by_key[key.spread(SHARDS)]
    }

    /// The shards of all keys of `node`: whoever has found it by any of them is waited for.
    fn lock_shards_of(&self, node: &Node) -> Shards<'_> {
        loop {
            let keys: SmallVec<[Key; 2]> = node.keys().collect();
            let shards = self.lock_all(keys.iter().copied());
            // It gets a further one with these locked.
            if node.keys().count() == keys.len() {
                return shards;
            }
        }
    }

    /// In the order of their places, as others lock two as well.
    fn lock_all(&self, keys: impl IntoIterator<Item = Key>) -> Shards<'_> {
        let mut places: SmallVec<[usize; 2]> =
            keys.into_iter().map(|key| key.spread(SHARDS)).collect();
        places.sort_unstable();
        places.dedup();
        Shards(places.into_iter().map(|place| (place, self.by_key[place].lock())).collect())
    }
}

/// Nodes by keys.
type Shard = FxHashMap<Key, Arc<Node>>;

/// Shards that are locked together, with their places.
struct Shards<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>);

impl Shards<'_> {
    /// That of `key`, which is among them.
    fn of(&mut self, key: &Key) -> &mut Shard {
        let place = key.spread(SHARDS);
        let found = self.0.iter_mut().find(|(at, _)| *at == place);
        &mut found.expect("it was locked").1
    }
}

/// What a lookup meant for the table.
#[derive(Debug)]
pub(crate) enum Sighting {
    /// First of this inode.
    New,
    /// Seen before at this very name.
    Known,
    /// Seen before, under another name, which a directory has left.
    Moved { left: Option<Place> },
    /// Seen before, at another place where something is mounted: this node is the first of it here.
    Replaced { left: Option<Place> },
}

/// Gives memory back when a map has become much too large for what is in it.
fn shrink<K: std::hash::Hash + Eq, V>(map: &mut FxHashMap<K, V>) {
    if map.capacity() > 64 && map.capacity() / 8 > map.len() {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{stat_at, stat_fd};
    use std::os::fd::AsFd;
    use std::sync::atomic::AtomicBool;

    fn table() -> (tempfile::TempDir, std::fs::File, Table) {
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let table = Table::new(&stat_fd(fd.as_fd()).unwrap(), Vec::new());
        (dir, fd, table)
    }

    #[test]
    fn a_node_lives_from_its_first_lookup_to_its_last_forget() {
        let (dir, fd, table) = table();
        std::fs::write(dir.path().join("a"), b"").unwrap();
        let stat = stat_at(fd.as_fd(), c"a").unwrap();
        let root = table.get(NodeId::ROOT).unwrap();
        let name = Name::new(c"a").unwrap();
        let (node, sighting) = table.remember(&stat, &root, name, true);
        assert!(matches!(sighting, Sighting::New));
        assert!(matches!(table.remember(&stat, &root, name, true).1, Sighting::Known));
        assert!(table.forget(node.id, 1).is_none());
        assert!(table.get(node.id).is_ok());
        assert!(table.forget(node.id, 1).is_some());
        assert_eq!(table.get(node.id).unwrap_err(), Errno::STALE);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn the_root_stays_and_too_many_forgets_do_no_harm() {
        let (dir, fd, table) = table();
        assert!(table.forget(NodeId::ROOT, u64::MAX).is_none());
        std::fs::write(dir.path().join("a"), b"").unwrap();
        let stat = stat_at(fd.as_fd(), c"a").unwrap();
        let root = table.get(NodeId::ROOT).unwrap();
        let (node, _) = table.remember(&stat, &root, Name::new(c"a").unwrap(), true);
        assert!(table.forget(node.id, 99).is_some());
        assert!(table.forget(node.id, 1).is_none());
    }

    #[test]
    fn hard_links_gather_names_and_a_moved_file_has_one() {
        let (dir, fd, table) = table();
        std::fs::write(dir.path().join("a"), b"").unwrap();
        let root = table.get(NodeId::ROOT).unwrap();
        let [a, b] = [c"a", c"b"].map(|n| Name::new(n).unwrap());
        let (node, _) = table.remember(&stat_at(fd.as_fd(), c"a").unwrap(), &root, a, true);
        std::fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        let (_, sighting) = table.remember(&stat_at(fd.as_fd(), c"b").unwrap(), &root, b, true);
        assert!(matches!(sighting, Sighting::Moved { .. }));
        assert_eq!(node.places().len(), 2);
        node.gone_from(&root, a);
        assert_eq!(node.places().len(), 1);
        std::fs::remove_file(dir.path().join("a")).unwrap();
        std::fs::rename(dir.path().join("b"), dir.path().join("a")).unwrap();
        table.remember(&stat_at(fd.as_fd(), c"a").unwrap(), &root, a, true);
        let places = node.places();
        assert_eq!((places.len(), &*places[0].name), (1, c"a"));
    }

    #[test]
    fn what_is_moved_is_always_somewhere() {
        let (dir, fd, table) = table();
        std::fs::write(dir.path().join("a"), b"").unwrap();
        let root = table.get(NodeId::ROOT).unwrap();
        let [a, b] = [c"a", c"b"].map(|n| Name::new(n).unwrap());
        let (node, _) = table.remember(&stat_at(fd.as_fd(), c"a").unwrap(), &root, a, true);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let places = || (!over.load(Ordering::Relaxed)).then(|| node.places().len());
                std::iter::from_fn(places).filter(|places| *places != 1).count()
            });
            for _ in 0..100_000 {
                node.moved((&root, a), (&root, b));
                node.moved((&root, b), (&root, a));
            }
            over.store(true, Ordering::Relaxed);
            assert_eq!(looks.join().unwrap(), 0, "looks that found it at no place, or at two");
        });
        assert!(node.is_at(&root, a));
    }

    #[test]
    fn a_reused_inode_number_is_another_node() {
        let (dir, fd, table) = table();
        let root = table.get(NodeId::ROOT).unwrap();
        let name = Name::new(c"a").unwrap();
        std::fs::write(dir.path().join("a"), b"").unwrap();
        let (first, _) = table.remember(&stat_at(fd.as_fd(), c"a").unwrap(), &root, name, true);
        std::fs::remove_file(dir.path().join("a")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(dir.path().join("a"), b"").unwrap();
        let (second, _) = table.remember(&stat_at(fd.as_fd(), c"a").unwrap(), &root, name, true);
        assert_ne!(first.id, second.id);
    }
}
