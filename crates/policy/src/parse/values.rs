//! TOML values of the types that the policy language has.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use crate::error::{PolicyError, Problem, Source};

pub(super) type Value<'a> = Spanned<DeValue<'a>>;

/// A string in the source.
pub(super) struct Text<'a> {
    pub(super) text: &'a str,
    pub(super) span: Range<usize>,
}

impl Text<'_> {
    /// Where in the source the bytes `inner` of the string are. Where the string is written with
    /// escapes or in several lines, that is the whole string.
    pub(super) fn span_of(&self, source: &Source<'_>, inner: Range<usize>) -> Range<usize> {
        let raw = source.text.get(self.span.clone()).unwrap_or_default();
        let quoted = raw.get(1..raw.len().saturating_sub(1));
        if quoted == Some(self.text) {
            let start = self.span.start + 1;
            return start + inner.start..start + inner.end;
        }
        self.span.clone()
    }
}

/// Refuses keys that are not in the list; the first in the text.
pub(super) fn check_keys(
    source: &Source<'_>,
    table: &DeTable<'_>,
    place: &'static str,
    allowed: &[&str],
) -> Result<(), PolicyError> {
    let unknown = table.keys().filter(|key| !allowed.contains(&&**key.get_ref()));
    match unknown.min_by_key(|key| key.span().start) {
        None => Ok(()),
        Some(key) => {
            let found = key.get_ref().to_string();
            let allowed = allowed.join(", ");
            Err(source.error(key.span(), Problem::UnknownKey { found, place, allowed }))
        }
    }
}

/// What a value is, for "`key` is ...".
pub(super) fn type_name(value: &DeValue<'_>) -> String {
    let article = if matches!(value, DeValue::Integer(_) | DeValue::Array(_)) { "an" } else { "a" };
    format!("{article} {}", value.type_str())
}

pub(super) fn string<'a>(
    source: &Source<'_>,
    key: &'static str,
    value: &'a Value<'_>,
) -> Result<Text<'a>, PolicyError> {
    text(value).ok_or_else(|| wrong_type(source, key, value, "a string"))
}

pub(super) fn boolean(
    source: &Source<'_>,
    key: &'static str,
    value: &Value<'_>,
) -> Result<bool, PolicyError> {
    let found = value.get_ref().as_bool();
    found.ok_or_else(|| wrong_type(source, key, value, "true or false"))
}

/// A string, or a list of strings. Refuses an empty list, with `advice`.
pub(super) fn strings<'a>(
    source: &Source<'_>,
    key: &'static str,
    value: &'a Value<'_>,
    advice: &'static str,
) -> Result<Vec<Text<'a>>, PolicyError> {
    let read = |one| text(one);
    one_or_many(source, key, value, ("a string or a list of strings", advice), read)
}

