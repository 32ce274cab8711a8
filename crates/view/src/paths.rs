//! Paths of nodes, for the policy and for the audit log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use smallvec::SmallVec;
use tollgate_fuse::Name;

use crate::neighbours::Elsewhere;
use crate::table::Node;

/// Longest path in bytes that is built. Deeper trees are refused as too long, not judged by half a
/// path.
const MAX_PATH: usize = 64 << 10;
/// Longest path that a directory keeps. Longer ones are built anew each time, from the nearest
/// directory above that keeps its own, so that a deep tree costs no memory per directory.
const MAX_KEPT: usize = 512;

/// The known paths of an inode, at least one; more with hard links.
pub(crate) type KnownPaths = SmallVec<[Vec<u8>; 1]>;

/// The names that an inode is judged by.
pub(crate) struct Names<'v> {
    /// At least one.
    pub(crate) paths: KnownPaths,
    /// Whether there can be no others in DIR.
    pub(crate) all_known: bool,
    /// Those in other views of the same server.
    pub(crate) elsewhere: Elsewhere<'v>,
}

impl Names<'_> {
    /// Whether there can be no others.
    pub(crate) fn are_known(&self) -> bool {
        self.all_known && self.elsewhere.unknown.is_empty()
    }
}

/// Builds paths, and knows which cached ones are stale.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// Counts changes of directory names: a cached path is good for one value.
    renames: AtomicU64,
}

impl Paths {
    /// A directory got another name: paths below it that were built before are stale.
    pub(crate) fn directory_moved(&self) {
        self.renames.fetch_add(1, Ordering::Release);
    }

    /// How often that happened.
    pub(crate) fn renames(&self) -> u64 {
        self.renames.load(Ordering::Acquire)
    }

    /// The path of `name` in `parent`.
    pub(crate) fn of_child(&self, parent: &Arc<Node>, name: Name<'_>) -> Result<Vec<u8>, Errno> {
        join(&self.of_dir(parent)?, name.as_bytes())
    }

    /// Every known path of `node`.
    ///
    /// # Errors
    /// `ESTALE` if no name of it is known, or `ESTALE` or `ENOENT` if none leads to the root any more.
    pub(crate) fn of(&self, node: &Arc<Node>) -> Result<KnownPaths, Errno> {
        if node.is_root() {
            return Ok(SmallVec::from_buf([Vec::new()]));
        }
        let places = node.places();
        if places.is_empty() {
            // Its last name is gone (or it never had one): the last decision stays. Without one, others
            // moved it, or gave it back a name that led elsewhere for a moment, as `seal rotate` does:
            // the kernel looks the name up again.
            return Ok(SmallVec::from_buf([node.last_path().ok_or(Errno::STALE)?]));
        }
        let mut known = KnownPaths::new();
        let mut lost = None;
        for place in &places {
            match self.of_dir(&place.parent) {
                Ok(above) => known.push(join(&above, place.name.to_bytes())?),
                // The kernel forgot that directory, or it was moved behind the view: where it is
                // now is not known. A file with further names is still judged by those, and by what
                // `links/` keeps.
                Err(errno @ (Errno::STALE | Errno::NOENT)) => lost = Some(errno),
                Err(errno) => return Err(errno),
            }
        }
        lost.filter(|_| known.is_empty()).map_or(Ok(known), Err)
    }

    /// The path of directory `node`, relative to the root; empty for the root itself. Climbs to the
    /// nearest directory whose path is kept; a loop of names ends as too long.
    fn of_dir(&self, node: &Arc<Node>) -> Result<Arc<[u8]>, Errno> {
        let now = self.renames.load(Ordering::Acquire);
        let (mut climbed, mut length) = (SmallVec::<[_; 4]>::new(), 0);
        let mut here = Arc::clone(node);
        let above = loop {
            if let Some(path) = kept(&here, now) {
                break path;
            }
            // A directory has one place. None is left once it is removed (it can then hold nothing
            // new), or lost.
            let removed = || here.pinned.load(Ordering::Relaxed);
            let place = here.place();
            let place = place.ok_or_else(|| if removed() { Errno::NOENT } else { Errno::STALE })?;
            length += place.name.to_bytes().len() + 1;
            if length > MAX_PATH {
                return Err(Errno::NAMETOOLONG);
            }
            climbed.push((here, place.name));
            here = place.parent;
        };
        let mut path = above;
        let mut longer = Vec::new();
        while let Some((node, name)) = climbed.pop() {
            if longer.is_empty() {
                longer = join(&path, name.to_bytes())?;
            } else {
                append(&mut longer, name.to_bytes())?;
            }
            if longer.len() <= MAX_KEPT {
                path = longer.as_slice().into();
                *node.path.lock() = Some((now, Arc::clone(&path)));
            }
        }
        Ok(if longer.len() > MAX_KEPT { longer.into() } else { path })
    }
}

/// The path that `node` keeps, if no directory moved since.
fn kept(node: &Node, now: u64) -> Option<Arc<[u8]>> {
    if node.is_root() {
        return Some(Arc::from(&b""[..]));
    }
    let kept = node.path.lock();
    kept.as_ref().filter(|(built_at, _)| *built_at == now).map(|(_, path)| Arc::clone(path))
}

fn join(parent: &[u8], name: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut path = Vec::with_capacity(parent.len() + 1 + name.len());
    path.extend_from_slice(parent);
    append(&mut path, name)?;
    Ok(path)
}

fn append(path: &mut Vec<u8>, name: &[u8]) -> Result<(), Errno> {
    if path.len() + 1 + name.len() > MAX_PATH {
        return Err(Errno::NAMETOOLONG);
    }
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_no_leading_slash_and_a_longest_length() {
        assert_eq!(join(b"", b"a").unwrap(), b"a");
        assert_eq!(join(b"a/b", b"c").unwrap(), b"a/b/c");
        assert_eq!(join(&[b'x'; MAX_PATH], b"c").unwrap_err(), Errno::NAMETOOLONG);
    }
}
