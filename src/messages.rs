//! Messages on standard error, and errors as text.

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

/// Prints a line on standard error.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    // Without a standard error there is nowhere to print it.
    let _ = writeln!(std::io::stderr(), "tollgate: {text}");
}

pub(crate) fn warn(text: &str) {
    say(&format!("warning: {text}"));
}

pub(crate) fn note(text: &str) {
    say(&format!("note: {text}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("no entry").context("mount: no entry (try root)");
        assert_eq!(in_words(&error), "mount: no entry (try root)");
        let error = anyhow::anyhow!("no entry").context("mount").context("start");
        assert_eq!(in_words(&error), "start: mount: no entry");
    }
}
