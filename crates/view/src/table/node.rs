//! One inode that the kernel remembers, and the names by which it is found.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::FileType;
use smallvec::SmallVec;
use tollgate_fuse::{Name, NodeId};

use crate::known_content::KnownContent;
use crate::locks::FileLocks;
use crate::lower::{Key, Stat};
use crate::mode::Io;
use crate::no_capabilities::NoCapabilities;
use crate::only_name::OnlyName;
use crate::walkers::Listed;
use crate::watched::{Kept, Level, Watched};

/// Where an inode can be found: a name in a directory.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) parent: Arc<Node>,
    pub(crate) name: Box<CStr>,
}

impl Place {
    fn is(&self, parent: &Arc<Node>, name: Name<'_>) -> bool {
        Arc::ptr_eq(&self.parent, parent) && *self.name == *name.as_c_str()
    }
}

/// Names by which this server finds a node: one for nearly every file, several for hard links. All
/// names of an inode, as far as they matter to the policy, are in `links/`.
pub(crate) type Places = SmallVec<[Place; 1]>;

/// Most places that are kept; the oldest makes room. Hard links of one file can be many thousands.
const MAX_PLACES: usize = 16;

fn add(places: &mut Places, parent: &Arc<Node>, name: Name<'_>) {
    if places.len() >= MAX_PLACES {
        places.remove(0);
    }
    places.push(Place { parent: Arc::clone(parent), name: name.as_c_str().into() });
}

/// One inode that the kernel remembers.
///
/// Lock order: `io` before `places` before `fd`; a parent's locks after its child's. Shard locks
/// are innermost.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// By which it was met.
    pub(crate) key: Key,
    /// By which an overlay shows it as well since it was copied up, or instead: once, of a file.
    pub(super) copied: OnceLock<Key>,
    /// Another inode may have its key, as long as it was not copied up.
    shares_key: bool,
    pub(crate) kind: FileType,
    /// References that the kernel holds; changed under the key shard's lock only.
    pub(super) lookups: AtomicU64,
    places: Mutex<Places>,
    /// An `O_PATH` descriptor, kept while the budget allows: see `fds.rs`.
    pub(crate) fd: Mutex<Option<Arc<OwnedFd>>>,
    /// Used since the descriptor cache last looked (second chance).
    pub(crate) fd_used: AtomicBool,
    /// In the descriptor cache's list, once. Changed with `fd` locked, unless it is pinned.
    pub(crate) fd_listed: AtomicBool,
    /// The descriptor is the only way to the inode (its last name is gone): never evicted.
    pub(crate) pinned: AtomicBool,
    /// Something may be mounted on it or below, so that it is shown at one place: see `anchors.rs`.
    pub(super) anchored: AtomicBool,
    /// The path of a directory, with the rename count that it was built at.
    pub(crate) path: Mutex<Option<(u64, Arc<[u8]>)>>,
    /// The path under which a node without names is judged: where it was last, or was made.
    last_path: Mutex<Option<Box<[u8]>>>,
    /// How the file is open; regular files only.
    pub(crate) io: Mutex<Io>,
    /// Passthrough handles through which it can be mapped to be written.
    pub(crate) mappable: AtomicU32,
    /// Locks that came through the view; made with the first.
    pub(crate) locks: OnceLock<Arc<FileLocks>>,
    /// How much is reported of changes behind the view; directories only.
    pub(crate) watched: Watched,
    /// What the kernel has of its names; directories only.
    pub(crate) listed: Listed,
    /// Whether attributes are cached until a change is reported; files only.
    pub(crate) kept: Kept,
    /// When the place was last compared with where the inode is: see `located.rs`.
    pub(crate) located: AtomicU64,
    /// Whether its only link is the name that it is known by; files only.
    pub(crate) only_name: OnlyName,
    /// Whether it has no capabilities of its own; files only.
    pub(crate) no_capabilities: NoCapabilities,
    /// How often it changed its places.
    moves: AtomicU64,
    /// At its place everybody may read it, by the rules and the paths of this epoch (see `free_to_read.rs`); 0
    /// if that is not known. Changed with `places` locked.
    free_to_read: AtomicU64,
    /// What rules about content said of it; files only.
    pub(crate) known_content: KnownContent,
}

