//! Whether a token of a known format stands at a place where one may begin.

use std::ops::{Range, RangeInclusive};

use crate::base64;
use crate::class::{BLANK, DIGIT, begins_word, is_after_escape, mixed};
use crate::formats::{Format, Holds, TOKEN_MAX};

/// Further blanks behind the name of an HTTP scheme.
const BLANKS_MAX: usize = 32;
const BOT_DIGITS: RangeInclusive<usize> = 8..=10;

/// The secret part of the token that begins at `at` with `format.start`, if it is one.
pub(crate) fn token(format: &Format, text: &[u8], at: usize) -> Option<Range<usize>> {
    if !may_begin(format, text, at) {
        return None;
    }
    let mut from = at + format.start.len();
    if matches!(format.holds, Holds::Scheme | Holds::Credentials) {
        from += BLANK.run(text, from, BLANKS_MAX);
    }
    let length = format.class.run(text, from, TOKEN_MAX);
    let enough = length >= format.min && length <= format.max;
    let secret = from..from + length;
    let holds = |secret: &[u8]| match format.holds {
        Holds::Anything => true,
        Holds::Mixed | Holds::Scheme => mixed(secret),
        Holds::Credentials => is_credentials(secret),
    };
    (enough && holds(&text[secret.clone()])).then_some(secret)
}

/// Whether it is a name and a password: printable text with a colon, as base64.
fn is_credentials(secret: &[u8]) -> bool {
    let end = secret.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let Some(plain) = base64::decode(&secret[..end]) else { return false };
    let Some(name) = memchr::memchr(b':', &plain) else { return false };
    let is_text = match std::str::from_utf8(&plain) {
        Ok(_) => true,
        // A long one is cut.
        Err(error) => error.error_len().is_none(),
    };
    // The encoding may be another, such as Latin-1 (RFC 7617). Nearly every word fails with its name.
    let is_ascii = |name: &[u8]| name.iter().all(|byte| matches!(byte, b' '..=b'~'));
    let may_be_text = name > 0 && is_ascii(&plain[..name]);
    (is_text || may_be_text) && !plain.iter().any(u8::is_ascii_control)
}

fn may_begin(format: &Format, text: &[u8], at: usize) -> bool {
    if matches!(format.holds, Holds::Scheme | Holds::Credentials) {
        let first = at.checked_sub(1);
        return first.is_some_and(|at| matches!(text[at], b'b' | b'B') && begins_word(text, at));
    }
    match format.start.as_bytes()[0] {
        b':' => is_behind_bot_number(text, at),
        b'&' => true,
        // Part of a host name.
        b'h' if format.start.contains('/') => true,
        _ => begins_word(text, at),
    }
}

/// Whether the number of a Telegram bot ends right before `at`: 8 to 10 digits. In the addresses of the API,
/// `bot` stands right before it.
fn is_behind_bot_number(text: &[u8], at: usize) -> bool {
    let digits = DIGIT.run_before(text, at, *BOT_DIGITS.end() + 1);
    let start = at - digits;
    let is_whole = BOT_DIGITS.contains(&digits)
        && (begins_word(text, start) || text[..start].ends_with(b"bot"));
    // The digits of an escape look like more of the number (`%20123456789`).
    is_whole || BOT_DIGITS.take_while(|n| *n <= digits).any(|n| is_after_escape(text, at - n))
}
