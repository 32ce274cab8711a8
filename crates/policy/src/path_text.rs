//! Paths in answers: as text for people, and in JSON for programs.

use std::fmt::Write;

use serde::Serializer;
use serde::ser::SerializeMap;

/// A path as text from which nothing can steer a terminal, or look like another path: control characters and
/// backslashes stand as `\n`, `\x1b` or `\u{9b}`, and so do marks that turn the direction of writing or have no
/// width; bytes that are not UTF-8 as `\xff`.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    // A String takes every write.
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            _ = match char {
                '\\' | '\n' | '\t' | '\r' => write!(text, "{}", char.escape_default()),
                '\0'..='\x1f' | '\x7f' => write!(text, "\\x{:02x}", u32::from(char)),
                _ if char.is_control() || turns_or_hides(char) => {
                    write!(text, "\\u{{{:x}}}", u32::from(char))
                }
                _ => text.write_char(char),
            };
        }
        chunk.invalid().iter().for_each(|byte| _ = write!(text, "\\x{byte:02x}"));
    }
    text
}

/// Marks that change the direction of what follows, or that have no width.
fn turns_or_hides(char: char) -> bool {
    matches!(
        char,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

/// A member `path`, as it is. What is not UTF-8 has U+FFFD in its place, and all bytes in hexadecimal beside it
/// as `path_hex`.
pub(crate) fn path<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    members(["path", "path_hex"], bytes, to)
}

/// The same as `to`.
pub(crate) fn new_name<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    members(["to", "to_hex"], bytes, to)
}

/// The same as `hidden_above`; left out where there is none.
pub(crate) fn hidden_above<S: Serializer>(
    bytes: &Option<Vec<u8>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => members(["hidden_above", "hidden_above_hex"], bytes, to),
        None => to.serialize_map(Some(0))?.end(),
    }
}

fn members<S: Serializer>(
    [text, hex]: [&'static str; 2],
    bytes: &[u8],
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut all = to.serialize_map(None)?;
    all.serialize_entry(text, &String::from_utf8_lossy(bytes))?;
    if str::from_utf8(bytes).is_err() {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        all.serialize_entry(hex, &digits)?;
    }
    all.end()
}
