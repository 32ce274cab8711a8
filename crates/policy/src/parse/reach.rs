//! What looks like a mistake in rules: those that never matter, and exceptions that do not hold.

use std::cell::Cell;
use std::ops::Range;

use crate::error::{Source, Warning};
use crate::glob::{Compared, Glob};
use crate::policy::Policy;
use crate::rule::Rule;
use crate::words::{Action, Kind, Operation, Verdict};

/// Most pairs of globs that are compared for the warnings of a policy, which takes some hundredths of
/// a second. A warning is not worth a slow start.
const MAX_COMPARISONS: usize = 1 << 24;

/// At most a handful for each rule. `spans` are the places of the policy's rules.
pub(super) fn warnings(
    source: &Source<'_>,
    policy: &Policy,
    spans: &[Range<usize>],
) -> Vec<Warning> {
    let rules = Rules::of(policy);
    let enforced = policy.enforced();
    let enforced = enforced.as_ref().unwrap_or(policy);
    let mut warnings = Vec::new();
    for (number, span) in spans.iter().enumerate() {
        let mut warn = |message| warnings.push(source.warning(span.clone(), message));
        if let Some(message) = rules.never_reached(number) {
            warn(message);
        } else {
            rules.no_exception(number).into_iter().for_each(&mut warn);
            out_of_reach(enforced, rules.all[number].rule).into_iter().for_each(&mut warn);
        }
        alone(rules.all[number].rule, &mut warn);
    }
    warnings
}

/// What looks wrong about a rule by itself.
fn alone(rule: &Rule, warn: &mut impl FnMut(String)) {
    let changing = rule.operations.has(Operation::Write) || rule.operations.has(Operation::Create);
    if rule.action == Action::ReadOnly && !changing {
        warn("`read-only` refuses write and create; a rule about neither refuses nothing".into());
    }
    if !Kind::ALL.into_iter().any(|kind| may_be_about(rule, kind)) {
        warn("the rule never matches: size and content are those of regular files".into());
    }
}

/// The rules of a policy among each other.
struct Rules<'p> {
    policy: &'p Policy,
    all: Vec<Looked<'p>>,
    /// How many globs may still be compared.
    comparisons: Cell<usize>,
}

struct Looked<'p> {
    rule: &'p Rule,
    globs: Vec<Compared<'p>>,
}

