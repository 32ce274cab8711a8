//! Copies of settings from a home directory: without what looks like a secret.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tollgate_redact::{Detectors, Redactor};

use super::extent::Extents;
use super::in_place::Lines;
use crate::run::secrets;

/// How keys end that hold a password, in lower case, besides what names of variables end in: settings
/// know no word for a name's parts (`smtppass`).
const PASS: &str = "pass";
/// What ends so and holds none.
const PLAIN_ENDS: &[&str] =
    &["askpass", "bandpass", "bypass", "compass", "highpass", "lowpass", "multipass", "overpass"];
/// Commands that give the name behind them the value behind that: of fish, of csh, of tmux, of npm
/// and git (`config`).
const SETTERS: &[&str] = &["config", "set", "set-environment", "setenv"];
/// Commands of shells that give names what stands behind `<<`, `<<<` or `<(`.
const READERS: &[&str] = &["mapfile", "read", "readarray"];
/// How much of a value is judged by its form, for each sign of a line: the whole line is judged
/// besides, and a line may have very many.
const JUDGED_MAX: usize = 128;

/// The text of a file of settings, without each line that holds a secret, and without the further
/// lines of its value; where others would not be read without them, something harmless is there. What an agent has of its own is credentials, and needed; it is no file of
/// lines.
pub(super) fn without_secrets(name: &Path, bytes: &[u8]) -> Vec<u8> {
    if name.as_os_str().as_bytes().ends_with(b".json") {
        return bytes.to_owned();
    }
    let lines = Lines::of(name);
    let masked = masked(bytes);
    let mut masked = masked.iter().peekable();
    let mut extents = Extents::of(bytes, lines.is_shell());
    let mut kept = Vec::with_capacity(bytes.len());
    let (mut start, mut in_secret, mut waits) = (0, false, false);
    let is_of_git = is_of_git(name);
    while start < bytes.len() {
        let end = start + length_of_line(&bytes[start..], lines, is_of_git);
        while masked.next_if(|found| found.end <= start).is_some() {}
        if let Some(length) = section(lines, is_of_git, &bytes[start..end]) {
            let header = &bytes[start..start + length];
            let is_masked = masked.peek().is_some_and(|found| found.start < start + length);
            // Without its header, the keys of a section would be those of the one before.
            in_secret = is_masked || names_a_secret(&joined(header), is_of_git);
            if !in_secret {
                kept.extend_from_slice(header);
            }
            start += length;
            let rest = &bytes[start..end];
            if rest.trim_ascii().is_empty() || in_secret {
                kept.extend_from_slice(if in_secret { b"" } else { rest });
                start = end;
                continue;
            }
            while masked.next_if(|found| found.end <= start).is_some() {}
        }
        let line = &bytes[start..end];
        let is_masked = masked.peek().is_some_and(|found| found.start < end);
        let text = joined(line);
        let holds = if is_input(&text, &mut waits) { Holds::Secret } else { holds(&text) };
        let far = match holds {
            // A value of git's ends with its line, whatever stands below.
            Holds::Key | Holds::Secret if !is_comment(line) && !is_of_git => {
                extents.end(start, end)
            }
            _ => Some(end),
        };
        let Some(far) = far else {
            lines.end(&mut kept, &bytes[start..]);
            break;
        };
        if far == end && !matches!(holds, Holds::Secret) && !is_masked && !in_secret {
            kept.extend_from_slice(line);
        } else if !is_comment(line) {
            kept.extend(lines.in_place(&bytes[start..far]));
        }
        if !lines.is_shell() && !kept.is_empty() && !kept.ends_with(b"\n") {
            // Behind a header on the same line.
            kept.push(b'\n');
        }
        start = far;
    }
    kept
}

/// What the detectors of [redacted files](tollgate_redact) would mask, a key of many lines whole.
fn masked(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let redactor = Redactor::new(Detectors::default());
    let mut found = Vec::new();
    redactor.mask_all(&mut bytes.to_owned(), |one| found.push(one.bytes));
    found.sort_unstable_by_key(|one| one.start);
    found
}

