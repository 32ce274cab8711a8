//! Passwords in URLs: `scheme://user:PASSWORD@host`.

use std::ops::Range;

use crate::class::Class;

pub(crate) const START: &str = "://";
/// User name and password are looked for in so many bytes after `://`.
pub(crate) const USERINFO_MAX: usize = 1024;

/// Where a URL ends in any text.
static END: Class = Class::new(b"\0-\x20\"'`<>\\|^{}()[],;\x7f");
static USER_END: Class = Class::new(b"\0-\x20\"'`<>\\|^{}()[],;\x7f/?#:@");
/// Of those, what may stand in a password (RFC 3986, sub-delims).
static SIGNS: Class = Class::new(b"'(),;");
const SCHEME_MAX: usize = 32;
static SCHEME: Class = Class::new(b"A-Za-z0-9+.-");

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
    let start = colon + 1;
    let whole = &window[start..];
    let rest = &whole[..whole.iter().position(|byte| END.has(*byte)).unwrap_or(whole.len())];
    // A password may have an unescaped `@` or `/`; what begins with digits and `/` is a port.
    let port = rest.iter().position(|byte| !byte.is_ascii_digit());
    if port.is_none_or(|end| matches!(rest[end], b'/' | b'?' | b'#')) {
        return None;
    }
    if !rest.contains(&b'@') {
        let end = with_signs(text, at, whole)?;
        return Some(start..start + end);
    }
    let end = match rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')) {
        Some(slash) if rest[..slash].contains(&b'@') => last_at(&rest[..slash])?,
        _ => last_at(rest)?,
    };
    let password = start..start + end;
    (end > 0 && !is_reference(&text[password.clone()])).then_some(password)
}

/// Where the password at the beginning of `rest` ends, if it has signs in it that also stand around URLs and
/// between them.
fn with_signs(text: &[u8], at: usize, rest: &[u8]) -> Option<usize> {
    let scheme = SCHEME.run_before(text, at, SCHEME_MAX);
    // What the URL stands in ends it.
    let around = (at - scheme).checked_sub(1).map(|before| text[before]);
    let closing = match around {
        Some(b'\'') => b'\'',
        Some(b'(') => b')',
        _ => b' ',
    };
    let ends = |byte: u8| {
        byte == closing || matches!(byte, b'/' | b'?' | b'#') || END.has(byte) && !SIGNS.has(byte)
    };
    let end = rest.iter().position(|byte| *byte == b'@' || ends(*byte))?;
    let host = rest.get(end + 1)?;
    let is_one = rest[end] == b'@' && (host.is_ascii_alphanumeric() || *host == b'[');
    is_one.then_some(end)
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
        || whole(b"%", b"%")
        || whole(b"[", b"]")
        || matches!(value, b"%s" | b"%v" | b"%d" | b"{}" | b"?")
        || value.strip_prefix(b"$").is_some_and(name)
        || value.iter().all(|byte| matches!(byte, b'*' | b'.' | b'x' | b'X' | b'-'))
}
