//! Mounts that show a directory in which they lie: chroots have such. No directory of a view is in
//! itself, so the kernel finds no way to what is mounted there.

use std::path::Path;

use super::views::{InOrder, Prepared};
use crate::escape::shown;
use crate::messages;
use crate::mountinfo::{self, MountInfo};
use crate::other_mounts::join;

/// Whether `mount` shows a directory in which it lies.
pub(super) fn is_circular(mounts: &[MountInfo], mount: &MountInfo) -> bool {
    let same = mounts.iter().filter(|one| one.id != mount.id && one.device == mount.device);
    let mut shown = same.filter_map(|one| {
        mount.root.strip_prefix(&one.root).ok().map(|rest| join(&one.point, rest))
    });
    shown.any(|path| path != mount.point && mount.point.starts_with(path))
}

/// Whether `mount` is such a mount or lies below one: bind mounts repeat what is mounted in the
/// directory.
pub(super) fn is_in_circular(mounts: &[MountInfo], mount: &MountInfo) -> bool {
    let mut above = mounts.iter().filter(|one| mount.point.starts_with(&one.point));
    above.any(|one| is_circular(mounts, one))
}

/// Says of those in views that they are not shown. Where there are rules, the view itself does.
pub(super) fn tell(views: &InOrder<Prepared>) {
    let mounts = mountinfo::read().unwrap_or_default();
    for view in views.all().filter(|view| !view.spec.policy().tells_names_apart()) {
        let dir = &view.tree.path;
        let is_below = |point: &Path| point != dir && point.starts_with(dir);
        for mount in mounts.iter().filter(|mount| is_below(&mount.point)) {
            if is_circular(&mounts, mount) {
                let point = shown(&mount.point);
                messages::warn(&format!(
                    "what is mounted at `{point}` shows a directory that it lies in: CMD cannot \
                     enter it; unmount it outside if CMD needs `{point}` (`umount {point}`)"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_mounted_in_itself_is_found() {
        let mount = MountInfo::example;
        let mounts = [
            mount(1, "8:1", "/", "/"),
            mount(2, "8:1", "/p", "/p/in"),
            mount(3, "8:1", "/p/a", "/p/b"),
            mount(4, "8:1", "/p", "/p"),
            mount(5, "8:2", "/", "/p/disk"),
            mount(6, "8:2", "/", "/p/disk/a/b"),
            mount(7, "8:2", "/x", "/p/disk/a/c"),
            mount(8, "8:1", "/p", "/pp"),
            mount(9, "8:1", "/", "/p/disk/up"),
        ];
        let found = mounts.iter().filter(|one| is_circular(&mounts, one)).map(|one| one.id);
        assert_eq!(found.collect::<Vec<_>>(), [2, 6, 9]);
    }

    #[test]
    fn what_is_mounted_below_one_is_found() {
        let mount = MountInfo::example;
        let mounts = [
            mount(1, "8:1", "/", "/"),
            mount(2, "0:5", "/", "/p/cache"),
            mount(3, "8:1", "/p", "/p/in"),
            mount(4, "0:5", "/", "/p/in/cache"),
            mount(5, "0:6", "/", "/p/inner"),
        ];
        let found = mounts.iter().filter(|one| is_in_circular(&mounts, one)).map(|one| one.id);
        assert_eq!(found.collect::<Vec<_>>(), [3, 4]);
    }
}
