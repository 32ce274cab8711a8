//! The policy of a directory: default, mode and rules.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{check, lint, reach, rule, values};
use crate::error::{PolicyError, Problem, Source, Warning};
use crate::limits::MAX_RULES;
use crate::policy::Policy;
use crate::rule::Rule;
use crate::words::Action;

/// The keys of a policy.
pub(super) const KEYS: &[&str] = &["default", "mode", "rule"];

/// The policy that a table has.
pub(super) fn policy(source: &Source<'_>, table: &DeTable<'_>) -> Result<Policy, PolicyError> {
    let default = match table.get("default") {
        Some(value) => default_action(source, value)?,
        None => Action::Passthrough,
    };
    let audit_only = table.get("mode").map_or(Ok(false), |value| rule::is_audit(source, value))?;
    let mut warnings = Vec::new();
    let rules = match table.get("rule") {
        Some(value) => rules(source, value, audit_only, &mut warnings)?,
        None => Vec::new(),
    };
    check::native(source, &rules)?;
    check::sealed(source, &rules)?;
    let (rules, spans): (Vec<_>, Vec<_>) = rules.into_iter().unzip();
    let mut policy = Policy::new(default, rules, Vec::new());
    policy.audits_default = audit_only && default.refuses();
    warnings.extend(reach::warnings(source, &policy, &spans));
    warnings.sort_by_key(|warning| (warning.line(), warning.column()));
    policy.warnings = warnings;
    Ok(policy)
}

fn default_action(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
) -> Result<Action, PolicyError> {
    match rule::action(source, "default", value)? {
        Action::Hide => Err(source.error(value.span(), Problem::HideByDefault)),
        Action::Native => Err(source.error(value.span(), Problem::NativeByDefault)),
        action @ (Action::Redact | Action::Seal) => {
            Err(source.error(value.span(), Problem::MadeByDefault(action)))
        }
        action => Ok(action),
    }
}

/// The rules with where their first lines are; `audit_only` is the mode of those that have none of
/// their own. What looks wrong about their globs goes to `warnings`.
fn rules(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
    audit_only: bool,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<(Rule, std::ops::Range<usize>)>, PolicyError> {
    let wrong_type = |value: &Spanned<DeValue<'_>>| {
        let found = values::type_name(value.get_ref());
        let allowed = "tables, each headed `[[rule]]`";
        source.error(value.span(), Problem::Type { key: "rule", found, allowed })
    };
    let Some(list) = value.get_ref().as_array() else { return Err(wrong_type(value)) };
    let mut rules: Vec<(Rule, std::ops::Range<usize>)> = Vec::new();
    for one in list {
        let Some(table) = one.get_ref().as_table() else { return Err(wrong_type(one)) };
        if rules.len() == MAX_RULES {
            return Err(source.error(one.span(), Problem::TooManyRules));
        }
        let rule = rule::rule(source, one.span(), table, audit_only, &rules)?;
        warnings.extend(lint::globs(source, table, &rule));
        warnings.extend(lint::executables(source, table, &rule));
        rules.push((rule, one.span()));
    }
    Ok(rules)
}
