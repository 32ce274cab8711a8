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
    /// Reads a file; one that is missing or too large has no settings.
    pub(crate) fn read(file: &Path) -> Self {
        let fits = std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() < MAX_LEN);
        let bytes = if fits { files::read(file).unwrap_or_default() } else { Vec::new() };
        // A name in Latin-1 must not hide the other settings, nor a byte order mark the first.
        let text = String::from_utf8_lossy(&bytes);
        Self::parse(text.trim_start_matches('\u{feff}'))
    }

    /// Whether the file is there and too large to be read.
    pub(super) fn is_too_large(file: &Path) -> bool {
        std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() >= MAX_LEN)
    }

    /// The files with what the user has set for every repository, there or not.
    pub(crate) fn files_of_user() -> Vec<PathBuf> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let xdg = std::env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(home.as_ref()?.join(".config")));
        let files =
            [xdg.map(|xdg| xdg.join("git/config")), home.map(|home| home.join(".gitconfig"))];
        files.into_iter().flatten().collect()
    }

    /// The files that these settings include, under whatever condition.
    pub(crate) fn included(&self) -> impl Iterator<Item = PathBuf> {
        self.values("include.path").chain(self.values_of_any("includeif", "path")).map(pathname)
    }

    /// The directories of hooks that these settings name.
    pub(crate) fn hooks(&self) -> impl Iterator<Item = PathBuf> {
        self.values("core.hookspath").map(pathname)
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

/// The path in a value, with the home directory in the place of `~`.
fn pathname(value: &str) -> PathBuf {
    let value = value.strip_prefix(":(optional)").unwrap_or(value);
    let home = value.strip_prefix("~/").zip(std::env::var_os("HOME"));
    home.map_or_else(|| PathBuf::from(value), |(rest, home)| Path::new(&home).join(rest))
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
    fn a_mark_and_bytes_that_are_not_utf8_hide_no_setting() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = b"\xef\xbb\xbf[core]\nhooksPath = h\n[user]\nname = J\xfcrgen\n";
        std::fs::write(file.path(), text).unwrap();
        assert_eq!(Config::read(file.path()).hooks().collect::<Vec<_>>(), [Path::new("h")]);
    }

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
