//! What stands in a copy of settings where a secret was, so that the rest is still read: of a shell's
//! lines the words that hold others together, of YAML the dash of an item.

use std::path::Path;

use super::here_document;
use super::shell::Nesting;

/// Files of shells that know `:`.
const SHELLS: &[&str] = &[
    ".bash_aliases",
    ".bash_profile",
    ".bashrc",
    ".cargo/env",
    ".profile",
    ".zprofile",
    ".zshenv",
    ".zshrc",
];

/// What stands in a shell's file in the place of all that follows.
const REST: &str = ": # The rest is not in this copy: it is not clear where a secret ends.\n";

/// Words at the start of a line that belong to a command above it.
const CONTINUE: &[&str] =
    &["then", "else", "elif", "do", "in", "{", "fi", "done", "esac", "}", ")"];

/// Words that end a command which may have an input behind them.
const CLOSE: &[&str] = &["done", "fi", "esac", "}", ")"];

/// What the lines of a file are.
#[derive(Clone, Copy)]
pub(super) enum Lines {
    Shell,
    Yaml,
    Other,
}

impl Lines {
    /// By the name of the file in a home directory.
    pub(super) fn of(name: &Path) -> Self {
        let text = name.to_str().unwrap_or_default();
        if SHELLS.contains(&text) {
            Self::Shell
        } else if text.ends_with(".yml") || text.ends_with(".yaml") || text == ".condarc" {
            Self::Yaml
        } else {
            Self::Other
        }
    }

    pub(super) fn is_shell(self) -> bool {
        matches!(self, Self::Shell)
    }

    pub(super) fn is_yaml(self) -> bool {
        matches!(self, Self::Yaml)
    }

    /// What stands in the place of `left_out`, which is whole lines and no comment.
    pub(super) fn in_place(self, left_out: &[u8]) -> Vec<u8> {
        let blank = left_out.len() - left_out.trim_ascii_start().len();
        let (blanks, words) = left_out.split_at(blank);
        let mut kept = match self {
            Self::Shell => Skeleton::of(words),
            Self::Yaml if words.starts_with(b"- ") => dashes(words),
            Self::Yaml | Self::Other => return Vec::new(),
        };
        if kept.is_empty() {
            return Vec::new();
        }
        kept.splice(0..0, blanks.iter().copied());
        kept.push(b'\n');
        kept
    }

    /// Ends the copy `kept` before `left_out`, which is all that follows.
    pub(super) fn end(self, kept: &mut Vec<u8>, left_out: &[u8]) {
        if self.is_shell() {
            end_before_command(kept, left_out);
            kept.extend(REST.as_bytes());
        } else {
            kept.extend(self.in_place(left_out));
        }
    }
}

/// Takes away from the end of `kept` what a command has before `rest`: nothing would close an `if`.
/// By the margin, as commands over several lines are written.
fn end_before_command(kept: &mut Vec<u8>, rest: &[u8]) {
    let mut begins = begins_command(rest);
    while !begins && !kept.is_empty() {
        let last = kept.strip_suffix(b"\n").unwrap_or(kept);
        let start = last.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        begins = begins_command(&kept[start..]);
        kept.truncate(start);
    }
}

fn begins_command(line: &[u8]) -> bool {
    let first = line.split(|byte| byte.is_ascii_whitespace() || *byte == b';').next();
    let first = first.unwrap_or_default();
    let is_other = first.is_empty() || first.starts_with(b"#");
    !is_other && !CONTINUE.iter().any(|word| word.as_bytes() == first)
}

fn dashes(words: &[u8]) -> Vec<u8> {
    let is_dash = |at: &usize| words[*at..].starts_with(b"- ") || words[*at] == b' ';
    let end = (0..words.len()).find(|at| !is_dash(at)).unwrap_or(words.len());
    words[..end].trim_ascii_end().to_owned()
}

/// The words of commands that need others, with `:` for the commands.
#[derive(Default)]
struct Skeleton {
    text: String,
    /// A command has to follow.
    is_open: bool,
    /// How many brackets of the text itself are open.
    brackets: usize,
}