impl<'p> Rules<'p> {
    fn of(policy: &'p Policy) -> Self {
        let look = |rule: &'p Rule| {
            let globs = rule.globs.iter().map(Compared::new).collect();
            Looked { rule, globs }
        };
        let all = policy.rules.iter().map(look).collect();
        Self { policy, all, comparisons: Cell::new(MAX_COMPARISONS) }
    }

    /// Whether a glob of `wide` covers all that `narrow` covers.
    fn covers(&self, wide: &Looked<'_>, narrow: &Compared<'_>) -> bool {
        let left = self.comparisons.get();
        let compared = wide.globs.iter().take(left).position(|one| one.includes(narrow));
        self.comparisons.set(left - compared.map_or(left.min(wide.globs.len()), |at| at + 1));
        compared.is_some()
    }

    /// Why the rule never matters, if that is so.
    fn never_reached(&self, number: usize) -> Option<String> {
        let later = &self.all[number];
        let name = &later.rule.name;
        let earlier = || self.all[..number].iter();
        if let Some((directory, first)) = native_around(later.rule, earlier().map(|it| it.rule)) {
            return Some(format!(
                "rule `{name}` is never reached: `{directory}` is native by rule `{}` on line {}",
                first.name, first.line
            ));
        }
        let first = (0..number).find(|first| self.makes_unreachable(*first, number))?;
        let first = self.all[first].rule;
        Some(format!(
            "rule `{name}` is never reached: rule `{}` on line {} matches all that it matches",
            first.name, first.line
        ))
    }

    /// Whether the rule `first` leaves nothing for the rule `later`.
    fn makes_unreachable(&self, first: usize, later: usize) -> bool {
        let (wide, narrow) = (&self.all[first], &self.all[later]);
        let (one, other) = (wide.rule, narrow.rule);
        // What is enforced holds as if what is only recorded were not there.
        let is_passed_over = one.audit_only && !other.audit_only;
        one.is_fixed()
            && !is_passed_over
            && Kind::ALL.into_iter().all(|kind| one.kinds.has(kind) || !may_be_about(other, kind))
            && narrow.globs.iter().all(|glob| self.covers(wide, glob))
            && self.settles_mode(first, other.action)
    }

    /// Whether the rule `first` leaves no question of the I/O mode to a rule of the action `later`.
    /// Rules that only restrict leave it to later ones, for what they, or rules before them, allow.
    fn settles_mode(&self, first: usize, later: Action) -> bool {
        let opens = |one: &Looked<'_>| Operation::ALL.into_iter().any(|it| allows(one.rule, it));
        let is_left = match (self.all[first].rule.action, later) {
            (Action::ReadOnly, _) => true,
            // What is encrypted stays so, whoever may open it.
            (Action::Deny | Action::Hide, Action::Seal) => true,
            (Action::Deny | Action::Hide, _) => self.all[..first].iter().any(opens),
            _ => false,
        };
        let has_one_mode = later == Action::Passthrough && !self.policy.takes_bytes();
        later.mode().is_none() || has_one_mode || !is_left
    }

    /// The rule that seems to be an exception to this `hide`, and is none. One that only refuses is not
    /// meant as one.
    fn no_exception(&self, number: usize) -> Option<String> {
        let hide = &self.all[number];
        if hide.rule.action != Action::Hide {
            return None;
        }
        let earlier = &self.all[..number];
        let first = earlier.iter().find(|first| {
            let share_a_kind = Kind::ALL
                .into_iter()
                .any(|kind| may_be_about(first.rule, kind) && hide.rule.kinds.has(kind));
            !first.rule.is_fixed()
                && share_a_kind
                && Operation::ALL.into_iter().any(|operation| allows(first.rule, operation))
                && (self.is_hidden_in_part(first, hide, earlier) || self.lets_see(first, hide))
        })?;
        Some(format!(
            "rule `{}` on line {} is no exception to this `hide`: names are hidden from everyone; only \
             a rule without operation, caller, size and content can be one",
            first.rule.name, first.rule.line
        ))
    }

    /// Whether all that one glob of the rule covers is hidden: no rule in `earlier` may show some of it
    /// to everyone.
    fn is_hidden_in_part(
        &self,
        rule: &Looked<'_>,
        hide: &Looked<'_>,
        earlier: &[Looked<'_>],
    ) -> bool {
        let shows = |one: &Looked<'_>, glob: &Compared<'_>| {
            one.rule.is_fixed() && one.rule.globs.iter().any(|it| it.may_overlap(glob.glob()))
        };
        let is_shown = |glob: &Compared<'_>| earlier.iter().any(|one| shows(one, glob));
        rule.globs.iter().any(|glob| self.covers(hide, glob) && !is_shown(glob))
    }

    /// Whether the rule lets somebody see what it covers, which is all of a glob of `hide`.
    fn lets_see(&self, rule: &Looked<'_>, hide: &Looked<'_>) -> bool {
        matches!(rule.rule.action, Action::Passthrough | Action::ReadOnly)
            && (allows(rule.rule, Operation::Read) || allows(rule.rule, Operation::List))
            && hide.globs.iter().any(|glob| self.covers(rule, glob))
    }
}

/// Whether the rule is about the operation, and allows it.
fn allows(rule: &Rule, operation: Operation) -> bool {
    rule.operations.has(operation) && rule.action.verdict(operation) == Verdict::Allow
}

/// Whether the rule can hold for inodes of this kind.
fn may_be_about(rule: &Rule, kind: Kind) -> bool {
    let any_kind = rule.size.is_none() && rule.content.is_none();
    rule.kinds.has(kind) && (any_kind || kind == Kind::File)
}

/// The native directory that everything lies in that the rule is about, if there is one.
fn native_around<'r>(
    rule: &Rule,
    mut earlier: impl Iterator<Item = &'r Rule>,
) -> Option<(String, &'r Rule)> {
    earlier.find_map(|first| {
        let within = |directory: &String| {
            rule.globs.iter().all(|glob| glob.lies_within(directory.as_bytes()))
        };
        Some((first.native_directories().find(within)?, first))
    })
}

/// What of the rule lies in a directory that is hidden: each native directory, or the first of other
/// places that the rule lets be seen.
fn out_of_reach(policy: &Policy, rule: &Rule) -> Vec<String> {
    let lets_see = !matches!(rule.action, Action::Deny | Action::Hide);
    if !policy.can_hide() || !lets_see || !rule.is_fixed() {
        return Vec::new();
    }
    let hidden = |path: &str| {
        let hiding = policy.rule(policy.hidden(path.as_bytes(), Kind::Directory)?);
        Some(format!(
            "rule `{}` on line {} hides `{path}`; allow the directories on the way before it",
            hiding.name, hiding.line
        ))
    };
    if rule.action != Action::Native {
        let mut above = rule.globs.iter().flat_map(Glob::directories_above);
        let found = above.find_map(|path| Some((hidden(&path)?, path)));
        let said = found.map(|(why, path)| format!("nothing below `{path}` can be reached: {why}"));
        return said.into_iter().collect();
    }
    let found = |directory: String| {
        let mut above = directory.match_indices('/').map(|(end, _)| &directory[..end]);
        Some(format!("`{directory}` cannot be reached: {}", above.find_map(hidden)?))
    };
    rule.native_directories().filter_map(found).collect()
}
