//! What only `redact` and `seal` rules have: what is masked, and what files are bound to.

use std::sync::Arc;

use regex::bytes::RegexBuilder;
use tollgate_redact::{DEFAULT_FILE_MAX, Detector, Detectors, OwnRegex};
use toml::de::DeTable;

use super::values;
use crate::budget;
use crate::error::{PolicyError, Problem, Source};
use crate::limits::{MAX_DOMAIN_LEN, MAX_REGEXES};
use crate::redaction::Redaction;
use crate::words::Action;

/// What a `redact` rule masks. Its keys are refused in other rules.
pub(super) fn redaction(
    source: &Source<'_>,
    table: &DeTable<'_>,
    action: Action,
) -> Result<Option<Arc<Redaction>>, PolicyError> {
    if action != Action::Redact {
        for key in ["detectors", "regexes", "max_size"] {
            refuse(source, table, key, (Action::Redact, action))?;
        }
        return Ok(None);
    }
    let regexes = own(source, table)?;
    let max_size = table.get("max_size").map(|value| values::size(source, "max_size", value));
    Ok(Some(Arc::new(Redaction {
        detectors: detectors(source, table, !regexes.is_empty())?,
        regexes,
        max_size: max_size.transpose()?.unwrap_or(DEFAULT_FILE_MAX),
    })))
}

fn refuse(
    source: &Source<'_>,
    table: &DeTable<'_>,
    key: &'static str,
    (belongs, action): (Action, Action),
) -> Result<(), PolicyError> {
    let Some((found, _)) = table.get_key_value(key) else { return Ok(()) };
    Err(source.error(found.span(), Problem::KeyOfOther { key, belongs, action }))
}

/// The detectors named; without any the default ones, unless there are expressions.
fn detectors(
    source: &Source<'_>,
    table: &DeTable<'_>,
    has_regexes: bool,
) -> Result<Vec<Detector>, PolicyError> {
    let Some(value) = table.get("detectors") else {
        return Ok(if has_regexes { Vec::new() } else { Detectors::DEFAULT.to_vec() });
    };
    let advice = "leave it out for the default ones";
    let mut detectors = Vec::new();
    for word in values::strings(source, "detectors", value, advice)? {
        match word.text.parse() {
            Ok(detector) => detectors.push(detector),
            Err(unknown) => return Err(source.error(word.span, Problem::Detector(unknown))),
        }
    }
    detectors.sort_unstable();
    detectors.dedup();
    Ok(detectors)
}

/// The table `regexes`: names with expressions.
fn own(source: &Source<'_>, table: &DeTable<'_>) -> Result<Vec<OwnRegex>, PolicyError> {
    let Some(value) = table.get("regexes") else { return Ok(Vec::new()) };
    let allowed = "a table of names with expressions, such as { ticket = 'ACME-[0-9]{8}' }";
    let regexes = values::table(source, "regexes", value, allowed)?;
    if regexes.is_empty() {
        let advice = "leave it out, or give a name and an expression";
        return Err(source.error(value.span(), values::empty("regexes", advice)));
    }
    if regexes.len() > MAX_REGEXES {
        return Err(source.error(value.span(), Problem::TooManyRegexes));
    }
    let mut all = Vec::with_capacity(regexes.len());
    for (name, value) in regexes {
        let text = values::string(source, "regexes", value)?;
        values::refuse_regex(source, &text)?;
        all.push(
            OwnRegex::new(name.get_ref(), text.text).map_err(|error| {
                source.error(text.span.clone(), Problem::Regex(error.to_string()))
            })?,
        );
        let built =
            budget::build(RegexBuilder::new(text.text).multi_line(true), OwnRegex::SIZE_MAX);
        let weight = built.map_or(OwnRegex::SIZE_MAX, |(_, weight)| weight);
        let taken = source.budget.take_regex(weight);
        taken.map_err(|over| source.error(text.span, over.into()))?;
    }
    Ok(all)
}

/// What the files of a `seal` rule are bound to.
pub(super) fn domain(
    source: &Source<'_>,
    table: &DeTable<'_>,
    action: Action,
) -> Result<Option<Arc<str>>, PolicyError> {
    if action != Action::Seal {
        refuse(source, table, "domain", (Action::Seal, action))?;
        return Ok(None);
    }
    let Some(value) = table.get("domain") else { return Ok(None) };
    let text = values::string(source, "domain", value)?;
    if text.text.is_empty() || text.text.len() > MAX_DOMAIN_LEN {
        return Err(source.error(text.span, Problem::DomainLength { found: text.text.len() }));
    }
    Ok(Some(text.text.into()))
}
