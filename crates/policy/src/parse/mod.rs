//! From the text of a policy to its rules, with a place for every mistake.

mod check;
mod lint;
mod made;
mod rule;
mod values;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{PolicyError, Problem, Source, Warning};
use crate::limits::{MAX_GLOBS, MAX_RULES, MAX_TEXT_LEN};
use crate::names::{Names, NoNames};
use crate::policy::Policy;
use crate::rule::Rule;
use crate::words::Action;

impl Policy {
    /// Reads a policy. `origin` names it in errors, as in `policy.toml:7:10: ...`.
    ///
    /// # Errors
    /// The first mistake in the text: where it is, what was found, what is allowed.
    pub fn parse(text: &str, origin: &str) -> Result<Self, PolicyError> {
        parse(&Source { text, origin, names: &NoNames, tried: false })
    }

    /// As [`Policy::parse`], for a text that it answered with a policy before, as tests do with texts
    /// that are built in: regular expressions are compiled, for up to a few milliseconds each, when
    /// the first file is judged by them.
    ///
    /// # Errors
    /// As [`Policy::parse`], but for what is wrong in regular expressions, which is a panic when a
    /// file is judged by them.
    pub fn parse_tried(text: &str, origin: &str) -> Result<Self, PolicyError> {
        parse(&Source { text, origin, names: &NoNames, tried: true })
    }

    /// As [`Policy::parse`], where rules may name users and groups that `names` finds.
    ///
    /// # Errors
    /// As [`Policy::parse`].
    pub fn parse_with(text: &str, origin: &str, names: &dyn Names) -> Result<Self, PolicyError> {
        parse(&Source { text, origin, names, tried: false })
    }
}

fn parse(source: &Source<'_>) -> Result<Policy, PolicyError> {
    let text = source.text;
    if text.len() > MAX_TEXT_LEN {
        let problem = Problem::TooLong { found: text.len(), allowed: MAX_TEXT_LEN };
        return Err(source.error(0..0, problem));
    }
    let document = DeTable::parse(text).map_err(|error| syntax(source, &error))?;
    let table = document.get_ref();
    values::check_keys(source, table, "a policy", &["default", "mode", "rule"])?;
    let default = match table.get("default") {
        Some(value) => default_action(source, value)?,
        None => Action::Passthrough,
    };
    let mut warnings = Vec::new();
    let rules = match table.get("rule") {
        Some(value) => rules(source, value, &mut warnings)?,
        None => Vec::new(),
    };
    let audit_only = table.get("mode").map_or(Ok(false), |value| rule::is_audit(source, value))?;
    check::native(source, &rules)?;
    warnings.extend(check::warnings(source, &rules));
    warnings.sort_by_key(|warning| (warning.line(), warning.column()));
    let mut rules: Vec<_> = rules.into_iter().map(|(rule, _)| rule).collect();
    rules.iter_mut().for_each(|rule| rule.audit_only |= audit_only && rule.refuses());
    let mut policy = Policy::new(default, rules, warnings);
    policy.audits_default = audit_only && default.refuses();
    Ok(policy)
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
        action @ (Action::Redact | Action::Seal) => {
            Err(source.error(value.span(), Problem::MadeByDefault(action)))
        }
        action => Ok(action),
    }
}

/// The rules with where their first lines are. What looks wrong about their globs goes to
/// `warnings`.
fn rules(
    source: &Source<'_>,
    value: &Spanned<DeValue<'_>>,
    warnings: &mut Vec<Warning>,
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
        warnings.extend(lint::globs(source, table, &rule));
        rules.push((rule, one.span()));
    }
    Ok(rules)
}
