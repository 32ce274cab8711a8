//! JSON web tokens: base64url parts, joined by dots, of which the first is a JSON object.

use std::ops::Range;

use crate::base64;
use crate::class::{BASE64URL, Class, begins_word};

/// What the base64 of a JSON object begins with: `{` and a quote or a blank. What follows is looked at then.
pub(crate) static STARTS: [&str; 5] = ["eyJ", "eyA", "ewo", "ew0", "ewk"];

/// What headers of tokens begin with mostly: `{"` and a letter of `alg`, `typ`, `kid`, `jku`, `x5c` and the like.
static USUAL_STARTS: [&[u8; 4]; 11] = [
    b"eyJh", b"eyJ0", b"eyJr", b"eyJj", b"eyJl", b"eyJ4", b"eyJ6", b"eyJ1", b"eyJq", b"eyJw",
    b"eyAi",
];

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
    // Long base64 with another beginning is that of a whole file of JSON, such as a source map (`{"version":3,`).
    let long = header == JWT_MAX && USUAL_STARTS.iter().any(|start| text[at..].starts_with(*start));
    if !long && (header < HEADER_MIN || text.get(dot) != Some(&b'.')) {
        return None;
    }
    if !begins_object(&text[at..at + HEADER_MIN]) {
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

/// Whether what `header` encodes begins as a JSON object does, as few identifiers do: with the name of a member
/// behind blanks.
fn begins_object(header: &[u8]) -> bool {
    let Some(plain) = base64::decode(header) else { return false };
    let Some(inside) = plain.strip_prefix(b"{") else { return false };
    let inside = inside.trim_ascii_start();
    // So few bytes may be blanks alone, and a name may be cut.
    inside.strip_prefix(b"\"").map_or(inside.is_empty(), |rest| {
        let mut name = rest.iter().take_while(|byte| **byte != b'"');
        name.all(|byte| matches!(byte, b' '..=b'~'))
    })
}
