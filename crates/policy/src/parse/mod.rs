//! From the text of a policy to its rules, with a place for every mistake.

mod check;
mod rule;
mod values;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{PolicyError, Problem, Source};
use crate::limits::{MAX_GLOBS, MAX_RULES, MAX_TEXT_LEN};
use crate::policy::Policy;
use crate::rule::Rule;
use crate::words::Action;

impl Policy {
    /// Reads a policy. `origin` names it in errors, as in `policy.toml:7:10: ...`.
    ///
    /// # Errors
    /// The first mistake in the text: where it is, what was found, what is allowed.
    pub fn parse(text: &str, origin: &str) -> Result<Self, PolicyError> {
        parse(text, origin)
    }
}

fn parse(text: &str, origin: &str) -> Result<Policy, PolicyError> {
    let source = Source { text, origin };
    if text.len() > MAX_TEXT_LEN {
        let problem = Problem::TooLong { found: text.len(), allowed: MAX_TEXT_LEN };
        return Err(source.error(0..0, problem));
    }
    let document = DeTable::parse(text).map_err(|error| syntax(&source, &error))?;
    let table = document.get_ref();
    values::check_keys(&source, table, "a policy", &["default", "rule"])?;
    let default = match table.get("default") {
        Some(value) => default_action(&source, value)?,
        None => Action::Passthrough,
    };
    let rules = match table.get("rule") {
        Some(value) => rules(&source, value)?,
        None => Vec::new(),
    };
    check::native(&source, &rules)?;
    let warnings = check::warnings(&source, &rules);
    Ok(Policy::new(default, rules.into_iter().map(|(rule, _)| rule).collect(), warnings))
}

fn syntax(source: &Source<'_>, error: &toml::de::Error) -> PolicyError {
    let span = error.span().unwrap_or(0..0);
    source.error(span, Problem::Syntax(error.message().trim().replace('\n', "; ")))
}

fn default_action(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
) -> Result<Action, PolicyError> {
    match rule::action(source, "default", value)? {
        Action::Hide => Err(source.error(value.span(), Problem::HideByDefault)),
        Action::Native => Err(source.error(value.span(), Problem::NativeByDefault)),
        action => Ok(action),
    }
}

/// The rules with where their first lines are.
fn rules(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
) -> Result<Vec<(Rule, std::ops::Range<usize>)>, PolicyError> {
    let wrong_type = |value: &Spanned<DeValue<'_>>| {
        let found = values::type_name(value.get_ref());
        let allowed = "tables, each headed `[[rule]]`";
        source.error(value.span(), Problem::Type { key: "rule", found, allowed })
    };
    let Some(list) = value.get_ref().as_array() else { return Err(wrong_type(value)) };
    let mut rules: Vec<(Rule, std::ops::Range<usize>)> = Vec::new();
    let mut globs = 0;
    for one in list {
        let Some(table) = one.get_ref().as_table() else { return Err(wrong_type(one)) };
        if rules.len() == MAX_RULES {
            return Err(source.error(one.span(), Problem::TooManyRules));
        }
        let rule = rule::rule(source, one.span(), table, &rules)?;
        globs += rule.globs.len();
        if globs > MAX_GLOBS {
            return Err(source.error(one.span(), Problem::TooManyGlobs));
        }
        rules.push((rule, one.span()));
    }
    Ok(rules)
}