/// A number or a name, or a list of them: ids, sorted.
pub(super) fn ids(
    source: &Source<'_>,
    key: &'static str,
    value: &Value<'_>,
) -> Result<Vec<u32>, PolicyError> {
    let allowed = "a number, a name, or a list of them";
    let words = (allowed, "leave it out to mean everyone");
    let values = one_or_many(source, key, value, words, Some)?;
    let mut ids = Vec::with_capacity(values.len());
    for value in values {
        ids.push(match value.get_ref() {
            DeValue::Integer(integer) => u32::from_str_radix(integer.as_str(), integer.radix())
                .map_err(|_| bad_number(source, key, value.span(), integer, "0 to 4294967295"))?,
            DeValue::String(name) => named(source, key, value, name)?,
            _ => return Err(wrong_type(source, key, value, allowed)),
        });
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn named(
    source: &Source<'_>,
    key: &'static str,
    value: &Value<'_>,
    name: &str,
) -> Result<u32, PolicyError> {
    let (id, what) = match key {
        "gid" => (source.names.group(name), "group"),
        _ => (source.names.user(name), "user"),
    };
    id.ok_or_else(|| {
        let found = name.to_owned();
        source.error(value.span(), Problem::UnknownName { key, found, what })
    })
}

/// A size: bytes as a number, or a string such as `"10 MiB"`.
pub(super) fn size(
    source: &Source<'_>,
    key: &'static str,
    value: &Value<'_>,
) -> Result<u64, PolicyError> {
    const ALLOWED: &str =
        "a number of bytes, or a string of a whole number and one of B, KiB, MiB, GiB, TiB";
    match value.get_ref() {
        DeValue::Integer(integer) => u64::from_str_radix(integer.as_str(), integer.radix())
            .map_err(|_| bad_number(source, key, value.span(), integer, ALLOWED)),
        DeValue::String(text) => size_text(text).map_err(|wrong| {
            let found = format!("\"{}\"", text.escape_debug());
            let allowed = match wrong {
                NotASize::Form => ALLOWED,
                NotASize::TooLarge => "fewer than 16777216 TiB (2^64 bytes)",
            };
            source.error(value.span(), Problem::Number { key, found, allowed })
        }),
        _ => Err(wrong_type(source, key, value, ALLOWED)),
    }
}

/// Why a text is no size.
enum NotASize {
    Form,
    TooLarge,
}

fn size_text(text: &str) -> Result<u64, NotASize> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let factor = match text[digits..].trim_start_matches(' ') {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(NotASize::Form),
    };
    if digits == 0 {
        return Err(NotASize::Form);
    }
    let number = text[..digits].parse::<u64>().ok();
    number.and_then(|number| number.checked_mul(factor)).ok_or(NotASize::TooLarge)
}

pub(super) fn table<'a, 'i>(
    source: &Source<'_>,
    key: &'static str,
    value: &'a Value<'i>,
    allowed: &'static str,
) -> Result<&'a DeTable<'i>, PolicyError> {
    value.get_ref().as_table().ok_or_else(|| wrong_type(source, key, value, allowed))
}

fn text<'a>(value: &'a Value<'_>) -> Option<Text<'a>> {
    value.get_ref().as_str().map(|text| Text { text, span: value.span() })
}

fn one_or_many<'a, 'i, T>(
    source: &Source<'_>,
    key: &'static str,
    value: &'a Value<'i>,
    (allowed, advice): (&'static str, &'static str),
    read: impl Fn(&'a Value<'i>) -> Option<T>,
) -> Result<Vec<T>, PolicyError> {
    let Some(list) = value.get_ref().as_array() else {
        let one = read(value).ok_or_else(|| wrong_type(source, key, value, allowed))?;
        return Ok(vec![one]);
    };
    if list.is_empty() {
        return Err(source.error(value.span(), empty(key, advice)));
    }
    list.iter().map(|one| read(one).ok_or_else(|| wrong_type(source, key, one, allowed))).collect()
}

/// What is wrong with a value with nothing in it.
pub(super) fn empty(key: &'static str, advice: &'static str) -> Problem {
    match key {
        "path" | "kind" | "operation" | "uid" | "gid" | "exe" => Problem::Empty { key, advice },
        _ => Problem::SaysNothing { key, advice },
    }
}

pub(super) fn wrong_type(
    source: &Source<'_>,
    key: &'static str,
    value: &Value<'_>,
    allowed: &'static str,
) -> PolicyError {
    let found = type_name(value.get_ref());
    source.error(value.span(), Problem::Type { key, found, allowed })
}

fn bad_number(
    source: &Source<'_>,
    key: &'static str,
    span: Range<usize>,
    integer: &DeInteger<'_>,
    allowed: &'static str,
) -> PolicyError {
    source.error(span, Problem::Number { key, found: integer.to_string(), allowed })
}

/// Refuses what is no regular expression. Parsed beforehand, as the error of `regex` itself does not say
/// where.
pub(super) fn refuse_regex(source: &Source<'_>, text: &Text<'_>) -> Result<(), PolicyError> {
    let parsed = regex_syntax::ParserBuilder::new().utf8(false).build().parse(text.text);
    parsed.map(drop).map_err(|error| {
        let (span, reason) = regex_mistake(&error);
        source.error(text.span_of(source, span), Problem::Regex(reason))
    })
}

fn regex_mistake(error: &regex_syntax::Error) -> (Range<usize>, String) {
    match error {
        regex_syntax::Error::Parse(error) => {
            (error.span().start.offset..error.span().end.offset, error.kind().to_string())
        }
        regex_syntax::Error::Translate(error) => {
            (error.span().start.offset..error.span().end.offset, error.kind().to_string())
        }
        other => (0..0, other.to_string()),
    }
}
