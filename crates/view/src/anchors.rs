//! Directories that carry native mounts: the mount points, and what lies above them.
//!
//! The kernel keeps one dentry for a directory of the view. When a lookup finds the same inode under
//! another name, because others moved it directly in DIR, the kernel moves the dentry there, with
//! what is mounted on it and below: files that the policy names there would be open to everybody. So
//! these directories are *anchored*: a node that was at or above a mount point when the mounts were
//! made is known at that one place. Found elsewhere, the directory gets another node, which to the
//! kernel is another inode; the old dentry stays where the policy names it, and goes with its mounts,
//! in every mount namespace, as soon as its name is looked up.
//!
//! A mount holds its dentry, and that the inode. Once the kernel has forgotten the node of a mount
//! point, nothing is mounted there any more, and the directory of that name is one like others.
//!
//! The same holds where the view of DIR is mounted in one that a `[[view]]` table names. What lies
//! beneath that is then shown nowhere: see `View::sight`.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tollgate_fuse::{Name, NodeId};

/// Where mounts of ours are. Node ids are never reused, so that an id is enough.
#[derive(Debug, Default)]
pub(crate) struct Anchors {
    /// Paths of the mount points.
    points: Vec<PathBuf>,
    /// All is mounted that will be: what is looked up for the first time now carries nothing.
    complete: AtomicBool,
    /// At most the nodes that were at or above a mount point before that.
    held: Mutex<FxHashMap<NodeId, Anchor>>,
}

#[derive(Debug)]
struct Anchor {
    parent: NodeId,
    name: Box<CStr>,
    path: PathBuf,
}

impl Anchors {
    pub(crate) fn new(points: Vec<PathBuf>) -> Self {
        let complete = AtomicBool::new(points.is_empty());
        Self { points, complete, held: Mutex::default() }
    }

    /// Whether mounts are still being made, so that nodes have to be anchored.
    pub(crate) fn may_grow(&self) -> bool {
        !self.complete.load(Ordering::Acquire)
    }

    /// Anchors the directory `node`, found as `name` in `parent` at `path`, if that is at or above a
    /// mount point. Returns whether it did.
    pub(crate) fn add(&self, node: NodeId, parent: NodeId, name: Name<'_>, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        if !self.points.iter().any(|point| point.starts_with(path)) {
            return false;
        }
        let mut held = self.held.lock();
        let anchor = || Anchor { parent, name: name.as_c_str().into(), path: path.to_owned() };
        held.entry(node).or_insert_with(anchor);
        true
    }

    /// Everything is mounted. Returns the nodes that turned out to carry nothing.
    pub(crate) fn complete(&self) -> Vec<NodeId> {
        let mut held = self.held.lock();
        self.complete.store(true, Ordering::Release);
        self.without_mounts(&mut held)
    }

    /// Whether the anchored `node` may be shown as `name` in `parent`.
    pub(crate) fn allows(&self, node: NodeId, parent: NodeId, name: Name<'_>) -> bool {
        self.held.lock().get(&node).is_none_or(|anchor| anchor.is_at(parent, name))
    }

    /// Whether the kernel may have something mounted at `name` in `parent`, or below.
    pub(crate) fn carry(&self, parent: NodeId, name: Name<'_>) -> bool {
        self.held.lock().values().any(|anchor| anchor.is_at(parent, name))
    }

    /// Whether `path` lies where something is mounted.
    pub(crate) fn cover(&self, path: &Path) -> bool {
        let mut points = self.points.iter().filter(|point| path.starts_with(point));
        points.any(|point| {
            self.may_grow() || self.held.lock().values().any(|anchor| anchor.path == *point)
        })
    }

    /// Whether moving `path` would take a mount along, as far as paths tell.
    pub(crate) fn may_lie_below(&self, path: &Path) -> bool {
        self.points.iter().any(|point| point.starts_with(path))
    }

    /// The kernel forgot `node`. Returns the nodes that carry nothing any more.
    pub(crate) fn forgotten(&self, node: NodeId) -> Vec<NodeId> {
        let mut held = self.held.lock();
        if held.remove(&node).is_none() || self.may_grow() {
            return Vec::new();
        }
        self.without_mounts(&mut held)
    }

    /// Takes those out that are above no mount point whose node the kernel remembers.
    fn without_mounts(&self, held: &mut FxHashMap<NodeId, Anchor>) -> Vec<NodeId> {
        let is_held = |point: &&PathBuf| held.values().any(|anchor| anchor.path == **point);
        let mounted: Vec<_> = self.points.iter().filter(is_held).collect();
        let free = |anchor: &Anchor| !mounted.iter().any(|point| point.starts_with(&anchor.path));
        held.extract_if(|_, anchor| free(anchor)).map(|(node, _)| node).collect()
    }
}

impl Anchor {
    fn is_at(&self, parent: NodeId, name: Name<'_>) -> bool {
        self.parent == parent && *self.name == *name.as_c_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: NodeId = NodeId::ROOT;
    const WEB: NodeId = NodeId(2);
    const MODULES: NodeId = NodeId(3);
    const OUT: NodeId = NodeId(4);

    fn name(name: &CStr) -> Name<'_> {
        Name::new(name).unwrap()
    }

    fn anchors() -> Anchors {
        let anchors = Anchors::new(vec!["web/modules".into(), "web/out".into()]);
        assert!(anchors.add(WEB, ROOT, name(c"web"), b"web"));
        assert!(anchors.add(MODULES, WEB, name(c"modules"), b"web/modules"));
        assert!(anchors.add(OUT, WEB, name(c"out"), b"web/out"));
        assert!(!anchors.add(NodeId(5), WEB, name(c"src"), b"web/src"));
        anchors
    }

    #[test]
    fn what_carries_a_mount_is_at_its_own_place_alone() {
        let anchors = anchors();
        assert!(anchors.may_grow());
        assert_eq!(anchors.complete(), []);
        assert!(!anchors.may_grow());
        assert!(anchors.allows(WEB, ROOT, name(c"web")));
        assert!(!anchors.allows(WEB, ROOT, name(c"private")));
        assert!(!anchors.allows(MODULES, NodeId(9), name(c"modules")));
        assert!(anchors.allows(NodeId(9), ROOT, name(c"private")));
        assert!(anchors.carry(ROOT, name(c"web")) && !anchors.carry(ROOT, name(c"other")));
    }

    #[test]
    fn a_directory_is_free_when_the_kernel_has_forgotten_all_mount_points_below() {
        let anchors = anchors();
        assert_eq!(anchors.complete(), []);
        assert!(anchors.cover(Path::new("web/out/file")));
        assert_eq!(anchors.forgotten(OUT), []);
        assert!(!anchors.cover(Path::new("web/out/file")));
        assert!(anchors.carry(ROOT, name(c"web")));
        assert_eq!(anchors.forgotten(MODULES), [WEB]);
        assert!(!anchors.carry(ROOT, name(c"web")));
    }

    #[test]
    fn before_all_is_mounted_nothing_is_free() {
        let anchors = anchors();
        assert_eq!(anchors.forgotten(OUT), []);
        assert_eq!(anchors.forgotten(MODULES), []);
        assert!(anchors.cover(Path::new("web/out")));
        assert!(anchors.carry(ROOT, name(c"web")));
        assert_eq!(anchors.complete(), [WEB]);
    }
}
