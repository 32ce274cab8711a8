//! Where paths lead.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::budget::Budget;
use crate::files;

/// Links that are followed on the way to one file, as by the kernel.
const MAX_LINKS: usize = 40;
/// Longest path that is looked at: one in a directory, where a system call takes 4095 bytes of each.
const MAX_PATH_LEN: usize = 2 * 4095;

/// The links that lead to an absolute path, and what it is without them, there or not. What the budget has no
/// room for is taken for no link; where it is spent, the path may be left out.
pub(super) fn places(path: &Path, budget: &Budget) -> Vec<PathBuf> {
    let path = usable(path);
    if budget.is_spent() {
        return budget.keeps_unseen(path).then(|| plain(path)).into_iter().collect();
    }
    let (mut links, mut real) = (Vec::new(), PathBuf::from("/"));
    let names = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut pending = names(path);
    while let Some(name) = pending.pop() {
        if name == ".." {
            real.pop();
            continue;
        }
        if name == "." {
            continue;
        }
        // The first of an absolute path is `/`.
        real.push(&name);
        let target = budget.look_at(&real).then(|| std::fs::read_link(&real));
        if let Some(Ok(target)) = target
            && links.len() < MAX_LINKS
        {
            links.push(real.clone());
            real.pop();
            pending.extend(names(&target));
        }
    }
    links.push(real);
    links
}

/// A path, or the names at its beginning where no system call takes all of it.
fn usable(path: &Path) -> &Path {
    let Some(head) = path.as_os_str().as_bytes().get(..=MAX_PATH_LEN) else { return path };
    let end = head.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    Path::new(OsStr::from_bytes(&head[..end]))
}

/// The paths of what is in a directory, as many as the budget has room for. One below `dir` that is not read is
/// missed there, but for those of other users.
pub(super) fn names_in<'b>(
    directory: &Path,
    dir: &Path,
    budget: &'b Budget,
) -> impl Iterator<Item = PathBuf> + use<'b> {
    let read = budget.look_at(directory).then(|| std::fs::read_dir(directory));
    let is_unread = matches!(&read, Some(Err(error)) if files::is_unread(error));
    if is_unread && beneath(dir, directory).is_some() && files::is_closed_by_own(directory) {
        budget.misses();
    }
    let entries = read.into_iter().flatten().flatten().flatten();
    // Each takes as much memory as the path of the directory.
    entries.map(|entry| entry.path()).take_while(|path| budget.look_at(path))
}

/// The path relative to `dir`, if it lies in it; without `.` and `..`.
pub(super) fn beneath(dir: &Path, path: &Path) -> Option<PathBuf> {
    let plain = plain(path);
    let inside = plain.strip_prefix(dir).ok()?;
    (inside != Path::new("")).then(|| inside.to_owned())
}

/// The path without `.` and `..`, as if there were no links.
fn plain(path: &Path) -> PathBuf {
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
    plain
}