/// The bytes of the first line, with those that belong to it: a secret may stand in one of them, and
/// its name in another. A backslash joins lines, and in YAML a colon at the start of the next one.
fn length_of_line(text: &[u8], lines: Lines, is_of_git: bool) -> usize {
    if is_of_git {
        return length_of_gits_line(text);
    }
    let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    let is_joined = |at: usize| {
        let line = text[..at].strip_suffix(b"\r").unwrap_or(&text[..at]);
        let backslashes = line.iter().rev().take_while(|byte| **byte == b'\\').count();
        // One that is escaped joins nothing.
        backslashes % 2 == 1
    };
    let length = ends.into_iter().find(|at| !is_joined(*at)).map_or(text.len(), |at| at + 1);
    let (line, next) = text.split_at(length);
    let may_be_key = lines.is_yaml() && !is_comment(line) && !line.trim_ascii().is_empty();
    length + if may_be_key { length_to_colon(next).unwrap_or(0) } else { 0 }
}

/// As git reads its settings: a backslash joins lines unless it is escaped or in a comment. Headers have none.
fn length_of_gits_line(text: &[u8]) -> usize {
    let (mut is_quoted, mut is_escaped, mut in_comment) = (false, false, false);
    let is_header = text.trim_ascii_start().starts_with(b"[");
    for (at, byte) in text.iter().enumerate() {
        match byte {
            // CRLF is an end of line, too.
            b'\r' if text.get(at + 1) == Some(&b'\n') => continue,
            b'\n' if !is_escaped || in_comment => return at + 1,
            b'\n' if is_header && !text[..at].contains(&b'=') => return at + 1,
            _ if in_comment => {}
            b'\\' if !is_escaped => {
                is_escaped = true;
                continue;
            }
            b'"' if !is_escaped => is_quoted = !is_quoted,
            b'#' | b';' if !is_quoted && !is_escaped => in_comment = true,
            _ => {}
        }
        is_escaped = false;
    }
    text.len()
}

/// The length of the lines up to the first one that is neither empty nor a comment, if that begins
/// with a colon.
fn length_to_colon(text: &[u8]) -> Option<usize> {
    let mut length = 0;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        length += line.len();
        let words = line.trim_ascii();
        if !words.is_empty() && !is_comment(line) {
            return words.starts_with(b":").then_some(length);
        }
    }
    None
}

/// What a line has of a secret.
enum Holds {
    Nothing,
    /// A key without a value.
    Key,
    Secret,
}

/// A line without what joins its parts.
fn joined(line: &[u8]) -> String {
    String::from_utf8_lossy(line).replace("\\\r\n", "").replace("\\\n", "")
}

fn holds(line: &str) -> Holds {
    // A key of YAML whose colon is on a line of its own; behind it may be a comment.
    let key = line.trim_end().rsplit_once('\n').map_or("", |(key, _)| key);
    if key.split(|c| !is_of_name(c)).any(is_secret_key) {
        return Holds::Secret;
    }
    match set_by_sign(line) {
        Holds::Nothing if is_secret(line) || sets_by_words(line) => Holds::Secret,
        Holds::Key if is_secret(line) => Holds::Secret,
        other => other,
    }
}

/// Nothing in one begins something that a later line ends. Vim has a quote for it.
fn is_comment(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let quotes = || line.iter().filter(|byte| **byte == b'"').count();
    line.starts_with(b"#") || line.starts_with(b";") || line.starts_with(b"\"") && quotes() == 1
}

/// By the form of what stands in it.
fn is_secret(line: &str) -> bool {
    let parts = line.split_once('=').or_else(|| line.split_once(':'));
    let (name, value) = parts.unwrap_or(("", line));
    let name = name.trim().trim_start_matches("export ").trim().trim_matches('"');
    let value = value.trim().trim_matches(['"', '\'']);
    secrets::is_secret(name, value)
        || secrets::has_header(line)
        || line.contains("-----END ") && line.contains("PRIVATE KEY")
        || line.split_whitespace().any(|word| secrets::is_secret("", word))
}

