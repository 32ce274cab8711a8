//! From the text of a policy to its rules, with a place for every mistake.

mod body;
mod check;
mod lint;
mod made;
mod reach;
mod rule;
mod values;
mod views;

use std::ops::Range;

use toml::de::DeTable;

use crate::budget::Budget;
use crate::error::{PolicyError, Problem, Source};
use crate::limits::MAX_TEXT_LEN;
use crate::names::{Names, NoNames};
use crate::policy::Policy;
use crate::policy_file::PolicyFile;

impl Policy {
    /// Reads a policy. `origin` names it in errors, as in `policy.toml:7:10: ...`. Views that the
    /// text has besides (`[[view]]`) are checked and left out; see [`PolicyFile::parse_with`].
    ///
    /// # Errors
    /// The first mistake in the text: where it is, what was found, what is allowed.
    pub fn parse(text: &str, origin: &str) -> Result<Self, PolicyError> {
        file(&Source { text, origin, names: &NoNames, tried: false, budget: Budget::default() })
            .map(|file| file.policy)
    }

    /// As [`Policy::parse`], for a text that it answered with a policy before, as tests do with texts
    /// that are built in: regular expressions are compiled, for up to a few milliseconds each, when
    /// the first file is judged by them. It has no warnings, as nobody wrote its globs who could write
    /// others.
    ///
    /// # Errors
    /// As [`Policy::parse`], but for what is wrong in regular expressions, which is a panic when a
    /// file is judged by them.
    pub fn parse_tried(text: &str, origin: &str) -> Result<Self, PolicyError> {
        let source =
            Source { text, origin, names: &NoNames, tried: true, budget: Budget::default() };
        let mut policy = file(&source)?.policy;
        policy.warnings.clear();
        Ok(policy)
    }

    /// As [`Policy::parse`], where rules may name users and groups that `names` finds.
    ///
    /// # Errors
    /// As [`Policy::parse`].
    pub fn parse_with(text: &str, origin: &str, names: &dyn Names) -> Result<Self, PolicyError> {
        file(&Source { text, origin, names, tried: false, budget: Budget::default() })
            .map(|file| file.policy)
    }
}

impl PolicyFile {
    /// Reads a policy file. `origin` names it in errors; rules may name users and groups that
    /// `names` finds.
    ///
    /// # Errors
    /// As [`Policy::parse`], for the policy of DIR and those of all views.
    pub fn parse_with(text: &str, origin: &str, names: &dyn Names) -> Result<Self, PolicyError> {
        file(&Source { text, origin, names, tried: false, budget: Budget::default() })
    }
}

fn file(source: &Source<'_>) -> Result<PolicyFile, PolicyError> {
    let text = source.text;
    if text.len() > MAX_TEXT_LEN {
        let problem = Problem::TooLong { found: text.len(), allowed: MAX_TEXT_LEN };
        return Err(source.error(0..0, problem));
    }
    let document = DeTable::parse(text).map_err(|error| syntax(source, &error))?;
    let table = document.get_ref();
    values::check_keys(source, table, "a policy", &[body::KEYS, &["view"]].concat())?;
    Ok(PolicyFile { policy: body::policy(source, table)?, views: views::entries(source, table)? })
}

fn syntax(source: &Source<'_>, error: &toml::de::Error) -> PolicyError {
    let span = error.span().unwrap_or(0..0);
    let mut message = error.message().trim().replace('\n', "; ");
    if message == "duplicate key" {
        message += &duplicate(source, &span).unwrap_or_default();
    }
    source.error(span, Problem::Syntax(message))
}

/// Which key stands there for a second time, and where the first is, if that begins a line.
fn duplicate(source: &Source<'_>, second: &Range<usize>) -> Option<String> {
    /// Most lines that are looked at more closely, as each takes reading all before it.
    const MAX_LIKELY: usize = 8;
    let key = source.text.get(second.clone())?.trim_matches(['"', '\'']);
    let before = &source.text[..second.start];
    let starts = || std::iter::once(0).chain(before.match_indices('\n').map(|(at, _)| at + 1));
    let line = |start: usize| before[start..].trim_start_matches([' ', '\t']);
    let header = starts().rfind(|start| line(*start).starts_with('[')).unwrap_or(0);
    let is_likely = |start: &usize| {
        let rest = line(*start).trim_start_matches(['"', '\'']).strip_prefix(key);
        let rest = rest.map(|rest| rest.trim_start_matches(['"', '\'', ' ', '\t']));
        *start >= header && rest.is_some_and(|rest| rest.starts_with('='))
    };
    // In a string of several lines, what is before is not whole.
    let is_key = |start: &usize| DeTable::parse(&before[..*start]).is_ok();
    let first = starts().filter(is_likely).take(MAX_LIKELY).find(is_key);
    let first = first.map(|start| source.place(start..start).line);
    let place = first.map(|line| format!("; the first is on line {line}")).unwrap_or_default();
    Some(format!(" `{key}`{place}"))
}
