//! Paths to the files of DIR that are not the view's: what a user has to know of them.

use std::path::{Path, PathBuf};

use tollgate_policy::Policy;
use tollgate_view::Unavailable;

use crate::escape::shown;
use crate::mountinfo::{self, MountInfo};
use crate::tree::Tree;

/// The layers of the overlay that DIR lies on, as far as they can be reached from here: who may use
/// them has the files without the policy.
pub(crate) fn layers(tree: &Tree, policy: &Policy) -> Option<Unavailable> {
    if policy.is_trivial() {
        return None;
    }
    let mounts = mountinfo::read().ok()?;
    let layers = layers_of(&mounts, &tree.path);
    let reachable: Vec<_> = layers.iter().filter(|layer| layer.is_dir()).collect();
    let list: Vec<_> = reachable.iter().map(|layer| format!("`{}`", shown(layer))).collect();
    (!list.is_empty()).then(|| Unavailable {
        feature: "the policy for the layers of the overlay that DIR lies on".to_owned(),
        reason: format!("the same files can be reached in {}", list.join(", ")),
    })
}

/// The directories that an overlay is made of; empty where `dir` lies on none.
fn layers_of(mounts: &[MountInfo], dir: &Path) -> Vec<PathBuf> {
    let home = mounts
        .iter()
        .filter(|mount| dir.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.components().count());
    let Some(overlay) = home.filter(|mount| mount.kind == "overlay") else { return Vec::new() };
    let options = overlay.options.split(',').filter_map(|option| option.split_once('='));
    options
        .filter(|(key, _)| matches!(*key, "lowerdir" | "lowerdir+" | "datadir+" | "upperdir"))
        .flat_map(|(_, value)| value.split(':'))
        .filter(|path| path.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// Other servers that show `dir`, a directory above it or one below it, by their mount points: who
/// may use those is judged by their policies. `reports` are those of all servers.
pub(crate) fn other_views(
    report: &serde_json::Value,
    reports: &[serde_json::Value],
) -> Vec<String> {
    let word = |report: &serde_json::Value, key: &str| report[key].as_str().map(PathBuf::from);
    let Some(dir) = word(report, "dir") else { return Vec::new() };
    let shows_the_same = |other: &&serde_json::Value| {
        other["pid"] != report["pid"]
            && word(other, "dir").is_some_and(|it| it.starts_with(&dir) || dir.starts_with(&it))
    };
    let name = |other: &serde_json::Value| {
        let at = other["mount_point"].as_str().unwrap_or("?");
        let policy =
            other["policy"].as_str().map_or("no policy".to_owned(), |p| format!("policy {p}"));
        format!("{at} ({}, {policy})", other["kind"].as_str().unwrap_or("?"))
    };
    reports.iter().filter(shows_the_same).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_of_an_overlay_are_found() {
        let mount = |point: &str, kind: &str, options: &str| MountInfo {
            id: 1,
            device: "0:1".to_owned(),
            root: "/".into(),
            point: point.into(),
            kind: kind.to_owned(),
            options: options.to_owned(),
        };
        let overlay = "rw,lowerdir=/l1:/l2,upperdir=/up,workdir=/work";
        let mounts = [mount("/", "ext4", "rw"), mount("/merged", "overlay", overlay)];
        assert_eq!(
            layers_of(&mounts, Path::new("/merged/x")),
            ["/l1", "/l2", "/up"].map(PathBuf::from)
        );
        assert!(layers_of(&mounts, Path::new("/l1")).is_empty());
    }

    #[test]
    fn views_of_the_same_files_are_named() {
        let report = |pid: u64, dir: &str, at: &str| serde_json::json!({"pid": pid, "dir": dir, "mount_point": at, "kind": "mount"});
        let all = [report(1, "/p", "/v"), report(2, "/p/sub", "/w"), report(3, "/other", "/x")];
        assert_eq!(other_views(&all[0], &all), ["/w (mount, no policy)"]);
        assert!(other_views(&all[2], &all).is_empty());
    }
}
