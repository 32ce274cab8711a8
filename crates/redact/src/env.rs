//! Files in the form of `.env`: names and comments stay, every value goes.
//!
//! Each line is judged by itself, so that a part of a file can be: what is no name with a value, no
//! comment and not blank is taken for the rest of a value, and masked. A value in quotes may have
//! several lines; one that looks like an assignment is masked because the quote before it is still
//! open.

use std::ops::Range;

use crate::class::{BLANK, Class, WORD};

/// Names are no longer.
const NAME_MAX: usize = 256;
/// What lies further from the beginning of its line is masked.
pub(crate) const LINE_MAX: usize = 4096;
/// A value in quotes is followed so far.
pub(crate) const QUOTED_MAX: usize = 64 << 10;

static NAME: Class = Class::new(b"A-Za-z0-9_.-");

/// Calls `emit` with what is masked. `from_start`: `text` begins where a line does.
pub(crate) fn values(text: &[u8], from_start: bool, mut emit: impl FnMut(Range<usize>)) {
    let mut start = 0;
    if !from_start {
        start = memchr::memchr(b'\n', text).map_or(text.len(), |newline| newline + 1);
        emit(LINE_MAX.min(start)..start);
    }
    while start < text.len() {
        let end = memchr::memchr(b'\n', &text[start..]).map_or(text.len(), |length| start + length);
        line(text, start..end.min(start + LINE_MAX), &mut emit);
        emit(end.min(start + LINE_MAX)..end);
        start = end + 1;
    }
}

fn line(text: &[u8], line: Range<usize>, emit: &mut impl FnMut(Range<usize>)) {
    let first = line.start + BLANK.run(text, line.start, line.len());
    let rest = &text[first..line.end];
    if rest.is_empty() || rest == b"\r" {
        return;
    }
    let comment = rest.iter().take_while(|byte| matches!(byte, b'#' | b' ' | b'\t')).count();
    match value_start(text, first + comment..line.end, comment == 0) {
        Some(value) => mask_value(text, value..line.end, emit),
        // The rest of a value that has several lines, or what nobody can tell.
        None if comment == 0 => emit(first..line.end),
        None => {}
    }
}

/// Where the value begins, if `line` begins with a name and a sign. In a comment, which is mostly
/// prose, the sign must be `=` right behind the name.
fn value_start(text: &[u8], line: Range<usize>, loose: bool) -> Option<usize> {
    let mut at = line.start;
    if text[at..line.end].starts_with(b"export ") {
        at += b"export ".len();
        at += BLANK.run(text, at, line.end - at);
    }
    let name = NAME.run(text, at, NAME_MAX.min(line.end - at));
    if name == 0 || text[at].is_ascii_digit() || !WORD.has(text[at]) {
        return None;
    }
    at += name;
    if loose {
        at += BLANK.run(text, at, line.end - at);
    }
    match text[at..line.end] {
        [b'=', ..] => {}
        [b':', b' ', ..] if loose => {}
        _ => return None,
    }
    at += 1;
    // Base64 ends with `=`: its last line is no name.
    if text[at..line.end].iter().all(|byte| matches!(byte, b'=' | b'\r')) && name > 40 {
        return None;
    }
    Some(at + BLANK.run(text, at, line.end - at))
}

fn mask_value(text: &[u8], value: Range<usize>, emit: &mut impl FnMut(Range<usize>)) {
    let Some(quote @ (b'"' | b'\'' | b'`')) = text[value.clone()].first().copied() else {
        return emit(trimmed(text, value));
    };
    let start = value.start + 1;
    let end = closing(text, start, quote);
    emit(start..end);
    // What stands behind the closing quote on the same line, but for a comment.
    let behind = trimmed(text, (end + 1).min(value.end)..value.end);
    let first = text[behind.clone()].iter().find(|byte| !BLANK.has(**byte));
    if first.is_some_and(|byte| *byte != b'#') {
        emit(behind);
    }
}

/// Where the value in quotes ends; as far as it is followed if nothing closes it.
fn closing(text: &[u8], start: usize, quote: u8) -> usize {
    let window = &text[start..text.len().min(start + QUOTED_MAX)];
    let mut escaped = false;
    let end = window.iter().position(|byte| {
        let closes = *byte == quote && !escaped;
        escaped = *byte == b'\\' && !escaped && quote != b'\'';
        closes
    });
    start + end.unwrap_or(window.len())
}

fn trimmed(text: &[u8], value: Range<usize>) -> Range<usize> {
    let last = text[value.clone()].iter().rposition(|byte| !matches!(byte, b'\r' | b' ' | b'\t'));
    value.start..last.map_or(value.start, |last| value.start + last + 1)
}
