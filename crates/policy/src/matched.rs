//! The rules that cover one path, and the questions asked of them.
//!
//! Three questions are asked, each of the rules in file order:
//!
//! * *Is the name hidden?* The first rule that matches by path and kind alone decides. Rules with
//!   further conditions are skipped, because a hidden name is hidden from everyone.
//! * *What is the verdict on an operation?* The first rule that matches, after the question above. What
//!   is redacted (the question below) is changed by nobody.
//! * *What is the I/O mode?* The first rule that matches, asks for a mode (`passthrough`,
//!   `userspace`) and looks at neither caller nor operation: an inode has one mode for everyone.
//!
//! A condition that cannot be judged (the executable or the content is not known) makes a rule that
//! *may* match. The strictest of the verdicts that are possible then holds.

use smallvec::SmallVec;

use crate::facts::{CallerFacts, CallerNeeds, Facts, InodeFacts};
use crate::glob::index::RuleSet;
use crate::policy::{Part, Policy};
use crate::rule::{Holds, Rule, RuleId};
use crate::words::{Action, Kind, Mode, Operation, Verdict};

/// The verdict on one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub verdict: Verdict,
    /// The rule that decided; `None` is the default.
    pub rule: Option<RuleId>,
}

/// A path and the rules that cover it. Made by [`Policy::at`], which searches the globs once; every
/// question about the path is then a walk over the few rules found.
#[derive(Clone)]
pub struct Matched<'p> {
    pub(crate) policy: &'p Policy,
    set: RuleSet,
    contents: Contents,
}

/// Which conditions on the content of files hold for one content, as far as that was found out: so long as
/// a file holds the same, they need not be tried again. See [`Matched::judge_content`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents(SmallVec<[(RuleId, bool); 4]>);

impl Contents {
    fn holds(&self, rule: RuleId) -> Option<bool> {
        self.0.iter().find(|(one, _)| *one == rule).map(|(_, holds)| *holds)
    }
}

impl Policy {
    /// Finds the rules that cover `path`, to ask several questions about it. Allocates nothing, unless the
    /// policy has more than 256 rules.
    #[must_use]
    #[inline]
    pub fn at(&self, path: &[u8]) -> Matched<'_> {
        let (set, contents) = (RuleSet::of(self.rules.len()), Contents::default());
        let mut matched = Matched { policy: self, set, contents };
        self.index.find(path, &mut matched.set);
        matched
    }

    /// Whether `path` is hidden, and by which rule. DIR itself never is.
    #[must_use]
    pub fn hidden(&self, path: &[u8], kind: Kind) -> Option<RuleId> {
        if self.can_hide() { self.at(path).hidden(kind) } else { None }
    }

    /// [`Matched::needs_head`] of `path`.
    #[must_use]
    pub fn needs_head(&self, path: &[u8], kind: Kind, size: u64) -> bool {
        !self.is_trivial() && self.at(path).needs_head(kind, size)
    }

    /// [`Matched::needs_caller`] of `path`.
    #[must_use]
    pub fn needs_caller(&self, path: &[u8], kind: Kind) -> CallerNeeds {
        if self.is_trivial() { CallerNeeds::default() } else { self.at(path).needs_caller(kind) }
    }

    /// The I/O mode of an inode, the same for every caller, and the rule that asks for it.
    #[must_use]
    pub fn mode(&self, facts: &Facts<'_>) -> (Mode, Option<RuleId>) {
        if self.is_trivial() {
            return (self.default_mode(), None);
        }
        self.at(facts.path).mode(&facts.inode())
    }

    /// The verdict on `operation` by `caller`.
    #[must_use]
    pub fn decide(
        &self,
        facts: &Facts<'_>,
        operation: Operation,
        caller: &CallerFacts<'_>,
    ) -> Decision {
        if self.is_trivial() {
            return Decision { verdict: Verdict::Allow, rule: None };
        }
        self.at(facts.path).decide(&facts.inode(), operation, caller)
    }

    /// Whether another name would make an inode weaker: see [`Matched::weakens`].
    #[must_use]
    pub fn weakens(&self, from: &Facts<'_>, to: &Facts<'_>) -> bool {
        !self.is_trivial()
            && self.at(from.path).weakens(&from.inode(), &self.at(to.path), &to.inode())
    }
}

impl<'p> Matched<'p> {
    /// Whether the path is hidden for an inode of this kind, and by which rule. DIR itself never
    /// is.
    #[must_use]
    pub fn hidden(&self, kind: Kind) -> Option<RuleId> {
        if !self.policy.can_hide() {
            return None;
        }
        self.policy.parts().find_map(|part| self.hidden_by(part, kind))
    }

