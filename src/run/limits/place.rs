//! Where this process is in the hierarchies of cgroups, of version 2 and of version 1.

use std::path::{Path, PathBuf};

use crate::mountinfo::MountInfo;

/// A hierarchy that is mounted, with the cgroup that this process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Where the hierarchy is mounted.
    pub(super) top: PathBuf,
    /// This process's cgroup, as far as it shows there.
    pub(super) own: PathBuf,
}

/// Finds the hierarchy of `controller` of version 1, or with `None` the one of version 2.
///
/// `own` is the text of /proc/self/cgroup: lines of `number:controllers:path`.
pub(super) fn find(controller: Option<&str>, own: &str, mounts: &[MountInfo]) -> Option<Place> {
    let line = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_it = match controller {
            Some(name) => controllers.split(',').any(|other| other == name),
            None => controllers.is_empty(),
        };
        is_it.then(|| Path::new(path))
    })?;
    let kind = if controller.is_some() { "cgroup" } else { "cgroup2" };
    let has = |mount: &&MountInfo| {
        let named = |name| mount.options.iter().any(|option| option == name);
        mount.kind == kind && controller.is_none_or(named)
    };
    let mount = mounts.iter().rev().find(has)?;
    let below = line.strip_prefix(&mount.root).ok()?;
    let inside = mount.point.join(below);
    // A container shows a part of the hierarchy, and the path may be one of outside.
    let own = if inside.is_dir() { inside } else { mount.point.clone() };
    Some(Place { top: mount.point.clone(), own })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str, root: &str, point: &Path, options: &str) -> MountInfo {
        MountInfo {
            kind: kind.to_owned(),
            options: options.split(',').map(Into::into).collect(),
            ..MountInfo::example(1, "0:1", root, point.to_str().unwrap())
        }
    }

    #[test]
    fn the_hierarchy_and_the_place_in_it_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        std::fs::create_dir_all(new.join("user/me")).unwrap();
        std::fs::create_dir_all(&old).unwrap();
        let mounts = [
            mount("cgroup2", "/", &new, "rw"),
            mount("cgroup", "/", &old, "rw,cpu,cpuacct"),
            mount("cgroup2", "/other", &dir.path().join("part"), "rw"),
        ];
        let own = "3:cpu,cpuacct:/elsewhere\n0::/user/me\n";
        let found = find(None, own, &mounts[..2]).unwrap();
        assert_eq!(found, Place { top: new.clone(), own: new.join("user/me") });
        let found = find(Some("cpu"), own, &mounts).unwrap();
        assert_eq!(found, Place { top: old.clone(), own: old });
        assert_eq!(find(Some("memory"), own, &mounts), None);
        assert_eq!(find(None, own, &mounts[2..]), None, "another part of the hierarchy");
    }
}
