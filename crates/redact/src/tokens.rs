//! Whether a token of a known format stands at a place where one may begin.

use std::ops::Range;

use crate::class::{DIGIT, begins_word, mixed};
use crate::formats::{Format, TOKEN_MAX};

/// The secret part of the token that begins at `at` with `format.start`, if it is one.
pub(crate) fn token(format: &Format, text: &[u8], at: usize) -> Option<Range<usize>> {
    if !may_begin(format, text, at) {
        return None;
    }
    let from = at + format.start.len();
    let length = format.class.run(text, from, TOKEN_MAX);
    let enough = length >= format.min && length <= format.max;
    let secret = from..from + length;
    (enough && (!format.mixed || mixed(&text[secret.clone()]))).then_some(secret)
}

fn may_begin(format: &Format, text: &[u8], at: usize) -> bool {
    match format.start.as_bytes()[0] {
        // The number of a Telegram bot: 8 to 10 digits.
        b':' => {
            let digits = DIGIT.run_before(text, at, 11);
            (8..=10).contains(&digits) && begins_word(text, at - digits)
        }
        b'&' => true,
        // Part of a host name.
        b'h' if format.start.contains('/') => true,
        _ => begins_word(text, at),
    }
}
