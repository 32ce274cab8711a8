//! The policy: its rules, and the index that finds the rules for a path.

use crate::error::Warning;
use crate::glob::Glob;
use crate::glob::index::PathIndex;
use crate::rule::{Rule, RuleId};
use crate::words::{Action, Kind, Mode, Operation, Verdict};

/// A directory that shows the lower one itself, with all that is below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeDirectory {
    /// Relative to DIR, without a slash at the end.
    pub path: String,
    /// The rule that says so.
    pub rule: RuleId,
    /// Whether it is to be made if it does not exist.
    pub create: bool,
}

/// Rules, first match wins, and a default.
///
/// [`Policy::at`] finds the rules for a path once, to ask several questions about it. The other
/// methods about a path are short forms for one question.
pub struct Policy {
    pub(crate) default: Action,
    pub(crate) rules: Vec<Rule>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) index: PathIndex,
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
            && rules.iter().all(|rule| matches!(rule.action, Action::Passthrough | Action::Native));
        let can_hide = rules.iter().any(|rule| rule.action == Action::Hide);
        Self { default, rules, warnings, index, trivial, can_hide }
    }

    /// Whether no rule can change anything: every verdict is [`crate::Verdict::Allow`],
    /// every mode is passthrough, and no rule is named.
    #[must_use]
    pub fn is_trivial(&self) -> bool {
        self.trivial
    }

    /// Whether some rule hides names.
    #[must_use]
    pub fn can_hide(&self) -> bool {
        self.can_hide
    }

    /// Whether some rule, or the default, can refuse to list a directory that is not hidden.
    #[must_use]
    pub fn may_refuse_listing(&self) -> bool {
        let refuses = |action: Action| action.verdict(Operation::List) == Verdict::Deny;
        let about_lists =
            |rule: &Rule| rule.operations.has(Operation::List) && rule.kinds.has(Kind::Directory);
        refuses(self.default)
            || self.rules.iter().any(|rule| refuses(rule.action) && about_lists(rule))
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

    /// The directories that are native, in file order. One that lies in another is left out: it is
    /// part of that.
    #[must_use]
    pub fn native(&self) -> Vec<NativeDirectory> {
        let directories = (0..).zip(&self.rules).flat_map(|(number, rule)| {
            let (rule, create) = (RuleId::new(number), rule.create);
            let directories = self.rules[number].native_directories();
            directories.map(move |path| NativeDirectory { path, rule, create })
        });
        let all: Vec<_> = directories.collect();
        let lies_in = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
        };
        let mut kept: Vec<NativeDirectory> = Vec::new();
        for one in &all {
            let known = kept.iter().any(|other| other.path == one.path);
            if !known && !all.iter().any(|other| lies_in(&one.path, &other.path)) {
                kept.push(one.clone());
            }
        }
        kept
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

    /// The mode where no rule asks for one.
    pub(crate) fn default_mode(&self) -> Mode {
        self.default.mode().unwrap_or(Mode::Passthrough)
    }
}
