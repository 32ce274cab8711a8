//! Text from file names, made safe for a terminal.

use std::fmt::Write;
use std::path::Path;

/// What could move the cursor, change colours, begin a line or turn the direction of writing stands
/// as an escape: `\n`, `\x1b`, `\u{202e}`. A backslash is doubled, so that nothing else looks so.
pub(crate) fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            '\r' => shown.push_str("\\r"),
            char if (char as u32) < 0x20 || char == '\x7f' => {
                // A String takes every write.
                let _ = write!(shown, "\\x{:02x}", char as u32);
            }
            char if char.is_control() || turns_or_hides(char) => {
                let _ = write!(shown, "\\u{{{:x}}}", char as u32);
            }
            char => shown.push(char),
        }
    }
    shown
}

/// A path in the same way.
pub(crate) fn shown(path: &Path) -> String {
    escaped(&path.to_string_lossy())
}

/// The same as [`escaped`] for a message that may have several lines and paths that are shown already: line ends,
/// tabs and backslashes stay.
pub(crate) fn without_controls(text: &str) -> String {
    let is_kept = |char: &char| matches!(char, '\n' | '\t' | '\\');
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if is_kept(&char) {
            shown.push(char);
        } else {
            shown.push_str(&escaped(char.encode_utf8(&mut [0; 4])));
        }
    }
    shown
}

/// Marks that change the direction of what follows, or that have no width.
fn turns_or_hides(char: char) -> bool {
    matches!(
        char,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_shown_as_text() {
        assert_eq!(escaped("a\x1b[31mb\n\u{9b}2J"), "a\\x1b[31mb\\n\\u{9b}2J");
        assert_eq!(escaped("evil\u{202e}txt.exe"), "evil\\u{202e}txt.exe");
        assert_eq!(escaped("a\\x1b"), "a\\\\x1b");
        assert_eq!(without_controls("a\x1b[31mb\n\t\\\r\u{9b}"), "a\\x1b[31mb\n\t\\\\r\\u{9b}");
        assert_eq!(escaped("grün 日本 🙂"), "grün 日本 🙂");
    }
}
