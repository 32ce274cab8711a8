//! Text that may be the rest of something whose beginning is out of sight.
//!
//! A key or a token that is longer than the context around a range cannot be told by its beginning.
//! But it consists of a few kinds of bytes, without a gap. So a byte is masked if as many bytes as
//! are looked at, right before it, are all of that kind, and the last 256 of them have what encoded
//! data has and lists of words, numbers or identifiers do not: digits, letters of both cases, and a long
//! piece without a blank.

use std::ops::Range;

use crate::armor;
use crate::class::Class;
use crate::jwt;

/// The last bytes, in which digits and letters of both cases must be.
const LAST: usize = 256;

/// A kind of such text.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) class: &'static Class,
    /// So many bytes of the class before a byte mask it.
    pub(crate) threshold: usize,
}

/// Such a piece has so many bytes: lines of a key have 64 or more.
const PIECE: usize = 40;

/// Inside of a key: base64, blanks, and line breaks, also as strings have them. Quotes and commas, which
/// strings of a program have around them, are not: lists of values would be keys.
static KEY_BYTES: Class = Class::new(b"A-Za-z0-9+/=\t-\r \\");
static BLANK_OR_LINE_END: Class = Class::new(b"\t-\r \\");
/// Less than a block by what its header lines may take.
pub(crate) static KEY: Run = Run { class: &KEY_BYTES, threshold: armor::BLOCK_MAX - (4 << 10) };
pub(crate) static JWT: Run = Run { class: &jwt::ALPHABET, threshold: jwt::JWT_MAX };

impl Run {
    /// Calls `emit` with what is masked.
    pub(crate) fn rests(&self, text: &[u8], mut emit: impl FnMut(Range<usize>)) {
        // Every run that is long enough has one of these bytes.
        let step = self.threshold / 2;
        let mut at = step;
        while at < text.len() {
            let mut end = at;
            if self.class.has(text[at]) {
                let start = at - self.class.run_before(text, at, at);
                end = at + self.class.run(text, at, text.len());
                if end - start > self.threshold {
                    self.within(text, start..end, &mut emit);
                }
            }
            at += step;
            at = at.max(end);
        }
    }

    fn within(&self, text: &[u8], run: Range<usize>, emit: &mut impl FnMut(Range<usize>)) {
        let first = run.start + self.threshold;
        // Where each kind was seen last.
        let (mut digit, mut upper, mut lower, mut piece) = (None, None, None, None);
        let (mut open, mut length) = (None, 0);
        for (at, byte) in text.iter().enumerate().take(run.end).skip(first - LAST) {
            if at >= first {
                let recent = |seen: Option<usize>| seen.is_some_and(|seen| at - seen <= LAST);
                let masked = recent(digit) && recent(upper) && recent(lower) && recent(piece);
                match (masked, open) {
                    (true, None) => open = Some(at),
                    (false, Some(start)) => {
                        emit(start..at);
                        open = None;
                    }
                    _ => {}
                }
            }
            length = if BLANK_OR_LINE_END.has(*byte) { 0 } else { length + 1 };
            if length >= PIECE {
                piece = Some(at);
            }
            match byte {
                b'0'..=b'9' => digit = Some(at),
                b'A'..=b'Z' => upper = Some(at),
                b'a'..=b'z' => lower = Some(at),
                _ => {}
            }
        }
        if let Some(start) = open {
            emit(start..run.end);
        }
    }
}
