//! The policy: its rules, and the index that finds the rules for a path.

use crate::error::Warning;
use crate::facts::{CallerFacts, CallerNeeds, Facts};
use crate::glob::Glob;
use crate::glob::index::PathIndex;
use crate::matched::{Decision, Matched};
use crate::rule::{Rule, RuleId};
use crate::words::{Action, Kind, Mode, Operation, Verdict};

/// Rules, first match wins, and a default.
///
/// [`Policy::at`] finds the rules for a path once and answers several questions about it. The other
/// methods about a path are short forms for one question.
pub struct Policy {
    pub(crate) default: Action,
    pub(crate) rules: Vec<Rule>,
    pub(crate) warnings: Vec<Warning>,
    index: PathIndex,
    trivial: bool,
    can_hide: bool,
}

impl Policy {
    /// The policy without rules: everything passes through.
    #[must_use]
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
        let can_hide = rules.iter().any(|rule| rule.action == Action::Hide);
        Self { default, rules, warnings, index, trivial, can_hide }
    }

    /// Whether no rule can change anything: every verdict is [`Verdict::Allow`], every mode is
    /// passthrough, and no rule is named.
    #[must_use]
    pub fn is_trivial(&self) -> bool {
        self.trivial
    }

    /// Whether some rule hides names.
    #[must_use]
    pub fn can_hide(&self) -> bool {
        self.can_hide
    }

    /// What looks like a mistake but can be used.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The rules in file order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What holds where no rule matches.
    #[must_use]
    pub fn default_action(&self) -> Action {
        self.default
    }

    /// A rule by its id.
    ///
    /// # Panics
    /// If the id comes from another policy that has more rules.
    #[must_use]
    pub fn rule(&self, id: RuleId) -> &Rule {
        &self.rules[id.index()]
    }

    /// Finds the rules that cover `path`, to ask several questions about it. Allocates nothing.
    #[must_use]
    #[inline]
    pub fn at(&self, path: &[u8]) -> Matched<'_> {
        Matched::new(self, path, &self.index)
    }

    /// Whether `path` is hidden, and by which rule. DIR itself never is.
    #[must_use]
    pub fn hidden(&self, path: &[u8], kind: Kind) -> Option<RuleId> {
        if self.can_hide { self.at(path).hidden(kind) } else { None }
    }

    /// [`Matched::needs_head`] of `path`.
    #[must_use]
    pub fn needs_head(&self, path: &[u8], kind: Kind, size: u64) -> bool {
        !self.trivial && self.at(path).needs_head(kind, size)
    }

    /// [`Matched::needs_caller`] of `path`.
    #[must_use]
    pub fn needs_caller(&self, path: &[u8], kind: Kind) -> CallerNeeds {
        if self.trivial { CallerNeeds::default() } else { self.at(path).needs_caller(kind) }
    }

    /// The I/O mode of an inode, the same for every caller, and the rule that asks for it.
    #[must_use]
    pub fn mode(&self, facts: &Facts<'_>) -> (Mode, Option<RuleId>) {
        if self.trivial {
            return (self.default_mode(), None);
        }
        self.at(facts.path).mode(&facts.inode())
    }

    /// The mode where no rule asks for one.
    pub(crate) fn default_mode(&self) -> Mode {
        self.default.mode().unwrap_or(Mode::Passthrough)
    }

    /// The verdict on `operation` by `caller`.
    #[must_use]
    pub fn decide(
        &self,
        facts: &Facts<'_>,
        operation: Operation,
        caller: &CallerFacts<'_>,
    ) -> Decision {
        if self.trivial {
            return Decision { verdict: Verdict::Allow, rule: None };
        }
        self.at(facts.path).decide(&facts.inode(), operation, caller)
    }

    /// Whether another name would make an inode weaker: see [`Matched::weakens`].
    #[must_use]
    pub fn weakens(&self, from: &Facts<'_>, to: &Facts<'_>) -> bool {
        !self.trivial && self.at(from.path).weakens(&from.inode(), &self.at(to.path), &to.inode())
    }
}
