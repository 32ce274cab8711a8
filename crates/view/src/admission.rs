//! Where a request meets the policy.
//!
//! A decision belongs to the inode (invariant 3): every name known for it is judged, and the
//! strictest verdict wins. A [`Subject`] holds the names of one inode with the rules that cover
//! each; it is made once for a request, and every question is asked of it. With a policy that
//! cannot refuse anything no path is ever built.

use std::sync::Arc;

use rustix::io::Errno;
use smallvec::SmallVec;
use tollgate_fuse::Caller;
use tollgate_policy::{
    CallerFacts, Decision, InodeFacts, Kind, Matched, Mode, Operation, Policy, RuleId, Verdict,
};

use crate::caller::CallerLookup;
use crate::lower::Stat;

/// The policy, and what it needs to know about callers.
pub(crate) struct Admission {
    policy: Arc<Policy>,
    callers: CallerLookup,
}

/// A refusal and the rule behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    pub(crate) rule: Option<RuleId>,
}

impl Admission {
    pub(crate) fn new(policy: Arc<Policy>) -> Self {
        Self { policy, callers: CallerLookup::new() }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Nothing can be refused and no mode depends on anything.
    pub(crate) fn is_trivial(&self) -> bool {
        self.policy.is_trivial()
    }

    /// An inode that exists, under `paths`. `read_head` reads its first bytes; it is called only if
    /// a rule on one of the paths looks at them.
    ///
    /// # Panics
    /// Without any path: nothing would be judged.
    pub(crate) fn subject(
        &self,
        paths: impl IntoIterator<Item = Vec<u8>>,
        stat: &Stat,
        read_head: impl FnOnce() -> Result<Vec<u8>, Errno>,
    ) -> Result<Subject<'_>, Errno> {
        let kind = Kind::from_mode(stat.mode());
        let mut subject = self.without_head(paths, kind, stat.size());
        if subject.names.iter().any(|name| name.rules.needs_head(kind, subject.size)) {
            subject.head = Some(read_head()?);
        }
        Ok(subject)
    }

    /// An inode of no content, about to be made at `path`; `mode` carries its type.
    pub(crate) fn new_name(&self, path: Vec<u8>, mode: u32) -> Subject<'_> {
        let subject = self.without_head([path], Kind::from_mode(mode), 0);
        Subject { head: Some(Vec::new()), ..subject }
    }

    fn without_head(
        &self,
        paths: impl IntoIterator<Item = Vec<u8>>,
        kind: Kind,
        size: u64,
    ) -> Subject<'_> {
        let judged = |path: Vec<u8>| JudgedName { rules: self.policy.at(&path), path };
        let names: SmallVec<_> = paths.into_iter().map(judged).collect();
        assert!(!names.is_empty(), "an inode is judged by at least one path");
        Subject { names, kind, size, head: None }
    }

    /// Whether the name at `path` must look as if it did not exist.
    pub(crate) fn is_hidden(&self, path: &[u8], mode: u32) -> bool {
        self.policy.hidden(path, Kind::from_mode(mode)).is_some()
    }

    /// May `caller` do all of `operations` on the inode? The strictest verdict over its names
    /// counts, and the first operation that is refused.
    pub(crate) fn check(
        &self,
        subject: &Subject<'_>,
        operations: impl IntoIterator<Item = Operation>,
        caller: Caller,
    ) -> Result<(), Refusal> {
        let exe = if subject.needs_exe() { self.callers.executable(caller.pid) } else { None };
        let who = CallerFacts { uid: caller.uid, gid: caller.gid, exe: exe.as_deref() };
        operations.into_iter().try_for_each(|operation| {
            let decision = subject.decide(operation, &who);
            let errno = match decision.verdict {
                Verdict::Allow => return Ok(()),
                Verdict::ReadOnly => Errno::ROFS,
                Verdict::Deny => Errno::ACCESS,
                // A hidden name cannot be made: "no such file" makes no sense for a creation.
                Verdict::Hide if operation == Operation::Create => Errno::ACCESS,
                Verdict::Hide => Errno::NOENT,
            };
            Err(Refusal { errno, rule: decision.rule })
        })
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

/// What the policy judges: an inode under all its known names.
#[derive(Debug)]
pub(crate) struct Subject<'p> {
    /// At least one.
    names: SmallVec<[JudgedName<'p>; 1]>,
    kind: Kind,
    size: u64,
    /// The first bytes, where they are known.
    head: Option<Vec<u8>>,
}

#[derive(Debug)]
struct JudgedName<'p> {
    path: Vec<u8>,
    rules: Matched<'p>,
}

impl<'p> Subject<'p> {
    /// The first of its paths.
    pub(crate) fn path(&self) -> &[u8] {
        &self.names[0].path
    }

    /// The I/O mode: the strictest that any caller could get under any of the names.
    pub(crate) fn mode(&self) -> Mode {
        let facts = self.facts();
        let modes = self.names.iter().map(|name| name.rules.mode(&facts).0);
        modes.max().unwrap_or(Mode::Userspace)
    }

    /// The same inode at `path` alone.
    pub(crate) fn moved_to(&self, path: Vec<u8>, admission: &'p Admission) -> Self {
        let name = JudgedName { rules: admission.policy.at(&path), path };
        let names = SmallVec::from_iter([name]);
        Self { names, kind: self.kind, size: self.size, head: self.head.clone() }
    }

    /// Would the inode get weaker if its first name became that of `target`?
    pub(crate) fn first_name_weakens_to(&self, target: &Self) -> bool {
        self.weakens_from(&self.names[0], target)
    }

    /// Would the inode get weaker under any of its names if it had that of `target` as well?
    pub(crate) fn any_name_weakens_to(&self, target: &Self) -> bool {
        self.names.iter().any(|name| self.weakens_from(name, target))
    }

    fn weakens_from(&self, name: &JudgedName<'_>, target: &Self) -> bool {
        let to = &target.names[0].rules;
        name.rules.weakens(&self.facts(), to, &target.facts())
    }

    fn decide(&self, operation: Operation, who: &CallerFacts<'_>) -> Decision {
        let facts = self.facts();
        let [first, others @ ..] = &self.names[..] else { unreachable!("made with a name") };
        let mut worst = first.rules.decide(&facts, operation, who);
        for name in others {
            let decision = name.rules.decide(&facts, operation, who);
            if decision.verdict > worst.verdict {
                worst = decision;
            }
        }
        worst
    }

    fn needs_exe(&self) -> bool {
        self.names.iter().any(|name| name.rules.needs_caller(self.kind).exe)
    }

    fn facts(&self) -> InodeFacts<'_> {
        InodeFacts { kind: self.kind, size: self.size, head: self.head.as_deref() }
    }
}
