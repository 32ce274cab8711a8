//! Where a directory shows a file: bind mounts and second mounts give one place several paths, so
//! paths alone do not tell whether it does.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::mountinfo::{self, MountInfo};

/// The paths in `directory`, or its own, at which `file` shows; none if it does not. Both are
/// absolute and without symbolic links, and the file need not be there.
pub(crate) fn paths_in(mounts: &[MountInfo], directory: &Path, file: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    if file.starts_with(directory) {
        paths.push(file.to_owned());
    }
    let (Some(of_file), Some(own)) = (mount_of(mounts, file), mount_of(mounts, directory)) else {
        return paths;
    };
    let Some(place) = inside(of_file, file) else { return paths };
    let below = mounts.iter().filter(|mount| {
        mount.id != own.id && mount.point != directory && mount.point.starts_with(directory)
    });
    let below = below.map(|mount| (mount, mount.point.as_path()));
    for (mount, shown) in [(own, directory)].into_iter().chain(below) {
        let rest = inside(mount, shown).filter(|_| mount.device == of_file.device);
        let rest = rest.and_then(|top| Some(place.strip_prefix(&top).ok()?.to_owned()));
        let path = rest.map(|rest| join(shown, &rest));
        paths.extend(path.filter(|path| tells_roots(mount) || is_same(path, file)));
    }
    paths.sort();
    paths.dedup();
    paths
}

/// The mount that `path` lies on, or would.
fn mount_of<'m>(mounts: &'m [MountInfo], path: &Path) -> Option<&'m MountInfo> {
    let id = path.ancestors().find_map(id_at);
    let found = mounts.iter().find(|mount| Some(mount.id) == id);
    found.or_else(|| mountinfo::covering(mounts, path))
}

/// Whether something in `directory`, or what is mounted there, may be a further name of `file`: hard
/// links stay within one file system. Both are absolute and without symbolic links.
pub(crate) fn may_link(mounts: &[MountInfo], directory: &Path, file: &Path) -> bool {
    let Some(of_file) = mount_of(mounts, file) else { return true };
    let below = mounts.iter().filter(|mount| mount.point.starts_with(directory));
    let mut shown = mount_of(mounts, directory).into_iter().chain(below);
    shown.any(|mount| mount.device == of_file.device)
}

/// The number of the mount that is seen at `path`. Nothing is asked of whoever serves it.
pub(crate) fn id_at(path: &Path) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(CWD, path, flags, StatxFlags::MNT_ID);
    found.ok().map(|found| found.stx_mnt_id)
}

/// Where in its file system `path` lies, which is on `mount`.
fn inside(mount: &MountInfo, path: &Path) -> Option<PathBuf> {
    Some(join(&mount.root, path.strip_prefix(&mount.point).ok()?))
}

/// Whether mountinfo says which directory of the file system is mounted. Of NFS it says `/` always.
pub(crate) fn tells_roots(mount: &MountInfo) -> bool {
    !mount.kind.starts_with("nfs")
}

/// Whether both lead to one file, or would, as far as that can be looked at.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let meta = std::fs::symlink_metadata(path).ok()?;
        Some((meta.dev(), meta.ino()))
    };
    let of_parent = |path: &Path| path.parent().and_then(identity);
    match (identity(one), identity(other)) {
        (None, None) => of_parent(one) == of_parent(other),
        (one, other) => one == other,
    }
}

/// As [`Path::join`], without a slash at the end when `rest` is empty.
pub(crate) fn join(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_owned() } else { base.join(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_every_mount_that_shows_it() {
        // Of no mount of this machine.
        let mount = |id: u64, device: &str, root: &str, point: &str| {
            MountInfo::example(id + (1 << 40), device, root, point)
        };
        let mounts = [
            mount(1, "8:1", "/", "/"),
            mount(2, "8:1", "/p", "/exact"),
            mount(3, "8:1", "/p/logs", "/deeper"),
            mount(4, "8:1", "/", "/whole"),
            mount(5, "8:2", "/", "/p/disk"),
            mount(6, "8:2", "/logs", "/of-disk"),
            mount(7, "8:2", "/p", "/other-disk"),
            mount(8, "8:1", "/p/a.jsonl", "/file"),
        ];
        let found = |directory: &str, file: &str| {
            let paths = paths_in(&mounts, Path::new(directory), Path::new(file));
            paths.iter().map(|path| path.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        for (directory, file, expected) in [
            ("/p", "/p/a", &["/p/a"][..]),
            ("/p", "/exact/x/a", &["/p/x/a"]),
            ("/p", "/deeper/a", &["/p/logs/a"]),
            ("/p", "/whole/p/a", &["/p/a"]),
            ("/p", "/whole/pp/a", &[]),
            ("/p", "/of-disk/a", &["/p/disk/logs/a"]),
            ("/p", "/other-disk/a", &["/p/disk/p/a"]),
            ("/p", "/file", &["/p/a.jsonl"]),
            ("/exact", "/p/logs/a", &["/exact/logs/a"]),
            ("/deeper", "/p/a", &[]),
            ("/whole", "/deeper/a", &["/whole/p/logs/a"]),
        ] {
            assert_eq!(found(directory, file), expected, "{directory} {file}");
        }
    }
}