impl Skeleton {
    fn of(text: &[u8]) -> Vec<u8> {
        let mut found = Self::default();
        let mut documents = Vec::new();
        let (mut at, mut begins) = (0, true);
        while at < text.len() {
            let rest = &text[at..];
            let mut step = 1;
            match rest[0] {
                b'\n' => {
                    for document in documents.drain(..) {
                        step = here_document::behind(text, at + step, &document)
                            .map_or(rest.len(), |behind| behind - at);
                    }
                    begins = true;
                }
                b'#' if at == 0 || b" \t\n;&|()".contains(&text[at - 1]) => {
                    step = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                }
                b';' if rest.starts_with(b";;") => {
                    found.text.push_str(" ;;");
                    (found.is_open, begins, step) = (false, true, 2);
                }
                b';' | b'&' | b'|' => begins = true,
                b'<' => {
                    let (length, document) = here_document::begun(rest);
                    step = length;
                    documents.extend(document);
                    found.input();
                }
                b'(' if rest.starts_with(b"((") || !begins => step = length_of_word(rest),
                b'(' => {
                    found.word("(");
                    found.brackets += 1;
                }
                b')' => {
                    found.closed();
                    begins = true;
                }
                byte if byte.is_ascii_whitespace() => {}
                _ => {
                    step = length_of_word(rest);
                    let word = std::str::from_utf8(&rest[..step]).unwrap_or_default();
                    if begins && word == "case" {
                        step = found.case(rest);
                    }
                    begins = begins && word != "case" && found.word(word);
                }
            }
            at += step;
        }
        let is_arm = found.text.starts_with("_)") && found.text.ends_with(";;");
        if is_arm { Vec::new() } else { found.text.into_bytes() }
    }

    /// Takes the first word of a command. Whether another command begins behind it.
    fn word(&mut self, word: &str) -> bool {
        let (kept, opens) = match word {
            "if" | "elif" | "then" | "else" | "do" | "{" | "(" | "!" => (word, true),
            "fi" | "done" | "}" | "esac" => (word, false),
            "while" | "until" => ("while false", false),
            "for" | "select" => ("for _ in", false),
            _ if is_function(word) => (word, true),
            _ => {
                if self.is_open || self.text.is_empty() {
                    self.add(":", false);
                }
                return false;
            }
        };
        let begins_one = ["if", "{", "(", "!", "while", "until", "for", "select"].contains(&word);
        if self.is_open && !begins_one && !is_function(word) {
            self.add(":", false);
        }
        self.add(kept, opens);
        opens || kept == word
    }

    fn add(&mut self, word: &str, opens: bool) {
        if self.is_open || self.text.ends_with(";;") {
            self.text.push(' ');
        } else if !self.text.is_empty() {
            self.text.push_str("; ");
        }
        self.text.push_str(word);
        self.is_open = opens;
    }

    /// At what a command reads: a loop would wait for the terminal without it.
    fn input(&mut self) {
        if !self.is_open && CLOSE.iter().any(|word| self.text.ends_with(word)) {
            self.text.push_str(" </dev/null");
        }
    }

    /// At a closing bracket: of this text, or behind the pattern of an arm.
    fn closed(&mut self) {
        if self.brackets > 0 {
            self.brackets -= 1;
            if self.is_open {
                self.add(":", false);
            }
            self.text.push_str(" )");
        } else if matches!(&*self.text, "" | ":") {
            self.text = "_)".to_owned();
            self.is_open = true;
        } else {
            self.text.push_str(" )");
        }
    }

    /// At `case`: how much of the text is a part of it.
    fn case(&mut self, text: &[u8]) -> usize {
        let text_of = String::from_utf8_lossy(text);
        let is_between = |c: char| c.is_whitespace() || c == ';';
        if text_of.split(is_between).any(|word| word == "esac") {
            self.word(":");
            let end = text.windows(4).rposition(|word| word == b"esac");
            return end.map_or(text.len(), |end| end + 4);
        }
        let has_arm = text.contains(&b')') && !text.trim_ascii_end().ends_with(b";;");
        self.add(if has_arm { "case : in _) :" } else { "case : in" }, false);
        text.len()
    }
}

fn is_function(word: &str) -> bool {
    word.strip_suffix("()")
        .is_some_and(|name| name.chars().all(|c| c.is_alphanumeric() || "_-.:".contains(c)))
}

/// The length of a word, with what its quotes and brackets hold.
fn length_of_word(text: &[u8]) -> usize {
    let (mut nesting, mut at) = (Nesting::default(), 0);
    while at < text.len() {
        let is_free = nesting.is_empty();
        match text[at] {
            b'(' if is_free && text[at..].starts_with(b"()") => at += 2,
            b'(' if is_free => {
                nesting.open_bracket();
                at += 1;
            }
            byte if is_free && (byte.is_ascii_whitespace() || b";&|)<".contains(&byte)) => break,
            _ => at += nesting.step(text, at).unwrap_or(text.len()),
        }
    }
    at.clamp(1, text.len())
}

