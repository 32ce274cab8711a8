//! What a move of a path gets.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Context;
use tollgate_policy::{CallerFacts, HEAD_LEN, Inside, Kind, Move, MoveReport, Policy};

use super::look::{Found, look};
use crate::escape::shown;

/// As many as a view looks at (docs/ARCHITECTURE.md, "directory rename under a policy").
const MAX_INSIDE: usize = 20_000;
/// As many bytes of files as a view reads for that.
const MAX_HEADS: usize = 64 << 20;

/// The answer to moving `found` from `from` to `to`, both in DIR `dir`.
///
/// # Errors
/// When what is in it cannot be read.
pub(super) fn explain(
    policy: &Policy,
    dir: &Path,
    (from, found): (&OsStr, &Found),
    to: &OsStr,
    caller: &CallerFacts<'_>,
) -> anyhow::Result<MoveReport> {
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
    Ok(policy.explain_move(&wanted, caller))
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