/// Whether a key that says so is given a value somewhere in the line, by `=` or `:`.
fn set_by_sign(line: &str) -> Holds {
    let mut found = Holds::Nothing;
    for (at, sign) in line.match_indices(['=', ':']) {
        let (before, after) = (&line[..at], &line[at + sign.len()..]);
        // `${NAME:=x}` gives one, too.
        let is_more = before.ends_with(['=', '!']) || sign == ":" && before.ends_with(':');
        if is_more
            || after.starts_with(['=', ':', '~']) && !(sign == ":" && after.starts_with(":="))
        {
            continue;
        }
        let value = after.trim().trim_matches(['"', '\'', ',', ';']);
        let judged = value.char_indices().nth(JUDGED_MAX).map_or(value, |(at, _)| &value[..at]);
        let quoted = before.trim_end().strip_suffix('"').and_then(|text| text.rsplit_once('"'));
        let is_escaped = quoted.is_some_and(|(_, key)| has_escapes(key));
        let is_named = is_escaped || names(before).any(is_secret_key);
        // Behind a quote alone, it may be on the next line.
        if value.is_empty() && is_named {
            found = Holds::Key;
        } else if is_named || secrets::is_secret("", judged) {
            return Holds::Secret;
        }
    }
    found
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.".contains(c)
}

/// Whether letters are written as numbers, `"tok\u0065n"`: what such a key says is not looked at.
fn has_escapes(key: &str) -> bool {
    ["\\u00", "\\U00", "\\x"].iter().any(|escape| key.contains(escape))
}

/// The key before a sign, without quotes; of `name[key]` both.
fn names(before: &str) -> impl Iterator<Item = &str> {
    let before = before.trim_end().trim_end_matches(['+', '?', ':']).trim_end();
    let last = |text: &str| {
        let text = text.trim_end_matches(['"', '\'', ']']);
        text.trim_end_matches(is_of_name).len()
    };
    let name = |text: &str| {
        let start = last(text);
        start..text.trim_end_matches(['"', '\'', ']']).len()
    };
    let outer = before.strip_suffix(']').and_then(|text| text.rsplit_once('['));
    let outer = outer.map(|(text, _)| &text[name(text)]);
    std::iter::once(&before[name(before)]).chain(outer)
}

/// `set -gx NAME VALUE`, `setenv NAME VALUE`; `"NAME" "VALUE"`, as Yarn has it.
fn sets_by_words(line: &str) -> bool {
    let is_between = |c: char| c.is_whitespace() || ";&|(){}".contains(c);
    let mut words = line.split(is_between).filter(|word| !word.is_empty());
    let first = words.clone().take(2).collect::<Vec<_>>();
    if let [name, value] = first[..]
        && value.starts_with(['"', '\''])
        && is_secret_key(name.trim_matches(['"', '\'']))
    {
        return true;
    }
    while words.any(|word| SETTERS.contains(&word)) {
        let mut behind = words.clone().skip_while(|word| word.starts_with('-'));
        let name = behind.next().unwrap_or_default().trim_matches(['"', '\'']);
        if is_secret_key(name) && behind.next().is_some() {
            return true;
        }
    }
    names_secret(line, |word, command| word == "printf" && command.contains("-v"))
}

/// Whether the line has what `read -r NAME` or `mapfile -t NAME` is given, on this line or on one
/// above that `waits` for it: `done <<END`.
fn is_input(line: &str, waits: &mut bool) -> bool {
    if is_comment(line.as_bytes()) {
        return false;
    }
    *waits |= names_secret(line, |word, _| READERS.contains(&word));
    let is_input = *waits && (line.contains("<<") || line.contains("<("));
    *waits &= !is_input;
    is_input
}

/// Whether the name of a secret stands behind the word of a command that `is_one`.
fn names_secret(line: &str, is_one: impl Fn(&str, &str) -> bool) -> bool {
    line.split([';', '&', '|', '(', ')', '{', '}']).any(|command| {
        let is_between = |c: char| c.is_whitespace() || c == '<';
        let mut words = command.split(is_between).filter(|word| !word.is_empty());
        words.any(|word| is_one(word, command))
            && words.any(|word| is_secret_key(word.trim_matches(['"', '\''])))
    })
}

fn is_of_git(name: &Path) -> bool {
    name == Path::new(".gitconfig") || name.starts_with(".config/git")
}

