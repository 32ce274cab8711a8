//! Passwords in URLs: `scheme://user:PASSWORD@host`.

use std::ops::Range;

use crate::class::Class;

pub(crate) const START: &str = "://";
/// User name and password are looked for in so many bytes after `://`.
pub(crate) const USERINFO_MAX: usize = 1024;

/// Where a URL ends in any text.
static END: Class = Class::new(b"\0-\x20\"'`<>\\|^{}()[],;\x7f");
static USER_END: Class = Class::new(b"\0-\x20\"'`<>\\|^{}()[],;\x7f/?#:@");
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
    let rest = &window[start..];
    let rest = &rest[..rest.iter().position(|byte| END.has(*byte)).unwrap_or(rest.len())];
    // A password may have an unescaped `@` or `/`; what begins with digits and `/` is a port.
    let port = rest.iter().position(|byte| !byte.is_ascii_digit());
    if port.is_none_or(|end| matches!(rest[end], b'/' | b'?' | b'#')) {
        return None;
    }
    let end = match rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')) {
        Some(slash) if rest[..slash].contains(&b'@') => last_at(&rest[..slash])?,
        _ => last_at(rest)?,
    };
    let password = start..start + end;
    (end > 0 && !is_reference(&text[password.clone()])).then_some(password)
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
