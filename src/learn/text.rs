//! Rules as TOML has them.

use std::fmt::Write;

/// An empty line, and the beginning of a rule.
pub(super) fn rule_of<'g>(
    name: &str,
    globs: impl IntoIterator<Item = &'g String>,
    text: &mut String,
) {
    text.push('\n');
    beginning(name, globs, text);
}

/// The beginning of a rule.
pub(super) fn beginning<'g>(
    name: &str,
    globs: impl IntoIterator<Item = &'g String>,
    text: &mut String,
) {
    text.push_str(&format!("[[rule]]\nname = \"{name}\"\npath = [\n"));
    for glob in globs {
        text.push_str(&format!("    {},\n", quoted(glob)));
    }
    text.push_str("]\n");
}

/// A list of words.
pub(super) fn list(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    format!("[{}]", quoted.join(", "))
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", char as u32);
            }
            // No character, and nothing to be seen.
            char::MAX => quoted.push_str("\\U0010FFFF"),
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}
