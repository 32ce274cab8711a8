//! Where what a line of a shell begins is complete. This is no parser of shells: what they may read in
//! two ways, and what is more than quotes and a list of words and goes over several lines, is not
//! clear. Who asks leaves out all that follows then.

use super::here_document;

/// What is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    /// `'…'`
    Single,
    /// `$'…'`
    Escaped,
    /// `"…"`
    Double,
    /// `` `…` ``
    Backticks,
    /// `${…}`, in double quotes or not.
    Parameter { quoted: bool },
    /// `$(…)`, `<(…)`, and brackets in them.
    Command,
    /// `NAME=(…)`, and brackets in it.
    List,
}

impl Open {
    /// Whether its end is clear on its own line only.
    fn ends_on_its_line(self) -> bool {
        matches!(self, Self::Backticks | Self::Parameter { .. } | Self::Command)
    }
}

/// What is open at a place in a text, the innermost last.
#[derive(Default)]
pub(super) struct Nesting {
    open: Vec<Open>,
    /// A word may begin here.
    between_words: bool,
}

impl Nesting {
    /// At the start of a line.
    fn of_line() -> Self {
        Self { open: Vec::new(), between_words: true }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Opens a bracket that holds words.
    pub(super) fn open_bracket(&mut self) {
        self.open.push(Open::List);
    }

    /// Takes what begins at `at`: its length, or `None` where it is not clear what is open behind it.
    pub(super) fn step(&mut self, text: &[u8], at: usize) -> Option<usize> {
        let (byte, inside) = (text[at], self.open.last().copied());
        let begins = std::mem::take(&mut self.between_words);
        // Of quotes, what they stand in counts.
        let is_unclear = || self.open.iter().rev().take(2).any(|open| open.ends_on_its_line());
        match (inside, byte) {
            (_, b'\n') if is_unclear() => return None,
            // Not all shells know `$'`.
            (Some(Open::Escaped), b'\\') if text[at..].starts_with(b"\\'") => return None,
            (_, b'\\') if inside != Some(Open::Single) => return Some(2),
            (Some(Open::Single | Open::Escaped), b'\'')
            | (Some(Open::Double), b'"')
            | (Some(Open::Backticks), b'`')
            | (Some(Open::Parameter { .. }), b'}')
            | (Some(Open::Command | Open::List), b')') => drop(self.open.pop()),
            (Some(Open::Single | Open::Escaped | Open::Backticks), _) => {}
            (None | Some(Open::Command | Open::List), _) if begins => return self.word(text, at),
            _ => return self.within(text, at),
        }
        Some(1)
    }

    /// At the start of a word. Patterns of `case` have closing brackets that nothing opened, and a
    /// comment goes to the end of the line.
    fn word(&mut self, text: &[u8], at: usize) -> Option<usize> {
        let rest = &text[at..];
        let is_comment = rest[0] == b'#';
        match self.open.last() {
            Some(Open::Command) if is_comment || rest.starts_with(b"case") => None,
            _ if is_comment => {
                self.between_words = true;
                Some(rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()))
            }
            _ => self.within(text, at),
        }
    }

    /// At what may open something.
    fn within(&mut self, text: &[u8], at: usize) -> Option<usize> {
        let inside = self.open.last().copied();
        let quoted = matches!(inside, Some(Open::Double | Open::Parameter { quoted: true }));
        let is_parameter = matches!(inside, Some(Open::Parameter { .. }));
        let opened = match text[at..] {
            [b'$', b'[', ..] | [b'$', b'$', b'(' | b'{' | b'\'', ..] => return None,
            [b'$', b'(', b'(', ..] => return arithmetic(&text[at..]),
            [b'$', b'(', ..] => Open::Command,
            [b'$', b'{', ..] => Open::Parameter { quoted },
            [b'`', ..] => Open::Backticks,
            _ if inside == Some(Open::Double) => return Some(1),
            // Shells differ in what quotes and braces mean there.
            [b'"' | b'\'', ..] if quoted => return None,
            [b'{', ..] if is_parameter => return None,
            [b'"', ..] => Open::Double,
            [b'\'', ..] => Open::Single,
            [b'$', b'\'', ..] => Open::Escaped,
            _ if is_parameter => return Some(1),
            [b'<' | b'>', b'(', ..] => Open::Command,
            [b'=', b'(', ..] => inside.unwrap_or(behind_sign(&text[..at])),
            [b'(', ..] if inside.is_some() => inside?,
            [byte, ..] => {
                self.between_words = byte.is_ascii_whitespace() || b";&|()<>".contains(&byte);
                return Some(1);
            }
            [] => return None,
        };
        self.open.push(opened);
        self.between_words = true;
        Some(1 + usize::from(b"$<>=".contains(&text[at])))
    }
}

