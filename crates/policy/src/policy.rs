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

/// A policy that holds beside another: its rules, as a part of all, and its own default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Second {
    /// Where its rules begin.
    pub(crate) from: usize,
    pub(crate) default: Action,
    pub(crate) audits_default: bool,
}

/// Rules among which the first match wins, and what holds without one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    from: usize,
    end: usize,
    pub(crate) default: Action,
}

impl Part {
    pub(crate) fn has(self, rule: RuleId) -> bool {
        (self.from..self.end).contains(&rule.index())
    }

    /// The mode where no rule asks for one.
    pub(crate) fn default_mode(self) -> Mode {
        self.default.mode().unwrap_or(Mode::Passthrough)
    }
}

/// Rules, first match wins, and a default. Of two policies that were joined ([`Policy::joined`])
/// each is asked, and the stricter answer holds.
///
/// [`Policy::at`] finds the rules for a path once, to ask several questions about it. The other
/// methods about a path are short forms for one question.
pub struct Policy {
    pub(crate) default: Action,
    pub(crate) rules: Vec<Rule>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) index: PathIndex,
    /// What the default refuses is only recorded.
    pub(crate) audits_default: bool,
    /// The policy that holds as well, with its rules after those of this one.
    pub(crate) second: Option<Second>,
    trivial: bool,
    can_hide: bool,
    can_redact: bool,
    /// Some rule is about a part of DIR.
    pub(crate) about_parts: bool,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Policy");
        shown.field("default", &self.default).field("rules", &self.rules.len());
        shown.finish_non_exhaustive()
    }
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
        let can_redact = rules.iter().any(|rule| rule.action == Action::Redact);
        let about_parts = rules.iter().any(Rule::is_about_a_part);
        Self {
            default,
            rules,
            warnings,
            index,
            audits_default: false,
            second: None,
            trivial,
            can_hide,
            can_redact,
            about_parts,
        }
    }

    /// The same with the rules from `second.from` on as a policy of their own.
    pub(crate) fn with_second(mut self, second: Option<Second>) -> Self {
        self.trivial &= second.is_none_or(|second| second.default == Action::Passthrough);
        self.second = second;
        self
    }

    /// The one policy, or the two that were joined.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let end = self.rules.len();
        let cut = self.second.map_or(end, |second| second.from);
        let second = self.second.map(|it| Part { from: cut, end, default: it.default });
        std::iter::once(Part { from: 0, end: cut, default: self.default }).chain(second)
    }

    /// What is left of the policy without the rules that are only recorded (`mode = "audit"`);
    /// `None` if there are none. The ids of its rules are its own, their names the same.
    #[must_use]
    pub fn enforced(&self) -> Option<Self> {
        let audits_second = self.second.is_some_and(|second| second.audits_default);
        if !self.audits_default && !audits_second && !self.rules.iter().any(Rule::is_audit_only) {
            return None;
        }
        let default = |audits: bool, default| if audits { Action::Passthrough } else { default };
        let enforced = |rules: &[Rule]| {
            rules.iter().filter(|rule| !rule.is_audit_only()).cloned().collect::<Vec<_>>()
        };
        let second = self.second.map(|second| Second {
            from: enforced(&self.rules[..second.from]).len(),
            default: default(second.audits_default, second.default),
            audits_default: false,
        });
        let first = default(self.audits_default, self.default);
        Some(Self::new(first, enforced(&self.rules), Vec::new()).with_second(second))
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

    /// Whether some rule masks files.
    pub(crate) fn can_redact(&self) -> bool {
        self.can_redact
    }

    /// Whether some rule, or the default, can refuse to list a directory that is not hidden.
    #[must_use]
    pub fn may_refuse_listing(&self) -> bool {
        let refuses = |action: Action| action.verdict(Operation::List) == Verdict::Deny;
        let about_lists =
            |rule: &Rule| rule.operations.has(Operation::List) && rule.kinds.has(Kind::Directory);
        self.parts().any(|part| refuses(part.default))
            || self.rules.iter().any(|rule| refuses(rule.action) && about_lists(rule))
    }

    /// Whether some rule lets one caller read a symbolic link and not another: a target that was
    /// read once must then not be kept for everybody.
    #[must_use]
    pub fn tells_callers_apart_at_links(&self) -> bool {
        let about_links =
            |rule: &Rule| rule.operations.has(Operation::Read) && rule.kinds.has(Kind::Symlink);
        self.rules.iter().any(|rule| rule.caller.is_some() && about_links(rule))
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
        let all = self.every_native();
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

    /// The directories that are native and are to be made if they do not exist, in file order; those
    /// that lie in another one too.
    #[must_use]
    pub fn native_to_make(&self) -> Vec<NativeDirectory> {
        self.every_native().into_iter().filter(|native| native.create).collect()
    }

    fn every_native(&self) -> Vec<NativeDirectory> {
        let of_rule = |(number, rule): (usize, &Rule)| {
            let (id, create) = (RuleId::new(number), rule.create);
            let paths: Vec<_> = rule.native_directories().collect();
            paths.into_iter().map(move |path| NativeDirectory { path, rule: id, create })
        };
        self.rules.iter().enumerate().flat_map(of_rule).collect()
    }

    /// What holds where no rule matches; of two policies that were joined, the stricter.
    #[must_use]
    pub fn default_action(&self) -> Action {
        let strictness = |action: &Action| {
            (Operation::ALL.map(|operation| action.verdict(operation)), action.mode())
        };
        self.parts().map(|part| part.default).max_by_key(strictness).unwrap_or(self.default)
    }

    /// A rule by its id.
    ///
    /// # Panics
    /// If the id comes from another policy that has more rules.
    #[must_use]
    pub fn rule(&self, id: RuleId) -> &Rule {
        &self.rules[id.index()]
    }

    /// The rules with their ids, in file order.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (RuleId, &Rule)> {
        self.rules.iter().enumerate().map(|(number, rule)| (RuleId::new(number), rule))
    }
}

impl Policy {
    /// The mode where no rule asks for one.
    pub(crate) fn default_mode(&self) -> Mode {
        self.parts().map(Part::default_mode).fold(Mode::Passthrough, Ord::max)
    }
}
