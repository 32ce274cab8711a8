//! Where paths lead.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use super::budget::Budget;
use crate::files;

/// Links that are followed on the way to one file, as by the kernel.
const MAX_LINKS: usize = 40;

/// The links that lead to an absolute path, and what it is without them, there or not. What the budget has no
/// room for is taken for no link.
pub(super) fn places(path: &Path, budget: &Budget) -> Vec<PathBuf> {
    let (mut links, mut real) = (Vec::new(), PathBuf::from("/"));
    let names = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut pending = names(path);
    while let Some(name) = pending.pop() {
        let next = if name == ".." {
            real.parent().unwrap_or(&real).to_owned()
        } else {
            // The first of an absolute path is `/`.
            real.join(&name)
        };
        let target = budget.look_at(&next).then(|| std::fs::read_link(&next));
        match target {
            Some(Ok(target)) if links.len() < MAX_LINKS => {
                links.push(next);
                pending.extend(names(&target));
            }
            _ => real = next,
        }
    }
    links.push(real);
    links
}

/// The paths of what is in a directory, as many as the budget has room for. One below `dir` that is not read is
/// missed there, but for those of other users.
pub(super) fn names_in(directory: &Path, dir: &Path, budget: &Budget) -> Vec<PathBuf> {
    if !budget.look_at(directory) {
        return Vec::new();
    }
    let read = std::fs::read_dir(directory);
    let is_unread = read.as_ref().is_err_and(files::is_unread);
    if is_unread && beneath(dir, directory).is_some() && files::is_closed_by_own(directory) {
        budget.misses();
    }
    let entries = read.into_iter().flatten().flatten();
    entries.take_while(|_| budget.list()).map(|entry| entry.path()).collect()
}

/// The path relative to `dir`, if it lies in it; without `.` and `..`.
pub(super) fn beneath(dir: &Path, path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    let inside = plain.strip_prefix(dir).ok()?;
    (inside != Path::new("")).then(|| inside.to_owned())
}
