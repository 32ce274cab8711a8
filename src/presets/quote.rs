//! Globs and strings as policies have them.

/// A glob that matches exactly this path.
pub(crate) fn escape_glob(path: &str) -> String {
    path.chars()
        .flat_map(|c| {
            let special = matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\');
            special.then_some('\\').into_iter().chain([c])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_and_strings_are_escaped() {
        assert_eq!(escape_glob("a[b]*"), r"a\[b\]\*");
        assert_eq!(toml_string("a\"\\\n"), "\"a\\\"\\\\\\u000A\"");
    }
}
