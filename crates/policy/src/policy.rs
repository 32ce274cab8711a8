//! The policy and its answers.
//!
//! Three questions are asked of the rules, each in file order:
//!
//! * *Is the name hidden?* The first rule that matches by path and kind alone decides; rules with further
//!   conditions are passed over, as a hidden name is hidden from everyone.
//! * *What is the verdict on an operation?* The first rule that matches, after the question above.
//! * *What is the I/O mode?* The first rule that matches, asks for a mode (`passthrough`, `userspace`) and
//!   looks at neither caller nor operation: an inode has one mode for everyone.
//!
//! A condition that cannot be judged (the executable or the content is not known) makes a rule that *may*
//! match; the strictest of what may be is the answer.

use crate::facts::{CallerFacts, CallerNeeds, Facts};
use crate::glob::Glob;
use crate::glob::index::{PathIndex, RuleSet};
use crate::parse::{self, PolicyError, Warning};
use crate::rule::{Holds, Rule, RuleId};
use crate::words::{Action, Kind, Mode, Operation, Verdict};

/// Rules, first match wins, and a default.
pub struct Policy {
    pub(crate) default: Action,
    pub(crate) rules: Vec<Rule>,
    pub(crate) warnings: Vec<Warning>,
    index: PathIndex,
    trivial: bool,
    hides: bool,
}

/// The answer to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to answer.
    pub verdict: Verdict,
    /// The rule that said so; `None` is the default.
    pub rule: Option<RuleId>,
}

impl Policy {
    /// Reads a policy. `origin` names it in errors, as in `policy.toml:7:10: ...`.
    ///
    /// # Errors
    /// The first mistake in the text: where it is, what was found, what is allowed.
    pub fn parse(text: &str, origin: &str) -> Result<Self, PolicyError> {
        parse::parse(text, origin)
    }

    /// The policy without rules: everything passes through.
    pub fn allow_all() -> Self {
        Self::new(Action::Passthrough, Vec::new(), Vec::new())
    }

    pub(crate) fn new(default: Action, mut rules: Vec<Rule>, warnings: Vec<Warning>) -> Self {
        for rule in rules.iter_mut().filter(|rule| rule.action == Action::Hide) {
            rule.globs.iter_mut().for_each(Glob::leave_out_root);
        }
        let mut index = PathIndex::default();
        for (number, rule) in (0..).zip(&rules) {
            rule.globs.iter().for_each(|glob| index.insert(number, glob));
        }
        let trivial = default == Action::Passthrough
            && rules.iter().all(|rule| rule.action == Action::Passthrough);
        let hides = rules.iter().any(|rule| rule.action == Action::Hide);
        Self { default, rules, warnings, index, trivial, hides }
    }

    /// Whether no rule can change anything: every answer is [`Verdict::Allow`] and passthrough, and names
    /// no rule.
    pub fn is_trivial(&self) -> bool {
        self.trivial
    }

    /// What looks like a mistake but can be used.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The rules in file order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What holds where no rule matches.
    pub fn default_action(&self) -> Action {
        self.default
    }

    /// A rule by its id.
    ///
    /// # Panics
    /// If the id comes from another policy that has more rules.
    pub fn rule(&self, id: RuleId) -> &Rule {
        &self.rules[id.index()]
    }

    /// Whether `path` is hidden, and by which rule. DIR itself never is.
    pub fn hidden(&self, path: &[u8], kind: Kind) -> Option<RuleId> {
        if !self.hides {
            return None;
        }
        self.hidden_in(&self.index.find(path), kind)
    }

    /// Whether an answer about this inode depends on its first bytes.
    pub fn needs_head(&self, path: &[u8], kind: Kind, size: u64) -> bool {
        if self.trivial || kind != Kind::File || size == 0 {
            return false;
        }
        let facts = Facts { path, kind, size, head: None };
        self.inode_rules(&self.find(path), &facts).any(|(_, _, holds)| holds == Holds::Maybe)
    }

    /// Which facts about the caller an answer about this inode may depend on.
    pub fn needs_caller(&self, path: &[u8], kind: Kind) -> CallerNeeds {
        let mut needs = CallerNeeds::default();
        if self.trivial {
            return needs;
        }
        let set = self.index.find(path);
        for (_, rule) in self.covering(&set).filter(|(_, rule)| rule.kinds.has(kind)) {
            if let Some(caller) = &rule.caller {
                needs.ids |= caller.uids.is_some() || caller.gids.is_some();
                needs.exe |= caller.exes.is_some();
            }
            if rule.is_fixed() {
                break;
            }
        }
        needs
    }

