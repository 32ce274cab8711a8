//! Paths of nodes, for the policy and for the audit log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use smallvec::SmallVec;
use tollgate_fuse::Name;

use crate::table::Node;

/// Longest path in bytes that is built. Deeper trees are refused as too long, not judged by half a
/// path.
const MAX_PATH: usize = 64 << 10;
const MAX_DEPTH: usize = 4096;

/// The known paths of an inode, at least one; more with hard links.
pub(crate) type KnownPaths = SmallVec<[Vec<u8>; 1]>;

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

    /// The path of `name` in `parent`.
    pub(crate) fn of_child(&self, parent: &Arc<Node>, name: Name<'_>) -> Result<Vec<u8>, Errno> {
        join(&self.of_dir(parent, 0)?, name.as_bytes())
    }

    /// Every known path of `node`.
    ///
    /// # Errors
    /// `EACCES` for an inode that has no name and never had one.
    pub(crate) fn of(&self, node: &Arc<Node>) -> Result<KnownPaths, Errno> {
        if node.is_root() {
            return Ok(SmallVec::from_buf([Vec::new()]));
        }
        let places = node.places();
        if places.is_empty() {
            // Its last name is gone (or it never had one): the last decision stays.
            return Ok(SmallVec::from_buf([node.last_path().ok_or(Errno::ACCESS)?]));
        }
        places
            .iter()
            .map(|place| join(&self.of_dir(&place.parent, 0)?, place.name.to_bytes()))
            .collect()
    }

    /// The path of directory `node`, relative to the root; empty for the root itself.
    fn of_dir(&self, node: &Arc<Node>, depth: usize) -> Result<Arc<[u8]>, Errno> {
        if node.is_root() {
            return Ok(Arc::from(&b""[..]));
        }
        if depth > MAX_DEPTH {
            return Err(Errno::STALE);
        }
        let now = self.renames.load(Ordering::Acquire);
        let cached = node.path.lock().clone();
        if let Some((_, path)) = cached.filter(|(built_at, _)| *built_at == now) {
            return Ok(path);
        }
        // A directory has one place. None is left once it is removed; it can then hold nothing new.
        let place = node.places().into_iter().next().ok_or(Errno::NOENT)?;
        let parent = self.of_dir(&place.parent, depth + 1)?;
        let path: Arc<[u8]> = join(&parent, place.name.to_bytes())?.into();
        *node.path.lock() = Some((now, Arc::clone(&path)));
        Ok(path)
    }
}

fn join(parent: &[u8], name: &[u8]) -> Result<Vec<u8>, Errno> {
    if parent.len() + 1 + name.len() > MAX_PATH {
        return Err(Errno::NAMETOOLONG);
    }
    let mut path = Vec::with_capacity(parent.len() + 1 + name.len());
    path.extend_from_slice(parent);
    if !parent.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    Ok(path)
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
