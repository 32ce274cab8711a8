//! git's configuration files, as far as is needed: sections, keys and plain values.

use std::path::{Path, PathBuf};

use crate::files;

/// Largest file that is read, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// The settings of one or more files, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config(Vec<Setting>);

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// In lower case.
    pub(super) section: String,
    subsection: Option<String>,
    /// In lower case.
    pub(super) key: String,
    pub(super) value: String,
}

impl Setting {
    /// `section.key` or `section.subsection.key`.
    pub(super) fn name(&self) -> String {
        match &self.subsection {
            Some(subsection) => format!("{}.{subsection}.{}", self.section, self.key),
            None => format!("{}.{}", self.section, self.key),
        }
    }
}

impl Config {
    /// Reads a file; one that is missing, too large or not text has no settings.
    pub(crate) fn read(file: &Path) -> Self {
        let fits = std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() < MAX_LEN);
        let text = if fits { files::read_to_string(file).unwrap_or_default() } else { "".into() };
        Self::parse(&text)
    }

    /// Whether the file is there and too large to be read.
    pub(super) fn is_too_large(file: &Path) -> bool {
        std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() >= MAX_LEN)
    }

    /// What the user has set for every repository.
    pub(crate) fn of_user() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let xdg = std::env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(home.as_ref()?.join(".config")));
        let files =
            [xdg.map(|xdg| xdg.join("git/config")), home.map(|home| home.join(".gitconfig"))];
        Self(files.into_iter().flatten().flat_map(|file| Self::read(&file).0).collect())
    }

    fn parse(text: &str) -> Self {
        let mut settings = Vec::new();
        let (mut section, mut subsection) = (String::new(), None);
        // A backslash at the end of a line goes on in the next.
        let joined = text.replace("\\\r\n", "").replace("\\\n", "");
        for line in joined.lines().map(str::trim) {
            let mut line = line;
            if let Some(head) = line.strip_prefix('[') {
                let (head, rest) = section_head(head);
                (section, subsection) = section_name(head);
                // A setting may follow on the same line.
                line = rest.trim();
            }
            if !line.is_empty() && !line.starts_with(['#', ';']) {
                let (key, value) = line.split_once('=').unwrap_or((line, "true"));
                settings.push(Setting {
                    section: section.clone(),
                    subsection: subsection.clone(),
                    key: key.trim().to_lowercase(),
                    value: plain(value.trim()),
                });
            }
        }
        Self(settings)
    }

    /// All settings, in their order.
    pub(super) fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.0.iter()
    }

    /// The values of `section.key` in lower case, in their order.
    pub(crate) fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        let (section, key) = name.split_once('.').unwrap_or((name, ""));
        let wanted = move |one: &&Setting| {
            one.section == section && one.subsection.is_none() && one.key == key
        };
        self.0.iter().filter(wanted).map(|one| one.value.as_str())
    }

    /// The values of `key` in every subsection of `section`.
    pub(crate) fn values_of_any(&self, section: &str, key: &str) -> impl Iterator<Item = &str> {
        let wanted = move |one: &&Setting| one.section == section && one.key == key;
        self.0.iter().filter(wanted).map(|one| one.value.as_str())
    }
}

/// What stands in the brackets, and behind them.
fn section_head(text: &str) -> (&str, &str) {
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ']' if !quoted => return (&text[..at], &text[at + 1..]),
            _ => {}
        }
    }
    (text, "")
}

/// `name`, `name "subsection"`, or `name.subsection` as older versions wrote it.
fn section_name(head: &str) -> (String, Option<String>) {
    let (name, subsection) = match head.split_once('"') {
        Some((name, sub)) => (name, Some(plain(&format!("\"{sub}")))),
        None => match head.split_once('.') {
            Some((name, sub)) => (name, Some(sub.trim().to_owned())),
            None => (head, None),
        },
    };
    (name.trim().to_lowercase(), subsection)
}

/// A value without quotes, escapes and the comment behind it.
fn plain(value: &str) -> String {
    let (mut text, mut quoted) = (String::new(), false);
    let mut rest = value.chars();
    while let Some(c) = rest.next() {
        match c {
            '"' => quoted = !quoted,
            '\\' => text.extend(rest.next()),
            '#' | ';' if !quoted => break,
            c => text.push(c),
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_keys_and_values_are_read() {
        let config = Config::parse(
            "[core]\n\tbare = false # no\n\tHooksPath = \"a ; b\" ; c\n[submodule \"x y\"]\npath=p\n\
             [alias]\n  st = status\n[core]\nhookspath = two\n",
        );
        assert_eq!(config.values("core.hookspath").collect::<Vec<_>>(), ["a ; b", "two"]);
        assert_eq!(config.values_of_any("submodule", "path").collect::<Vec<_>>(), ["p"]);
        assert_eq!(config.values("core.bare").collect::<Vec<_>>(), ["false"]);
        assert_eq!(config.values("submodule.path").count(), 0);
    }
}
