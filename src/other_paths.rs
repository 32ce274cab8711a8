//! Paths to the files of DIR that are not the view's: what a user has to know of them.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use tollgate_policy::Policy;
use tollgate_view::Unavailable;

use crate::control::{self, Request, Warnings};
use crate::mountinfo::{self, MountInfo, VIEW};
use crate::tree::Tree;

/// The layers of the overlay that DIR lies on, as far as they can be reached from here: who may use
/// them has the files without the policy.
pub(crate) fn layers(tree: &Tree, policy: &Policy) -> Option<Unavailable> {
    if policy.is_trivial() {
        return None;
    }
    let mounts = mountinfo::read().ok()?;
    let layers = layers_of(&mounts, &tree.path);
    let (known, unknown): (Vec<_>, Vec<_>) = layers.iter().partition(|layer| means_the_same(layer));
    let reachable = quoted(known.into_iter().filter(|layer| layer.is_dir()));
    let unknown = quoted(unknown.into_iter());
    let mut reasons = Vec::new();
    if !reachable.is_empty() {
        reasons.push(format!("the same files can be reached in {reachable}"));
    }
    if !unknown.is_empty() {
        reasons.push(format!(
            "the place of the layers mounted as {unknown} is not known, since only the process that \
             mounted them can follow such a path: what the rules protect may be readable there"
        ));
    }
    (!reasons.is_empty()).then(|| Unavailable {
        feature: "the policy for the layers of the overlay that DIR lies on".to_owned(),
        reason: reasons.join("; "),
    })
}

/// The directories that are shown by the views that DIR lies in, one beneath the other: who may use them has
/// the files without the policy. Whether anybody may is not asked.
pub(crate) fn beneath(tree: &Tree, policy: &Policy) -> Option<Unavailable> {
    if policy.is_trivial() {
        return None;
    }
    let mounts = mountinfo::read().ok()?;
    let mut reasons = Vec::new();
    let mut dir = tree.path.clone();
    // Each view is a mount of its own.
    for _ in 0..mounts.len() {
        let view = mountinfo::covering(&mounts, &dir).filter(|mount| mount.kind == VIEW);
        let Some(view) = view else { break };
        let Some(shown) = shown_by(view, &dir).filter(|shown| shown.is_dir()) else {
            let view = view.point.display();
            reasons.push(format!(
                "what the view at `{view}` shows is not known here: what the rules protect may be \
                 readable there"
            ));
            break;
        };
        if shown == dir {
            // A view in the place of what it shows.
            break;
        }
        reasons.push(match reasons.is_empty() {
            true => format!("the same files lie in `{}`, where it judges nothing", shown.display()),
            false => format!("and in `{}`", shown.display()),
        });
        dir = shown;
    }
    (!reasons.is_empty()).then(|| Unavailable {
        feature: "the policy for what lies beneath the view that DIR is in".to_owned(),
        reason: reasons.join("; "),
    })
}

/// What `dir` is that `view` shows, as its server says.
fn shown_by(view: &MountInfo, dir: &Path) -> Option<PathBuf> {
    let number = u64::from(view.minor_number()?);
    let is_meant =
        |report: &serde_json::Map<_, _>| report.get("connection") == Some(&number.into());
    let replies = control::ask_for(&is_meant, &Request::Status, Warnings::Left).ok()?.replies;
    let report = replies.into_iter().map(|reply| reply.report).find(is_meant)?;
    let top = report.get("dir_now").and_then(|now| now.as_str());
    let top = top.or_else(|| report.get("dir")?.as_str())?;
    let root = view.root.strip_prefix("/").ok()?;
    let shown = Path::new(top).join(root).join(dir.strip_prefix(&view.point).ok()?);
    // Without the slash that an empty path leaves at the end.
    Some(shown.components().collect())
}

/// Whether the path that somebody mounted a layer by leads to it from here. A relative one began at
/// their working directory, and one in /proc is mostly a descriptor of theirs.
fn means_the_same(layer: &Path) -> bool {
    layer.is_absolute() && !layer.starts_with("/proc")
}

fn quoted<'p>(paths: impl Iterator<Item = &'p PathBuf>) -> String {
    paths.map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(", ")
}

