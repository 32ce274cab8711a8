//! What a move of a path gets.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Context;
use rustix::io::Errno;
use tollgate_policy::{
    CallerFacts, HEAD_LEN, InodeFacts, Inside, Kind, Move, MoveReport, Operation, Policy, Verdict,
};

use super::look::{Found, look};
use crate::escape::shown;

/// As many as a view looks at (docs/ARCHITECTURE.md, "directory rename under a policy").
const MAX_INSIDE: usize = 20_000;
/// As many bytes of files as a view reads for that.
const MAX_HEADS: usize = 64 << 20;

/// The new name.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) path: &'a OsStr,
    /// It was given with a slash at its end.
    pub(super) has_slash: bool,
}

/// The answer to moving `found` from `from` to `to`, both in DIR `dir`.
///
/// # Errors
/// When what is in it cannot be read, or the new name lies behind a symbolic link.
pub(super) fn explain(
    policy: &Policy,
    dir: &Path,
    (from, found, is_there): (&OsStr, &Found, bool),
    target: Target<'_>,
    caller: &CallerFacts<'_>,
) -> anyhow::Result<MoveReport> {
    let to = target.path;
    let mut inside = match found.kind {
        Kind::Directory => inside(&dir.join(from))?,
        _ => Some(Vec::new()),
    };
    let names = [from.as_bytes(), to.as_bytes()];
    read_heads(policy, &dir.join(from), names, inside.as_deref_mut().unwrap_or_default());
    let over = look(dir, to).ok();
    let wanted = Move {
        from: found.inode().at(from.as_bytes()),
        to: to.as_bytes(),
        over: over.as_ref().map(Found::inode),
        inside: inside.as_deref(),
    };
    let mut report = policy.explain_move(&wanted, caller);
    // Whether it can be made is another question.
    let is_hidden = |path: &OsStr, inode: InodeFacts<'_>| {
        let explained = policy.explain(&inode.at(path.as_bytes()), None, caller);
        let mut others =
            explained.operations.iter().filter(|one| one.operation != Operation::Create);
        others.any(|one| one.verdict == Verdict::Hide)
    };
    // What is below a hidden directory is not found, whatever is to go there.
    let directory = InodeFacts { kind: Kind::Directory, size: 0, head: None };
    let is_out_of_sight = |path: &OsStr| {
        let above = Path::new(path).parent().filter(|above| !above.as_os_str().is_empty());
        above.is_some_and(|above| is_hidden(above.as_os_str(), directory))
    };
    if report.errno == Some("ENOENT") && (is_out_of_sight(from) || is_out_of_sight(to)) {
        return Ok(report);
    }
    // In the order of the kernel: the way to the new name, mounts, and then what has the names.
    let mut refused = if is_there { no_way(dir, to)? } else { None };
    if refused.is_none() {
        let crosses = policy.move_crosses_a_border(from.as_bytes(), to.as_bytes());
        if crosses || is_hidden(from, found.inode()) {
            return Ok(report);
        }
    }
    // Hidden, the kernel does not see it.
    let seen = over.as_ref().filter(|over| !is_hidden(to, over.inode()));
    let by_kind = || before_the_policy(from, found.kind, target, seen.map(|over| over.kind));
    refused = refused.or_else(by_kind);
    if is_there && refused.is_none() && seen.is_some() && are_one(&dir.join(from), &dir.join(to)) {
        (report.errno, report.reason, report.rule, report.line) = (None, None, None, None);
        return Ok(report);
    }
    let after = || (report.errno.is_none() && is_full(&dir.join(to))).then_some(NOT_EMPTY);
    if let Some((errno, reason)) = refused.or_else(after) {
        (report.errno, report.reason) = (Some(errno), Some(reason.to_owned()));
        (report.rule, report.line) = (None, None);
    }
    Ok(report)
}

/// An error number by name, and why.
pub(super) type Refused = (&'static str, &'static str);

const NOT_EMPTY: Refused = ("ENOTEMPTY", "the directory of that name is not empty");

