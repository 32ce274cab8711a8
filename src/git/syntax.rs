//! The syntax of git's configuration files, read as git's own reader does. What git gives up over
//! is left out here up to the end of its line: a fault hides no other setting.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

/// What is shown of each part of a setting's name, in characters.
const MAX_NAME_LEN: usize = 256;

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// In lower case. Shared by all settings in it, of which there may be as many as its name has bytes.
    pub(super) section: Arc<str>,
    pub(super) subsection: Option<Arc<str>>,
    /// In lower case.
    pub(super) key: String,
    /// `true` for a key alone.
    pub(super) value: OsString,
}

impl Setting {
    /// `section.key` or `section.subsection.key`, each part as far as a message shows it.
    pub(super) fn name(&self) -> String {
        let (section, key) = (begin(&self.section), begin(&self.key));
        match self.subsection.as_deref().map(begin) {
            Some(subsection) => format!("{section}.{subsection}.{key}"),
            None => format!("{section}.{key}"),
        }
    }
}

/// The first characters of a text.
fn begin(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_NAME_LEN).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

/// The settings in a text, in their order.
pub(super) fn parse(text: &[u8]) -> Vec<Setting> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut reader = Reader { rest: text, last: b'\n', ended: false };
    let mut settings = Vec::new();
    let (mut section, mut subsection) = (Arc::from(""), None);
    loop {
        let byte = reader.next();
        if reader.ended {
            return settings;
        }
        match byte {
            byte if is_space(byte) => {}
            b'[' => match reader.head() {
                Some((name, below)) => (section, subsection) = (name.into(), below.map(Arc::from)),
                None => reader.skip_line(),
            },
            byte if byte.is_ascii_alphabetic() => match reader.setting(byte) {
                Some((key, value)) => settings.push(Setting {
                    section: Arc::clone(&section),
                    subsection: subsection.clone(),
                    key,
                    value: OsString::from_vec(value),
                }),
                None => reader.skip_line(),
            },
            // Comments among them.
            _ => reader.skip_line(),
        }
    }
}

struct Reader<'t> {
    rest: &'t [u8],
    /// What [`Reader::next`] answered last.
    last: u8,
    ended: bool,
}

