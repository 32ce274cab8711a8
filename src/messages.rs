//! Messages on standard error, and errors as text.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::escape::without_controls;

/// An error with its causes, each once: some errors name their cause in their own text.
pub(crate) fn in_words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Prints a line on standard error. Whatever name it holds, it does not steer the terminal.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    // Without a standard error there is nowhere to print it.
    let _ = writeln!(std::io::stderr(), "tollgate: {}", without_controls(&shortened(text)));
}

/// The longest path, or other text between backticks, that a message has whole, in characters. What
/// is wrong would not be seen beside several thousand.
const QUOTED_MAX: usize = 400;

/// The text with what is longer between two backticks cut in its middle.
fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= QUOTED_MAX {
        return Cow::Borrowed(text);
    }
    let parts = text.split('`').enumerate().map(|(number, part)| match number % 2 {
        1 => cut(part),
        _ => Cow::Borrowed(part),
    });
    Cow::Owned(parts.collect::<Vec<_>>().join("`"))
}

fn cut(part: &str) -> Cow<'_, str> {
    let count = part.chars().count();
    if count <= QUOTED_MAX {
        return Cow::Borrowed(part);
    }
    let at = |number: usize| part.char_indices().nth(number).map_or(part.len(), |(at, _)| at);
    let (start, end) = (at(QUOTED_MAX / 2), at(count - QUOTED_MAX / 2));
    Cow::Owned(format!("{}[...]{}", &part[..start], &part[end..]))
}

/// What is wrong in a TOML file: file, line and column, what, and the line with a mark.
pub(crate) fn in_toml(file: &str, text: &str, error: &toml::de::Error) -> String {
    let what = error.message();
    let Some(span) = error.span() else { return format!("{file}: {what}") };
    let before = text.get(..span.start).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let number = 1 + before.matches('\n').count();
    let column = 1 + before[start..].chars().count();
    let line = text[start..].lines().next().unwrap_or_default();
    let (shown, gap) = (number.to_string(), " ".repeat(number.to_string().len()));
    let mark = " ".repeat(column - 1);
    format!("{file}:{number}:{column}: {what}\n{gap} |\n{shown} | {line}\n{gap} | {mark}^")
}

/// `1 rule`, `2 rules`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

pub(crate) fn warn(text: &str) {
    say(&format!("warning: {text}"));
}

pub(crate) fn note(text: &str) {
    say(&format!("note: {text}"));
}

/// The search for hard links at the start takes a while: how far it is, where somebody looks on;
/// else one line.
pub(crate) fn searching(names: u64) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    if terminal || !SAID.swap(true, Ordering::Relaxed) {
        note(&format!("looking for names of hard links: {names} names so far"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_cut_in_its_middle() {
        let path = |count: usize| format!("/begin{}/end", "é".repeat(count));
        let said = |count: usize| format!("`{}` and `{}`: no", path(count), path(1));
        assert_eq!(shortened(&said(390)), said(390));
        let half = |rest: usize| "é".repeat(QUOTED_MAX / 2 - rest);
        let cut = format!("`/begin{}[...]{}/end` and `{}`: no", half(6), half(4), path(1));
        assert_eq!(shortened(&said(391)), cut);
        assert_eq!(shortened(&said(9_000)), cut);
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("no entry").context("mount: no entry (try root)");
        assert_eq!(in_words(&error), "mount: no entry (try root)");
        let error = anyhow::anyhow!("no entry").context("mount").context("start");
        assert_eq!(in_words(&error), "start: mount: no entry");
    }
}
