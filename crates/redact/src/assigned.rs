//! Values given to a name that says that they are secret: `password = "..."`, `"api_key": "..."`,
//! `CLIENT_SECRET=...`.

use std::ops::Range;

use crate::class::{ALNUM, BLANK, Class, mixed};
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
    (b'a', "piKey"),
    (b'a', "pikey"),
    (b'a', "PI_KEY"),
    (b'a', "PI-KEY"),
    (b'a', "PIKEY"),
    (b'a', "ccess_key"),
    (b'a', "ccess-key"),
    (b'a', "ccessKey"),
    (b'a', "CCESS_KEY"),
    (b'p', "rivate_key"),
    (b'p', "rivate-key"),
    (b'p', "rivateKey"),
    (b'p', "RIVATE_KEY"),
    (b's', "igning_key"),
    (b's', "IGNING_KEY"),
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
static TAILS: [&[u8]; 9] =
    [b"_key", b"-key", b"Key", b"_KEY", b"_value", b"Value", b"_VALUE", b"_hash", b"_HASH"];

static BARE: Class = Class::new(b"A-Za-z0-9+/=_!@#$%^&*~:?-");
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
    // `"name":` and `['name'] =`
    next += text[next..].iter().take(3).take_while(|byte| b"\"'`]\\".contains(byte)).count();
    next += BLANK.run(text, next, BLANKS_MAX);
    next += sign(&text[next..])?;
    next += BLANK.run(text, next, BLANKS_MAX);
    // Within a string, the quotes themselves are escaped.
    let nested = text[next..].starts_with(b"\\\"");
    next += usize::from(nested);
    match text.get(next)? {
        quote @ (b'"' | b'\'' | b'`') => quoted(text, next + 1, *quote, nested),
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

fn quoted(text: &[u8], start: usize, quote: u8, nested: bool) -> Option<Range<usize>> {
    let window = &text[start..text.len().min(start + VALUE_MAX)];
    let mut escaped = false;
    let end = window.iter().position(|byte| {
        let ends = (*byte == quote && (!escaped || nested)) || *byte == b'\n';
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    // A value that is longer is masked as far as it is followed.
    let value = &window[..end.unwrap_or(window.len())];
    let value = value.strip_suffix(b"\\").filter(|_| nested).unwrap_or(value);
    if end.is_some_and(|end| window[end] == b'\n') || value.len() < QUOTED_MIN {
        return None;
    }
    let words = value.contains(&b' ') && !mixed(value);
    let plain = value.iter().all(|byte| PLAIN.has(*byte));
    (!words && !plain && !is_reference(value)).then_some(start..start + value.len())
}

/// Without quotes a value must look random, or every line of a program would be one.
fn bare(text: &[u8], start: usize) -> Option<Range<usize>> {
    let length = BARE.run(text, start, VALUE_MAX);
    let value = &text[start..start + length];
    let ends = text.get(start + length).is_none_or(|byte| b" \t\r\n;,\"'`<}".contains(byte));
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
