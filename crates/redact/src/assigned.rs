//! Values given to a name that says that they are secret: `password = "..."`, `"api_key": "..."`,
//! `CLIENT_SECRET=...`.

use std::ops::Range;

use crate::class::{ALNUM, BLANK, Class, colours, mixed};
use crate::url::is_reference;

/// The last letters of such names, without the first one, which is looked at afterwards: what is
/// searched for must not begin with a letter of either case.
pub(crate) static NAMES: &[(u8, &str)] = &[
    (b'p', "assword"),
    (b'p', "ASSWORD"),
    (b'p', "asswd"),
    (b'p', "ASSWD"),
    (b'p', "assphrase"),
    (b'p', "ASSPHRASE"),
    (b's', "ecret"),
    (b's', "ECRET"),
    (b't', "oken"),
    (b't', "OKEN"),
    (b'a', "pi_key"),
    (b'a', "pi-key"),
    (b'a', "pi_Key"),
    (b'a', "pi-Key"),
    (b'a', "piKey"),
    (b'a', "pikey"),
    (b'a', "PI_KEY"),
    (b'a', "PI-KEY"),
    (b'a', "PIKEY"),
    (b'a', "ccess_key"),
    (b'a', "ccess-key"),
    (b'a', "ccessKey"),
    (b'a', "ccess_Key"),
    (b'a', "ccess-Key"),
    (b'a', "CCESS_KEY"),
    (b'a', "CCESS-KEY"),
    (b'p', "rivate_key"),
    (b'p', "rivate-key"),
    (b'p', "rivateKey"),
    (b'p', "rivate_Key"),
    (b'p', "rivate-Key"),
    (b'p', "RIVATE_KEY"),
    (b'p', "RIVATE-KEY"),
    (b's', "igning_key"),
    (b's', "igning-key"),
    (b's', "igning-Key"),
    (b's', "IGNING_KEY"),
    (b's', "IGNING-KEY"),
    (b'_', "PASS"),
    (b'_', "pass"),
    (b'_', "PWD"),
    (b'_', "pwd"),
];

/// The longest value in quotes that is followed, and the longest without.
pub(crate) const VALUE_MAX: usize = 4096;
/// Blanks beside the sign.
const BLANKS_MAX: usize = 32;
const QUOTED_MIN: usize = 6;
const BARE_MIN: usize = 8;

/// What may still follow the word within the name: `_key`, `Value`, `2`.
static TAILS: [&[u8]; 12] = [
    b"_key", b"-key", b"Key", b"_Key", b"-Key", b"_KEY", b"-KEY", b"_value", b"Value", b"_VALUE",
    b"_hash", b"_HASH",
];

/// Also letters beyond ASCII, in whatever encoding.
static BARE: Class = Class::new(b"A-Za-z0-9+/=_!@#$%^&*~:?\x80-\xff-");
/// What a type may be written with: `&'static str`, `Option<String>`, `str | None`.
static TYPE: Class = Class::new(b"A-Za-z0-9_ &'<>[]|?.:");
/// The longest type that is passed over.
const TYPE_MAX: usize = 64;
/// Names are written in words of lower case, joined by these.
static PLAIN: Class = Class::new(b"a-z_./: -");

/// The value given to the name whose last letters are `name`, found at `at`.
pub(crate) fn value(name: (u8, &str), text: &[u8], at: usize) -> Option<Range<usize>> {
    let first = at.checked_sub(1).map(|before| text[before].to_ascii_lowercase())?;
    if first != name.0 {
        return None;
    }
    let mut next = at + name.1.len();
    let rest = &text[next..];
    next += TAILS.iter().find(|tail| rest.starts_with(tail)).map_or(0, |tail| tail.len());
    next += text[next..].iter().take(2).take_while(|byte| byte.is_ascii_digit()).count();
    next += colours(text, next);
    // `"name":` and `['name'] =`
    next += text[next..].iter().take(3).take_while(|byte| b"\"'`]\\".contains(byte)).count();
    next += colours(text, next);
    next += BLANK.run(text, next, BLANKS_MAX);
    next += sign(&text[next..])?;
    if text[next - 1] == b':' {
        next += annotation(text, next);
    }
    next += colours(text, next);
    next += BLANK.run(text, next, BLANKS_MAX);
    next += colours(text, next);
    next += literal_prefix(&text[next..]);
    // Within a string, the quotes themselves are escaped.
    let nested = text[next..].starts_with(b"\\\"");
    next += usize::from(nested);
    match text.get(next)? {
        quote @ (b'"' | b'\'' | b'`') => {
            let triple = text[next..].starts_with(&[*quote; 3]);
            let start = next + if triple { 3 } else { 1 };
            let of_lines = || of_lines(text, start, *quote, triple);
            let found = quoted(text, start, *quote, nested).or_else(of_lines)?;
            // Where tokens are a matter of names: `"output_token": "NextMarker"`.
            let is_name = text[found.clone()].iter().all(u8::is_ascii_alphabetic);
            (!is_name || !matches!(name.1, "oken" | "OKEN")).then_some(found)
        }
        _ => bare(text, next),
    }
}

/// `=`, `:`, `:=`, `=>`, but no comparison.
fn sign(text: &[u8]) -> Option<usize> {
    match text {
        [b':', b'=', ..] | [b'=', b'>', ..] => Some(2),
        [b'=', b'=' | b'~', ..] | [b':', b':', ..] => None,
        [b'=' | b':', ..] => Some(1),
        _ => None,
    }
}

