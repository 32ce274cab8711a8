//! What rules may not combine.

use std::ops::Range;

use toml::de::DeTable;

use super::values;

use crate::error::{PolicyError, Problem, Source};
use crate::glob::{Glob, has_special};
use crate::limits::MAX_NATIVE;
use crate::rule::Rule;
use crate::words::Action;

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
    let wild = rule.glob_texts.iter().find(|text| has_special(text, &['*', '?', '[', '{']));
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
