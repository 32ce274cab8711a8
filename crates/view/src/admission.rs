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
    CallerFacts, Decision, InodeFacts, Kind, Made, Matched, Mode, Operation, Policy, RuleId,
    Verdict,
};

use crate::caller::Callers;
use crate::concealed::Concealed;
use crate::known_content::Known;
use crate::lower::{Stat, Version};
use crate::paths::Names;
use crate::policies::{Full, InForce, Policies};

/// The policy, and what it needs to know about callers.
pub(crate) struct Admission {
    policies: Arc<Policies>,
    /// Other views of the same server have a say on files that have names there.
    has_neighbours: bool,
    callers: Arc<dyn Callers>,
    /// Hidden names that were asked for.
    pub(crate) concealed: Concealed,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    To(Operation),
    /// To write, so that a part of what the file holds may stay. Who may not read it for what it
    /// holds could exchange what tells, and read the rest.
    ChangeInPart,
}

impl Asked {
    /// Whether it is to change the inode.
    pub(crate) fn changes(self) -> bool {
        matches!(self, Self::To(Operation::Write) | Self::ChangeInPart)
    }
}

impl From<Operation> for Asked {
    fn from(operation: Operation) -> Self {
        Self::To(operation)
    }
}

/// A refusal and the rule behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal<'p> {
    pub(crate) errno: Errno,
    /// The rule's name.
    pub(crate) rule: Option<&'p str>,
}

impl Admission {
    pub(crate) fn new(
        policies: Arc<Policies>,
        has_neighbours: bool,
        callers: Arc<dyn Callers>,
    ) -> Self {
        Self { policies, has_neighbours, callers, concealed: Concealed::default() }
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
        !self.has_neighbours && self.policies.current().is_trivial()
    }

    /// Whether it may matter which of its names a file has.
    pub(crate) fn tells_names_apart(&self) -> bool {
        self.has_neighbours || self.policy().tells_names_apart()
    }

    /// Whether names in other views have a say.
    pub(crate) fn has_neighbours(&self) -> bool {
        self.has_neighbours
    }

    /// The same, to be kept.
    pub(crate) fn shared_policy(&self) -> &Arc<Policy> {
        &self.policies.current().policy
    }