/// Length of a type and the `=` behind it, where a text in quotes follows: `password: str = "..."`.
fn annotation(text: &[u8], at: usize) -> usize {
    let length = TYPE.run(text, at, TYPE_MAX);
    let rest = &text[at + length..];
    if length == 0 || !rest.starts_with(b"=") || matches!(rest.get(1), Some(b'=' | b'>' | b'~')) {
        return 0;
    }
    let blanks = BLANK.run(rest, 1, BLANKS_MAX);
    let value = &rest[1 + blanks..];
    let first = value.get(literal_prefix(value));
    let is_quoted = matches!(first, Some(b'"' | b'\'' | b'`'));
    if is_quoted { length + 1 } else { 0 }
}

/// Length of what languages write right before a quote: `b"..."`, `rb'...'`, `@"..."`.
fn literal_prefix(text: &[u8]) -> usize {
    let letters = text.iter().take(2).take_while(|byte| b"bBrRfFuU@$".contains(byte)).count();
    if matches!(text.get(letters), Some(b'"' | b'\'')) { letters } else { 0 }
}

/// Where a value in quotes ends: at its quote or at the line's end. YAML, SQL and CSV write a quote within
/// quotes twice, shells and C join what is quoted in two parts: `doubles`.
fn end_of(window: &[u8], quote: u8, nested: bool, doubles: bool) -> Option<usize> {
    // Backslashes right before `at`.
    let (mut at, mut slashes) = (0, 0);
    loop {
        let byte = *window.get(at)?;
        if byte == b'\n' {
            return Some(at);
        }
        // Within a string each quote has one before it, and each of the value's own backslashes two.
        let escaped = if nested { slashes / 2 % 2 == 1 } else { slashes % 2 == 1 };
        if byte == quote && !escaped {
            if !doubles || window.get(at + 1) != Some(&quote) {
                return Some(at);
            }
            at += 1;
        }
        slashes = if byte == b'\\' { slashes + 1 } else { 0 };
        at += 1;
    }
}

fn quoted(text: &[u8], start: usize, quote: u8, nested: bool) -> Option<Range<usize>> {
    // Behind three of them one ends it.
    let doubles = quote != b'`' && !nested && text[..start].last_chunk() != Some(&[quote; 3]);
    let window = &text[start..text.len().min(start + VALUE_MAX)];
    let end = end_of(window, quote, nested, doubles);
    // A value that is longer is masked as far as it is followed.
    let value = &window[..end.unwrap_or(window.len())];
    let value = value.strip_suffix(b"\\").filter(|_| nested).unwrap_or(value);
    if end.is_some_and(|end| window[end] == b'\n') || value.len() < QUOTED_MIN {
        return None;
    }
    let words = value.contains(&b' ') && !mixed(value);
    let plain = value.iter().all(|byte| PLAIN.has(*byte));
    // An object identifier, an address, a version.
    let numbers =
        value.contains(&b'.') && value.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    (!words && !plain && !numbers && !is_reference(value)).then_some(start..start + value.len())
}

/// A value in quotes of more than one line. Between three quotes it may be any text; between others, which
/// prose and programs may leave open, it must be of letters and signs alone.
fn of_lines(text: &[u8], start: usize, quote: u8, triple: bool) -> Option<Range<usize>> {
    let window = &text[start..text.len().min(start + VALUE_MAX)];
    // A value that is longer is masked as far as it is followed.
    let is_cut = triple && window.len() == VALUE_MAX;
    let length = if triple {
        memchr::memmem::find(window, &[quote; 3]).or(is_cut.then_some(window.len()))?
    } else {
        window.iter().position(|byte| !BARE.has(*byte) && !matches!(byte, b'\n' | b'\r'))?
    };
    let value = &window[..length];
    let is_closed = is_cut || window[length..].first() == Some(&quote);
    let blank = value.len() - value.trim_ascii_start().len();
    let words = value.trim_ascii();
    let is_random =
        words.iter().filter(|byte| ALNUM.has(**byte)).count() >= BARE_MIN && mixed(words);
    (is_closed && value.contains(&b'\n') && is_random && !is_reference(words))
        .then_some(start + blank..start + blank + words.len())
}

/// Without quotes a value must look random, or every line of a program would be one.
fn bare(text: &[u8], start: usize) -> Option<Range<usize>> {
    let length = BARE.run(text, start, VALUE_MAX);
    let value = &text[start..start + length];
    let ends = |at: usize| match text.get(at..).unwrap_or_default() {
        [] => true,
        // Within a string: its own quote, and what JSON writes so.
        [b'\\', b'"' | b'n' | b'r' | b't' | b'e' | b'0', ..]
        | [b'\\', b'u', b'0', b'0', ..]
        | [b'\\', b'x', b'0'..=b'3', ..] => true,
        [byte, ..] => b" ;,\"'`<}".contains(byte) || byte.is_ascii_control(),
    };
    // The end of a sentence, but not of one part of an expression.
    let ends =
        ends(start + length) || text.get(start + length) == Some(&b'.') && ends(start + length + 1);
    let random = mixed(value) && value.iter().filter(|byte| ALNUM.has(**byte)).count() >= BARE_MIN;
    let path = value.starts_with(b"/") || value.contains(&b':') || value.starts_with(b"&");
    let whole = ends || length == VALUE_MAX;
    (whole && random && !path && !is_reference(value)).then_some(start..start + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_the_beginning_of_another() {
        for (index, (_, name)) in NAMES.iter().enumerate() {
            for (other_index, (_, other)) in NAMES.iter().enumerate() {
                assert!(index == other_index || !other.starts_with(name), "{name} {other}");
            }
        }
    }
}