/// The length of `$((…))`; with further brackets in it, it may be a `$(…)` that begins with one.
fn arithmetic(text: &[u8]) -> Option<usize> {
    let end = 3 + text[3..].iter().position(|byte| b"()\n\"'`".contains(byte))?;
    text[end..].starts_with(b"))").then_some(end + 2)
}

/// What `=(` opens: a list behind a name, else a command, in Zsh.
fn behind_sign(before: &[u8]) -> Open {
    let is_named =
        before.last().is_some_and(|byte| byte.is_ascii_alphanumeric() || b"_]+".contains(byte));
    if is_named { Open::List } else { Open::Command }
}

/// The first end of a line, at `least` or behind it, at which all is complete that begins from
/// `start` on, with here-documents; `None` where that is not clear.
pub(super) fn complete(text: &[u8], start: usize, least: usize) -> Option<usize> {
    let (mut nesting, mut documents, mut at) = (Nesting::of_line(), Vec::new(), start);
    while at < text.len() {
        match text[at] {
            b'<' if nesting.is_empty() && text[at..].starts_with(b"<<") => {
                let (length, document) = here_document::begun(&text[at..]);
                documents.extend(document);
                at += length;
            }
            b'\n' if nesting.is_empty() => {
                at += 1;
                for document in documents.drain(..) {
                    at = here_document::behind(text, at, &document)?;
                }
                if at >= least {
                    return Some(at);
                }
                nesting = Nesting::of_line();
            }
            _ => at += nesting.step(text, at)?,
        }
    }
    nesting.is_empty().then_some(text.len())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::super::settings::without_secrets;

    fn kept(text: &str) -> String {
        String::from_utf8(without_secrets(Path::new(".bashrc"), text.as_bytes())).unwrap()
    }

    /// Whether a copy of `text` has what is behind it; `None` where the rest is left out.
    fn ends(text: &str) -> Option<()> {
        let kept = kept(&format!("a=1\n{text}b='2'\n"));
        assert!(!kept.contains("hunter2"), "{text}\n: {kept}");
        let rest = kept.strip_prefix("a=1\n:").unwrap_or_else(|| panic!("{text}\n: {kept}"));
        match rest.strip_prefix("\nb='2'\n") {
            Some("") => Some(()),
            _ if rest.starts_with(" # ") && rest.lines().count() == 1 => None,
            _ => panic!("{text}\n: {kept}"),
        }
    }

    #[test]
    fn quotes_lists_and_here_documents_end_where_a_shell_ends_them() {
        for text in [
            "FOO_TOKEN=\"a\n$b ) } ' # \\\" hunter2\"\n",
            "FOO_TOKEN='a\n`$( \" \\' # hunter2's\n",
            "FOO_TOKEN=$'it\\\\\nhunter2'\n",
            "FOO_TOKEN='''a'\"'''\"'\nhunter2'\n",
            "FOO_TOKEN=$$\"\nhunter2\"\n",
            "FOO_TOKEN=a\\ #\"\nhunter2\"\n",
            "FOO_TOKEN=$(a)#\"\nhunter2\"\n",
            "FOO_TOKEN=x;# it's\n",
            "FOO_TOKEN=x &# it's; then\n",
            "FOO_TOKENS=(\n  $(a \")\") # it's )\n'hunter2' (hunter2)\n)\n",
            "FOO_TOKENS+=( <(a)\nhunter2 )\n",
            "read FOO_TOKEN <<E\n)hunter2\nit's hunter2\nE\n",
            "read FOO_TOKEN <<1\nhunter2\n1\n",
            "read FOO_TOKEN <<''\nhunter2\n\n",
            "read FOO_TOKEN <<-E\nhunter2\n E\nhunter2\n\tE\n",
            "read FOO_TOKEN <<E\na\\\nE\nhunter2\nE\n",
            "read FOO_TOKEN <<\\E; a <<- \"F\"\nhunter2\nE\nhunter2\n\tF\n",
        ] {
            assert!(ends(text).is_some(), "{text}");
        }
    }

    #[test]
    fn what_is_complete_on_its_line_ends_there() {
        for text in [
            "export FOO_TOKEN=\"$(cat \"$HOME/.a b\" 2>/dev/null | tr -d '\\n')\"\n",
            "export FOO_TOKEN=`cat ~/.a`\n",
            "export FOO_TOKEN=\"`cat \"$HOME/.a\"`\"\n",
            "export FOO_TOKEN=\"${FOO_TOKEN:-$(op read \"op://a b/c\")}\"\n",
            ": \"${FOO_TOKEN:=\\\"a\\\"$(a \"$(b ')')\")}\" ${A:?\"it's\"}\n",
            "FOO_TOKEN=$(jq -r '.\")\"' <(a) ${#b} $# \\# a#b)\n",
            "FOO_TOKEN=$(curl -s \\\n  \"a#b\" | (c; d))\n",
            "FOO_TOKEN=$((1 << 2 + 16#ff))\n",
            "FOO_TOKEN=$(a <<< b)\n",
            "(FOO_TOKEN=x) > >(a)\n",
        ] {
            let kept = kept(&format!("a=1\n{text}b='2'\n"));
            assert!(
                kept.ends_with(":\nb='2'\n") || kept.ends_with(" )\nb='2'\n"),
                "{text}: {kept}"
            );
        }
    }

    #[test]
    fn where_it_is_not_clear_what_a_line_begins_the_rest_is_left_out() {
        for text in [
            "FOO_TOKEN=\"`echo \"a\nhunter2\"`\"\n",
            "FOO_TOKEN=$(case x in x) echo hi;; esac\necho hunter2)\n",
            "FOO_TOKEN=\"`echo 'a\"'\necho hunter2`\"\n",
            "FOO_TOKEN=\"$(echo \"`echo \")\" `\"\necho hunter2)\"\n",
            "FOO_TOKEN=<(echo\nhunter2)\n",
            "FOO_TOKEN=\"${X:-'\"'\nhunter2}\"\n",
            "FOO_TOKEN=${X:-{a}\nhunter2}\n",
            "FOO_TOKEN=$(echo \"a\nhunter2\")\n",
            "FOO_TOKEN=$'it\\'s\nhunter2'\n",
            "FOO_TOKEN=$((a);\nhunter2)\n",
            "FOO_TOKEN=$((a);b)\nhunter2\n",
            "read FOO_TOKEN <<E'\nF'\nE\nhunter2\n",
            "read FOO_TOKEN <<E\\\nF\nE\nhunter2\n",
            "FOO_TOKEN=$(#)\necho hunter2)\n",
            "FOO_TOKEN=$(a;# )\necho hunter2)\n",
            "FOO_TOKENS=(\n$(case x in x) a;; y) b;; esac\necho hunter2)\n)\n",
            "FOO_TOKEN==(a\ncase x in x) hunter2;; esac\nhunter2)\n",
            "FOO_TOKEN=$(cat <<'E'\nabc)hunter2\nE\n)\n",
            "FOO_TOKEN=`cat <<E\nhunter2\nE\n`\n",
            "FOO_TOKEN=\"hunter2\n",
            "read FOO_TOKEN <<E\n)\nhunter2\n E\n",
        ] {
            assert!(ends(text).is_none(), "{text}");
        }
    }

    #[test]
    fn what_a_command_over_several_lines_reads_is_left_out() {
        for (text, left) in [
            (
                "while read FOO_TOKEN\ndo :\ndone <<E\nhunter2\nE\n",
                "while read FOO_TOKEN\ndo :\ndone </dev/null\n",
            ),
            ("{ read -r FOO_TOKEN; } <<E\nhunter2\nE\n", "{ :; } </dev/null\n"),
            (
                "while read FOO_TOKEN; do b; done <<< hunter2\n",
                "while false; do :; done </dev/null\n",
            ),
            ("f() {\n  read FOO_TOKEN\n}\nf <<E\nhunter2\nE\n", "f() {\n  read FOO_TOKEN\n}\n:\n"),
            ("read -s FOO_TOKEN\n# <<\nb <<E\nhunter2\nE\n", "read -s FOO_TOKEN\n# <<\n:\n"),
        ] {
            // One document alone.
            let after = "b=2\nc <<E\nd\nE\n";
            assert_eq!(kept(&format!("a=1\n{text}{after}")), format!("a=1\n{left}{after}"));
        }
        let text = "a=1\nwhile read FOO_TOKEN; do\n  b\ndone < <(echo\nhunter2)\n";
        let kept = kept(text);
        assert!(kept.starts_with("a=1\n: # ") && kept.lines().count() == 2, "{kept}");
    }

    #[test]
    fn no_command_is_left_open_where_the_rest_is_left_out() {
        for (above, left) in [
            ("if a; then\n  b\n\n  ", ""),
            ("if a\nthen\n  b\nelse\n\t", ""),
            ("if a\nthen ", ""),
            ("if a; then\n  b\nfi\nf() {\n# c\n  ", "if a; then\n  b\nfi\n"),
            ("case $a in\n  b)\n    ", ""),
            ("alias b='\n  c\n  ", ""),
        ] {
            let text = format!("a=1\n{above}export FOO_TOKEN=$(\nhunter2)\nfi\n");
            let kept = kept(&text);
            let rest = kept.strip_prefix("a=1\n").and_then(|kept| kept.strip_prefix(left));
            let is_rest = rest.is_some_and(|rest| rest.starts_with(": # "));
            assert!(is_rest && kept.lines().count() == 2 + left.lines().count(), "{text}: {kept}");
        }
    }

    /// Numbers that say which form a generated text has; when there are no more, the first one.
    struct Choices(std::vec::IntoIter<u8>);

    impl Choices {
        fn below(&mut self, forms: u8) -> u8 {
            self.0.next().map_or(0, |byte| byte % forms)
        }

        fn value(&mut self) -> String {
            match self.below(4) {
                0 => format!("FOO_TOKEN={}", self.word(false)),
                1 => format!("FOO_TOKEN={} B={}", self.word(false), self.word(false)),
                2 => format!("FOO_TOKENS=({}\n {})", self.word(false), self.word(false)),
                _ => format!("read FOO_TOKEN <<< {}", self.word(false)),
            }
        }

        /// Within backticks, there are neither further ones nor backslashes.
        fn word(&mut self, ticked: bool) -> String {
            match self.below(10) {
                1 => format!("'{}'", self.raw(ticked)),
                2 => format!("\"{}\"", self.quoted(ticked)),
                3 => format!("\"{}{}\"", self.quoted(ticked), self.quoted(ticked)),
                4 => format!("$({})", self.commands(ticked)),
                5 => format!("<({})", self.commands(ticked)),
                6 => format!("${{X:-{}}}", self.word(ticked)),
                7 => format!("{}{}", self.word(ticked), self.word(ticked)),
                8 if !ticked => format!("`{}`", self.commands(true)),
                9 if !ticked => format!("$'it\\'s {}'", self.raw(true)),
                _ => "hunter2".to_owned(),
            }
        }

        fn raw(&mut self, ticked: bool) -> &'static str {
            let forms = ["\nhunter2", "\"a", ")", "} hunter2\n", "$(a", " # ", "`", "\\"];
            forms[usize::from(self.below(if ticked { 6 } else { 8 }))]
        }

        /// What stands between double quotes.
        fn quoted(&mut self, ticked: bool) -> String {
            match self.below(7) {
                1 => "it's ".to_owned(),
                2 => " # )}\n".to_owned(),
                3 => format!("$({})", self.commands(ticked)),
                4 => format!("${{X:-{}}}", self.quoted(ticked)),
                5 if !ticked => format!("`{}`", self.commands(true)),
                6 if !ticked => "\\\"".to_owned(),
                _ => "\nhunter2".to_owned(),
            }
        }

        fn commands(&mut self, ticked: bool) -> String {
            match self.below(7) {
                1 => format!("case x in x) a {};; esac", self.word(ticked)),
                2 => format!("{}\n{}", self.commands(ticked), self.commands(ticked)),
                3 => format!("a <<E\n)it's {}\nE\n", self.raw(true)),
                4 => format!("a # it's ) \"\n{}", self.commands(ticked)),
                5 => format!("(a; {})", self.commands(ticked)),
                6 => {
                    format!("a {}; case x in (x) b;; y) c {}", self.word(ticked), self.word(ticked))
                }
                _ => format!("a {}", self.word(ticked)),
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_of_a_value_is_left(choices in prop::collection::vec(any::<u8>(), 0..60)) {
            let value = Choices(choices.into_iter()).value();
            let _ = ends(&format!("{value}\n"));
        }

        #[test]
        fn any_text_has_a_copy(parts in prop::collection::vec(0_usize..20, 0..40)) {
            let forms = ["\n", "FOO_TOKEN=", "\"", "'", "`", "$(", "${", "<(", "(", ")", "}", "\\",
                "#", " ", "<<E", "E\n", "case", "if a; then ", "é", "$"];
            let text: String = parts.into_iter().map(|part| forms[part]).collect();
            let kept = kept(&text);
            prop_assert!(!kept.contains("FOO_TOKEN=E"), "{}: {}", text, kept);
        }
    }
}