    /// An inode that exists, under `names`. `known` is what is known of its content. `read_head` reads its
    /// first bytes, if it can; it is called only if a rule on one of the paths looks at them and that is
    /// not known. What is not known then counts against the caller.
    ///
    /// # Panics
    /// Without any path: nothing would be judged.
    pub(crate) fn subject<'p>(
        &'p self,
        names: Names<'p>,
        stat: &Stat,
        known: Option<&Known>,
        read_head: impl FnOnce() -> Result<Option<Vec<u8>>, Errno>,
    ) -> Result<Subject<'p>, Errno> {
        let kind = Kind::from_mode(stat.mode());
        let mut subject = self.without_head(names.paths, kind, stat.size());
        let elsewhere = names.elsewhere;
        let judged = elsewhere.names.into_iter().map(|(rules, path)| JudgedName::new(path, rules));
        subject.names.extend(judged);
        subject.unknown = elsewhere.unknown;
        if !names.all_known {
            subject.unknown.push(subject.in_force);
        }
        if let Some(known) = known {
            subject.take_over_contents(known);
        }
        let anywhere = !subject.unknown.is_empty() && kind == Kind::File;
        if anywhere || subject.rules().any(|rules| rules.needs_head(kind, subject.size)) {
            subject.head = read_head()?;
            subject.judge_content();
        }
        Ok(subject)
    }

    /// A file that exists, by this path alone, with its first bytes, which a rule looks at.
    pub(crate) fn by_path(&self, path: Vec<u8>, stat: &Stat, head: Vec<u8>) -> Subject<'_> {
        let mut subject = self.without_head([path], Kind::from_mode(stat.mode()), stat.size());
        subject.head = Some(head);
        subject.judge_content();
        subject
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
        Subject { in_force, names, kind, size, head: None, unknown: SmallVec::new() }
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

    /// May `caller` do all that is `asked` for on the inode? The strictest verdict over its names
    /// counts, and the first that is refused.
    pub(crate) fn check<'p>(
        &self,
        subject: &Subject<'p>,
        asked: impl IntoIterator<Item = impl Into<Asked>>,
        caller: Caller,
    ) -> Result<Granted<'p>, Refusal<'p>> {
        let asked: SmallVec<[Asked; 2]> = asked.into_iter().map(Into::into).collect();
        let exe =
            if subject.needs_exe(&asked) { self.callers.executable(caller.pid) } else { None };
        let who = CallerFacts { uid: caller.uid, gid: caller.gid, exe: exe.as_deref() };
        let mut granted = Granted(None);
        for asked in asked {
            subject.answer(Say::Enforced, asked, &who)?;
            if granted.0.is_none() && subject.has_trial() {
                granted.0 = subject.answer(Say::Whole, asked, &who).err();
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

/// What tells rules apart as long as the view lives: they stay where they are.
fn address(rules: &InForce) -> usize {
    std::ptr::from_ref(rules).addr()
}

/// Which rules have a say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Say {
    /// Those that refuse.
    Enforced,
    /// Those that are only recorded, too.
    Whole,
}

impl Say {
    fn of(self, rules: &InForce) -> &Policy {
        let trial = rules.trial.as_ref().filter(|_| self == Self::Whole);
        trial.unwrap_or(&rules.policy)
    }
}

/// What the policy judges: an inode under all its known names.
pub(crate) struct Subject<'p> {
    in_force: &'p InForce,
    /// At least one, and the first is of this view.
    names: SmallVec<[JudgedName<'p>; 1]>,
    kind: Kind,
    size: u64,
    /// The first bytes, where they are known.
    head: Option<Vec<u8>>,
    /// It may have names that are not known, and is judged as if every rule of these covered it.
    unknown: SmallVec<[&'p InForce; 0]>,
}

impl std::fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subject").field("names", &self.names).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct JudgedName<'p> {
    path: Vec<u8>,
    /// Another view's, for a name there.
    in_force: &'p InForce,
    rules: Matched<'p>,
    /// By the whole policy, where some rules are only recorded.
    trial: Option<Matched<'p>>,
}

impl<'p> JudgedName<'p> {
    fn new(path: Vec<u8>, in_force: &'p InForce) -> Self {
        let rules = in_force.policy.at(&path);
        let trial = in_force.trial.as_ref().map(|trial| trial.at(&path));
        Self { path, in_force, rules, trial }
    }

    /// The rules that have a say, and the policy that they are of.
    fn said(&self, say: Say) -> (&'p Policy, &Matched<'p>) {
        let trial = self.trial.as_ref().filter(|_| say == Say::Whole);
        (say.of(self.in_force), trial.unwrap_or(&self.rules))
    }
}

impl<'p> Subject<'p> {
    /// Where content is known of rules that are asked here, it is not read for them.
    fn take_over_contents(&mut self, known: &Known) {
        let is_asked = |name: &&mut JudgedName<'_>| address(name.in_force) == known.rules;
        for name in self.names.iter_mut().filter(is_asked) {
            name.rules.take_over_contents(known.contents.clone());
        }
    }

    /// Tries the conditions on its content once, for all that is asked.
    fn judge_content(&mut self) {
        let facts = InodeFacts { kind: self.kind, size: self.size, head: self.head.as_deref() };
        for name in &mut self.names {
            name.rules.judge_content(&facts);
            name.trial.iter_mut().for_each(|trial| trial.judge_content(&facts));
        }
    }

    /// What the rules about its only name found out about its content, of this `version`, if its first bytes
    /// were read.
    pub(crate) fn known_content(&self, version: Version) -> Option<Known> {
        let [name] = &self.names[..] else { return None };
        self.head.as_ref()?;
        let contents = name.rules.contents().clone();
        Some(Known { version, rules: address(name.in_force), contents })
    }

    /// The rules about its only name, if there are no others, and all of them are enforced.
    pub(crate) fn only_name_in_force(&self) -> Option<&Matched<'p>> {
        let [name] = &self.names[..] else { return None };
        (self.unknown.is_empty() && name.trial.is_none()).then_some(&name.rules)
    }

    /// The first of its paths.
    pub(crate) fn path(&self) -> &[u8] {
        &self.names[0].path
    }

    /// All of its paths in this view, with names that it had; `None` if it may have others.
    pub(crate) fn all_paths(&self) -> Option<impl Iterator<Item = &[u8]>> {
        let are_here = self.unknown.is_empty() && self.names.iter().all(|name| self.is_own(name));
        are_here.then(|| self.names.iter().map(|name| &name.path[..]))
    }

    /// Whether it is judged by more than one name.
    pub(crate) fn has_further_names(&self) -> bool {
        self.names.len() > 1 || !self.unknown.is_empty()
    }

    /// The I/O mode: the strictest that any caller could get under any of the names.
    pub(crate) fn mode(&self) -> Mode {
        self.mode_and_rule().map_or(Mode::Userspace, |(mode, ..)| mode)
    }

    /// What the rules say about its bytes, under all its names together.
    pub(crate) fn made(&self) -> Made {
        let (facts, mut made) = (self.facts(), Made::default());
        self.names.iter().for_each(|name| name.rules.made(&facts, &mut made));
        self.unknown.iter().for_each(|rules| rules.policy.made_anywhere(&facts, &mut made));
        made
    }

    /// The name of the rule that asks for the I/O mode.
    pub(crate) fn mode_rule(&self) -> Option<&'p str> {
        let (_, rule, policy) = self.mode_and_rule()?;
        rule.map(|id| policy.rule(id).name())
    }

    fn mode_and_rule(&self) -> Option<(Mode, Option<RuleId>, &'p Policy)> {
        let facts = self.facts();
        let modes = self.names.iter().map(|name| {
            let (mode, rule) = name.rules.mode(&facts);
            (mode, rule, &*name.in_force.policy)
        });
        let anywhere = self.unknown.iter().map(|rules| {
            let mode = rules.policy.mode_anywhere(&facts);
            (mode, None, &*rules.policy)
        });
        modes.chain(anywhere).max_by_key(|(mode, ..)| *mode)
    }

    /// The same inode at `path` alone, judged by the same policy. Where the rules for that path ask
    /// for its first bytes, and those for its names did not, they are read now.
    pub(crate) fn moved_to(
        &self,
        path: Vec<u8>,
        read_head: impl FnOnce() -> Result<Option<Vec<u8>>, Errno>,
    ) -> Result<Self, Errno> {
        let names = SmallVec::from_iter([JudgedName::new(path, self.in_force)]);
        let (head, unknown) = (self.head.clone(), SmallVec::new());
        let Self { in_force, kind, size, .. } = *self;
        let mut moved = Self { in_force, names, kind, size, head, unknown };
        if moved.head.is_none() && moved.rules().any(|rules| rules.needs_head(kind, size)) {
            moved.head = read_head()?;
        }
        Ok(moved)
    }

    /// Would the inode get weaker if its first name became that of `target`?
    pub(crate) fn first_name_weakens_to(&self, target: &Self) -> bool {
        !self.unknown.is_empty() || self.weakens_from(&self.names[0], target)
    }

    /// Would the inode get weaker under any of its names if it had that of `target` as well? The
    /// rules of other views cannot be compared with these: any of theirs counts.
    pub(crate) fn any_name_weakens_to(&self, target: &Self) -> bool {
        let facts = self.facts();
        let mut others = self.names.iter().filter(|name| !self.is_own(name));
        !self.unknown.is_empty()
            || self.own_names().any(|name| self.weakens_from(name, target))
            || others.any(|name| name.rules.restricts(&facts))
    }

    /// Would it, by the rules that are only recorded?
    pub(crate) fn any_name_would_weaken_to(&self, target: &Self) -> bool {
        let Some(to) = &target.names[0].trial else { return false };
        let mut old = self.own_names().filter_map(|name| name.trial.as_ref());
        old.any(|from| from.weakens(&self.facts(), to, &target.facts()))
    }

    fn weakens_from(&self, name: &JudgedName<'_>, target: &Self) -> bool {
        let to = &target.names[0].rules;
        name.rules.weakens(&self.facts(), to, &target.facts())
    }

    /// Whether the rules about the name of `target` are those about a name that it has, so that nothing
    /// that is known of the inode, now or later, tells them apart.
    pub(crate) fn has_name_like(&self, target: &Self) -> bool {
        self.own_names().any(|name| name.rules.is_like(&target.names[0].rules))
    }

    /// The names in this view.
    fn own_names(&self) -> impl Iterator<Item = &JudgedName<'p>> {
        self.names.iter().filter(|name| self.is_own(name))
    }

    fn is_own(&self, name: &JudgedName<'_>) -> bool {
        std::ptr::eq(name.in_force, self.in_force)
    }

    fn answer(&self, say: Say, asked: Asked, who: &CallerFacts<'_>) -> Result<(), Refusal<'p>> {
        match asked {
            Asked::To(operation) => self.judge(say, operation, who),
            Asked::ChangeInPart => {
                self.judge(say, Operation::Write, who)?;
                let read = self.judge(say, Operation::Read, who);
                read.or_else(
                    |refusal| {
                        if self.could_be_read(say, who) { Err(refusal) } else { Ok(()) }
                    },
                )
            }
        }
    }

    /// Whether the caller might read the inode if it held something else.
    fn could_be_read(&self, say: Say, who: &CallerFacts<'_>) -> bool {
        let laxest = |name: &JudgedName<'_>| {
            let (_, rules) = name.said(say);
            rules.laxest(self.kind, Operation::Read, who)
        };
        !self.unknown.is_empty() || self.names.iter().all(|name| laxest(name) == Verdict::Allow)
    }

    /// The strictest verdict over the names.
    fn judge(
        &self,
        say: Say,
        operation: Operation,
        who: &CallerFacts<'_>,
    ) -> Result<(), Refusal<'p>> {
        let facts = self.facts();
        let by_name = self.names.iter().map(|name| {
            let (policy, rules) = name.said(say);
            let mut decision = rules.decide(&facts, operation, who);
            if self.makes_link(operation.into()) {
                // What could be made in a directory of that name decides, too.
                let behind = policy.decide_link(&name.path, who);
                decision = if behind.verdict > decision.verdict { behind } else { decision };
            }
            // This view does not make the bytes that another one would.
            let (mode, rule) = rules.mode(&facts);
            if mode.is_made() && !self.is_own(name) && decision.verdict < Verdict::Deny {
                return (policy, Decision { verdict: Verdict::Deny, rule });
            }
            (policy, decision)
        });
        let anywhere = self.unknown.iter().map(|rules| {
            let policy = say.of(rules);
            (policy, policy.decide_anywhere(&facts, operation, who))
        });
        // The first of equals, so that its rule is named.
        let stricter = |one: (_, Decision), other: (_, Decision)| {
            if other.1.verdict > one.1.verdict { other } else { one }
        };
        let Some((policy, worst)) = by_name.chain(anywhere).reduce(stricter) else {
            unreachable!("made with a name")
        };
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

    /// Whether some rule about it is only recorded.
    fn has_trial(&self) -> bool {
        let mut all =
            self.names.iter().map(|name| name.in_force).chain(self.unknown.iter().copied());
        all.any(|rules| rules.trial.is_some())
    }

    /// The rules of every name, those that are only recorded too.
    fn rules(&self) -> impl Iterator<Item = &Matched<'p>> {
        self.names.iter().flat_map(|name| std::iter::once(&name.rules).chain(&name.trial))
    }

    fn needs_exe(&self, asked: &[Asked]) -> bool {
        !self.unknown.is_empty()
            || self.rules().any(|rules| rules.needs_caller(self.kind).exe)
            || asked.iter().any(|asked| self.makes_link(*asked)) && self.link_needs_exe()
    }

    /// Whether rules about what is below its names have a say, too.
    fn makes_link(&self, asked: Asked) -> bool {
        self.kind == Kind::Symlink && asked == Asked::To(Operation::Create)
    }

    fn link_needs_exe(&self) -> bool {
        let mut all = self.names.iter().map(|name| name.in_force);
        all.any(|rules| {
            [Say::Enforced, Say::Whole].iter().any(|say| say.of(rules).link_needs_exe())
        })
    }

    fn facts(&self) -> InodeFacts<'_> {
        InodeFacts { kind: self.kind, size: self.size, head: self.head.as_deref() }
    }
}
