//! Card numbers: 13 to 19 digits, in groups or not, with the numbers that networks have and a valid
//! check digit.

use std::ops::Range;

use crate::class::{DIGIT, is_after_escape};

const DIGITS_MIN: usize = 13;
const DIGITS_MAX: usize = 19;
/// A number has at most five groups.
const GROUPS_MAX: usize = 5;

/// A number of 13 digits covers the first six bytes of one step, wherever it begins.
const STEP: usize = 8;
const PROBE: usize = 6;

/// Calls `emit` with each number in `text`.
pub(crate) fn cards(text: &[u8], mut emit: impl FnMut(Range<usize>)) {
    let mut done = 0;
    let mut look = |at: usize| {
        // Numbers may share groups: the one that begins first is whole, and what ends behind it follows.
        for number in numbers_around(text, at).into_iter().rev().flatten() {
            if number.end > done {
                done = number.end;
                emit(number);
            }
        }
    };
    for (index, chunk) in text.chunks_exact(STEP).enumerate() {
        if probe(chunk) {
            look(index * STEP);
        }
    }
    // The last step may be cut short.
    let rest = text.len() - text.len() % STEP;
    if text.get(rest).is_some_and(|byte| is_part(*byte)) {
        look(rest);
    }
}

/// Whether the first bytes may be in the middle of a number. Digits and separators lie from 0x20 to
/// 0x3f, digits alone have the bit 0x10: that sends most text away in one step.
#[inline]
fn probe(chunk: &[u8]) -> bool {
    let bytes: [u8; STEP] = chunk.try_into().expect("a whole step");
    let bytes = u64::from_le_bytes(bytes);
    bytes & 0xe0e0_e0e0_e0e0 == 0x2020_2020_2020
        && bytes & 0x1010_1010_1010 != 0
        && chunk[..PROBE].iter().all(|byte| is_part(*byte))
}

#[inline]
fn is_part(byte: u8) -> bool {
    byte.is_ascii_digit() | (byte == b' ') | (byte == b'-')
}

/// The numbers that cover `at`, one for each group of digits that one may begin with.
fn numbers_around(text: &[u8], at: usize) -> [Option<Range<usize>>; GROUPS_MAX] {
    let mut numbers = [const { None }; GROUPS_MAX];
    let mut end = at + usize::from(text[at].is_ascii_digit());
    for number in &mut numbers {
        // One digit more than a number has: then it is none.
        let start = end - DIGIT.run_before(text, end, DIGITS_MAX + 1);
        *number = number_at(text, start);
        let joined = start >= 2 && !text[start - 1].is_ascii_digit() && is_part(text[start - 1]);
        if !joined {
            break;
        }
        end = start - 1;
    }
    numbers
}

/// The longest number that begins at `start`, or behind the digits of an escape there.
fn number_at(text: &[u8], start: usize) -> Option<Range<usize>> {
    let digits = match &text[start.saturating_sub(2)..start] {
        [.., b'%'] | [b'\\', b'x'] => 2,
        [b'\\', b'u'] => 4,
        [.., b'\\'] => 3,
        _ => 0,
    };
    let behind = (start + digits).min(text.len());
    let is_escape = || digits > 0 && is_after_escape(text, behind);
    longest_at(text, start).or_else(|| is_escape().then(|| longest_at(text, behind)).flatten())
}

fn longest_at(text: &[u8], start: usize) -> Option<Range<usize>> {
    let part_of_more = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let before = start.checked_sub(1).map(|before| text[before]);
    if before.is_some_and(part_of_more) && !is_after_escape(text, start) {
        return None;
    }
    let mut digits = Digits { digits: [0; DIGITS_MAX], count: 0 };
    let mut sizes = [0; GROUPS_MAX];
    let mut separator = None;
    let mut at = start;
    let mut number = None;
    for groups in 0..GROUPS_MAX {
        let size = DIGIT.run(text, at, DIGITS_MAX + 1);
        if size == 0 || !digits.take(&text[at..at + size]) {
            break;
        }
        sizes[groups] = size;
        at += size;
        let next = text.get(at).copied();
        let ends = next.is_none_or(|byte| !byte.is_ascii_alphanumeric() && byte != b'_');
        if ends && grouped(&sizes[..=groups]) && digits.are_a_number() {
            number = Some(start..at);
        }
        if !matches!(next, Some(b' ' | b'-')) || *separator.get_or_insert(next) != next {
            break;
        }
        at += 1;
    }
    number
}

