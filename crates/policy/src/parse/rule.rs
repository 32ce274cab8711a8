//! One `[[rule]]` table.

use std::ops::{Range, RangeInclusive};

use toml::de::DeTable;

use super::check;
use super::made;
use super::values::{self, Text, Value, check_keys};
use crate::error::{PolicyError, Problem, Source};
use crate::glob::{Glob, GlobError, compile_exe, compile_path};
use crate::limits::HEAD_LEN;
use crate::rule::{CallerCondition, Content, Pattern, Rule};
use crate::words::{Action, Kind, KindSet, Operation, OperationSet, UnknownWord};

const KEYS: [&str; 16] = [
    "name",
    "path",
    "kind",
    "size",
    "content",
    "operation",
    "exe",
    "uid",
    "gid",
    "action",
    "mode",
    "create",
    "detectors",
    "regexes",
    "max_size",
    "domain",
];
/// Most characters of a glob in an error.
const SHOWN_OF_A_GLOB: usize = 200;
const EVERYTHING: &str = "write `path = \"**\"` for everything";

/// Reads one rule; `audit_only` is the mode of the policy, `earlier` are the rules before it.
pub(super) fn rule(
    source: &Source<'_>,
    span: Range<usize>,
    table: &DeTable<'_>,
    audit_only: bool,
    earlier: &[(Rule, Range<usize>)],
) -> Result<Rule, PolicyError> {
    check_keys(source, table, "a rule", &KEYS)?;
    let missing = |key, advice| source.error(span.clone(), Problem::Missing { key, advice });
    let get = |key: &str| table.get(key);
    let name = name(source, span.clone(), get("name"), earlier)?;
    let path = get("path").ok_or_else(|| missing("path", EVERYTHING))?;
    let (globs, glob_texts) = paths(source, path)?;
    let action_value = get("action").ok_or_else(|| {
        let advice = "allowed: passthrough, read-only, deny, hide, userspace, native, redact, seal";
        missing("action", advice)
    })?;
    let action = action(source, "action", action_value)?;
    if action == Action::Seal && get("domain").is_none() {
        let advice = "write `domain = \"NAME\"`; files are bound to it, and open under no other";
        return Err(missing("domain", advice));
    }
    let rule = Rule {
        name,
        line: source.place(span).line,
        action,
        globs,
        glob_texts,
        kinds: get("kind").map_or(Ok(KindSet::ALL), |value| kinds(source, value))?,
        operations: get("operation")
            .map_or(Ok(OperationSet::all()), |value| operations(source, value))?,
        size: get("size").map(|value| size_range(source, value)).transpose()?,
        content: get("content").map(|value| content(source, value)).transpose()?,
        caller: caller(source, table)?,
        create: get("create")
            .map_or(Ok(false), |value| values::boolean(source, "create", value))?,
        audit_only: get("mode")
            .map_or(Ok(audit_only && action.refuses()), |value| is_audit(source, value))?,
        redaction: made::redaction(source, table, action)?,
        domain: made::domain(source, table, action)?,
    };
    check::conditions(source, table, &rule)?;
    check::literal_if_native(source, path, &rule)?;
    Ok(rule)
}

/// Reads `mode`, of a rule or of the policy: whether refusals are only recorded.
pub(super) fn is_audit(source: &Source<'_>, value: &Value<'_>) -> Result<bool, PolicyError> {
    let word = values::string(source, "mode", value)?;
    match word.text {
        "enforce" => Ok(false),
        "audit" => Ok(true),
        other => Err(source.error(word.span, Problem::RuleMode(other.to_owned()))),
    }
}

/// Reads an action, also for the default.
pub(super) fn action(
    source: &Source<'_>,
    key: &'static str,
    value: &Value<'_>,
) -> Result<Action, PolicyError> {
    let word = values::string(source, key, value)?;
    parse_word(source, &word)
}