/// How much of a line is the header of a section: all of it, but for a key behind it in the settings of git
/// (`[a \"b\"] c = d`).
fn section(lines: Lines, is_of_git: bool, line: &[u8]) -> Option<usize> {
    if lines.is_shell() {
        return None;
    }
    if !is_of_git {
        return table(line).map(|_| line.len());
    }
    let blank = line.len() - line.trim_ascii_start().len();
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in line.iter().enumerate().skip(blank) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b']' if !is_quoted && line[blank] == b'[' => return Some(at + 1),
            _ if line[blank] != b'[' => return None,
            _ => {}
        }
    }
    None
}

/// Whether there is a secret in a header, or it names one: in TOML, `[env.API_TOKEN]`. The words of git's are
/// no keys (`[credential \"https://host\"]`).
fn names_a_secret(header: &str, is_of_git: bool) -> bool {
    let is_key = |name: &str| is_secret_key(name) || has_escapes(name);
    let words = header.split(|c: char| c.is_whitespace() || "[]\"'".contains(c));
    // `[url "https://user:a\"b@host/"]`, where a quote is part of the name.
    let quoted = header.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"'));
    let name = quoted.map_or(String::new(), |(name, _)| name.replace('\\', "").replace('"', "_"));
    words.into_iter().chain([&*name]).any(|word| secrets::is_secret("", word))
        || !is_of_git && table(header.as_bytes()).is_some_and(is_key)
}

/// The last part of the name of a table in TOML, `[env.NAME]`.
fn table(line: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(line).ok()?.trim();
    if !line.starts_with('[') {
        return None;
    }
    let name = line.split('#').next()?.trim().trim_start_matches('[').strip_suffix(']')?;
    let name = name.trim_end_matches(']').trim();
    // A test of a shell, `[ -f $HOME/.token ]`, is none.
    if name.starts_with('-') || name.contains(['$', '=']) {
        return Some("");
    }
    // A section of another kind has one part, which is the name of a program or of a subject.
    let last = name.rsplit_once('.').map_or("", |(_, last)| last);
    Some(last.trim_matches(['"', '\'', ' ']))
}

