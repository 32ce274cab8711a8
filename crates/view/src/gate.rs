//! Where a request meets the policy.
//!
//! A decision belongs to the inode (invariant 3): every name known for it is judged and the strictest
//! verdict wins. With a policy that cannot refuse anything no path is ever built.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FileType;
use rustix::io::Errno;
use tollgate_fuse::{Caller, Name};
use tollgate_policy::{
    CallerFacts, Decision, Facts, Kind, Mode, Operation, Policy, RuleId, Verdict,
};

use crate::caller::CallerLookup;
use crate::lower::Stat;
use crate::table::Node;

/// Longest path in bytes that is built for the policy. Deeper trees are refused as too long, not
/// judged by half a path.
const MAX_PATH: usize = 64 << 10;
const MAX_DEPTH: usize = 4096;

/// The policy with what it needs to know about callers and paths.
pub(crate) struct Gate {
    policy: Arc<Policy>,
    callers: CallerLookup,
    /// Counts changes of directory names: a cached path is good for one value.
    renames: AtomicU64,
}

/// A refusal and the rule behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    pub(crate) rule: Option<RuleId>,
}

impl Gate {
    pub(crate) fn new(policy: Arc<Policy>) -> Self {
        Self { policy, callers: CallerLookup::new(), renames: AtomicU64::new(0) }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Nothing can be refused and no mode depends on anything.
    pub(crate) fn is_trivial(&self) -> bool {
        self.policy.is_trivial()
    }

    /// A directory got another name: paths below it that were built before are stale.
    pub(crate) fn directory_moved(&self) {
        self.renames.fetch_add(1, Ordering::Release);
    }

    /// The path of directory `node`, relative to the root; empty for the root itself.
    pub(crate) fn dir_path(&self, node: &Arc<Node>) -> Result<Arc<[u8]>, Errno> {
        self.dir_path_at_depth(node, 0)
    }

    fn dir_path_at_depth(&self, node: &Arc<Node>, depth: usize) -> Result<Arc<[u8]>, Errno> {
        if node.is_root() {
            return Ok(Arc::from(&b""[..]));
        }
        if depth > MAX_DEPTH {
            return Err(Errno::STALE);
        }
        let now = self.renames.load(Ordering::Acquire);
        let cached = node.path.lock().clone();
        if let Some((_, path)) = cached.filter(|(built_at, _)| *built_at == now) {
            return Ok(path);
        }
        // A directory has one place. None is left once it is removed; it can then hold nothing new.
        let place = node.places().into_iter().next().ok_or(Errno::NOENT)?;
        let parent = self.dir_path_at_depth(&place.parent, depth + 1)?;
        let path: Arc<[u8]> = join(&parent, place.name.to_bytes())?.into();
        *node.path.lock() = Some((now, Arc::clone(&path)));
        Ok(path)
    }

    /// The path of `name` in `parent`.
    pub(crate) fn child_path(&self, parent: &Arc<Node>, name: Name<'_>) -> Result<Vec<u8>, Errno> {
        join(&self.dir_path(parent)?, name.as_bytes())
    }

    /// Every known path of `node`.
    pub(crate) fn paths(&self, node: &Arc<Node>) -> Result<Vec<Vec<u8>>, Errno> {
        if node.is_root() {
            return Ok(vec![Vec::new()]);
        }
        let places = node.places();
        if places.is_empty() {
            // Its last name is gone (or it never had one): the last decision stays.
            return Ok(vec![node.last_path().ok_or(Errno::ACCESS)?]);
        }
        places
            .iter()
            .map(|place| join(&self.dir_path(&place.parent)?, place.name.to_bytes()))
            .collect()
    }

    /// Whether the name at `path` must look as if it did not exist.
    pub(crate) fn hidden(&self, path: &[u8], kind: FileType) -> Option<RuleId> {
        self.policy.hidden(path, kind_of(kind))
    }

    /// Whether some rule looks at the first bytes of one of these paths.
    pub(crate) fn needs_head(&self, paths: &[Vec<u8>], stat: &Stat) -> bool {
        let kind = kind_of(stat.file_type());
        kind == Kind::File && paths.iter().any(|p| self.policy.needs_head(p, kind, stat.size()))
    }

    /// May `caller` do `operation` on the inode with these paths? The strictest verdict counts.
    pub(crate) fn check(
        &self,
        subject: &Subject<'_>,
        operation: Operation,
        caller: Caller,
    ) -> Result<Option<RuleId>, Refusal> {
        let exe = self.executable(subject, caller);
        let who = CallerFacts { uid: caller.uid, gid: caller.gid, exe: exe.as_deref() };
        let mut worst = Decision { verdict: Verdict::Allow, rule: None };
        for (i, path) in subject.paths.iter().enumerate() {
            let decision = self.policy.decide(&subject.facts(path), operation, &who);
            if i == 0 || severity(decision.verdict) > severity(worst.verdict) {
                worst = decision;
            }
        }
        match worst.verdict {
            Verdict::Allow => Ok(worst.rule),
            Verdict::ReadOnly => Err(Refusal { errno: Errno::ROFS, rule: worst.rule }),
            Verdict::Deny => Err(Refusal { errno: Errno::ACCESS, rule: worst.rule }),
            // A hidden name cannot be made: "no such file" would be no answer to a creation.
            Verdict::Hide if operation == Operation::Create => {
                Err(Refusal { errno: Errno::ACCESS, rule: worst.rule })
            }
            Verdict::Hide => Err(Refusal { errno: Errno::NOENT, rule: worst.rule }),
        }
    }

    /// The I/O mode of the inode: the strictest that any caller could get under any of its names.
    pub(crate) fn mode(&self, subject: &Subject<'_>) -> Mode {
        subject
            .paths
            .iter()
            .map(|path| self.policy.mode(&subject.facts(path)).0)
            .max()
            .unwrap_or(Mode::Userspace)
    }

    /// Would an inode get laxer if the name `from` became (or were joined by) `to`?
    pub(crate) fn weakens(&self, from: &[u8], to: &[u8], stat: &Stat, head: Option<&[u8]>) -> bool {
        let subject = Subject { paths: &[], kind: stat.file_type(), size: stat.size(), head };
        self.policy.weakens(&subject.facts(from), &subject.facts(to))
    }

    /// The caller's executable, if a rule on these paths asks for it.
    fn executable(&self, subject: &Subject<'_>, caller: Caller) -> Option<Arc<[u8]>> {
        let kind = kind_of(subject.kind);
        let asked = subject.paths.iter().any(|path| self.policy.needs_caller(path, kind).exe);
        if asked { self.callers.executable(caller.pid) } else { None }
    }

    /// The caller's executable, for the audit log.
    pub(crate) fn caller_executable(&self, caller: Caller) -> Option<Arc<[u8]>> {
        self.callers.executable(caller.pid)
    }

    /// The name of a rule, for the audit log.
    pub(crate) fn rule_name(&self, rule: Option<RuleId>) -> Option<&str> {
        rule.map(|id| self.policy.rule(id).name())
    }
}

/// What the policy judges: an inode under all its names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) paths: &'a [Vec<u8>],
    pub(crate) kind: FileType,
    pub(crate) size: u64,
    pub(crate) head: Option<&'a [u8]>,
}

impl<'a> Subject<'a> {
    fn facts(&self, path: &'a [u8]) -> Facts<'a> {
        Facts { path, kind: kind_of(self.kind), size: self.size, head: self.head }
    }
}

fn join(parent: &[u8], name: &[u8]) -> Result<Vec<u8>, Errno> {
    if parent.len() + 1 + name.len() > MAX_PATH {
        return Err(Errno::NAMETOOLONG);
    }
    let mut path = Vec::with_capacity(parent.len() + 1 + name.len());
    path.extend_from_slice(parent);
    if !parent.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    Ok(path)
}

fn severity(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Allow => 0,
        Verdict::ReadOnly => 1,
        Verdict::Deny => 2,
        Verdict::Hide => 3,
    }
}

fn kind_of(kind: FileType) -> Kind {
    match kind {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::RegularFile | FileType::Unknown => Kind::File,
    }
}
