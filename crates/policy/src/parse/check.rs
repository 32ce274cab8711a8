//! What rules may not combine, and what looks like a mistake.

use std::ops::Range;

use toml::de::DeTable;

use crate::error::{PolicyError, Problem, Source, Warning};
use crate::glob::Glob;
use crate::rule::Rule;
use crate::words::{Action, Kind, Operation};

/// Most pairs of globs that are compared for a warning about two rules.
const MAX_COMPARISONS: usize = 1024;

/// Refuses conditions that the kernel cannot honour for the rule's action.
pub(super) fn conditions(
    source: &Source<'_>,
    table: &DeTable<'_>,
    rule: &Rule,
) -> Result<(), PolicyError> {
    type Refusal = fn(&'static str) -> Problem;
    let (refused, problem): (&[&'static str], Refusal) = match rule.action {
        Action::Hide => {
            (&["operation", "exe", "uid", "gid", "size", "content"], Problem::HideCondition)
        }
        Action::Userspace => (&["operation", "exe", "uid", "gid"], Problem::ModeCondition),
        Action::Passthrough | Action::ReadOnly | Action::Deny => return Ok(()),
    };
    for key in refused {
        if let Some((found, _)) = table.get_key_value(*key) {
            return Err(source.error(found.span(), problem(key)));
        }
    }
    Ok(())
}

/// At most a handful for each rule.
pub(super) fn warnings(source: &Source<'_>, rules: &[(Rule, Range<usize>)]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for (number, (rule, span)) in rules.iter().enumerate() {
        let mut warn = |message| warnings.push(source.warning(span.clone(), message));
        let earlier = || rules[..number].iter().map(|(rule, _)| rule);
        if let Some(first) = earlier().find(|first| makes_unreachable(first, rule)) {
            warn(format!(
                "rule `{}` is never reached: rule `{}` on line {} matches all that it matches",
                rule.name, first.name, first.line
            ));
        }
        if rule.action == Action::Hide
            && let Some(first) =
                earlier().find(|first| !first.is_fixed() && share_glob(first, rule))
        {
            warn(format!(
                "rule `{}` on line {} is no exception to this `hide`: names are hidden from everyone; only \
                 a rule without operation, caller, size and content can be one",
                first.name, first.line
            ));
        }
        alone(rule, &mut warn);
    }
    warnings
}

/// What looks wrong about a rule by itself.
fn alone(rule: &Rule, warn: &mut impl FnMut(String)) {
    for glob in &rule.glob_texts {
        if !glob.contains('/') && glob.contains(['*', '?', '[']) && !matches!(&**glob, "*" | "**") {
            warn(format!(
                "glob `{glob}` matches at the top of DIR only; write `**/{glob}` for every directory"
            ));
        }
    }
    let changing = rule.operations.has(Operation::Write) || rule.operations.has(Operation::Create);
    if rule.action == Action::ReadOnly && !changing {
        warn("`read-only` refuses write and create; a rule about neither refuses nothing".into());
    }
    if (rule.size.is_some() || rule.content.is_some()) && !rule.kinds.has(Kind::File) {
        warn("the rule never matches: size and content are those of regular files".into());
    }
}

/// Whether nothing is left for `later`. A rule that restricts without settling the I/O mode
/// (`read-only`) leaves that to later ones.
fn makes_unreachable(first: &Rule, later: &Rule) -> bool {
    let settles = first.action != Action::ReadOnly || later.action.mode().is_none();
    let kinds = Kind::ALL.into_iter().all(|kind| first.kinds.has(kind) || !later.kinds.has(kind));
    let everything = || first.globs.iter().any(Glob::is_everything);
    let each =
        || comparable(first, later) && later.globs.iter().all(|glob| first.globs.contains(glob));
    first.is_fixed() && settles && kinds && (everything() || each())
}

/// Long lists are not compared: a warning is not worth a slow start.
fn comparable(one: &Rule, other: &Rule) -> bool {
    one.globs.len() * other.globs.len() <= MAX_COMPARISONS
}

fn share_glob(one: &Rule, other: &Rule) -> bool {
    one.globs.iter().any(Glob::is_everything)
        || comparable(one, other) && one.globs.iter().any(|glob| other.globs.contains(glob))
}
