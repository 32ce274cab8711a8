//! What lies below a directory that is to be moved: whether any of it would be judged otherwise.

use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FileType;
use rustix::io::Errno;
use tollgate_fuse::Request;
use tollgate_policy::{HEAD_LEN, InodeFacts, Kind, Operation, Policy};

use crate::admission::{Hidden, Refusal};
use crate::lower::{self, DirStream, Key, Stat};
use crate::view::View;

/// Entries that a directory rename looks at, below it, to see that no decision gets weaker. A
/// larger tree is not renamed but copied by the caller (`EXDEV`).
const MAX_SUBTREE: usize = 20_000;

/// Bytes of files that it reads, where contents tell whether one does. With more, the same.
const MAX_HEADS: usize = 64 << 20;

/// A directory by the one that it is in, and its name there.
pub(super) type Beneath<'a> = (BorrowedFd<'a>, &'a CStr);

/// A directory that is to be moved.
pub(super) struct Top<'a> {
    pub(super) at: Beneath<'a>,
    pub(super) key: Key,
}

impl View {
    /// Would anything below the directory `top` get a weaker decision by moving from `old` to
    /// `new`? Also true when the tree is too large to tell.
    pub(super) fn subtree_weakens(
        &self,
        top: &Top<'_>,
        old: &[u8],
        new: &[u8],
    ) -> Result<bool, Errno> {
        let policy = self.admission.policy();
        if policy.subtree_move_is_neutral(old, new) {
            return Ok(false);
        }
        let left = Cell::new(MAX_HEADS);
        let weakens = |at: Beneath<'_>, rest: &[u8], stat: &Stat| {
            let (from, to) = ([old, rest].concat(), [new, rest].concat());
            may_weaken(policy, &from, &to, stat, || head_of(at, &left)).then_some(())
        };
        Ok(!matches!(first_below(top, weakens)?, Below::Nothing))
    }

    /// What keeps the caller from making something that lies below the directory `top` under the
    /// name that it would get, and not under the one that it has.
    pub(super) fn made_below(
        &self,
        req: &Request<'_>,
        top: &Top<'_>,
        old: &[u8],
        new: &[u8],
    ) -> Result<Option<Refusal<'_>>, Errno> {
        if self.admission.policy().subtree_move_is_neutral(old, new) {
            return Ok(None);
        }
        let made = |_: Beneath<'_>, rest: &[u8], stat: &Stat| {
            let refusal = |dir: &[u8]| {
                let subject = self.admission.new_name([dir, rest].concat(), stat.mode());
                self.admission.check(&subject, [Operation::Create], req.caller()).err()
            };
            refusal(new).filter(|_| refusal(old).is_none())
        };
        Ok(match first_below(top, made)? {
            Below::Found(refusal) => Some(refusal),
            // Too many are not moved anyway.
            Below::Nothing | Below::TooMany => None,
        })
    }

    /// What keeps the caller from removing something below the directory `top`. Where it takes a look into
    /// more files to tell than [`MAX_HEADS`] allows, that is left to the removal. What is hidden comes last, with the
    /// error that removing the directory itself would get: who does not see it copies the rest.
    pub(super) fn kept_below(
        &self,
        req: &Request<'_>,
        top: &Top<'_>,
        old: &[u8],
    ) -> Result<Option<Refusal<'_>>, Errno> {
        let policy = self.admission.policy();
        let (hidden, left) = (Cell::new(None), Cell::new(MAX_HEADS));
        let kept = |at: Beneath<'_>, rest: &[u8], stat: &Stat| {
            let path = [old, rest].concat();
            if let Hidden::Yes(rule) = self.admission.hidden(&path, stat.mode()) {
                hidden.set(Some(Refusal { errno: Errno::NOTEMPTY, rule: Some(rule) }));
                return None;
            }
            let subject = if policy.needs_head(&path, Kind::from_mode(stat.mode()), stat.size()) {
                self.admission.by_path(path, stat, head_of(at, &left)?)
            } else {
                self.admission.new_name(path, stat.mode())
            };
            self.admission.check(&subject, [Operation::Write], req.caller()).err()
        };
        Ok(match first_below(top, kept)? {
            Below::Found(refusal) => Some(refusal),
            Below::Nothing | Below::TooMany => hidden.get(),
        })
    }
}

/// What is found below a directory.
enum Below<T> {
    Found(T),
    Nothing,
    /// Not within [`MAX_SUBTREE`] entries.
    TooMany,
}

/// Looks at everything below the directory `top`, with its path from there, until something is
/// found. What is removed meanwhile is not there to be judged.
fn first_below<T>(
    Top { at: (parent, name), key }: &Top<'_>,
    find: impl Fn(Beneath<'_>, &[u8], &Stat) -> Option<T>,
) -> Result<Below<T>, Errno> {
    let top = lower::open_path(*parent, name)?;
    // Others may have put another one in its place.
    if lower::stat_fd(top.as_fd())?.key() != *key {
        return Err(Errno::STALE);
    }
    let mut pending = vec![(top, Vec::new())];
    let mut seen = 0;
    while let Some((dir, below)) = pending.pop() {
        let Some(opened) = if_there(lower::open_dir(dir.as_fd(), c"."))? else { continue };
        let mut stream = DirStream::new(opened);
        while let Some(entry) = if_there(stream.peek())?.flatten() {
            if entry.child_name().is_some()
                && let Some(stat) = if_there(lower::stat_at(dir.as_fd(), entry.name))?
            {
                seen += 1;
                if seen > MAX_SUBTREE {
                    return Ok(Below::TooMany);
                }
                let rest = [&below[..], b"/", entry.name.to_bytes()].concat();
                if let Some(found) = find((dir.as_fd(), entry.name), &rest, &stat) {
                    return Ok(Below::Found(found));
                }
                if stat.file_type() == FileType::Directory
                    && let Some(opened) = if_there(lower::open_path(dir.as_fd(), entry.name))?
                {
                    pending.push((opened, rest));
                }
            }
            stream.advance();
        }
    }
    Ok(Below::Nothing)
}

/// `None` for what has been removed.
fn if_there<T>(looked: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match looked {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        other => other.map(Some),
    }
}

/// Would an inode get weaker by moving from path `from` to `to`? Where its first bytes tell, `head`
/// reads them; without them, also true if some would be weaker.
pub(super) fn may_weaken(
    policy: &Policy,
    from: &[u8],
    to: &[u8],
    stat: &Stat,
    head: impl FnOnce() -> Option<Vec<u8>>,
) -> bool {
    let inode = InodeFacts { kind: Kind::from_mode(stat.mode()), size: stat.size(), head: None };
    let (from, to) = (policy.at(from), policy.at(to));
    if !from.weakens(&inode, &to, &inode) {
        return false;
    }
    let needs_head = [&from, &to].into_iter().any(|rules| rules.needs_head(inode.kind, inode.size));
    let head = if needs_head { head() } else { None };
    head.is_none_or(|head| {
        let inode = InodeFacts { head: Some(&head), ..inode };
        from.weakens(&inode, &to, &inode)
    })
}

/// The first bytes of a file, as long as there are some `left` to be read.
fn head_of((dir, name): Beneath<'_>, left: &Cell<usize>) -> Option<Vec<u8>> {
    if left.get() == 0 {
        return None;
    }
    let fd = lower::open_path(dir, name).ok()?;
    let head = lower::read_head(fd.as_fd(), HEAD_LEN).ok()??;
    left.set(left.get().saturating_sub(head.len()));
    Some(head)
}
