//! Globs and strings as policies have them.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A glob that matches exactly this path, and says that it is meant so: a first `!`, `~` or `$` would
/// be warned of.
pub(crate) fn escape_glob(path: &str) -> String {
    path.chars()
        .enumerate()
        .flat_map(|(at, c)| {
            let special = matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\');
            let is_doubtful = at == 0 && matches!(c, '!' | '~' | '$');
            (special || is_doubtful).then_some('\\').into_iter().chain([c])
        })
        .collect()
}

/// A basic string of TOML.
pub(crate) fn toml_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted += &format!("\\u{:04X}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// A glob for this path alone; `?` stands for a byte that is not UTF-8.
pub(crate) fn glob(path: &Path) -> String {
    let mut glob = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        glob += &escape_glob(chunk.valid());
        glob.extend(chunk.invalid().iter().map(|_| '?'));
    }
    glob
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn globs_and_strings_are_escaped() {
        assert_eq!(escape_glob("a[b]*"), r"a\[b\]\*");
        assert_eq!(escape_glob("!a/!b~$"), r"\!a/!b~$");
        assert_eq!(toml_string("a\"\\\n"), "\"a\\\"\\\\\\u000A\"");
    }

    #[test]
    fn a_name_that_is_not_utf8_has_a_glob() {
        let path = Path::new(OsStr::from_bytes(b"a\xff[b]/.git"));
        assert_eq!(glob(path), r"a?\[b\]/.git");
    }
}