impl Node {
    pub(super) fn new(id: NodeId, stat: &Stat, places: Places) -> Self {
        Self {
            id,
            key: stat.key(),
            copied: OnceLock::new(),
            shares_key: stat.may_share_key(),
            kind: stat.file_type(),
            lookups: AtomicU64::new(0),
            places: Mutex::new(places),
            fd: Mutex::new(None),
            fd_used: AtomicBool::new(false),
            fd_listed: AtomicBool::new(false),
            pinned: AtomicBool::new(false),
            anchored: AtomicBool::new(false),
            path: Mutex::new(None),
            last_path: Mutex::new(None),
            io: Mutex::new(Io::default()),
            mappable: AtomicU32::new(0),
            locks: OnceLock::new(),
            watched: Watched::default(),
            listed: Listed::default(),
            kept: Kept::default(),
            located: AtomicU64::new(0),
            only_name: OnlyName::default(),
            no_capabilities: NoCapabilities::default(),
            moves: AtomicU64::new(0),
            free_to_read: AtomicU64::new(0),
            known_content: KnownContent::default(),
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    pub(crate) fn is_root(&self) -> bool {
        self.id == NodeId::ROOT
    }

    /// Whether something may be mounted on it, or below.
    pub(crate) fn is_anchored(&self) -> bool {
        self.anchored.load(Ordering::Relaxed)
    }

    /// The places where this node was last seen.
    pub(crate) fn places(&self) -> Places {
        self.places.lock().clone()
    }

    /// One of them; the only one, of a directory.
    pub(crate) fn place(&self) -> Option<Place> {
        self.places.lock().first().cloned()
    }

    /// The directory that it is in, by its first place.
    pub(crate) fn parent(&self) -> Option<Arc<Self>> {
        self.places.lock().first().map(|place| Arc::clone(&place.parent))
    }

    /// Whether `key` is one of its keys.
    pub(crate) fn is(&self, key: &Key) -> bool {
        self.keys().any(|own| own == *key)
    }

    /// One, or two of a file that was copied up.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        std::iter::once(self.key).chain(self.copied.get().copied())
    }

    /// By what its content may be known: its keys and, where these may be another inode's, its number.
    pub(crate) fn content_keys(&self) -> impl Iterator<Item = Key> {
        self.own_key().into_iter().chain(self.keys())
    }

    /// A key that no other inode has, if the one that it was met by may be another one's, too.
    pub(crate) fn own_key(&self) -> Option<Key> {
        self.shares_key.then(|| Key::of_node(self.id.0))
    }

    /// Whether an overlay may still copy it up, as far as is known.
    pub(crate) fn may_be_copied(&self) -> bool {
        self.kind != FileType::Directory && self.copied.get().is_none()
    }

    /// Whether it is known by more than one name, as only files are.
    pub(crate) fn has_further_names(&self) -> bool {
        self.places.lock().len() > 1
    }

    /// How closely the only directory that the file is known in is watched.
    pub(crate) fn watched_in(&self) -> Level {
        match &self.places.lock()[..] {
            [place] => place.parent.watched.level(),
            _ => Level::None,
        }
    }

    /// Whether the node is known at `name` in `parent`.
    pub(crate) fn is_at(&self, parent: &Arc<Self>, name: Name<'_>) -> bool {
        self.places.lock().iter().any(|place| place.is(parent, name))
    }

    /// The node was seen at `name` in `parent`. A file with one link has moved there; one with
    /// several is also there. Returns the place that a directory has left.
    pub(crate) fn seen_at(&self, parent: &Arc<Self>, name: Name<'_>, nlink: u32) -> Option<Place> {
        let mut places = self.places.lock();
        if places.iter().any(|place| place.is(parent, name)) {
            return None;
        }
        self.moving();
        let left = places.first().filter(|_| self.is_dir()).cloned();
        if nlink <= 1 || self.is_dir() {
            places.clear();
        }
        add(&mut places, parent, name);
        left
    }

    /// A request of ours has moved it. Nobody sees it at neither place.
    pub(crate) fn moved(&self, from: (&Arc<Self>, Name<'_>), to: (&Arc<Self>, Name<'_>)) {
        let mut places = self.places.lock();
        self.moving();
        places.retain(|place| !place.is(from.0, from.1));
        if !places.iter().any(|place| place.is(to.0, to.1)) {
            add(&mut places, to.0, to.1);
        }
    }

    /// A directory is not where it was known to be: it has to be looked up again.
    pub(crate) fn lost(&self) {
        let mut places = self.places.lock();
        self.moving();
        places.clear();
        drop(places);
        self.path.lock().take();
        drop(self.take_fd());
    }

    /// The descriptor that is kept of it, which is kept no longer; `None` if nothing else leads to it.
    pub(crate) fn take_fd(&self) -> Option<Arc<OwnedFd>> {
        let mut slot = self.fd.lock();
        if self.pinned.load(Ordering::Relaxed) { None } else { slot.take() }
    }

    /// It has a name (again): its descriptor need not be kept for want of one. Where it is kept of an open
    /// file, `named` comes in its place, if any.
    pub(crate) fn unpin(&self, named: impl FnOnce() -> Option<Arc<OwnedFd>>) {
        if !self.pinned.load(Ordering::Relaxed) || self.is_root() {
            return;
        }
        let io = self.io.lock();
        let kept = if io.keeps() { named() } else { None };
        let mut slot = self.fd.lock();
        self.pinned.store(false, Ordering::Relaxed);
        if kept.is_some() || !io.keeps() {
            *slot = kept;
        }
    }

    /// Where a node without names is judged.
    pub(crate) fn last_path(&self) -> Option<Vec<u8>> {
        self.last_path.lock().as_deref().map(<[u8]>::to_vec)
    }

    /// Keeps `path` for the time when no name is left.
    pub(crate) fn keep_path(&self, path: Vec<u8>) {
        *self.last_path.lock() = Some(path.into_boxed_slice());
    }

    /// Lets go of the parents once the kernel forgot the node: trees that were moved about behind
    /// the view's back could hold each other.
    pub(crate) fn let_go(&self) {
        let mut places = self.places.lock();
        self.moving();
        places.clear();
    }

    /// The name is gone.
    pub(crate) fn gone_from(&self, parent: &Arc<Self>, name: Name<'_>) {
        let mut places = self.places.lock();
        self.moving();
        places.retain(|place| !place.is(parent, name));
    }

    /// Its places are about to change: with them locked.
    fn moving(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
        self.free_to_read.store(0, Ordering::Relaxed);
    }

    /// How often it has moved so far.
    pub(crate) fn moves(&self) -> u64 {
        let _places = self.places.lock();
        self.moves.load(Ordering::Relaxed)
    }

    /// Keeps that it is free to read at its only place in this `epoch`, unless it has moved since it
    /// had so many `moves`.
    pub(crate) fn keep_free_to_read(&self, epoch: u64, moves: u64) {
        let places = self.places.lock();
        if places.len() == 1 && self.moves.load(Ordering::Relaxed) == moves {
            self.free_to_read.store(epoch, Ordering::Relaxed);
        }
    }

    /// Whether it was, and has not moved since.
    pub(crate) fn was_free_to_read(&self, epoch: u64) -> bool {
        let _places = self.places.lock();
        self.free_to_read.load(Ordering::Relaxed) == epoch
    }
}

/// A node holds the directories above it. Without this, the end of the last one that holds a deep
/// tree would recurse as deep as the tree is.
impl Drop for Node {
    fn drop(&mut self) {
        let mut held: Vec<Place> = self.places.get_mut().drain(..).collect();
        while let Some(place) = held.pop() {
            if let Some(mut parent) = Arc::into_inner(place.parent) {
                held.extend(parent.places.get_mut().drain(..));
            }
        }
    }
}
