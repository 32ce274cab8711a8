//! Private keys as blocks of text: PEM (PKCS#1, PKCS#8, SEC 1, OpenSSH), OpenPGP, SSH2, PuTTY,
//! OpenVPN. The lines around a block stay readable, what is between is masked.

use std::ops::Range;

use aho_corasick::AhoCorasick;
use memchr::memmem::Finder;

use crate::class::Class;

/// What begins a block, the first behind dashes, and what ends one.
const BEGIN: &str = "BEGIN ";
const PUTTY_BEGIN: &str = "Private-Lines: ";
const ENDS: [&str; 3] = ["-----END ", "---- END ", "Private-MAC"];

/// A block is masked so far if no end comes. `run::KEY` covers what is longer.
pub(crate) const BLOCK_MAX: usize = 68 << 10;
/// So many bytes behind a beginning decide whether it is one.
pub(crate) const HEAD_MAX: usize = 1024;
const LABEL_MAX: usize = 64;
/// Shorter lines than this are no key's; a text that mentions a beginning has none.
const LINE_MIN: usize = 16;
/// Behind a prefix, where paths and names stand as well, it must be as long as most lines of a key are.
const LONG_LINE_MIN: usize = 48;
const LINE_MAX: usize = 80;
const PREFIX_MAX: usize = 160;
/// With the one that the beginning is in, and header lines.
const LINES_MAX: usize = 6;

pub(crate) static BASE64: Class = Class::new(b"A-Za-z0-9+/=");
static HEADER: Class = Class::new(b"A-Za-z0-9-");
/// What may stand between the beginning and the first line of a block: line breaks, quotes and
/// signs of strings, signs of comments, blanks.
static BETWEEN: Class = Class::new(b"\t-\r \"'`+,#/*>|;-");

/// Finds blocks.
#[derive(Debug)]
pub(crate) struct Armor {
    begin: Finder<'static>,
    putty_begin: Finder<'static>,
    ends: AhoCorasick,
}

impl Armor {
    pub(crate) fn new() -> Armor {
        Armor {
            begin: Finder::new(BEGIN),
            putty_begin: Finder::new(PUTTY_BEGIN),
            ends: AhoCorasick::new(ENDS).expect("a few short words"),
        }
    }

    /// Calls `emit` with the inside of each block.
    pub(crate) fn blocks(&self, text: &[u8], mut emit: impl FnMut(Range<usize>)) {
        self.each(text, &self.begin, pem_body, &mut emit);
        self.each(text, &self.putty_begin, putty_body, &mut emit);
    }

    fn each(
        &self,
        text: &[u8],
        begin: &Finder<'_>,
        body: fn(&[u8], usize) -> Option<usize>,
        emit: &mut impl FnMut(Range<usize>),
    ) {
        // The first end at or behind the place that was asked about last: beginnings come in order,
        // so that each byte is searched once, however many beginnings there are.
        let mut next_end = 0;
        for at in begin.find_iter(text) {
            let window = &text[..text.len().min(at + HEAD_MAX)];
            let Some(body) = body(window, at).filter(|body| holds_key(window, *body)) else {
                continue;
            };
            if next_end < body {
                let end = self.ends.find(&text[body..]);
                next_end = end.map_or(text.len(), |end| body + end.start());
            }
            emit(body..next_end.min(at + BLOCK_MAX));
        }
    }
}

/// Where the inside of the block begins whose `BEGIN ` stands at `at`.
fn pem_body(window: &[u8], at: usize) -> Option<usize> {
    let label = at + BEGIN.len();
    if window[..at].ends_with(b"-----") {
        after_label(window, label, b"-----")
    } else if window[..at].ends_with(b"---- ") {
        after_label(window, label, b" ----")
    } else {
        None
    }
}

/// Where the inside of the block begins whose `Private-Lines: ` stands at `at`.
fn putty_body(window: &[u8], at: usize) -> Option<usize> {
    let number = at + PUTTY_BEGIN.len();
    let digits = window[number..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    (digits > 0).then_some(number + digits)
}

/// Where the line ends, if the label is one of a private key.
fn after_label(window: &[u8], label: usize, closing: &[u8]) -> Option<usize> {
    let rest = &window[label..window.len().min(label + LABEL_MAX + closing.len())];
    let length = memchr::memmem::find(rest, closing)?;
    let name = &rest[..length];
    // `OpenVPN Static key V1`, `OpenVPN tls-crypt-v2 client key`: none of its keys is public.
    let of_openvpn = name.strip_prefix(b"OpenVPN ");
    let secret = memchr::memmem::find(name, b"PRIVATE KEY").is_some()
        || of_openvpn.is_some_and(|name| name.ends_with(b" key") || name.ends_with(b" key V1"));
    secret.then_some(label + length + closing.len())
}

/// Whether a line of base64, or a header line, follows.
fn holds_key(window: &[u8], body: usize) -> bool {
    let mut at = body;
    loop {
        at += BETWEEN.run(window, at, window.len());
        // A line end within a string.
        match window[at.min(window.len())..] {
            [b'\\', b'n' | b'r' | b't' | b'\\' | b'\n', ..] => at += 2,
            [b'%', b'0', b'A' | b'a' | b'D' | b'd', ..] => at += 3,
            [b'\\', b'x', b'0', b'A' | b'a' | b'D' | b'd', ..]
            | [b'\\', b'0', b'1', b'2' | b'5', ..] => at += 4,
            [b'\\', b'u', b'0', b'0', b'0', b'A' | b'a' | b'D' | b'd', ..] => at += 6,
            _ => break,
        }
    }
    let header = HEADER.run(window, at, 40);
    BASE64.run(window, at, LINE_MIN) == LINE_MIN
        || (header > 2 && window[at + header..].starts_with(b": "))
        || is_behind_prefix(&window[body..])
}

/// Whether one of the first lines behind a beginning has a line of base64 in it, before any end: logs and the
/// like write something in front of each, and behind it.
fn is_behind_prefix(rest: &[u8]) -> bool {
    let end = memchr::memmem::find(rest, b"-----END ").unwrap_or(rest.len());
    let is_key = |piece: &[u8]| {
        let has = |kind: fn(&u8) -> bool| piece.iter().any(kind);
        piece.len() >= LONG_LINE_MIN
            && has(u8::is_ascii_digit)
            && has(u8::is_ascii_uppercase)
            && has(u8::is_ascii_lowercase)
    };
    rest[..end].split(|byte| *byte == b'\n').take(LINES_MAX).any(|line| {
        let line = &line[..line.len().min(PREFIX_MAX + LINE_MAX)];
        line.split(|byte| !BASE64.has(*byte)).any(is_key)
    })
}