/// The directories that an overlay is made of, as they were given; empty where `dir` lies on none.
fn layers_of(mounts: &[MountInfo], dir: &Path) -> Vec<PathBuf> {
    let overlay = mountinfo::covering(mounts, dir).filter(|mount| mount.kind == "overlay");
    let options = overlay.into_iter().flat_map(|overlay| &overlay.options);
    let layers = options.flat_map(|option| {
        let option = option.as_bytes();
        let equals = option.iter().position(|byte| *byte == b'=').unwrap_or(option.len());
        let (key, value) = (&option[..equals], option.get(equals + 1..).unwrap_or_default());
        match key {
            b"lowerdir" => separated(value),
            // One path. As in `lowerdir`, a backslash takes the next character as it is.
            b"upperdir" => vec![unescaped(value)],
            // One path, in which no character has a meaning.
            b"lowerdir+" | b"datadir+" => vec![value.to_owned()],
            _ => Vec::new(),
        }
    });
    layers.filter(|path| !path.is_empty()).map(|path| OsString::from_vec(path).into()).collect()
}

/// The paths in `lowerdir`, between colons that no backslash precedes. Two colons begin the layers
/// that only have data.
fn separated(value: &[u8]) -> Vec<Vec<u8>> {
    let mut is_escaped = false;
    let separates = |byte: &u8| {
        let separates = *byte == b':' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        separates
    };
    value.split(separates).map(unescaped).collect()
}

fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut bytes = path.iter();
    let next = || match bytes.next()? {
        b'\\' => bytes.next(),
        byte => Some(byte),
    };
    std::iter::from_fn(next).copied().collect()
}

/// Other servers that show `dir`, a directory above it or one below it, by their mount points: who
/// may use those is judged by their policies. `reports` are those of all servers.
pub(crate) fn other_views(
    report: &serde_json::Value,
    reports: &[serde_json::Value],
) -> Vec<String> {
    // Where it was moved to since its start.
    let place = |report: &serde_json::Value| {
        report["dir_now"].as_str().or_else(|| report["dir"].as_str()).map(PathBuf::from)
    };
    let Some(dir) = place(report) else { return Vec::new() };
    let shows_the_same = |other: &&serde_json::Value| {
        other["pid"] != report["pid"]
            && place(other).is_some_and(|it| it.starts_with(&dir) || dir.starts_with(&it))
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

    fn mount(point: &str, kind: &str, options: &str) -> MountInfo {
        MountInfo {
            kind: kind.to_owned(),
            options: options.split(',').map(Into::into).collect(),
            ..MountInfo::example(1, "0:1", "/", point)
        }
    }

    #[test]
    fn the_layers_of_an_overlay_are_found() {
        let overlay = "rw,lowerdir=/l1:/l2,upperdir=/up,workdir=/work";
        let mounts = [mount("/", "ext4", "rw"), mount("/merged", "overlay", overlay)];
        assert_eq!(
            layers_of(&mounts, Path::new("/merged/x")),
            ["/l1", "/l2", "/up"].map(PathBuf::from)
        );
        assert!(layers_of(&mounts, Path::new("/l1")).is_empty());
    }

    #[test]
    fn the_path_of_a_layer_is_read_as_the_kernel_read_it() {
        let layers = |options: &str| layers_of(&[mount("/m", "overlay", options)], Path::new("/m"));
        let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        let escaped = r"lowerdir=/l\:1:/l\\2:l3::/data,upperdir=/u\:p";
        assert_eq!(layers(escaped), paths(&["/l:1", r"/l\2", "l3", "/data", "/u:p"]));
        let plain = r"lowerdir+=/l:1,lowerdir+=/l\2,datadir+=/data";
        assert_eq!(layers(plain), paths(&["/l:1", r"/l\2", "/data"]));
    }

    #[test]
    fn views_of_the_same_files_are_named() {
        let report = |pid: u64, dir: &str, at: &str| serde_json::json!({"pid": pid, "dir": dir, "mount_point": at, "kind": "mount"});
        let all = [report(1, "/p", "/v"), report(2, "/p/sub", "/w"), report(3, "/other", "/x")];
        assert_eq!(other_views(&all[0], &all), ["/w (mount, no policy)"]);
        assert!(other_views(&all[2], &all).is_empty());
        // One was moved to where the third is, and another directory made in its place.
        let mut all = all;
        all[0]["dir_now"] = "/other/p".into();
        assert!(other_views(&all[1], &all).is_empty());
        assert_eq!(other_views(&all[0], &all), ["/x (mount, no policy)"]);
        assert_eq!(other_views(&all[2], &all), ["/v (mount, no policy)"]);
    }
}
