//! What decides over CMD, or keeps a record of it, and is not CMD's to change.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::allow::Allowed;
use crate::escape::shown;
use crate::messages;
use crate::mountinfo::{self, MountInfo};
use crate::other_mounts::{may_link, paths_in};

/// What decides over CMD or keeps a record of it, and lies outside of DIR.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// The audit log.
    pub(crate) log: Vec<PathBuf>,
    /// The policy, with the links that lead to it.
    pub(crate) policy: Vec<PathBuf>,
    /// What decides over the next start.
    pub(crate) configuration: Vec<PathBuf>,
}

/// Looks whether CMD, who is the user `uid`, can change something of `own`.
///
/// # Errors
/// When it can change the audit log or the policy; the configuration is warned of.
pub(crate) fn refuse_own(
    allowed: &[Allowed],
    own: &Own,
    views: &[PathBuf],
    uid: u32,
) -> anyhow::Result<()> {
    let mounts = mountinfo::read()?;
    let writable: Vec<_> = allowed.iter().filter(|one| one.writable).collect();
    refuse_held(&writable, own, views, &mounts)?;
    let places = writable.iter().map(|one| &one.path);
    for file in &own.policy {
        // The rules of a view keep a file of its own, and the further names of that in views.
        let in_view = views.iter().any(|view| shows(&mounts, view, file));
        let raw = places.clone().chain(views.iter().filter(|_| !in_view));
        let names = names(file, uid);
        if names > 1 && raw.into_iter().any(|place| may_link(&mounts, place, file)) {
            bail!(
                "policy `{policy}` has {names} names (hard links), and by another one, in DIR or \
                 where else CMD may write, CMD could rewrite it, which holds for it; give it a file \
                 of its own: `cp -p {policy} {policy}.own && mv {policy}.own {policy}`",
                policy = shown(file)
            );
        }
    }
    Ok(())
}

/// How many names a file has that `uid` can write, or let itself write; else none. What the bits of a
/// group say may be about others, by an access control list.
fn names(file: &Path, uid: u32) -> u64 {
    let found = std::fs::symlink_metadata(file).ok().filter(std::fs::Metadata::is_file);
    let is_writable = |found: &Metadata| {
        uid == 0 || found.uid() == uid || found.mode() & (libc::S_IWGRP | libc::S_IWOTH) != 0
    };
    found.filter(is_writable).map_or(0, |found| found.nlink())
}

fn shows(mounts: &[MountInfo], place: &Path, file: &Path) -> bool {
    !paths_in(mounts, place, file).is_empty()
}

/// Looks whether what is allowed to be changed holds something of `own`.
fn refuse_held(
    writable: &[&Allowed],
    own: &Own,
    views: &[PathBuf],
    mounts: &[MountInfo],
) -> anyhow::Result<()> {
    // What a view shows goes by rules, by whatever mount: each of them is covered with the view.
    let is_viewed = |file: &Path| views.iter().any(|view| shows(mounts, view, file));
    for one in writable {
        let held = |files: &[PathBuf]| {
            let held = files.iter().filter(|file| !is_viewed(file));
            let mut held =
                held.filter_map(|file| Some((file, paths_in(mounts, &one.path, file).pop()?)));
            held.next().map(|(file, there)| match there == *file {
                true => format!("`{}`", shown(file)),
                false => format!("`{}` (as `{}`)", shown(file), shown(&there)),
            })
        };
        let option = shown(&one.path);
        if let Some(log) = held(&own.log) {
            bail!(
                "--allow: with `{option}:rw`, CMD could change the audit log {log}, which says \
                 what it does; keep the log elsewhere, or allow a directory without it"
            );
        }
        if let Some(policy) = held(&own.policy) {
            bail!(
                "--allow: with `{option}:rw`, CMD could rewrite the policy {policy}, which holds \
                 for it; keep that elsewhere, or allow a directory without it"
            );
        }
        if let Some(file) = held(&own.configuration) {
            messages::warn(&format!(
                "with `--allow {option}:rw`, CMD can write {file}, which says what policy the next \
                 `run` takes"
            ));
        }
    }
    Ok(())
}
