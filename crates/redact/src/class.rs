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

/// Whether a word may begin at `at`: no letter, digit or underscore stands right before it. The
/// letter of an escape (`\n`) ends there.
pub(crate) fn begins_word(text: &[u8], at: usize) -> bool {
    let Some(before) = at.checked_sub(1) else { return true };
    if !WORD.has(text[before]) {
        return true;
    }
    before >= 1 && text[before - 1] == b'\\' && matches!(text[before], b'n' | b'r' | b't')
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
