//! Text that may be the rest of something whose beginning is out of sight.
//!
//! A key or a token that is longer than the context around a range cannot be told by its beginning.
//! But it consists of a few kinds of bytes, without a gap. So a byte is masked if as many bytes as
//! are looked at, right before it, are all of that kind, and the last 256 of them have what encoded
//! data has and lists of words or numbers do not: digits, and letters of both cases.

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

/// Inside of a key: base64, line breaks, and what strings of a program have around them.
static KEY_BYTES: Class = Class::new(b"A-Za-z0-9+/=\t-\r \\\"',");
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
        let (mut digit, mut upper, mut lower) = (None, None, None);
        let mut open = None;
        for (at, byte) in text.iter().enumerate().take(run.end).skip(first - LAST) {
            if at >= first {
                let recent = |seen: Option<usize>| seen.is_some_and(|seen| at - seen <= LAST);
                let masked = recent(digit) && recent(upper) && recent(lower);
                match (masked, open) {
                    (true, None) => open = Some(at),
                    (false, Some(start)) => {
                        emit(start..at);
                        open = None;
                    }
                    _ => {}
                }
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