/// Whether the directory that the new name is to be in is missing.
///
/// # Errors
/// When it lies behind a symbolic link.
pub(super) fn no_way(dir: &Path, to: &OsStr) -> anyhow::Result<Option<Refused>> {
    let parent = Path::new(to).parent().unwrap_or(Path::new(""));
    let error = match look(dir, parent.as_os_str()) {
        Ok(found) if found.kind == Kind::Directory => return Ok(None),
        // Rules are about real paths: refused by the name that was given.
        Ok(found) if found.kind == Kind::Symlink => None,
        Ok(_) => Some(Errno::NOTDIR),
        Err(error) => error.root_cause().downcast_ref::<Errno>().copied(),
    };
    match error {
        Some(Errno::NOENT) => {
            Ok(Some(("ENOENT", "the directory that it would be in is not there")))
        }
        Some(Errno::NOTDIR) => Ok(Some(("ENOTDIR", "what it would be in is no directory"))),
        _ => look(dir, to).map(|_| None),
    }
}

/// What the kernel refuses by the names and types alone, before a view is asked.
fn before_the_policy(
    from: &OsStr,
    kind: Kind,
    to: Target<'_>,
    over: Option<Kind>,
) -> Option<Refused> {
    let (from, target) = (Path::new(from), Path::new(to.path));
    let is_dir = kind == Kind::Directory;
    if to.has_slash && !is_dir {
        return Some(("ENOTDIR", "a slash ends the new name, and this is no directory"));
    }
    if from != target && is_dir && target.starts_with(from) {
        return Some(("EINVAL", "a directory cannot be moved into itself"));
    }
    if from != target && from.starts_with(target) {
        return Some(("ENOTEMPTY", "it lies in the directory that has the new name"));
    }
    match over? {
        Kind::Directory if !is_dir => Some(("EISDIR", "a directory has that name")),
        over if is_dir && over != Kind::Directory => {
            Some(("ENOTDIR", "what has that name is no directory, and this is one"))
        }
        _ => None,
    }
}

/// Two names of one inode: the kernel leaves both.
fn are_one(from: &Path, to: &Path) -> bool {
    let identity = |path: &Path| {
        let found = path.symlink_metadata().ok()?;
        Some((found.dev(), found.ino()))
    };
    identity(from).is_some() && identity(from) == identity(to)
}

fn is_full(dir: &Path) -> bool {
    let is_dir = dir.symlink_metadata().is_ok_and(|found| found.is_dir());
    is_dir && std::fs::read_dir(dir).is_ok_and(|mut all| all.next().is_some())
}

/// All below `top`, in the order in which a view meets it; `None` if that is too much. One that is
/// not there has nothing in it.
fn inside(top: &Path) -> anyhow::Result<Option<Vec<Inside>>> {
    let mut all = Vec::new();
    let mut pending = vec![(top.to_owned(), Vec::new())];
    pending.retain(|(top, _)| top.exists());
    while let Some((dir, rest)) = pending.pop() {
        let unread = || format!("`{}`, which would move along, cannot be read", shown(&dir));
        for entry in std::fs::read_dir(&dir).with_context(unread)? {
            let entry = entry.with_context(unread)?;
            let found = entry.metadata().with_context(unread)?;
            if all.len() == MAX_INSIDE {
                return Ok(None);
            }
            let path = [&rest[..], b"/", entry.file_name().as_bytes()].concat();
            let kind = Kind::from_mode(found.mode());
            if kind == Kind::Directory {
                pending.push((entry.path(), path.clone()));
            }
            all.push(Inside { path, kind, size: found.size(), head: None });
        }
    }
    Ok(Some(all))
}

/// Reads the first bytes of files in `top` that rules for their old or new names ask for; those that
/// cannot be read stay unknown.
fn read_heads(policy: &Policy, top: &Path, names: [&[u8]; 2], inside: &mut [Inside]) {
    let mut left = MAX_HEADS;
    for one in inside.iter_mut().filter(|one| one.kind == Kind::File) {
        let asks = |dir: &[u8]| policy.needs_head(&[dir, &one.path].concat(), one.kind, one.size);
        if left == 0 || !names.into_iter().any(asks) {
            continue;
        }
        let path = top.join(OsStr::from_bytes(&one.path[1..]));
        one.head = head(&path).ok();
        left = left.saturating_sub(one.head.as_ref().map_or(0, Vec::len));
    }
}

fn head(path: &Path) -> std::io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let mut head = Vec::with_capacity(HEAD_LEN);
    file.take(HEAD_LEN as u64).read_to_end(&mut head)?;
    Ok(head)
}