#[cfg(test)]
mod tests {
    use super::super::settings::without_secrets;
    use super::*;

    fn left(name: &str, text: &str) -> String {
        String::from_utf8(Lines::of(Path::new(name)).in_place(text.as_bytes())).unwrap()
    }

    #[test]
    fn words_that_hold_a_shells_lines_together_stay() {
        for (text, expected) in [
            ("export T=x", ":"),
            ("\t export T='fi; done' # }", "\t :"),
            ("export T=\"a\nif b; c\"", ":"),
            ("export A=1; T=x; B=2 && c | d", ":"),
            ("T=$(cat <<E\nif\n)\nE\n)", ":"),
            ("read T <<E\nfi\nE", ":"),
            ("TS=(\nif\ndone )", ":"),
            ("echo done; T=x", ":"),
            ("if a; then export T=x; fi", "if :; then :; fi"),
            ("if a; then export T=x; else b; fi", "if :; then :; else :; fi"),
            ("if a; then export T=x", "if :; then :"),
            ("export T=x; fi", ":; fi"),
            ("then T=x", "then :"),
            ("else T=x; fi", "else :; fi"),
            ("for a in b c; do T=x; done", "for _ in; do :; done"),
            ("while a; do T=x", "while false; do :"),
            ("T=x; done", ":; done"),
            ("f() { T=x; }", "f() { :; }"),
            ("f() { T=x", "f() { :"),
            ("T=x()", ":"),
            ("while a; do T=x; done <f", "while false; do :; done </dev/null"),
            ("(T=x; b)", "( : )"),
            ("T=x }", ":"),
            ("T=x; }", ":; }"),
            ("a) export T=x ;;", ""),
            ("a|b) export T=x", "_) :"),
            ("export T=x ;;", ": ;;"),
            ("export T=x ;; esac", ": ;; esac"),
            ("case $a in b) T=x;; c) d;; esac", ":"),
            ("case $a in b) T=x", "case : in _) :"),
            ("case $T in", "case : in"),
            ("((T = 1)) && T=x", ":"),
            ("if ! a; then T=x; fi", "if ! :; then :; fi"),
            ("if (T=x); then", "if ( : ); then"),
            ("[ \"$(a \"b)\")\" ] && T=x", ":"),
        ] {
            let expected =
                if expected.is_empty() { String::new() } else { format!("{expected}\n") };
            assert_eq!(left(".bashrc", &format!("{text}\n")), expected, "{text}");
        }
    }

    #[test]
    fn items_of_yaml_stay_and_other_files_have_nothing() {
        for (name, text, expected) in [
            (".yarnrc.yml", "  - token: x\n", "  -\n"),
            (".yarnrc.yml", "- - token: |\n     x\n", "- -\n"),
            (".yarnrc.yml", "  token: x\n", ""),
            (".yarnrc.yml", "---x: y\n", ""),
            (".npmrc", "- token: x\n", ""),
            (".cargo/env", "T=x\n", ":\n"),
        ] {
            assert_eq!(left(name, text), expected, "{name} {text}");
        }
    }

    /// A shell that meets a wrong line reads none.
    #[test]
    fn what_is_left_of_a_shells_file_is_still_read() {
        let text = "if a; then\n  export TOKEN=x\nfi\nf() {\n  TOKEN=x; }\n[ -z \"$X\" ] &&\n  TOKEN=x\n\
                    echo y\ncase $X in\na) TOKEN=x ;;\nb)\n  TOKEN=x;;\nc) ;;\nesac\nfor i in a; do\n\
                    read TOKEN <<E\n)\nfi\nE\ndone\nif a\nthen TOKEN=\"x\ny\"; else\n# token: x\n:\nfi\n";
        let left = without_secrets(Path::new(".bashrc"), text.as_bytes());
        let left = String::from_utf8(left).unwrap();
        assert!(!left.contains("TOKEN") && left.contains("] &&\n  :\necho y\n"), "{left}");
        let read = std::process::Command::new("sh").args(["-nc", &left]).output().unwrap();
        assert!(read.status.success(), "{left}\n: {read:?}");
        let list = without_secrets(Path::new("a.yml"), b"a:\n  - token: x\n    b: c\n  - d: e\n");
        assert_eq!(list, b"a:\n  -\n    b: c\n  - d: e\n");
    }

    #[test]
    fn what_is_nested_deeply_takes_no_stack() {
        for part in ["\"$(", "$(", "(", "case "] {
            assert!(left(".bashrc", &format!("T={}\n", part.repeat(100_000))).len() < 10);
        }
    }
}
