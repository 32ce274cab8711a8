//! Passwords in URLs: `scheme://user:PASSWORD@host`.

use std::ops::Range;

use crate::class::Class;

pub(crate) const START: &str = "://";
/// User name and password are looked for in so many bytes after `://`.
pub(crate) const USERINFO_MAX: usize = 1024;

/// What no URL has in it.
static END: Class = Class::new(b"\0-\x20\"`<>\\|^{}[]\x7f");
/// What stands around URLs and between them, and may stand in a password (RFC 3986, sub-delims).
static SIGNS: Class = Class::new(b"'(),;");
static USER_END: Class = Class::new(b"\0-\x20\"'`<>\\|^{}()[],;\x7f/?#:");
/// What follows a host, and may stand in a password.
static PATH: Class = Class::new(b"/?#");
const SCHEME_MAX: usize = 32;
static SCHEME: Class = Class::new(b"A-Za-z0-9+.-");
/// What names of variables and parameters have between percent signs.
static VARIABLE: Class = Class::new(b"A-Za-z0-9_.:-");
const PORT_DIGITS_MAX: usize = 5;

/// The password of the URL whose `://` is at `at`.
pub(crate) fn password(text: &[u8], at: usize) -> Option<Range<usize>> {
    if at == 0 || !SCHEME.has(text[at - 1]) {
        return None;
    }
    let user = at + START.len();
    let window = &text[..text.len().min(user + USERINFO_MAX)];
    let colon = user + window[user..].iter().position(|byte| USER_END.has(*byte))?;
    if window[colon] != b':' {
        return None;
    }
    let is_host = |at: usize| {
        window.get(at).is_some_and(|first| first.is_ascii_alphanumeric() || *first == b'[')
    };
    let start = colon + 1;
    // What the URL stands in ends it, too.
    let scheme = SCHEME.run_before(text, at, SCHEME_MAX);
    let closing = match (at - scheme).checked_sub(1).map(|before| text[before]) {
        Some(b'\'') => b'\'',
        Some(b'(') => b')',
        _ => b' ',
    };
    let length = find(&window[start..], |byte| END.has(byte) || byte == closing);
    let whole = &window[start..start + length];
    if begins_with_port(whole) {
        return None;
    }
    let before_path = &whole[..find(whole, |byte| PATH.has(byte))];
    let before_sign = &whole[..find(whole, |byte| SIGNS.has(byte))];
    let end = if window[user..colon].contains(&b'@') {
        // A user name may be an address of mail. But `git@host:group/name@version` has no password.
        let end = find(whole, |byte| byte == b'@' || SIGNS.has(byte) || PATH.has(byte));
        (whole.get(end) == Some(&b'@') && is_host(start + end + 1)).then_some(end)?
    } else if before_sign.contains(&b'@') {
        // It may have an unescaped `@` or `/`.
        let shorter = &before_sign[..before_sign.len().min(before_path.len())];
        last_at(shorter).or_else(|| last_at(before_sign))?
    } else {
        let end = memchr::memmem::find(whole, START.as_bytes()).unwrap_or(whole.len());
        (0..end).find(|at| whole[*at] == b'@' && is_host(start + at + 1))?
    };
    let is_none = |length| length == 0 || is_reference(&whole[..length]);
    // What stands behind the host and a sign makes no secret of a password that is none.
    if is_none(end) {
        return None;
    }
    // Behind a sign, it may go on to another `@` before the path.
    let rest = end + find(&whole[end..], |byte| PATH.has(byte));
    let later = (end + 1..rest).rev().find(|at| whole[*at] == b'@' && is_host(start + at + 1));
    let length = later.unwrap_or(end);
    (!is_none(length)).then_some(start..start + length)
}

/// Whether `rest` is what follows a host and a colon: the digits of a port, and no more of a password.
fn begins_with_port(rest: &[u8]) -> bool {
    let digits = find(rest, |byte| !byte.is_ascii_digit());
    match rest.get(digits) {
        None | Some(b'/' | b'?' | b'#') => true,
        // Lists of hosts and texts have these behind a port.
        Some(b',' | b'\'' | b')') => (1..=PORT_DIGITS_MAX).contains(&digits),
        // Addresses of JDBC may have properties there: `jdbc:sqlserver://HOST:1433;user=me@example.org`.
        Some(b';') => {
            let property = &rest[digits + 1..];
            let name = find(property, |byte| !byte.is_ascii_alphabetic());
            (1..=PORT_DIGITS_MAX).contains(&digits) && name > 0 && property.get(name) == Some(&b'=')
        }
        _ => false,
    }
}

/// Where the first such byte stands; where `text` ends if none does.
fn find(text: &[u8], is_one: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|byte| is_one(*byte)).unwrap_or(text.len())
}

fn last_at(text: &[u8]) -> Option<usize> {
    text.iter().rposition(|byte| *byte == b'@')
}

/// A variable, a placeholder, or what is masked already: nothing secret.
pub(crate) fn is_reference(value: &[u8]) -> bool {
    let whole = |start: &[u8], end: &[u8]| value.starts_with(start) && value.ends_with(end);
    let name = |rest: &[u8]| {
        !rest.is_empty()
            && rest.iter().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_')
    };
    whole(b"${", b"}")
        || whole(b"$(", b")")
        || whole(b"{", b"}")
        || whole(b"<", b">")
        || is_in_percent_signs(value)
        || whole(b"[", b"]")
        || matches!(value, b"%s" | b"%v" | b"%d" | b"{}" | b"?")
        || value.strip_prefix(b"$").is_some_and(name)
        || value.iter().all(|byte| matches!(byte, b'*' | b'.' | b'x' | b'X' | b'-'))
}

/// `%NAME%` of Windows, `%parameter.name%` and `%env(NAME)%` of Symfony.
fn is_in_percent_signs(value: &[u8]) -> bool {
    let Some(name) = value.strip_prefix(b"%").and_then(|rest| rest.strip_suffix(b"%")) else {
        return false;
    };
    let inside = name.strip_prefix(b"env(").and_then(|rest| rest.strip_suffix(b")"));
    let name = inside.unwrap_or(name);
    !name.is_empty() && name.iter().all(|byte| VARIABLE.has(*byte))
}
