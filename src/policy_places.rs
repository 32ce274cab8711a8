//! Which names in DIR decide what a policy file is: its own, and the links on the way to it, by whatever
//! mount DIR shows them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use anyhow::Context;

use crate::mountinfo;
use crate::other_mounts;
use crate::presets::{escape_glob, toml_string};

/// As many links as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// The globs for all names in DIR on which it depends what `file` is.
///
/// # Errors
/// When such a name is not UTF-8.
pub(crate) fn globs(file: &Path, dir: &Path) -> anyhow::Result<Vec<String>> {
    inside(file, dir).iter().map(|place| glob(place, dir)).collect()
}

/// The paths in DIR of these names.
pub(crate) fn inside(file: &Path, dir: &Path) -> Vec<PathBuf> {
    let dir = real(dir);
    // Without /proc nothing is mounted over DIR.
    let mounts = mountinfo::read().unwrap_or_default();
    let places = places(file);
    let shown = places.iter().flat_map(|place| other_mounts::paths_in(&mounts, &dir, place));
    shown.filter(|path| *path != dir).collect()
}

/// The glob for one of these paths.
///
/// # Errors
/// When it is not UTF-8.
pub(crate) fn glob(place: &Path, dir: &Path) -> anyhow::Result<String> {
    let dir = real(dir);
    let text = place.strip_prefix(&dir).ok().and_then(Path::to_str).with_context(|| {
        let shown = crate::escape::shown(place);
        format!("policy `{shown}` lies inside DIR and its name is not UTF-8; move it")
    })?;
    Ok(toml_string(&escape_glob(text)))
}

fn real(dir: &Path) -> PathBuf {
    std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned())
}

/// Every symbolic link on the way to `file`, and where the way ends. None of them has a link or
/// `..` in what leads to it.
pub(crate) fn places(file: &Path) -> Vec<PathBuf> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let mut ahead: VecDeque<OsString> = words(&file).collect();
    let mut here = PathBuf::from("/");
    let mut found = Vec::new();
    while let Some(word) = ahead.pop_front() {
        if word == ".." {
            here.pop();
            continue;
        }
        here.push(&word);
        let Ok(target) = std::fs::read_link(&here) else { continue };
        found.push(here.clone());
        // The kernel opens no such file either.
        if found.len() > MAX_LINKS {
            return found;
        }
        here.pop();
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        words(&target).rev().for_each(|word| ahead.push_front(word));
    }
    found.push(here);
    found
}

/// The names in a path, and its `..`.
fn words(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let is_name =
        |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_name).map(|part| part.as_os_str().to_owned())
}
