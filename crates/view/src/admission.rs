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
    CallerFacts, InodeFacts, Kind, Made, Matched, Mode, Operation, Policy, RuleId, Verdict,
};

use crate::caller::Callers;
use crate::concealed::Concealed;
use crate::lower::Stat;
use crate::paths::Names;
use crate::policies::{Full, InForce, Policies};

/// The policy, and what it needs to know about callers.
pub(crate) struct Admission {
    policies: Policies,
    callers: Arc<dyn Callers>,
    /// Hidden names that were asked for.
    pub(crate) concealed: Concealed,
}

/// A refusal and the rule behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal<'p> {
    pub(crate) errno: Errno,
    /// The rule's name.
    pub(crate) rule: Option<&'p str>,
}

impl Admission {
    pub(crate) fn new(policy: Arc<Policy>, callers: Arc<dyn Callers>) -> Self {
        let policies = Policies::new(policy);
        Self { policies, callers, concealed: Concealed::default() }
    }

    /// What is refused at this moment; another policy may follow at any time.
    pub(crate) fn policy(&self) -> &Policy {
        &self.policies.current().policy
    }

    /// Changes with the policy.
    pub(crate) fn epoch(&self) -> usize {
        self.policies.epoch()
    }

    /// Puts another policy in force.
    pub(crate) fn replace(&self, policy: Arc<Policy>) -> Result<(), Full> {
        self.policies.replace(policy)
    }

    /// Nothing can be refused or recorded, and no mode depends on anything.
    pub(crate) fn is_trivial(&self) -> bool {
        self.policies.current().is_trivial()
    }

    /// The same, to be kept.
    pub(crate) fn shared_policy(&self) -> &Arc<Policy> {
        &self.policies.current().policy
    }

    /// An inode that exists, under `names`. `read_head` reads its first bytes, if it can; it is
    /// called only if a rule on one of the paths looks at them. What is not known counts against
    /// the caller.
    ///
    /// # Panics
    /// Without any path: nothing would be judged.
    pub(crate) fn subject(
        &self,
        names: Names,
        stat: &Stat,
        read_head: impl FnOnce() -> Result<Option<Vec<u8>>, Errno>,
    ) -> Result<Subject<'_>, Errno> {
        let kind = Kind::from_mode(stat.mode());
        let mut subject = self.without_head(names.paths, kind, stat.size());
        subject.all_known = names.all_known;
        let anywhere = !names.all_known && kind == Kind::File;
        if anywhere || subject.rules().any(|rules| rules.needs_head(kind, subject.size)) {
            subject.head = read_head()?;
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
        let in_force = self.policies.current();
        let names: SmallVec<_> =
            paths.into_iter().map(|path| JudgedName::new(path, in_force)).collect();
        assert!(!names.is_empty(), "an inode is judged by at least one path");
        Subject { in_force, names, kind, size, head: None, all_known: true }
    }

    /// Whether the name at `path` must look as if it did not exist.
    pub(crate) fn hidden(&self, path: &[u8], mode: u32) -> Hidden<'_> {
        let (in_force, kind) = (self.policies.current(), Kind::from_mode(mode));
        let by = |policy: &'_ Arc<Policy>| policy.hidden(path, kind);
        if let Some(rule) = by(&in_force.policy) {
            return Hidden::Yes(in_force.policy.rule(rule).name());
        }
        let trial = in_force.trial.as_ref();
        match trial.and_then(|trial| Some((trial, by(trial)?))) {
            Some((trial, rule)) => Hidden::WouldBe(trial.rule(rule).name()),
            None => Hidden::No,
        }
    }

    /// Whether any name would be hidden by a rule that is only recorded.
    pub(crate) fn would_hide(&self) -> bool {
        self.policies.current().trial.as_ref().is_some_and(|trial| trial.can_hide())
    }

    /// Whether any listing would be refused by a rule that is only recorded.
    pub(crate) fn would_refuse_listing(&self) -> bool {
        self.policies.current().trial.as_ref().is_some_and(|trial| trial.may_refuse_listing())
    }

    /// May `caller` do all of `operations` on the inode? The strictest verdict over its names
    /// counts, and the first operation that is refused.
    pub(crate) fn check<'p>(
        &self,
        subject: &Subject<'p>,
        operations: impl IntoIterator<Item = Operation>,
        caller: Caller,
    ) -> Result<Granted<'p>, Refusal<'p>> {
        let exe = if subject.needs_exe() { self.callers.executable(caller.pid) } else { None };
        let who = CallerFacts { uid: caller.uid, gid: caller.gid, exe: exe.as_deref() };
        let mut granted = Granted(None);
        for operation in operations {
            subject.judge(&subject.in_force.policy, operation, &who, |name| &name.rules)?;
            if let (Some(trial), None) = (&subject.in_force.trial, granted.0) {
                let judged = subject.judge(trial, operation, &who, |name| {
                    name.trial.as_ref().unwrap_or(&name.rules)
                });
                granted.0 = judged.err();
            }
        }
        Ok(granted)
    }

    /// The caller's executable, for the audit log.
    pub(crate) fn caller_executable(&self, caller: Caller) -> Option<Arc<[u8]>> {
        self.callers.executable(caller.pid)
    }
}