fn parse_word<T: std::str::FromStr<Err = UnknownWord>>(
    source: &Source<'_>,
    word: &Text<'_>,
) -> Result<T, PolicyError> {
    word.text.parse().map_err(|unknown| source.error(word.span.clone(), Problem::Word(unknown)))
}

/// The name given, or `rule N`.
fn name(
    source: &Source<'_>,
    rule: Range<usize>,
    value: Option<&Value<'_>>,
    earlier: &[(Rule, Range<usize>)],
) -> Result<String, PolicyError> {
    let only_one = |name: String, span| match earlier.iter().find(|(rule, _)| rule.name == name) {
        Some((first, _)) => {
            Err(source.error(span, Problem::DuplicateName { name, first: first.line }))
        }
        None => Ok(name),
    };
    let Some(value) = value else { return only_one(format!("rule {}", earlier.len() + 1), rule) };
    let text = values::string(source, "name", value)?;
    if text.text.is_empty() {
        let advice = "leave it out to have the rule numbered";
        return Err(source.error(text.span, values::empty("name", advice)));
    }
    // It stands in answers of several lines, which whoever writes in DIR would write.
    if text.text.chars().any(char::is_control) {
        return Err(source.error(text.span, Problem::NameControls));
    }
    only_one(text.text.to_owned(), text.span)
}

fn paths(source: &Source<'_>, value: &Value<'_>) -> Result<(Vec<Glob>, Vec<String>), PolicyError> {
    let texts = values::strings(source, "path", value, EVERYTHING)?;
    let globs = globs(source, &texts, compile_path)?;
    Ok((globs, texts.into_iter().map(|text| text.text.to_owned()).collect()))
}