    /// The I/O mode of an inode, the same for every caller, and the rule that asks for it.
    pub fn mode(&self, facts: &Facts<'_>) -> (Mode, Option<RuleId>) {
        let fallback = self.default_mode();
        if self.trivial {
            return (fallback, None);
        }
        let mut strictest: Option<(Mode, Option<RuleId>)> = None;
        for (id, rule, holds) in self.inode_rules(&self.find(facts.path), facts) {
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

    /// The mode where no rule asks for one.
    pub(crate) fn default_mode(&self) -> Mode {
        self.default.mode().unwrap_or(Mode::Passthrough)
    }

    /// The answer to `operation` by `caller`.
    pub fn decide(
        &self,
        facts: &Facts<'_>,
        operation: Operation,
        caller: &CallerFacts<'_>,
    ) -> Decision {
        if self.trivial {
            return Decision { verdict: Verdict::Allow, rule: None };
        }
        let set = self.index.find(facts.path);
        if let Some(rule) = self.hidden_in(&set, facts.kind) {
            return Decision { verdict: Verdict::Hide, rule: Some(rule) };
        }
        let mut strictest: Option<Decision> = None;
        let mut consider = |verdict, rule| {
            if strictest.is_none_or(|known| verdict > known.verdict) {
                strictest = Some(Decision { verdict, rule });
            }
            strictest
        };
        for (id, rule) in self.covering(&set).filter(|(_, rule)| rule.operations.has(operation)) {
            let holds = rule.holds_for_inode(facts).and(rule.holds_for_caller(caller));
            let shadowed = || self.is_shadowed(&set, facts, operation, id);
            if holds == Holds::No || (holds == Holds::Maybe && shadowed()) {
                continue;
            }
            let so_far = consider(rule.action.verdict(operation), Some(id));
            if let (Holds::Yes, Some(decision)) = (holds, so_far) {
                return decision;
            }
        }
        let verdict = self.default.verdict(operation);
        consider(verdict, None).unwrap_or(Decision { verdict, rule: None })
    }

    /// Whether a rule that may match can never be the first to: an earlier one asks for the same caller
    /// and matches otherwise.
    fn is_shadowed(
        &self,
        set: &RuleSet,
        facts: &Facts<'_>,
        operation: Operation,
        id: RuleId,
    ) -> bool {
        let caller = self.rule(id).caller.as_ref();
        let mut earlier = self.covering(set).take_while(|(one, _)| *one < id);
        earlier.any(|(_, one)| {
            one.operations.has(operation)
                && one.caller.as_ref() == caller
                && one.holds_for_inode(facts) == Holds::Yes
        })
    }

    /// The rules with a glob that covers the path that `set` was found for, in file order.
    pub(crate) fn covering<'p>(
        &'p self,
        set: &RuleSet,
    ) -> impl Iterator<Item = (RuleId, &'p Rule)> {
        set.iter(self.rules.len()).map(|number| (id(number), &self.rules[number]))
    }

    pub(crate) fn find(&self, path: &[u8]) -> RuleSet {
        self.index.find(path)
    }

    /// The rules that cover the inode, with whether their conditions on it hold; not those that do not.
    pub(crate) fn inode_rules<'p>(
        &'p self,
        set: &RuleSet,
        facts: &Facts<'_>,
    ) -> impl Iterator<Item = (RuleId, &'p Rule, Holds)> {
        self.covering(set)
            .map(|(id, rule)| (id, rule, rule.holds_for_inode(facts)))
            .filter(|(_, _, holds)| *holds != Holds::No)
    }

    pub(crate) fn hidden_in(&self, set: &RuleSet, kind: Kind) -> Option<RuleId> {
        if !self.hides {
            return None;
        }
        self.covering(set)
            .find(|(_, rule)| rule.is_fixed() && rule.kinds.has(kind))
            .filter(|(_, rule)| rule.action == Action::Hide)
            .map(|(id, _)| id)
    }
}

/// A policy has at most [`crate::MAX_RULES`] rules, so that every number fits.
fn id(number: usize) -> RuleId {
    RuleId(u16::try_from(number).unwrap_or(u16::MAX))
}
