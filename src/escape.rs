//! Text from file names, made safe for a terminal.

use std::borrow::Cow;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Map, Value};

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

/// A path in the same way. Bytes that are not UTF-8 are escapes, too, so that no two paths look the same.
pub(crate) fn shown(path: &Path) -> String {
    let mut shown = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        shown.push_str(&escaped(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

/// A path as a word of a command line that a shell reads as that very path: in quotes, or with escapes
/// (`$'a\nb'`, which sh of POSIX.1-2024, bash, zsh and ksh know).
pub(crate) fn shell_word(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = |text: &str| escaped(text) == text && !text.contains('\'');
    match std::str::from_utf8(bytes) {
        Ok(text) if is_plain(text) => format!("'{text}'"),
        _ => {
            let mut word = "$'".to_owned();
            for &byte in bytes {
                match byte {
                    b'\'' | b'\\' => word.extend(['\\', char::from(byte)]),
                    b' '..=b'~' => word.push(char::from(byte)),
                    // A String takes every write.
                    _ => _ = write!(word, "\\{byte:03o}"),
                }
            }
            word + "'"
        }
    }
}

/// A path as a word of a command, in quotes where it needs them.
pub(crate) fn word(path: &Path) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,".contains(byte);
    let bytes = path.as_os_str().as_bytes();
    if !bytes.is_empty() && bytes.iter().all(is_plain) { shown(path) } else { shell_word(path) }
}

/// A path as JSON has it: `file`, and where that is not all, all its bytes in hexadecimal as `file_hex`.
pub(crate) fn in_json(path: &Path) -> Map<String, Value> {
    let mut fields = Map::new();
    add_to_json(&mut fields, "file", path);
    fields
}

/// The same as `key`, and with `_hex` behind it, beside other fields.
pub(crate) fn add_to_json(fields: &mut Map<String, Value>, key: &str, path: &Path) {
    fields.insert(key.to_owned(), path.to_string_lossy().into());
    if let Some(hex) = hex(path) {
        fields.insert(format!("{key}_hex"), hex.into());
    }
}

/// The same JSON with what could steer a terminal as escapes, where JSON may have it as it is: DEL, U+0080 to
/// U+009F, and marks that turn the direction of writing or have no width.
pub(crate) fn json_text(json: &str) -> Cow<'_, str> {
    let is_raw = |char: char| matches!(char, '\x7f'..='\u{9f}') || turns_or_hides(char);
    if json.is_ascii() && !json.contains('\x7f') || !json.contains(is_raw) {
        return json.into();
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for char in json.chars() {
        if is_raw(char) {
            for unit in char.encode_utf16(&mut [0; 2]) {
                // A String takes every write.
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(char);
        }
    }
    shown.into()
}

/// All bytes of a path in hexadecimal, if it is not UTF-8, so that JSON has it otherwise only as it is shown.
pub(crate) fn hex(path: &Path) -> Option<String> {
    let bytes = path.as_os_str().as_bytes().iter();
    path.to_str().is_none().then(|| bytes.map(|byte| format!("{byte:02x}")).collect())
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

/// What another process reported, with every string and every name in it [`escaped`]. Whoever shows a report
/// has it go through here as a whole, so that no word of it is forgotten.
pub(crate) fn in_report(report: &Value) -> Value {
    match report {
        Value::String(text) => escaped(text).into(),
        Value::Array(all) => all.iter().map(in_report).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, member)| (escaped(name), in_report(member))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => report.clone(),
    }
}

/// A message of another process, which may have several lines: those behind the first are indented, so that none
/// of them looks like a line of this program.
pub(crate) fn of_another(text: &str) -> String {
    without_controls(text).replace('\n', "\n  ")
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
    fn a_word_is_the_path_to_a_shell() {
        for (bytes, word) in [
            (&b"a b/$x;`y`\"z"[..], r#"'a b/$x;`y`"z'"#),
            (b"it's", r"$'it\'s'"),
            (b"new\nline\\", r"$'new\012line\\'"),
            (b"\xff\xc3\xbc", r"$'\377\303\274'"),
            ("\u{fc}".as_bytes(), "'\u{fc}'"),
        ] {
            let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
            assert_eq!(shell_word(path), word);
        }
    }

    #[test]
    fn what_steers_a_terminal_is_shown_as_text() {
        assert_eq!(escaped("a\x1b[31mb\n\u{9b}2J"), "a\\x1b[31mb\\n\\u{9b}2J");
        let json = "[\n  \"a\\n\u{9b}2J\u{7f}\u{a0}\"\n]";
        assert_eq!(json_text(json), "[\n  \"a\\n\\u009b2J\\u007f\u{a0}\"\n]");
        let (json, escapes) = ("\"a\u{202e}b\u{e0001}日\"", r#""a\u202eb\udb40\udc01日""#);
        assert_eq!(json_text(json), escapes);
        let read = |json: &str| serde_json::from_str::<String>(json).unwrap();
        assert_eq!(read(escapes), read(json));
        assert_eq!(escaped("evil\u{202e}txt.exe"), "evil\\u{202e}txt.exe");
        assert_eq!(escaped("a\\x1b"), "a\\\\x1b");
        assert_eq!(without_controls("a\x1b[31mb\n\t\\\r\u{9b}"), "a\\x1b[31mb\n\t\\\\r\\u{9b}");
        let bytes = |bytes: &'static [u8]| Path::new(std::ffi::OsStr::from_bytes(bytes));
        assert_eq!(shown(bytes(b"a\xff\n\xc3\xbc\xfe")), "a\\xff\\nü\\xfe");
        assert_eq!(in_json(bytes(b"a\xff"))["file_hex"], "61ff");
        assert!(!in_json(bytes(b"a")).contains_key("file_hex"));
        assert_eq!(escaped("grün 日本 🙂"), "grün 日本 🙂");
    }

    #[test]
    fn no_word_of_a_report_and_no_name_in_it_is_left_as_it_was() {
        let report = serde_json::json!({ "a\x1b": ["b\n", { "c": "d\u{9b}", "e": 5 }], "f": null });
        let shown =
            serde_json::json!({ "a\\x1b": ["b\\n", { "c": "d\\u{9b}", "e": 5 }], "f": null });
        assert_eq!(in_report(&report), shown);
    }

    #[test]
    fn a_message_of_another_has_no_line_that_begins_as_one_of_ours() {
        assert_eq!(of_another("a:1: no\n1 | x\n  | ^"), "a:1: no\n  1 | x\n    | ^");
        assert_eq!(of_another("a\rb\u{2028}c\x1b"), "a\\rb\\u{2028}c\\x1b");
    }
}