fn globs(
    source: &Source<'_>,
    texts: &[Text<'_>],
    compile: fn(&str) -> Result<Vec<Glob>, GlobError>,
) -> Result<Vec<Glob>, PolicyError> {
    let mut globs = Vec::with_capacity(texts.len());
    for text in texts {
        let alternatives = compile(text.text).map_err(|error| {
            let shown: String = text.text.chars().take(SHOWN_OF_A_GLOB).collect();
            let end = if shown.len() < text.text.len() { "..." } else { "" };
            let glob = format!("{}{end}", shown.escape_debug());
            let problem = Problem::Glob { glob, reason: error.problem.to_string() };
            source.error(text.span_of(source, error.offset..error.offset + 1), problem)
        })?;
        let taken = source.budget.take_globs(&alternatives);
        taken.map_err(|over| source.error(text.span.clone(), over.into()))?;
        globs.extend(alternatives);
    }
    Ok(globs)
}

fn kinds(source: &Source<'_>, value: &Value<'_>) -> Result<KindSet, PolicyError> {
    let words = values::strings(source, "kind", value, "leave it out to mean every kind")?;
    words.iter().map(|word| parse_word::<Kind>(source, word)).collect()
}

fn operations(source: &Source<'_>, value: &Value<'_>) -> Result<OperationSet, PolicyError> {
    let words = values::strings(source, "operation", value, "leave it out to mean all")?;
    words.iter().map(|word| parse_word::<Operation>(source, word)).collect()
}

fn size_range(source: &Source<'_>, value: &Value<'_>) -> Result<RangeInclusive<u64>, PolicyError> {
    let allowed = "a table such as { min = \"1 KiB\", max = \"10 MiB\" }";
    let table = values::table(source, "size", value, allowed)?;
    check_keys(source, table, "`size`", &["min", "max"])?;
    if table.is_empty() {
        let advice = "give `min`, `max` or both";
        return Err(source.error(value.span(), values::empty("size", advice)));
    }
    let end = |key, absent| table.get(key).map_or(Ok(absent), |one| values::size(source, key, one));
    let (min, max) = (end("min", 0)?, end("max", u64::MAX)?);
    if min > max {
        return Err(source.error(value.span(), Problem::SizeRange { min, max }));
    }
    Ok(min..=max)
}

fn content(source: &Source<'_>, value: &Value<'_>) -> Result<Content, PolicyError> {
    let allowed = "a table such as { magic = '\\x7fELF' } or { regex = 'BEGIN .* KEY' }";
    let table = values::table(source, "content", value, allowed)?;
    check_keys(source, table, "`content`", &["magic", "regex"])?;
    if table.is_empty() {
        let advice = "give `magic`, `regex` or both";
        return Err(source.error(value.span(), values::empty("content", advice)));
    }
    let mut magic = Vec::new();
    if let Some(value) = table.get("magic") {
        let advice = "leave it out, or give the first bytes";
        for text in values::strings(source, "magic", value, advice)? {
            magic.push(magic_bytes(source, &text)?.into());
        }
    }
    let regex = table.get("regex").map(|value| regex(source, value)).transpose()?;
    Ok(Content { magic, regex })
}

/// Text with `\xNN` for any byte and `\\` for a backslash.
fn magic_bytes(source: &Source<'_>, text: &Text<'_>) -> Result<Vec<u8>, PolicyError> {
    let fail = |at: usize, reason: String| {
        source.error(text.span_of(source, at..at + 1), Problem::Magic(reason))
    };
    let mut bytes = Vec::new();
    let mut rest = text.text.as_bytes();
    while let [first, tail @ ..] = rest {
        let at = text.text.len() - rest.len();
        let (byte, tail) = match (first, tail) {
            (b'\\', [b'\\', tail @ ..]) => (b'\\', tail),
            (b'\\', [b'x', high, low, tail @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high * 16 + low, tail),
                _ => return Err(fail(at, "`\\x` takes two hexadecimal digits".into())),
            },
            (b'\\', _) => {
                let reason = "`\\` begins `\\xNN` or `\\\\`; best written in single quotes";
                return Err(fail(at, reason.into()));
            }
            (other, tail) => (*other, tail),
        };
        bytes.push(byte);
        rest = tail;
    }
    if bytes.is_empty() || bytes.len() > HEAD_LEN {
        let reason = format!("{} bytes; allowed: 1 to {HEAD_LEN}", bytes.len());
        return Err(source.error(text.span.clone(), Problem::Magic(reason)));
    }
    Ok(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

fn regex(source: &Source<'_>, value: &Value<'_>) -> Result<Pattern, PolicyError> {
    let text = values::string(source, "regex", value)?;
    if source.tried {
        return Ok(Pattern::tried(text.text));
    }
    values::refuse_regex(source, &text)?;
    let (pattern, weight) = Pattern::new(text.text).map_err(|error| {
        let reason = match error {
            regex::Error::CompiledTooBig(limit) => {
                format!("needs more than {limit} bytes compiled; write smaller repetitions")
            }
            other => other.to_string(),
        };
        source.error(text.span.clone(), Problem::Regex(reason))
    })?;
    let taken = source.budget.take_regex(weight);
    taken.map_err(|over| source.error(text.span, over.into()))?;
    Ok(pattern)
}

fn caller(
    source: &Source<'_>,
    table: &DeTable<'_>,
) -> Result<Option<CallerCondition>, PolicyError> {
    let ids = |key| table.get(key).map(|value| values::ids(source, key, value)).transpose();
    let exes = table.get("exe").map(|value| exes(source, value)).transpose()?;
    let condition = CallerCondition { uids: ids("uid")?, gids: ids("gid")?, exes };
    let given = condition.uids.is_some() || condition.gids.is_some() || condition.exes.is_some();
    Ok(given.then_some(condition))
}

fn exes(source: &Source<'_>, value: &Value<'_>) -> Result<Vec<Glob>, PolicyError> {
    let texts = values::strings(source, "exe", value, "leave it out to mean every executable")?;
    globs(source, &texts, compile_exe)
}