/// Whether a name is hidden, by the rule of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hidden<'p> {
    No,
    /// A rule that is only recorded would hide it.
    WouldBe(&'p str),
    Yes(&'p str),
}

/// Allowed; with what a rule that is only recorded would have refused.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Granted<'p>(pub(crate) Option<Refusal<'p>>);

/// What the policy judges: an inode under all its known names.
pub(crate) struct Subject<'p> {
    in_force: &'p InForce,
    /// At least one.
    names: SmallVec<[JudgedName<'p>; 1]>,
    kind: Kind,
    size: u64,
    /// The first bytes, where they are known.
    head: Option<Vec<u8>>,
    /// If not, it is judged as if every rule covered it.
    all_known: bool,
}

impl std::fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subject").field("names", &self.names).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct JudgedName<'p> {
    path: Vec<u8>,
    rules: Matched<'p>,
    /// By the whole policy, where some rules are only recorded.
    trial: Option<Matched<'p>>,
}

impl<'p> JudgedName<'p> {
    fn new(path: Vec<u8>, in_force: &'p InForce) -> Self {
        let rules = in_force.policy.at(&path);
        let trial = in_force.trial.as_ref().map(|trial| trial.at(&path));
        Self { path, rules, trial }
    }
}

impl<'p> Subject<'p> {
    /// The first of its paths.
    pub(crate) fn path(&self) -> &[u8] {
        &self.names[0].path
    }

    /// The I/O mode: the strictest that any caller could get under any of the names.
    pub(crate) fn mode(&self) -> Mode {
        self.mode_and_rule().map_or(Mode::Userspace, |(mode, _)| mode)
    }

    /// What the rules say about its bytes, under all its names together.
    pub(crate) fn made(&self) -> Made {
        let (facts, mut made) = (self.facts(), Made::default());
        self.names.iter().for_each(|name| name.rules.made(&facts, &mut made));
        if !self.all_known {
            self.in_force.policy.made_anywhere(&facts, &mut made);
        }
        made
    }

    /// The name of the rule that asks for the I/O mode.
    pub(crate) fn mode_rule(&self) -> Option<&'p str> {
        let (_, rule) = self.mode_and_rule()?;
        rule.map(|id| self.in_force.policy.rule(id).name())
    }

    fn mode_and_rule(&self) -> Option<(Mode, Option<RuleId>)> {
        let facts = self.facts();
        let modes = self.names.iter().map(|name| name.rules.mode(&facts));
        let anywhere =
            (!self.all_known).then(|| (self.in_force.policy.mode_anywhere(&facts), None));
        modes.chain(anywhere).max_by_key(|(mode, _)| *mode)
    }

    /// The same inode at `path` alone, judged by the same policy.
    pub(crate) fn moved_to(&self, path: Vec<u8>) -> Self {
        let names = SmallVec::from_iter([JudgedName::new(path, self.in_force)]);
        let head = self.head.clone();
        Self { names, head, all_known: true, ..*self }
    }

    /// Would the inode get weaker if its first name became that of `target`?
    pub(crate) fn first_name_weakens_to(&self, target: &Self) -> bool {
        !self.all_known || self.weakens_from(&self.names[0], target)
    }

    /// Would the inode get weaker under any of its names if it had that of `target` as well?
    pub(crate) fn any_name_weakens_to(&self, target: &Self) -> bool {
        !self.all_known || self.names.iter().any(|name| self.weakens_from(name, target))
    }

    /// Would it, by the rules that are only recorded?
    pub(crate) fn any_name_would_weaken_to(&self, target: &Self) -> bool {
        let Some(to) = &target.names[0].trial else { return false };
        let old = self.names.iter().filter_map(|name| name.trial.as_ref());
        old.into_iter().any(|from| from.weakens(&self.facts(), to, &target.facts()))
    }

    fn weakens_from(&self, name: &JudgedName<'_>, target: &Self) -> bool {
        let to = &target.names[0].rules;
        name.rules.weakens(&self.facts(), to, &target.facts())
    }

    /// The strictest verdict over the names, by the rules of `policy` that `rules` has of each.
    fn judge(
        &self,
        policy: &'p Policy,
        operation: Operation,
        who: &CallerFacts<'_>,
        rules: impl for<'n> Fn(&'n JudgedName<'p>) -> &'n Matched<'p>,
    ) -> Result<(), Refusal<'p>> {
        let facts = self.facts();
        let [first, others @ ..] = &self.names[..] else { unreachable!("made with a name") };
        let mut worst = rules(first).decide(&facts, operation, who);
        for name in others {
            let decision = rules(name).decide(&facts, operation, who);
            if decision.verdict > worst.verdict {
                worst = decision;
            }
        }
        if !self.all_known {
            let anywhere = policy.decide_anywhere(&facts, operation, who);
            worst = if anywhere.verdict > worst.verdict { anywhere } else { worst };
        }
        let errno = match worst.verdict {
            Verdict::Allow => return Ok(()),
            Verdict::ReadOnly => Errno::ROFS,
            Verdict::Deny => Errno::ACCESS,
            // A hidden name cannot be made: "no such file" makes no sense for a creation.
            Verdict::Hide if operation == Operation::Create => Errno::ACCESS,
            Verdict::Hide => Errno::NOENT,
        };
        Err(Refusal { errno, rule: worst.rule.map(|id| policy.rule(id).name()) })
    }

    /// The rules of every name, those that are only recorded too.
    fn rules(&self) -> impl Iterator<Item = &Matched<'p>> {
        self.names.iter().flat_map(|name| std::iter::once(&name.rules).chain(&name.trial))
    }

    fn needs_exe(&self) -> bool {
        !self.all_known || self.rules().any(|rules| rules.needs_caller(self.kind).exe)
    }

    fn facts(&self) -> InodeFacts<'_> {
        InodeFacts { kind: self.kind, size: self.size, head: self.head.as_deref() }
    }
}