fn is_secret_key(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let is_plain = || PLAIN_ENDS.iter().any(|end| lower.ends_with(end));
    secrets::is_secret_name(name) || lower.ends_with(PASS) && !is_plain()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: &str) -> String {
        String::from_utf8(without_secrets(Path::new(".npmrc"), text.as_bytes())).unwrap()
    }

    #[test]
    fn a_test_of_a_shell_is_no_table() {
        for test in ["[ -f $HOME/.token ]", "[ \"$a.secret\" ]", "[ x = y.password ]"] {
            let text = format!("{test}\nalias ll='ls -l'\n");
            assert!(kept(&text).contains("alias ll"), "{test}");
        }
        assert!(!kept("[env.API_TOKEN]\nvalue = \"abc\"\n").contains("abc"));
    }

    #[test]
    fn lines_with_secrets_are_left_out_of_settings() {
        let text = "registry=https://r/\n//r/:_authToken=any\n[user]\n\tname = me\n\
                    export API_KEY=\"x\"\nexport PATH=\"$PATH\"\ntoken: abc\n\
                    [url \"https://me:pw@host/\"]\ninsteadOf = x\n[more]\na = b\n";
        let left =
            "registry=https://r/\n[user]\n\tname = me\nexport PATH=\"$PATH\"\n[more]\na = b\n";
        assert_eq!(kept(text), left);
    }

    /// A key without its header would be one of the section before, and change what holds there.
    #[test]
    fn sections_of_git_are_left_out_or_kept_as_a_whole() {
        let kept = |text: &str| {
            let kept = without_secrets(Path::new(".gitconfig"), text.as_bytes());
            String::from_utf8(kept).unwrap()
        };
        let first = "[http]\npostBuffer = 1\n";
        for (text, left) in [
            ("[http \"https://u:s3cretpw@h/\"]\nsslVerify = false\n", ""),
            ("[http \"https://u:s3cretpw@h/\"] sslVerify = false\nproxy = x\n\ty = z\n", ""),
            ("[url \"https://ghp_0123456789abcdef@h/\"]\ninsteadOf=gh:\n", ""),
            (
                "[credential \"https://h\"]\nusername = u\nhelper = cache\n",
                "[credential \"https://h\"]\nusername = u\nhelper = cache\n",
            ),
            (
                "  [credential \"https://h\"]  username = u\n",
                "  [credential \"https://h\"]  username = u\n",
            ),
            ("[a \"x]\\\"y\"] password = zzm # c\nb = c\n", "[a \"x]\\\"y\"]\nb = c\n"),
            (
                "[a]\n\tx = y ; \\\n[url \"https://u:s3cretpw@h/\"]\n\tz = w\n",
                "[a]\n\tx = y ; \\\n",
            ),
            ("[a]\nb = zzm # \\\n[c]\nd = e\n", "[a]\nb = zzm # \\\n[c]\nd = e\n"),
            ("[a]\npassword = zzm # \\\n[c]\nd = e\n", "[a]\n[c]\nd = e\n"),
            ("[a]\npassword = zzm\\\\\n[c]\nd = e\n", "[a]\n[c]\nd = e\n"),
            ("[a]\npassword = zz\\\nm\n[c]\nd = e\n", "[a]\n[c]\nd = e\n"),
            ("[a]\npassword = \"zz # \\\nm\"\n[c]\nd = e\n", "[a]\n[c]\nd = e\n"),
            ("[a]\npassword = it's\n  [c]\n  d = 'e'\n", "[a]\n  [c]\n  d = 'e'\n"),
            ("[a]\r\npassword = zz\\\r\nm\r\n[c]\r\nd = e\r\n", "[a]\r\n[c]\r\nd = e\r\n"),
            ("[url \"https://u:s3cret\\\"pw@h/\"]\ninsteadOf = x\n", ""),
            ("[sendemail]\nsmtpPass = zzm\nfrom = me\n", "[sendemail]\nfrom = me\n"),
            ("[diff \"token\"]\ntextconv = x\n", "[diff \"token\"]\ntextconv = x\n"),
            (
                "[url \"https://h/x.token\"]\ninsteadOf = y:\n",
                "[url \"https://h/x.token\"]\ninsteadOf = y:\n",
            ),
        ] {
            let (end, more) = ("[core]\nautocrlf = input\n", "# [x \"https://u:pw@h/\"]\n");
            let all = kept(&format!("{first}{text}{end}{more}"));
            assert_eq!(all, format!("{first}{left}{end}"), "{text}");
        }
    }

    #[test]
    fn keys_and_headers_are_known_however_they_are_written() {
        for line in [
            "\textraheader = AUTHORIZATION: basic QQ==",
            "\textraHeader = Authorization: Bearer x",
            "\textraHeader = \"X-Token: x\"",
            "\tsmtpPass = x",
            "\tsmtppass=x",
            "mysqlpasswd: x",
            "alias c='curl -H \"Authorization: token x\" https://h'",
            "alias c='curl -H \"Authorization: \\\n token x\" https://h'",
            "alias d='A=1 DB_PASS=x tool'",
            "let g:api_secret = 'x'",
            "p = ghp_abcdefghijklmnopqrstuvwxyzABCDEFGHIJ",
        ] {
            assert_eq!(kept(&format!("before\n{line}\nafter\n")), "before\nafter\n");
        }
        for line in [
            "\taskPass = /usr/bin/ssh-askpass",
            "\tsigningKey = 0123456789ABCDEF",
            "\tdefaultBranch = main",
            "\thelper = cache --timeout=3600",
            "export PATH=$HOME/bin:$PATH",
            "PS1='\\u@\\h:\\w $PWD: '",
            "PS1='$PWD: \\$ '",
            "export GIT_AUTHOR_NAME=me \\\n  EDITOR=vim",
            "alias compass='x'",
        ] {
            assert_eq!(kept(&format!("{line}\n")), format!("{line}\n"));
        }
    }

    #[test]
    fn a_value_of_several_lines_goes_with_its_key() {
        for secret in [
            "password =\n   hunter2\n",
            "password =\n\n# more\n   hunter2\n   hunter2\n",
            "password = a\n   hunter2\n",
            "token = \"\"\"\nhunter2\"\"\"\n",
            "token = \"\"\"\nit's \\\"hunter2\n\"\"\"\"\n",
            "token = \'\'\'\nhunter2\n\'\'\'\n",
            "API_TOKEN = [\n  \"hunter2\" ]\n",
            "API_TOKEN = [ # it's\n  \"hunter2\",\n  [\n\"hunter2\"\n]\n]\n",
            "r = { index = \"x\", token = \"\"\"\nhunter2\n\"\"\" }\n",
            "API_TOKEN = { value = [\n\"hunter2\"\n], force = true }\n",
            "[env.API_TOKEN]\nvalue = \"hunter2\"\nforce = true\n",
            "[env.\"API_TOKEN\"] # it\nvalue = \"hunter2\"\n",
            "export DB_PASSWORD=\"a\nhunter2\"\n",
            "export DB_PASSWORD='a\n\nhunter2 \"\n'\n",
            "export DB_PASSWORD=$'it\\'s\nhunter2'\n",
            "export DB_PASSWORD=a\"\nhunter2\"\n",
            "read -r API_KEY <<< \"hunter2\"\n",
            "IFS= read -r API_KEY<<<hunter2\n",
            "read -r MY_SECRET <<'EOT'\nhunter2\n\nhunter2\nEOT\n",
            "printf -v GITHUB_TOKEN %s hunter2\n",
            "mapfile -t TOKENS <<X\nhunter2\nX\n",
            "readarray -t TOKENS <<X\nit's hunter2\nX\n",
            "let g:openai_api_key =<< trim END\nhunter2\n  it's hunter2\n  END\n",
            "let g:tokens =<< END\nhunter2\nEND\n",
            "npmAuthIdent: \"me:hunter2\"\n",
            "//r/:_authident=hunter2\n",
            "TOKENS=(\n  hunter2\nhunter2\n)\n",
            "tokens+=(\nhunter2\n)\n",
            "tokens[gh]='a\nhunter2'\n",
            ": ${API_TOKEN:=hunter2}\n",
            "set -gx API_TOKEN hunter2\n",
            "set -gx API_TOKEN 'it\\'s\nhunter2'\n",
            "if true; set --export API_TOKEN hunter2; end\n",
            "setenv API_TOKEN hunter2\n",
            "npm config set //r/:_authToken hunter2\n",
            "\"//r/:_authToken\" \"hunter2\"\n",
            "export PASSWORDS=hunter2\n",
            "npmAuthToken: |\n  hunter2\n\n  hunter2\n",
            "tokens:\n- hunter2\n- hunter2\n",
            "- token: >-\n    hunter2\n",
            "let g:api_token =\n  \\ 'hunter2'\n",
            "let g:tokens = [\n\\ 'hunter2' ]\n",
            "vim.g.token = [==[\n]]\nhunter2\n]=]\n]==]\n",
            "vim.g.token = [[\n]a]\nhunter2 [[\n]]\n",
            "\"tok\\u0065n\" = \"hunter2\"\n",
            "\"to\\U0000006ben\" = [\n\"hunter2\"]\n",
            "r = { index = \"x\", \"tok\\u0065n\" = \"hunter2\" }\n",
            "[env.\"A_TOK\\u0045N\"]\nvalue = \"hunter2\"\n",
            "token: |\n  # hunter2\n  ; hunter2\n",
        ] {
            for before in ["a = 1\n", "x='y'\nz=\"it's\"\n"] {
                let after = "[other]\nb = 2\nit = 'c'\n";
                let text = format!("{before}{secret}{after}");
                let kept = kept(&text);
                assert!(!kept.contains("hunter2"), "{text}\n: {kept}");
                assert_eq!(kept, format!("{before}{after}"), "{text}");
            }
        }
    }

    #[test]
    fn a_key_of_yaml_may_have_its_colon_on_another_line() {
        for secret in [
            "{ \"token\"\n : \"hunter2\" }\n",
            "{\n  \"token\" # it\n\n  # is\n  :\"hunter2\" }\n",
            "? npmAuthToken\n: hunter2\n",
            "? password # it\n: |\n  hunter2\n\n  hunter2\n",
            "? password\n:\n  hunter2\n",
            "? tokens\n:\n- hunter2\n- hunter2\n",
            "? npmAuthToken\n: \"a\n hunter2\"\n",
        ] {
            let text = format!("a: 1\n{secret}? b\n: 2\n");
            let kept = without_secrets(Path::new(".yarnrc.yml"), text.as_bytes());
            let kept = String::from_utf8(kept).unwrap();
            let after = kept.strip_prefix("a: 1\n").unwrap();
            assert!(after.trim_start_matches("{\n") == "? b\n: 2\n", "{text}\n: {kept}");
        }
    }

    #[test]
    fn a_document_without_an_end_goes_to_the_end_of_the_file() {
        let secret = "let g:token =<< E\n)\nhunter2\n E\n";
        assert_eq!(kept(&format!("a=1\n{secret}b=2\nhunter2\n")), "a=1\n");
    }

    #[test]
    fn what_is_beside_a_secret_stays() {
        for (text, left) in [
            ("password = it's\n[b]\nc = 1\n", "[b]\nc = 1\n"),
            ("TOKEN=x # it's\nb='c'\n", "b='c'\n"),
            ("alias d='DB_PASS=x t'\nalias e='f'\n", "alias e='f'\n"),
            ("\tsmtpPass = x\n\tname = me\n", "\tname = me\n"),
            ("  - token: x\n    name: me\n  - b\n", "    name: me\n  - b\n"),
            ("token =\nb = 1\n", "token =\nb = 1\n"),
            ("# token:\n  b\n", "# token:\n  b\n"),
            ("# token: it's\n  b\n'c'\n", "  b\n'c'\n"),
            ("\" token: it's\nset b\n\" c\n", "set b\n\" c\n"),
            ("read -rs API_TOKEN\nb=1\n", "read -rs API_TOKEN\nb=1\n"),
            ("printf 'token'\nb=1\n", "printf 'token'\nb=1\n"),
            ("token: <<: *x\nb: 1\n", "b: 1\n"),
            ("TOKEN=$((1 << 2))\nb=1\n", "b=1\n"),
            ("TOKEN=$(a <<< b)\nb=1\n", "b=1\n"),
            ("set -e API_TOKEN\nset -o vi\n", "set -e API_TOKEN\nset -o vi\n"),
            ("[credential]\n\thelper = cache\n", "[credential]\n\thelper = cache\n"),
            ("[env.API_TOKEN]\nvalue = 'x'\n[b]\nc = 1\n", "[b]\nc = 1\n"),
        ] {
            let kept = kept(text);
            assert!(kept.ends_with(left) && kept.len() <= left.len() + 17, "{text}\n: {kept}");
        }
    }

    #[test]
    fn the_time_grows_with_the_length_alone() {
        for part in [
            "password = it's\n",
            "p = ghp_abcdefghijklmnopqrstuvwxyzABCDEFGHIJ\n",
            "token = (\n",
            "a=b ",
            "TOKEN= ",
            "token:\n",
            "token:\n\n",
            "TOKEN=x <<E\n",
            "TOKEN=x <<E\nE\n",
            "TOKEN=x <<E <<E ",
            "TOKEN=(\n(",
            "token = [[[[",
            "token = [=[ ]=]",
            "TOKEN=${a:-'b'",
            "TOKEN=\"$(`'",
            "TOKEN=\"\n",
        ] {
            for name in [".npmrc", ".bashrc"] {
                let begun = std::time::Instant::now();
                let text = part.repeat((1 << 17) / part.len());
                let left = without_secrets(Path::new(name), text.as_bytes());
                assert!(begun.elapsed().as_secs() < 20, "{part}: {:?}", begun.elapsed());
                assert!(!left.windows(4).any(|part| part == b"ghp_"));
            }
        }
    }

    #[test]
    fn nothing_stays_of_a_key_of_several_lines() {
        let body = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n";
        let key = format!(
            "-----BEGIN OPENSSH PRIVATE KEY-----\n{}-----END OPENSSH PRIVATE KEY-----\n",
            body.repeat(4)
        );
        assert_eq!(kept(&format!("a=1\n{key}b=2\n")), "a=1\nb=2\n");
    }
}
