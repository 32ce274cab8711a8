//! Copies of settings from a home directory: without what looks like a secret.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tollgate_redact::{Detectors, Redactor};

use crate::run::secrets;

/// How keys end that hold a secret, in lower case. Settings know no word for a name's parts:
/// `smtppass`.
const SECRET_ENDS: &[&str] = &[
    "accesskey",
    "apikey",
    "pass",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "secret",
    "secretkey",
    "token",
];
/// Of these, what is none.
const PLAIN_ENDS: &[&str] = &["askpass", "bypass", "compass"];

/// The text of a file of settings, without each line that holds a secret. What an agent has of its
/// own is credentials, and needed; it is no file of lines.
pub(super) fn without_secrets(name: &Path, bytes: &[u8]) -> Vec<u8> {
    if name.as_os_str().as_bytes().ends_with(b".json") {
        return bytes.to_owned();
    }
    let masked = masked(bytes);
    let mut kept = Vec::with_capacity(bytes.len());
    let mut start = 0;
    while start < bytes.len() {
        let end = start + length_of_line(&bytes[start..]);
        let line = start..end;
        let is_masked = masked.iter().any(|found| found.start < end && start < found.end);
        if !is_masked && !is_secret(&bytes[line.clone()]) {
            kept.extend_from_slice(&bytes[line]);
        }
        start = end;
    }
    kept
}

/// What the detectors of [redacted files](tollgate_redact) would mask, a key of many lines whole.
fn masked(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let redactor = Redactor::new(Detectors::default());
    let mut found = Vec::new();
    redactor.mask_all(&mut bytes.to_owned(), |one| found.push(one.bytes));
    found
}

/// The bytes of the first line, with those that a backslash at its end joins to it: a secret may
/// stand in one of them, and its name in another.
fn length_of_line(text: &[u8]) -> usize {
    let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    let is_joined = |at: usize| {
        let line = text[..at].strip_suffix(b"\r").unwrap_or(&text[..at]);
        line.ends_with(b"\\")
    };
    ends.into_iter().find(|at| !is_joined(*at)).map_or(text.len(), |at| at + 1)
}

fn is_secret(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line).replace("\\\r\n", "").replace("\\\n", "");
    let parts = line.split_once('=').or_else(|| line.split_once(':'));
    let (name, value) = parts.unwrap_or(("", &line));
    let name = name.trim().trim_start_matches("export ").trim().trim_matches('"');
    let value = value.trim().trim_matches(['"', '\'']);
    secrets::is_secret(name, value)
        || secrets::has_header(&line)
        || sets_secret(&line)
        || line.contains("-----END ") && line.contains("PRIVATE KEY")
        || line.split_whitespace().any(|word| secrets::is_secret("", word))
}

/// Whether a key that says so is given a value somewhere in the line.
fn sets_secret(line: &str) -> bool {
    line.match_indices(['=', ':']).any(|(at, sign)| {
        let (before, after) = (&line[..at], &line[at + sign.len()..]);
        let is_sign = !after.starts_with(['=', ':', '~']) && !before.ends_with(['=', '!', ':']);
        let before = before.trim_end().trim_end_matches(['"', '\'', ']']);
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let name = &before[before.trim_end_matches(is_of_name).len()..];
        let value = after.trim().trim_matches(['"', '\'', ',', ';']);
        is_sign && !value.is_empty() && (ends_secret(name) || secrets::is_secret(name, value))
    })
}

fn ends_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let ends = |all: &[&str]| all.iter().any(|end| name.ends_with(end));
    ends(SECRET_ENDS) && !ends(PLAIN_ENDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: &str) -> String {
        String::from_utf8(without_secrets(Path::new(".npmrc"), text.as_bytes())).unwrap()
    }

    #[test]
    fn lines_with_secrets_are_left_out_of_settings() {
        let text = "registry=https://r/\n//r/:_authToken=any\n[user]\n\tname = me\n\
                    [url \"https://me:pw@host/\"]\nexport API_KEY=\"x\"\nexport PATH=\"$PATH\"\n\
                    token: abc\n";
        assert_eq!(kept(text), "registry=https://r/\n[user]\n\tname = me\nexport PATH=\"$PATH\"\n");
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
            "export GIT_AUTHOR_NAME=me \\\n  EDITOR=vim",
            "alias compass='x'",
        ] {
            assert_eq!(kept(&format!("{line}\n")), format!("{line}\n"));
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
