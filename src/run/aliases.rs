//! Other paths to the raw tree: bind mounts and second mounts of the same file system.
//!
//! A view that covers DIR alone would leave them open. Each is covered with the view too.

use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};

use super::guard::KERNEL_FILE_SYSTEMS;
use crate::escape::shown;
use crate::mountinfo::MountInfo;
use crate::other_mounts::{self, join};

/// File systems without files of the tree: what is mounted of them below DIR needs no cover
/// elsewhere.
const WITHOUT_FILES: &[&str] = &["autofs", "devpts", "devtmpfs", "mqueue", "proc"];

/// A path that must be covered, and with which part of the view.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Alias {
    /// The mount that shows it.
    pub(super) mount: u64,
    /// Where the raw tree shows, too.
    pub(super) at: PathBuf,
    /// What shows there, relative to DIR; empty for DIR itself.
    pub(super) part: PathBuf,
    /// The mount points of the two: of what shows there, and of what shows in DIR.
    pub(super) points: [PathBuf; 2],
}

/// Finds the aliases of `dir` (an absolute path without symbolic links, on the mount `on`) and of
/// what is mounted below it.
pub(super) fn find(mounts: &[MountInfo], on: u64, dir: &Path) -> Vec<Alias> {
    let own = mounts.iter().filter(|mount| mount.id == on).map(|mount| (mount, dir));
    let below = mounts
        .iter()
        .filter(|mount| mount.id != on && mount.point.starts_with(dir) && has_files(mount))
        .map(|mount| (mount, mount.point.as_path()));
    outermost(others(mounts, own.chain(below), dir))
}

/// The same of a place that is hidden: of what lies on its own mount. Somebody who mounts one thing
/// there and elsewhere may well mean the other place.
pub(super) fn of_hidden(mounts: &[MountInfo], on: u64, place: &Path) -> Vec<Alias> {
    let own = mounts.iter().filter(|mount| mount.id == on).map(|mount| (mount, place));
    others(mounts, own, place)
}

/// Where the mounts show what `shown` has, each at its path in `dir`.
fn others<'m>(
    mounts: &[MountInfo],
    shown: impl Iterator<Item = (&'m MountInfo, &'m Path)>,
    dir: &Path,
) -> Vec<Alias> {
    let mut aliases = Vec::new();
    for (mount, shown) in shown {
        let (Ok(rest), Ok(part)) = (shown.strip_prefix(&mount.point), shown.strip_prefix(dir))
        else {
            continue;
        };
        let inside = join(&mount.root, rest);
        let same = |other: &&MountInfo| other.id != mount.id && other.device == mount.device;
        let alias = |other| alias(other, &mount.point, &inside, part);
        let is_one = |alias: &Alias| {
            other_mounts::tells_roots(mount)
                || other_mounts::is_same(&alias.at, &join(dir, &alias.part))
        };
        aliases.extend(mounts.iter().filter(same).filter_map(alias).filter(is_one));
    }
    // What is below DIR is covered with DIR.
    aliases.retain(|alias| !alias.at.starts_with(dir));
    aliases
}

/// Drops what lies below another alias, and is covered with that.
fn outermost(aliases: Vec<Alias>) -> Vec<Alias> {
    let places: Vec<_> = aliases.iter().map(|alias| alias.at.clone()).collect();
    let covered = |alias: &Alias| {
        places.iter().any(|place| alias.at != *place && alias.at.starts_with(place))
    };
    aliases.into_iter().filter(|alias| !covered(alias)).collect()
}

fn has_files(mount: &MountInfo) -> bool {
    let kind = mount.kind.as_str();
    !WITHOUT_FILES.contains(&kind) && !KERNEL_FILE_SYSTEMS.contains(&kind)
}

/// `inside` is the path in the file system of what the view shows as `part`, by the mount at `own`.
fn alias(mount: &MountInfo, own: &Path, inside: &Path, part: &Path) -> Option<Alias> {
    let (at, part) = match inside.strip_prefix(&mount.root) {
        Ok(rest) => (join(&mount.point, rest), part.to_owned()),
        Err(_) => {
            let deeper = mount.root.strip_prefix(inside).ok()?;
            (mount.point.clone(), join(part, deeper))
        }
    };
    let points = [mount.point.clone(), own.to_owned()];
    Some(Alias { mount: mount.id, at, part, points })
}