struct Digits {
    digits: [u8; DIGITS_MAX],
    count: usize,
}

impl Digits {
    /// Whether there is room for these.
    fn take(&mut self, group: &[u8]) -> bool {
        let Some(place) = self.digits.get_mut(self.count..self.count + group.len()) else {
            return false;
        };
        for (digit, byte) in place.iter_mut().zip(group) {
            *digit = byte - b'0';
        }
        self.count += group.len();
        true
    }

    fn are_a_number(&self) -> bool {
        let digits = &self.digits[..self.count];
        of_a_network(digits) && check_digit(digits)
    }
}

/// No groups, groups of four, or 4-6-5 and 4-6-4.
fn grouped(sizes: &[usize]) -> bool {
    matches!(
        sizes,
        [DIGITS_MIN..=DIGITS_MAX] | [4, 4, 4, 1..=4] | [4, 4, 4, 4, 1..=3] | [4, 6, 4 | 5]
    )
}

/// By the first digits and the length, as the networks publish them.
fn of_a_network(digits: &[u8]) -> bool {
    let count = digits.len();
    if count < DIGITS_MIN {
        return false;
    }
    let start = digits[..4].iter().fold(0_u16, |number, digit| number * 10 + u16::from(*digit));
    match start {
        4000..=4999 => matches!(count, 13 | 16 | 19),
        5100..=5599 | 2221..=2720 => count == 16,
        3400..=3499 | 3700..=3799 => count == 15,
        6011 | 6440..=6499 | 6500..=6599 | 6200..=6299 => (16..=19).contains(&count),
        3528..=3589 => (16..=19).contains(&count),
        3000..=3059 | 3600..=3699 | 3800..=3999 => (14..=19).contains(&count),
        _ => false,
    }
}

/// The method of Luhn: every second digit from the right counts twice. All the same digit passes
/// for some numbers, and is nobody's.
fn check_digit(digits: &[u8]) -> bool {
    let sum = digits.iter().rev().enumerate().map(|(place, digit)| match place % 2 {
        0 => u32::from(*digit),
        _ => u32::from(*digit) * 2 - if *digit > 4 { 9 } else { 0 },
    });
    sum.sum::<u32>() % 10 == 0 && digits.iter().any(|digit| *digit != digits[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both are whole, whichever is met first.
    #[test]
    fn numbers_that_share_groups_are_found_wherever_they_begin() {
        for before in 0..20 {
            let shared = "4000 4111 1234 0006 0008";
            let text = format!("{} {shared} 7, {shared}", "x".repeat(before));
            let mut shown = text.clone().into_bytes();
            cards(text.as_bytes(), |range| shown[range].fill(b'#'));
            let masked = "#".repeat(shared.len());
            let expected = format!("{} {masked} 7, {masked}", "x".repeat(before));
            assert_eq!(String::from_utf8(shown).unwrap(), expected);
        }
    }

    /// Every place in a text, so that every phase of the steps is met.
    #[test]
    fn a_number_is_found_wherever_it_begins() {
        for number in
            ["4111111111111111", "4222222222222", "3782 822463 10005", "5555-5555-5555-4444"]
        {
            for before in 0..40 {
                for after in 0..12 {
                    let text = format!("{} {number}{}", "x 7".repeat(before), " 12".repeat(after));
                    let mut found = Vec::new();
                    cards(text.as_bytes(), |range| found.push((range.start, range.end)));
                    let start = before * 3 + 1;
                    assert_eq!(found, [(start, start + number.len())], "{text}");
                }
            }
        }
    }
}
