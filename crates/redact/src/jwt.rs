//! JSON web tokens: base64url parts, joined by dots, of which the first is a JSON object.

use std::ops::Range;

use crate::class::{BASE64URL, Class, begins_word};

/// What the base64 of a JSON object begins with: `{"` and the first letter of a header's name, or a
/// blank in place of the quote.
pub(crate) static STARTS: [&str; 11] =
    ["eyJh", "eyJ0", "eyJr", "eyJj", "eyJl", "eyJ4", "eyJ6", "eyJ1", "eyJq", "eyJw", "eyAi"];

/// How far a token is followed; `run::JWT` covers what is longer.
pub(crate) const JWT_MAX: usize = 8192;
/// How much of each beginning stays readable.
const SHOWN: usize = 3;
/// A header with an algorithm and nothing else: `{"alg":"x"}`.
const HEADER_MIN: usize = 14;
const PAYLOAD_MIN: usize = 8;

pub(crate) static ALPHABET: Class = Class::new(b"A-Za-z0-9_.-");

/// The token that begins at `at`, without its first bytes.
pub(crate) fn jwt(text: &[u8], at: usize) -> Option<Range<usize>> {
    if !begins_word(text, at) {
        return None;
    }
    let header = BASE64URL.run(text, at, JWT_MAX);
    let dot = at + header;
    let long = header == JWT_MAX;
    if !long && (header < HEADER_MIN || text.get(dot) != Some(&b'.')) {
        return None;
    }
    let payload = BASE64URL.run(text, dot + 1, JWT_MAX - header.min(JWT_MAX - 1));
    // The content of an encrypted token's second part may be empty.
    let encrypted = payload == 0 && text.get(dot + 1) == Some(&b'.');
    if !long && payload < PAYLOAD_MIN && !encrypted {
        return None;
    }
    let end = at + ALPHABET.run(text, at, JWT_MAX);
    Some(at + SHOWN..end)
}
