//! What rules may not combine, and what looks like a mistake.

use std::ops::Range;

use toml::de::DeTable;

use super::values;

use crate::error::{PolicyError, Problem, Source, Warning};
use crate::glob::Glob;
use crate::limits::MAX_NATIVE;
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
        Action::Redact => (&["operation", "exe", "uid", "gid"], Problem::RedactCondition),
        Action::Seal => {
            (&["size", "content", "operation", "exe", "uid", "gid"], Problem::SealCondition)
        }
        Action::Native => (
            &["kind", "size", "content", "operation", "exe", "uid", "gid"],
            Problem::NativeCondition,
        ),
        Action::Passthrough | Action::ReadOnly | Action::Deny => (&[], Problem::HideCondition),
    };
    if rule.action != Action::Native
        && let Some((found, _)) = table.get_key_value("create")
    {
        return Err(source.error(found.span(), Problem::CreateWithoutNative(rule.action)));
    }
    if !rule.refuses()
        && rule.audit_only
        && let Some((found, _)) = table.get_key_value("mode")
    {
        return Err(source.error(found.span(), Problem::NothingToAudit(rule.action)));
    }
    for key in refused {
        if let Some((found, _)) = table.get_key_value(*key) {
            return Err(source.error(found.span(), problem(key)));
        }
    }
    Ok(())
}

/// Refuses wildcards in the path of a `native` rule.
pub(super) fn literal_if_native(
    source: &Source<'_>,
    path: &values::Value<'_>,
    rule: &Rule,
) -> Result<(), PolicyError> {
    if rule.action != Action::Native {
        return Ok(());
    }
    let wild = rule.glob_texts.iter().find(|text| text.contains(['*', '?', '[', '{', '\\']));
    match wild {
        Some(text) => Err(source.error(path.span(), Problem::NativeGlob(text.clone()))),
        None => Ok(()),
    }
}

/// Refuses `native` rules that an earlier rule could reach into: the kernel asks nobody about what
/// is native, so that the earlier rule would not hold there.
pub(super) fn native(
    source: &Source<'_>,
    rules: &[(Rule, Range<usize>)],
) -> Result<(), PolicyError> {
    let mut directories = 0;
    for (number, (rule, span)) in rules.iter().enumerate() {
        for directory in rule.native_directories() {
            directories += 1;
            if directories > MAX_NATIVE {
                return Err(source.error(span.clone(), Problem::TooManyNative));
            }
            let mut earlier = rules[..number].iter().map(|(rule, _)| rule);
            if let Some(first) = earlier.find(|first| restricts_within(first, &directory)) {
                let (rule, line) = (first.name.clone(), first.line);
                let problem = Problem::NativeReached { directory, rule, line };
                return Err(source.error(span.clone(), problem));
            }
        }
    }
    Ok(())
}

/// Refuses `seal` rules after one that looks at the content or the size of files that both may be
/// about: that is judged by what lies below, which is encrypted. A key would not be found, and a
/// small file be a large one.
pub(super) fn sealed(
    source: &Source<'_>,
    rules: &[(Rule, Range<usize>)],
) -> Result<(), PolicyError> {
    for (number, (rule, span)) in rules.iter().enumerate() {
        if rule.action != Action::Seal {
            continue;
        }
        let mut earlier = rules[..number].iter().map(|(rule, _)| rule);
        if let Some(first) = earlier.find(|first| first.judges_what_is_sealed_by(rule)) {
            let (rule, line) = (first.name.clone(), first.line);
            let condition = if first.content.is_some() { "content" } else { "size" };
            let problem = Problem::SealedJudged { rule, line, condition };
            return Err(source.error(span.clone(), problem));
        }
    }
    Ok(())
}

/// Whether the rule may refuse, or show to the server, something at or below the directory.
fn restricts_within(rule: &Rule, directory: &str) -> bool {
    let reaches = |glob: &Glob| glob.reaches_into(directory.as_bytes());
    !matches!(rule.action, Action::Passthrough | Action::Native) && rule.globs.iter().any(reaches)
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
        } else if let Some((directory, first)) = native_around(rule, earlier()) {
            warn(format!(
                "rule `{}` is never reached: `{directory}` is native by rule `{}` on line {}",
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
        for (directory, above, first) in hidden_on_the_way(rule, rules) {
            warn(format!(
                "`{directory}` cannot be reached: rule `{}` on line {} hides `{above}`; allow the \
                 directories on the way before it",
                first.name, first.line
            ));
        }
        alone(rule, &mut warn);
    }
    warnings
}

/// What looks wrong about a rule by itself.
fn alone(rule: &Rule, warn: &mut impl FnMut(String)) {
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

/// The native directories of the rule that lie in a hidden one: with that one, and the rule that
/// hides it.
fn hidden_on_the_way<'r>(
    rule: &Rule,
    rules: &'r [(Rule, Range<usize>)],
) -> Vec<(String, String, &'r Rule)> {
    let decides = |rule: &Rule, path: &str| {
        let covers = |glob: &Glob| glob.covers(path.as_bytes());
        rule.is_fixed() && rule.kinds.has(Kind::Directory) && rule.globs.iter().any(covers)
    };
    let hidden_by = |path: &str| {
        let first = rules.iter().map(|(rule, _)| rule).find(|rule| decides(rule, path));
        first.filter(|rule| rule.action == Action::Hide)
    };
    let found = |directory: String| {
        let mut above = directory.match_indices('/').map(|(end, _)| &directory[..end]);
        let (above, first) = above.find_map(|path| Some((path.to_owned(), hidden_by(path)?)))?;
        Some((directory, above, first))
    };
    rule.native_directories().filter_map(found).collect()
}

/// Long lists are not compared: a warning is not worth a slow start.
fn comparable(one: &Rule, other: &Rule) -> bool {
    one.globs.len() * other.globs.len() <= MAX_COMPARISONS
}

fn share_glob(one: &Rule, other: &Rule) -> bool {
    one.globs.iter().any(Glob::is_everything)
        || comparable(one, other) && one.globs.iter().any(|glob| other.globs.contains(glob))
}