    pub(crate) fn hidden_by(&self, part: Part, kind: Kind) -> Option<RuleId> {
        self.of(part)
            .find(|(_, rule)| rule.is_fixed() && rule.kinds.has(kind))
            .filter(|(_, rule)| rule.action == Action::Hide)
            .map(|(id, _)| id)
    }

    /// Tries each condition on the first bytes of `facts` that an answer may depend on, once: all answers
    /// about an inode of this content use what was found. Without its first bytes nothing is tried.
    pub fn judge_content(&mut self, facts: &InodeFacts<'_>) {
        if facts.head.is_none() {
            return;
        }
        let blind = InodeFacts { head: None, ..*facts };
        let depends = |(id, rule): &(RuleId, &Rule)| self.holds(*id, rule, &blind) == Holds::Maybe;
        let mut found = self.contents.clone();
        for (id, rule) in self.covering().filter(depends) {
            found.0.push((id, rule.holds_for_inode(facts) == Holds::Yes));
        }
        self.contents = found;
    }

    /// What is known of the content.
    #[must_use]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The inode has a content of which the same policy found out this before, under any name.
    pub fn take_over_contents(&mut self, known: Contents) {
        self.contents = known;
    }

    /// Whether the conditions of a rule on the inode other than its path hold.
    fn holds(&self, id: RuleId, rule: &Rule, facts: &InodeFacts<'_>) -> Holds {
        rule.holds_for_content(facts, self.contents.holds(id))
    }

    /// Whether an answer about this inode depends on its first bytes.
    #[must_use]
    pub fn needs_head(&self, kind: Kind, size: u64) -> bool {
        if kind != Kind::File || size == 0 {
            return false;
        }
        let facts = InodeFacts { kind, size, head: None };
        self.covering().any(|(id, rule)| self.holds(id, rule, &facts) == Holds::Maybe)
    }

    /// Which facts about the caller an answer about this inode may depend on.
    #[must_use]
    pub fn needs_caller(&self, kind: Kind) -> CallerNeeds {
        let mut needs = CallerNeeds::default();
        for part in self.policy.parts() {
            for (_, rule) in self.of(part).filter(|(_, rule)| rule.kinds.has(kind)) {
                if let Some(caller) = &rule.caller {
                    needs.ids |= caller.uids.is_some() || caller.gids.is_some();
                    needs.exe |= caller.exes.is_some();
                }
                if rule.is_fixed() {
                    break;
                }
            }
        }
        needs
    }

    /// The I/O mode of an inode, the same for every caller, and the rule that asks for it.
    #[must_use]
    pub fn mode(&self, facts: &InodeFacts<'_>) -> (Mode, Option<RuleId>) {
        let modes = self.policy.parts().map(|part| self.mode_of(part, facts));
        // The first of equals, so that its rule is named.
        let stricter = |one: (Mode, Option<RuleId>), other: (Mode, Option<RuleId>)| {
            if other.0 > one.0 { other } else { one }
        };
        modes.reduce(stricter).unwrap_or((Mode::Passthrough, None))
    }

    fn mode_of(&self, part: Part, facts: &InodeFacts<'_>) -> (Mode, Option<RuleId>) {
        let fallback = part.default_mode();
        let mut strictest: Option<(Mode, Option<RuleId>)> = None;
        for (id, rule, holds) in self.inode_rules(part, facts) {
            let Some(mode) = rule.asks_for_mode() else { continue };
            if strictest.is_none_or(|(known, _)| mode > known) {
                strictest = Some((mode, Some(id)));
            }
            if holds == Holds::Yes {
                return strictest.unwrap_or((fallback, None));
            }
        }
        strictest.filter(|(mode, _)| *mode > fallback).unwrap_or((fallback, None))
    }

    /// Whether some caller may get less of the inode than without any rule: something is refused, or
    /// the server has to see its bytes.
    #[must_use]
    pub fn restricts(&self, facts: &InodeFacts<'_>) -> bool {
        let nobody = CallerFacts { uid: u32::MAX, gid: u32::MAX, exe: None };
        let needs = self.needs_caller(facts.kind);
        let refuses = |operation| self.decide(facts, operation, &nobody).verdict != Verdict::Allow;
        needs.ids
            || needs.exe
            || self.mode(facts).0 != Mode::Passthrough
            || refuses(Operation::Read)
            || refuses(Operation::Write)
    }

    /// The verdict on `operation` by `caller`.
    #[must_use]
    pub fn decide(
        &self,
        facts: &InodeFacts<'_>,
        operation: Operation,
        caller: &CallerFacts<'_>,
    ) -> Decision {
        self.decide_for(facts, operation, |rule| rule.holds_for_caller(caller))
    }