impl Alias {
    /// What is wrong where it lies in the view around that of `dir`, whose directory is `outer`, and
    /// what to do: of the two mounts, the one that was made there is the one to unmount.
    pub(super) fn between(&self, dir: &Path, outer: &Path) -> String {
        let [other, own] = &self.points;
        let (dir, outer_shown, at) = (shown(dir), shown(outer), shown(&self.at));
        if other.starts_with(outer) && other != outer {
            let point = shown(other);
            return format!(
                "what is mounted at `{point}` shows files of `{dir}` a second time, in the \
                 `[[view]]` of `{outer_shown}`, whose rules would decide over them; unmount it \
                 (`umount {point}`)"
            );
        }
        let point = shown(own);
        format!(
            "what is mounted at `{point}` shows `{at}` a second time, which lies in the `[[view]]` of \
             `{outer_shown}`, by whose rules it would not be judged; unmount it (`umount {point}`)"
        )
    }
}

/// Covers `alias` with its part of the view, which is at `view`. `false`, and nothing is done, where
/// the path leads elsewhere: something else is mounted over it already, or it does not exist.
pub(super) fn cover(alias: &Alias, view: &str) -> anyhow::Result<bool> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(place) = rustix::fs::openat(CWD, &alias.at, flags, Mode::empty()) else {
        return Ok(false);
    };
    let found = rustix::fs::statx(&place, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
    if found.context("statx")?.stx_mnt_id != alias.mount {
        return Ok(false);
    }
    drop(place);
    let part = join(Path::new(view), &alias.part);
    // With the native directories in it.
    rustix::mount::mount_bind_recursive(&part, &alias.at).with_context(|| {
        format!(
            "`{}` shows the same files as DIR and cannot be covered; unmount it, or run on another \
             copy",
            shown(&alias.at)
        )
    })?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u64, device: &str, root: &str, point: &str) -> MountInfo {
        MountInfo::example(id, device, root, point)
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
        let mounts = [mount(1, "8:1", "/", "/"), mount(2, "8:1", "/home/a", "/build")];
        assert_eq!(found(&mounts, 2, "/build/p"), [("/home/a/p".into(), String::new())]);
        assert_eq!(found(&mounts, 2, "/build"), [("/home/a".into(), String::new())]);
    }

    #[test]
    fn of_a_hidden_place_what_is_mounted_in_it_is_left_out() {
        let mounts = [
            mount(1, "8:1", "/", "/"),
            mount(2, "8:1", "/", "/mnt/whole"),
            mount(3, "8:1", "/home/a/.ssh", "/home/a/x/keys"),
            mount(4, "8:1", "/home/a/.ssh", "/keys"),
            mount(5, "8:2", "/", "/home/a/disk"),
            mount(6, "8:2", "/", "/mnt/disk"),
        ];
        let found = of_hidden(&mounts, 1, Path::new("/home/a"));
        let at: Vec<_> = found.iter().map(|alias| alias.at.to_str().unwrap()).collect();
        assert_eq!(at, ["/mnt/whole/home/a", "/keys"]);
    }

    #[test]
    fn what_is_mounted_below_the_tree_is_covered_elsewhere_too() {
        let mut mounts = vec![
            mount(1, "8:1", "/", "/"),
            mount(2, "8:2", "/", "/home/a/p/disk"),
            mount(3, "8:2", "/", "/mnt/disk"),
            mount(4, "8:2", "/deep", "/mnt/deep"),
            mount(5, "0:5", "/", "/home/a/p/proc"),
            mount(6, "0:5", "/", "/proc"),
        ];
        mounts[4].kind = "proc".to_owned();
        let expected = [("/mnt/disk", "disk"), ("/mnt/deep", "disk/deep")];
        let expected: Vec<_> = expected.map(|(at, part)| (at.into(), part.into())).into();
        assert_eq!(found(&mounts, 1, "/home/a/p"), expected);
    }
}
