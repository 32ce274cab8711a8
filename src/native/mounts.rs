//! What is mounted in native directories: a bind mount there can show files that rules protect.

use std::path::{Path, PathBuf};

use crate::mountinfo::{self, MountInfo};

/// A mount in `native`, or at it, that shows files of one of `directories`, or of what is mounted
/// in these elsewhere; all by absolute paths without symbolic links.
pub(super) fn showing(
    mounts: &[MountInfo],
    native: &Path,
    directories: &[&Path],
) -> Option<PathBuf> {
    let mut inside = mounts.iter().filter(|mount| mount.point.starts_with(native));
    let is_one =
        |mount: &&MountInfo| directories.iter().any(|dir| shows(mounts, mount, native, dir));
    inside.find(is_one).map(|mount| mount.point.clone())
}

fn shows(mounts: &[MountInfo], mount: &MountInfo, native: &Path, dir: &Path) -> bool {
    let overlap = |device: &str, root: &Path| {
        mount.device == device && (mount.root.starts_with(root) || root.starts_with(&mount.root))
    };
    let of_dir = mountinfo::covering(mounts, dir).is_some_and(|home| {
        let below = dir.strip_prefix(&home.point).unwrap_or(Path::new(""));
        overlap(&home.device, &home.root.join(below))
    });
    let elsewhere = |other: &MountInfo| {
        let is_in_dir = other.point.starts_with(dir) && !other.point.starts_with(native);
        is_in_dir && other.id != mount.id && overlap(&other.device, &other.root)
    };
    of_dir || mounts.iter().any(elsewhere)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_shows_a_part_of_the_directory_is_found() {
        let mount = MountInfo::example;
        let found = |device: &str, root: &str| {
            let mounts = [
                mount(1, "8:1", "/", "/"),
                mount(2, "8:2", "/", "/p/disk"),
                mount(3, device, root, "/p/nat/x"),
            ];
            showing(&mounts, Path::new("/p/nat"), &[Path::new("/p")]).is_some()
        };
        for (device, root) in [("8:1", "/p/keys"), ("8:1", "/p"), ("8:1", "/"), ("8:2", "/a")] {
            assert!(found(device, root), "{device} {root}");
        }
        for (device, root) in [("8:1", "/other"), ("8:3", "/p/keys")] {
            assert!(!found(device, root), "{device} {root}");
        }
    }
}