    /// The verdict on `operation` by whom the rules hold for as `of_caller` says.
    pub(crate) fn decide_for(
        &self,
        facts: &InodeFacts<'_>,
        operation: Operation,
        of_caller: impl Fn(&Rule) -> Holds,
    ) -> Decision {
        if let Some(rule) = self.hidden(facts.kind) {
            return Decision { verdict: Verdict::Hide, rule: Some(rule) };
        }
        let decisions =
            self.policy.parts().map(|part| self.decide_by(part, facts, operation, &of_caller));
        // The first of equals, so that its rule is named.
        let stricter =
            |one: Decision, other: Decision| if other.verdict > one.verdict { other } else { one };
        let decision = decisions.reduce(stricter);
        let decision = decision.unwrap_or(Decision { verdict: Verdict::Allow, rule: None });
        let of_bytes = self
            .made_in_two_ways(facts)
            .or_else(|| self.too_large_to_redact(facts, operation))
            .or_else(|| self.kept_as_redacted(facts, operation));
        of_bytes.filter(|kept| kept.verdict > decision.verdict).unwrap_or(decision)
    }

    /// What is shown masked is not changed, whatever earlier rules say of an operation or a caller: `mv` to
    /// where it would not be masked copies what it reads, and removes the file.
    fn kept_as_redacted(&self, facts: &InodeFacts<'_>, operation: Operation) -> Option<Decision> {
        let verdict = Action::Redact.verdict(operation);
        if verdict == Verdict::Allow || !self.policy.can_redact() {
            return None;
        }
        let (mode, rule) = self.mode(facts);
        (mode == Mode::Redacted).then_some(Decision { verdict, rule })
    }

    fn decide_by(
        &self,
        part: Part,
        facts: &InodeFacts<'_>,
        operation: Operation,
        of_caller: impl Fn(&Rule) -> Holds,
    ) -> Decision {
        let mut strictest: Option<Decision> = None;
        let mut consider = |verdict, rule| {
            if strictest.is_none_or(|known| verdict > known.verdict) {
                strictest = Some(Decision { verdict, rule });
            }
            strictest
        };
        for (id, rule) in self.of(part).filter(|(_, rule)| rule.operations.has(operation)) {
            let holds = self.holds(id, rule, facts).and(of_caller(rule));
            let shadowed = || self.is_shadowed(part, facts, operation, id);
            if holds == Holds::No || (holds == Holds::Maybe && shadowed()) {
                continue;
            }
            let so_far = consider(rule.action.verdict(operation), Some(id));
            if let (Holds::Yes, Some(decision)) = (holds, so_far) {
                return decision;
            }
        }
        let verdict = part.default.verdict(operation);
        consider(verdict, None).unwrap_or(Decision { verdict, rule: None })
    }

    /// Whether a rule that may match can never be the first to: an earlier one asks for the same
    /// caller and matches otherwise.
    fn is_shadowed(
        &self,
        part: Part,
        facts: &InodeFacts<'_>,
        operation: Operation,
        id: RuleId,
    ) -> bool {
        let caller = self.policy.rule(id).caller.as_ref();
        let mut earlier = self.of(part).take_while(|(one, _)| *one < id);
        earlier.any(|(id, one)| {
            one.operations.has(operation)
                && one.caller.as_ref() == caller
                && self.holds(id, one, facts) == Holds::Yes
        })
    }

    pub(crate) fn same_set(&self, other: &Self) -> bool {
        self.set == other.set
    }

    /// The rules with a glob that covers the path, in file order.
    fn covering(&self) -> impl Iterator<Item = (RuleId, &'p Rule)> + use<'_, 'p> {
        let rules = &self.policy.rules;
        self.set.iter().map(|number| (RuleId::new(number), &rules[number]))
    }

    /// Those of one part.
    pub(crate) fn of(&self, part: Part) -> impl Iterator<Item = (RuleId, &'p Rule)> + use<'_, 'p> {
        self.covering().filter(move |(id, _)| part.has(*id))
    }

    /// The rules of one part that cover the inode and may match it, with whether their conditions
    /// on it hold.
    pub(crate) fn inode_rules(
        &self,
        part: Part,
        facts: &InodeFacts<'_>,
    ) -> impl Iterator<Item = (RuleId, &'p Rule, Holds)> {
        self.of(part)
            .map(|(id, rule)| (id, rule, self.holds(id, rule, facts)))
            .filter(|(_, _, holds)| *holds != Holds::No)
    }
}

impl std::fmt::Debug for Matched<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.covering().map(|(_, rule)| rule.name())).finish()
    }
}