impl Reader<'_> {
    /// The next byte: a line feed for CR LF, and at the end.
    fn next(&mut self) -> u8 {
        let (byte, length) = match self.rest {
            [] => {
                self.ended = true;
                (b'\n', 0)
            }
            [b'\r', b'\n', ..] => (b'\n', 2),
            [byte, ..] => (*byte, 1),
        };
        self.rest = &self.rest[length..];
        self.last = byte;
        byte
    }

    fn skip_line(&mut self) {
        while self.last != b'\n' {
            self.next();
        }
    }

    /// `name]`, `name "subsection"]`, or `name.subsection]` as older versions wrote it.
    fn head(&mut self) -> Option<(String, Option<String>)> {
        let mut name = String::new();
        let quoted = loop {
            match self.next() {
                b']' => break None,
                byte if is_space(byte) => break Some(self.subsection()?),
                byte if is_of_key(byte) || byte == b'.' => {
                    name.push(char::from(byte.to_ascii_lowercase()));
                }
                _ => return None,
            }
        };
        let (section, rest) = match name.split_once('.') {
            Some((section, rest)) => (section.to_owned(), Some(rest.to_owned())),
            None => (name, None),
        };
        let subsection = match (rest, quoted) {
            (Some(rest), Some(quoted)) => Some(format!("{rest}.{quoted}")),
            (rest, quoted) => rest.or(quoted),
        };
        Some((section, subsection))
    }

    /// `"subsection"]`, after a blank.
    fn subsection(&mut self) -> Option<String> {
        while is_space(self.last) {
            if self.last == b'\n' {
                return None;
            }
            self.next();
        }
        if self.last != b'"' {
            return None;
        }
        let mut text = Vec::new();
        loop {
            let byte = match self.next() {
                b'"' => break,
                b'\\' => self.next(),
                byte => byte,
            };
            if byte == b'\n' {
                return None;
            }
            text.push(byte);
        }
        (self.next() == b']').then(|| String::from_utf8_lossy(&text).into_owned())
    }

    /// A key that begins with `first`, and its value.
    fn setting(&mut self, first: u8) -> Option<(String, Vec<u8>)> {
        let mut key = String::from(char::from(first.to_ascii_lowercase()));
        while is_of_key(self.next()) {
            key.push(char::from(self.last.to_ascii_lowercase()));
        }
        while matches!(self.last, b' ' | b'\t') {
            self.next();
        }
        match self.last {
            b'\n' => Some((key, b"true".to_vec())),
            b'=' => Some((key, self.value()?)),
            _ => None,
        }
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let (mut value, mut quoted) = (Vec::new(), false);
        // How long it is without the blanks at its end.
        let mut length = 0;
        loop {
            match self.next() {
                b'\n' if quoted => return None,
                b'\n' => break,
                b'#' | b';' if !quoted => {
                    self.skip_line();
                    break;
                }
                byte if is_space(byte) && !quoted => {
                    if !value.is_empty() {
                        value.push(byte);
                    }
                    continue;
                }
                b'"' => quoted = !quoted,
                b'\\' => match self.next() {
                    // It goes on in the next line.
                    b'\n' => {}
                    b't' => value.push(b'\t'),
                    b'b' => value.push(8),
                    b'n' => value.push(b'\n'),
                    byte @ (b'\\' | b'"') => value.push(byte),
                    _ => return None,
                },
                byte => value.push(byte),
            }
            length = value.len();
        }
        value.truncate(length);
        // What C takes for its end.
        let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
        value.truncate(end);
        Some(value)
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn is_of_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        let settings = parse(text.as_bytes()).into_iter();
        settings.map(|one| (one.name(), one.value.to_string_lossy().into_owned())).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn quotes_escapes_comments_and_lines_that_go_on_are_read() {
        let text = "[core]\n\thooksPath = \"my \\\"hooks\\\"\" ; here\nPager=a \"# b\"\\\n  c # d\n\
                    [Filter \"X\\\"]\"] clean = \"a\\\\b\\tc\" \nbare\n[a.B]x=y;z\n";
        let expected = [
            ("core.hookspath", "my \"hooks\""),
            ("core.pager", "a # b  c"),
            ("filter.X\"].clean", "a\\b\tc"),
            ("filter.X\"].bare", "true"),
            ("a.b.x", "y"),
        ];
        assert_eq!(read(text), pairs(&expected));
    }

    #[test]
    fn a_fault_hides_nothing_behind_it() {
        let text = "[core\n[core] x = \"open\n y = \\q\n ? = 1\n[a\"b]\n[d \"e\" ]\nz = 3";
        assert_eq!(read(text), pairs(&[("core.z", "3")]));
    }

    /// What git says of the same text; none if it gives up.
    fn by_git(text: &[u8]) -> Option<Vec<(String, String)>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut git = Command::new("git");
        git.args(["config", "--no-includes", "-l", "-z", "-f"]).arg(file.path());
        let output = git.env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let one = |record: &str| {
            let (name, value) = record.split_once('\n').unwrap_or((record, "true"));
            (name.to_owned(), value.to_owned())
        };
        output.status.success().then(|| said.split_terminator('\0').map(one).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

        #[test]
        fn settings_are_those_that_git_reads(parts in prop::collection::vec(prop::sample::select(vec![
            "[core]", "[a.B]", "[X \"y\\\"Z\"]", "\n", "\r\n", "\r", " ", "\t", "key", "Ke-y2", " = ", "=", "\"",
            "\\\\", "\\\"", "\\n", "\\\n", "\\t", "#", ";", "a b", "x/y", "é", "\u{feff}", "\\", "]", "[",
            "\nk = ", "\nk=\"", "\"\n", "\"q ; r\"",
        ]), 0..24)) {
            let text = format!("[s]\n{}", parts.concat());
            let git = Command::new("git").arg("--version").output();
            let ours = read(&text);
            if let Some(theirs) = git.ok().and_then(|_| by_git(text.as_bytes())) {
                // Older versions make one blank of a tab.
                let plain = |list: Vec<(String, String)>| -> Vec<_> {
                    let blank = |text: String| text.replace(['\t', '\r'], " ");
                    list.into_iter().map(|(name, value)| (name, blank(value))).collect()
                };
                prop_assert_eq!(plain(ours), plain(theirs), "{:?}", text);
            }
        }
    }
}
