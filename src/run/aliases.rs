//! Other paths to the raw tree: bind mounts and second mounts of the same file system.
//!
//! A view that covers DIR alone would leave them open. Each is covered with the view too.

use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{CWD, Mode, OFlags};

use crate::mountinfo::MountInfo;

/// A path that must be covered, and with which part of the view.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Alias {
    /// Where the raw tree shows, too.
    pub(super) at: PathBuf,
    /// What shows there, relative to DIR; empty for DIR itself.
    pub(super) part: PathBuf,
}

/// Finds the aliases of `dir` (an absolute path without symbolic links, on the mount `on`).
pub(super) fn find(mounts: &[MountInfo], on: u64, dir: &Path) -> Vec<Alias> {
    let Some(own) = mounts.iter().find(|mount| mount.id == on) else { return Vec::new() };
    let Ok(below_mount) = dir.strip_prefix(&own.point) else { return Vec::new() };
    let inside = join(&own.root, below_mount);
    let same = |mount: &&MountInfo| mount.id != on && mount.device == own.device;
    let mut aliases: Vec<_> =
        mounts.iter().filter(same).filter_map(|mount| alias(mount, &inside)).collect();
    // What is below DIR is covered with DIR.
    aliases.retain(|alias| !alias.at.starts_with(dir));
    aliases
}

/// `inside` is DIR's path in its file system.
fn alias(mount: &MountInfo, inside: &Path) -> Option<Alias> {
    if let Ok(rest) = inside.strip_prefix(&mount.root) {
        return Some(Alias { at: join(&mount.point, rest), part: PathBuf::new() });
    }
    let part = mount.root.strip_prefix(inside).ok()?;
    Some(Alias { at: mount.point.clone(), part: part.to_owned() })
}

/// As [`Path::join`], without a slash at the end when `rest` is empty.
fn join(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_owned() } else { base.join(rest) }
}

/// Covers `alias` with its part of the view, unless something else is mounted over it already.
///
/// `view` is a path to the view's root; `raw` is the device number of the raw tree.
pub(super) fn cover(alias: &Alias, view: &str, raw: u64) -> anyhow::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(place) = rustix::fs::openat(CWD, &alias.at, flags, Mode::empty()) else {
        return Ok(());
    };
    let found = rustix::fs::fstat(&place).context("fstat")?;
    if found.st_dev != raw {
        return Ok(());
    }
    let part = join(Path::new(view), &alias.part);
    rustix::mount::mount_bind(&part, &alias.at).with_context(|| {
        format!(
            "`{}` shows the same files as DIR and cannot be covered; unmount it, or run on another copy",
            alias.at.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u64, device: &str, root: &str, point: &str) -> MountInfo {
        let (device, kind) = (device.to_owned(), "ext4".to_owned());
        MountInfo { id, device, root: root.into(), point: point.into(), kind }
    }

    fn found(mounts: &[MountInfo], on: u64, dir: &str) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let aliases = find(mounts, on, Path::new(dir));
        aliases.iter().map(|alias| (text(&alias.at), text(&alias.part))).collect()
    }

    #[test]
    fn a_tree_with_one_path_has_no_alias() {
        let mounts = [mount(1, "8:1", "/", "/"), mount(2, "0:5", "/", "/proc")];
        assert!(found(&mounts, 1, "/home/a/p").is_empty());
    }

    #[test]
    fn second_mounts_above_at_and_below_the_tree_are_found() {
        let mounts = [
            mount(1, "8:1", "/", "/"),
            mount(2, "8:1", "/", "/mnt/whole"),
            mount(3, "8:1", "/home", "/homes"),
            mount(4, "8:1", "/home/a/p", "/exact"),
            mount(5, "8:1", "/home/a/p/sub", "/below"),
            mount(6, "8:1", "/home/a/other", "/other"),
            mount(7, "8:1", "/home/a/pp", "/similar"),
            mount(8, "8:2", "/home/a/p", "/another-disk"),
            mount(9, "8:1", "/home/a/p/x", "/home/a/p/y"),
        ];
        let expected =
            [("/mnt/whole/home/a/p", ""), ("/homes/a/p", ""), ("/exact", ""), ("/below", "sub")];
        let expected: Vec<_> = expected.map(|(at, part)| (at.into(), part.into())).into();
        assert_eq!(found(&mounts, 1, "/home/a/p"), expected);
    }

    #[test]
    fn a_tree_that_is_itself_seen_through_a_bind_mount_has_its_origin_as_alias() {
        let mounts = [mount(1, "8:1", "/", "/"), mount(2, "8:1", "/home/a", "/work")];
        assert_eq!(found(&mounts, 2, "/work/p"), [("/home/a/p".into(), String::new())]);
        assert_eq!(found(&mounts, 2, "/work"), [("/home/a".into(), String::new())]);
    }
}
