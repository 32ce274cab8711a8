//! What lies below directories that were moved: whether it is hidden, and whom it is shown to, goes by
//! its path.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tollgate_fuse::NodeId;

use crate::links::Links;
use crate::table::Node;

/// Tells what lies below some directories, or is one of them.
pub(super) struct Below<'a> {
    /// Of directories that were looked at.
    known: FxHashMap<NodeId, bool>,
    links: &'a Links,
}

impl<'a> Below<'a> {
    pub(super) fn new(moved: &[NodeId], links: &'a Links) -> Self {
        Self { known: moved.iter().map(|&dir| (dir, true)).collect(), links }
    }

    /// Whether what is cached of `node` may have been for the path that it had. A file with several
    /// names is judged by all of them, and not all have places.
    pub(super) fn concerns(&mut self, node: &Arc<Node>) -> bool {
        if node.is_dir() {
            return self.has(Arc::clone(node));
        }
        node.has_further_names()
            || node.keys().any(|key| self.links.has_several_names(&key))
            || node.parent().is_some_and(|dir| self.has(dir))
    }

    /// The same for a directory.
    fn has(&mut self, dir: Arc<Node>) -> bool {
        let mut passed = Vec::new();
        let mut next = Some(dir);
        let has = loop {
            let Some(dir) = next else { break false };
            if let Some(&known) = self.known.get(&dir.id) {
                break known;
            }
            // Directories that others moved about can hold each other in a circle.
            self.known.insert(dir.id, false);
            passed.push(dir.id);
            next = dir.parent();
        };
        for dir in passed {
            self.known.insert(dir, has);
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use tollgate_fuse::Name;

    use super::*;
    use crate::lower::stat_at;
    use crate::table::Table;

    #[test]
    fn what_is_below_is_told_from_what_is_beside() {
        let dir = tempfile::tempdir().unwrap();
        for made in ["moved/in/deep", "beside/in"] {
            std::fs::create_dir_all(dir.path().join(made)).unwrap();
        }
        for file in ["moved/f", "moved/in/deep/f", "beside/in/f", "f", "beside/two"] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        let open = |path: &str| std::fs::File::open(dir.path().join(path)).unwrap();
        let table = Table::new(&stat_at(open("").as_fd(), c".").unwrap(), Vec::new());
        let root = table.get(NodeId::ROOT).unwrap();
        let node = |parent: &Arc<Node>, at: &str, name: &std::ffi::CStr| {
            let stat = stat_at(open(at).as_fd(), name).unwrap();
            table.remember(&stat, parent, Name::new(name).unwrap(), true).0
        };
        let moved = node(&root, "", c"moved");
        let inner = node(&moved, "moved", c"in");
        let deep = node(&inner, "moved/in", c"deep");
        let beside = node(&root, "", c"beside");
        let other = node(&beside, "beside", c"in");

        let links = Links::new(1);
        let mut below = Below::new(&[moved.id], &links);
        let files = [node(&moved, "moved", c"f"), node(&deep, "moved/in/deep", c"f")];
        for node in [&moved, &inner, &deep].into_iter().chain(&files) {
            assert!(below.concerns(node), "{:?}", node.places());
        }
        let files = [node(&root, "", c"f"), node(&other, "beside/in", c"f")];
        for node in [&root, &beside, &other].into_iter().chain(&files) {
            assert!(!below.concerns(node), "{:?}", node.places());
        }

        let linked = dir.path().join("moved/other");
        std::fs::hard_link(dir.path().join("beside/two"), linked).unwrap();
        let two = node(&beside, "beside", c"two");
        node(&moved, "moved", c"other");
        assert!(below.concerns(&two), "by its other name");
    }

    #[test]
    fn a_circle_of_directories_has_an_end() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let open = |path: &str| std::fs::File::open(dir.path().join(path)).unwrap();
        let table = Table::new(&stat_at(open("").as_fd(), c".").unwrap(), Vec::new());
        let root = table.get(NodeId::ROOT).unwrap();
        let name = |name| Name::new(name).unwrap();
        let (a, b) = (stat_at(open("").as_fd(), c"a").unwrap(), open("a"));
        let (a, _) = table.remember(&a, &root, name(c"a"), true);
        let b = stat_at(b.as_fd(), c"b").unwrap();
        let (b, _) = table.remember(&b, &a, name(c"b"), true);
        a.seen_at(&b, name(c"a"), 1);
        let links = Links::new(1);
        assert!(!Below::new(&[], &links).concerns(&b));
        assert!(Below::new(&[a.id], &links).concerns(&b));
        a.let_go();
    }
}
