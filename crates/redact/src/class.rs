//! Sets of bytes, as tables.

/// A set of bytes.
#[derive(Debug)]
pub(crate) struct Class([bool; 256]);

impl Class {
    /// The bytes of `text`, where `a-z` stands for a range. A `-` at the end stands for itself.
    pub(crate) const fn new(text: &[u8]) -> Class {
        let mut table = [false; 256];
        let mut at = 0;
        while at < text.len() {
            let first = text[at];
            let last =
                if at + 2 < text.len() && text[at + 1] == b'-' { text[at + 2] } else { first };
            let mut byte = first;
            while byte < last {
                table[byte as usize] = true;
                byte += 1;
            }
            table[last as usize] = true;
            at += if last == first { 1 } else { 3 };
        }
        Class(table)
    }

    pub(crate) const fn has(&self, byte: u8) -> bool {
        self.0[byte as usize]
    }

    /// How many bytes from `at` on belong to the class, `max` at most.
    pub(crate) fn run(&self, text: &[u8], at: usize, max: usize) -> usize {
        let rest = text.get(at..).unwrap_or_default();
        let rest = &rest[..rest.len().min(max)];
        rest.iter().position(|byte| !self.has(*byte)).unwrap_or(rest.len())
    }

    /// How many bytes right before `at` belong to the class, `max` at most.
    pub(crate) fn run_before(&self, text: &[u8], at: usize, max: usize) -> usize {
        let first = at.saturating_sub(max);
        let rest = &text[first..at];
        rest.iter()
            .rposition(|byte| !self.has(*byte))
            .map_or(rest.len(), |last| rest.len() - last - 1)
    }
}

/// What a word of a program consists of.
pub(crate) static WORD: Class = Class::new(b"A-Za-z0-9_");
/// Letters and digits.
pub(crate) static ALNUM: Class = Class::new(b"A-Za-z0-9");
pub(crate) static DIGIT: Class = Class::new(b"0-9");
/// Base64 of either alphabet, without padding.
pub(crate) static BASE64URL: Class = Class::new(b"A-Za-z0-9_-");
pub(crate) static BLANK: Class = Class::new(b" \t");

/// Whether a word may begin at `at`: no letter, digit or underscore stands right before it. Those of an
/// escape (`\n`, `\u0026`, `%3D`, the colours of terminals) end there.
pub(crate) fn begins_word(text: &[u8], at: usize) -> bool {
    at.checked_sub(1).is_none_or(|before| !WORD.has(text[before])) || is_after_escape(text, at)
}

/// Whether an escape ends right before `at`.
pub(crate) fn is_after_escape(text: &[u8], at: usize) -> bool {
    let before = &text[at.saturating_sub(ESCAPE_MAX)..at];
    let all_hex = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_hexdigit);
    match before {
        [.., b'\\', b'n' | b'r' | b't' | b'b' | b'f'] => return true,
        [.., b'%', first, last] | [.., b'\\', b'x', first, last] if all_hex(&[*first, *last]) => {
            return true;
        }
        [.., b'\\', b'0'..=b'3', b'0'..=b'7', b'0'..=b'7'] | [.., b'=', b'3', b'D' | b'd'] => {
            return true;
        }
        [.., b'\\', b'u', a, b, c, d] if all_hex(&[*a, *b, *c, *d]) => return true,
        _ => {}
    }
    // `ESC [ 1 ; 32 m`, the first also as programs and JSON write it.
    let Some((last, before)) = before.split_last() else { return false };
    let numbers = before.iter().rev().take_while(|byte| NUMBERS.has(**byte)).count();
    let start = before[..before.len() - numbers].strip_suffix(b"[");
    last.is_ascii_alphabetic()
        && start.is_some_and(|start| ESCAPES.iter().any(|it| start.ends_with(it)))
}

/// The longest escape that is known, in bytes: the colours of a terminal.
const ESCAPE_MAX: usize = 32;
static NUMBERS: Class = Class::new(b"0-9;:?");
static ESCAPES: [&[u8]; 7] =
    [b"\x1b", b"\\x1b", b"\\x1B", b"\\u001b", b"\\u001B", b"\\033", b"\\e"];

/// How many bytes from `at` on are colours of a terminal: `ESC [ 1 ; 32 m`, some of them at most.
pub(crate) fn colours(text: &[u8], at: usize) -> usize {
    let mut next = at;
    for _ in 0..4 {
        let rest = text.get(next..).unwrap_or_default();
        let Some(escape) = ESCAPES.iter().find(|escape| rest.starts_with(escape)) else { break };
        let Some(rest) = rest[escape.len()..].strip_prefix(b"[") else { break };
        let numbers = NUMBERS.run(rest, 0, ESCAPE_MAX);
        if !rest.get(numbers).is_some_and(u8::is_ascii_alphabetic) {
            break;
        }
        next += escape.len() + 1 + numbers + 1;
    }
    next - at
}

/// Whether `text` has a digit and a letter, as random text has and few names do.
pub(crate) fn mixed(text: &[u8]) -> bool {
    text.iter().any(u8::is_ascii_digit) && text.iter().any(u8::is_ascii_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_bytes_are_read() {
        for byte in 0..=255_u8 {
            let expected = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            assert_eq!(BASE64URL.has(byte), expected, "{byte}");
        }
        assert_eq!(WORD.run(b"-ab_1-", 1, 10), 4);
        assert_eq!(WORD.run(b"-ab_1-", 1, 2), 2);
        assert_eq!(WORD.run_before(b"-ab_1-", 5, 10), 4);
        assert_eq!(WORD.run(b"", 3, 10), 0);
    }
}
