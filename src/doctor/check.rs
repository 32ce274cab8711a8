//! One thing that was tried, and how it stands.

use std::path::Path;

use serde::Serialize;

use crate::escape::escaped;

/// How it stands with one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// It is there.
    Ok,
    /// It is missing, and Tollgate works without.
    Without,
    /// It is missing, and `tollgate run` does not work.
    Broken,
    /// Neither good nor bad.
    Note,
}

/// One thing that was tried or read.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) state: State,
    /// What was found.
    pub(super) found: String,
    /// What one loses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effect: Option<String>,
    /// A command, or what else mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Ok, found: found.into(), effect: None, remedy: None }
    }

    pub(super) fn note(name: &'static str, found: impl Into<String>) -> Self {
        Self { state: State::Note, ..Self::ok(name, found) }
    }

    pub(super) fn without(name: &'static str, found: impl Into<String>, effect: &str) -> Self {
        let effect = Some(effect.to_owned());
        Self { state: State::Without, effect, ..Self::ok(name, found) }
    }

    pub(super) fn broken(name: &'static str, found: impl Into<String>) -> Self {
        Self { state: State::Broken, ..Self::ok(name, found) }
    }

    pub(super) fn mended_by(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    pub(super) fn lines(&self) -> String {
        let mark = match self.state {
            State::Ok => "ok",
            State::Without => "without",
            State::Broken => "BROKEN",
            State::Note => "-",
        };
        let mut text = format!("{mark:>8}  {:<18} {}\n", self.name, escaped(&self.found));
        let more = |label: &str, what: &str| {
            let lines = what.lines().map(escaped).collect::<Vec<_>>();
            format!("{:30}{label}: {}\n", "", lines.join(&format!("\n{:32}", "")))
        };
        text += &self.effect.as_deref().map(|what| more("effect", what)).unwrap_or_default();
        text += &self.remedy.as_deref().map(|what| more("remedy", what)).unwrap_or_default();
        text
    }
}

/// A file of one line, as /proc and /sys have them.
pub(super) fn line_of(file: impl AsRef<Path>) -> Option<String> {
    Some(std::fs::read_to_string(file).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_shows_what_is_lost_and_what_mends_it() {
        let check = Check::without("x", "no \u{1b}[2J", "slower").mended_by("modprobe x\nor not");
        let text = check.lines();
        assert!(text.starts_with(" without  x "), "{text}");
        assert!(text.contains("no \\x1b[2J\n") && text.contains("effect: slower\n"), "{text}");
        assert!(text.contains("remedy: modprobe x\n") && text.ends_with(" or not\n"), "{text}");
        let json = serde_json::to_value(Check::ok("y", "z")).unwrap();
        assert_eq!(json, serde_json::json!({"name": "y", "state": "ok", "found": "z"}));
    }
}
