//! Words of a command line, as far as a shell's syntax tells which of them are run.

/// What a word is to the command that it stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A program, which is looked for in `PATH` unless its name has a slash.
    Command,
    /// What an interpreter reads: always a path.
    Script,
    Argument,
}

/// One word, without quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) role: Role,
    /// [`FILLED_IN`] is in the place of variables and of what commands print.
    pub(crate) text: Vec<u8>,
    /// The same for all words of one command line; those of lines in it stand before the word that they are in.
    pub(crate) level: usize,
}

/// Stands for what a shell puts in.
pub(crate) const FILLED_IN: u8 = 0;
/// How deep command lines are looked for in others.
const MAX_DEPTH: usize = 4;
/// Behind these stands a command.
const BEFORE_COMMANDS: [&str; 22] = [
    "!", "{", "}", "then", "do", "else", "elif", "if", "while", "until", "time", "exec", "command",
    "builtin", "env", "nohup", "nice", "sudo", "doas", "xargs", "eval", "busybox",
];
/// Behind these stands a file with commands.
const INTERPRETERS: [&str; 21] = [
    ".", "source", "sh", "bash", "dash", "zsh", "ksh", "fish", "python", "python2", "python3",
    "perl", "ruby", "node", "nodejs", "deno", "bun", "php", "lua", "Rscript", "pwsh",
];

/// The words of a command line, or of a script.
pub(crate) fn words(line: &[u8]) -> Vec<Word> {
    let mut found = Vec::new();
    read(line, MAX_DEPTH, &mut found);
    found
}

fn read(line: &[u8], depth: usize, found: &mut Vec<Word>) {
    let (next, to) = (Role::Command, To::Word);
    let mut reader = Reader { rest: line, depth, found, word: None, next, to, of_option: false };
    reader.line();
    reader.finish();
}

/// What becomes of the next word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Word,
    /// It is where output goes.
    Nowhere,
    /// It is a command line of its own.
    Line,
}

struct Reader<'l, 'f> {
    rest: &'l [u8],
    depth: usize,
    found: &'f mut Vec<Word>,
    word: Option<Vec<u8>>,
    next: Role,
    to: To,
    /// The next word is that of an option of an interpreter.
    of_option: bool,
}

impl Reader<'_, '_> {
    fn line(&mut self) {
        while let Some(byte) = self.take() {
            match byte {
                b' ' | b'\t' | b'\r' => self.finish(),
                b'\n' | b';' | b'&' | b'|' | b'(' | b')' => {
                    self.finish();
                    (self.next, self.to) = (Role::Command, To::Word);
                    self.of_option = false;
                }
                b'<' | b'>' => {
                    self.finish();
                    // `sh <FILE`.
                    let is_script = self.next == Role::Script
                        && byte == b'<'
                        && !matches!(self.rest, [b'<' | b'&' | b'(', ..]);
                    if is_script {
                        continue;
                    }
                    while let [b'<' | b'>' | b'&' | b'|' | b'-', rest @ ..] = self.rest {
                        self.rest = rest;
                    }
                    self.to = To::Nowhere;
                }
                b'#' if self.word.is_none() => {
                    let end = self.rest.iter().position(|byte| *byte == b'\n');
                    self.rest = &self.rest[end.unwrap_or(self.rest.len())..];
                }
                b'\'' => {
                    let text = self.until(b'\'').to_vec();
                    self.text().extend(text);
                }
                b'"' => self.double_quoted(),
                b'\\' => match self.take() {
                    Some(b'\n') | None => {}
                    Some(byte) => self.text().push(byte),
                },
                b'$' | b'`' => self.filled_in(byte),
                byte => self.text().push(byte),
            }
        }
    }

    fn take(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    /// What stands before `end`, which is passed.
    fn until(&mut self, end: u8) -> &[u8] {
        let length = self.rest.iter().position(|byte| *byte == end).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(length);
        self.rest = rest.get(1..).unwrap_or_default();
        text
    }

    fn text(&mut self) -> &mut Vec<u8> {
        self.word.get_or_insert_default()
    }

    fn double_quoted(&mut self) {
        self.text();
        while let Some(byte) = self.take() {
            match byte {
                b'"' => return,
                b'\\' => match self.take() {
                    Some(byte @ (b'$' | b'`' | b'"' | b'\\')) => self.text().push(byte),
                    Some(b'\n') | None => {}
                    Some(byte) => self.text().extend([b'\\', byte]),
                },
                b'$' | b'`' => self.filled_in(byte),
                byte => self.text().push(byte),
            }
        }
    }

    /// A variable, or a command in the place of what it prints.
    fn filled_in(&mut self, first: u8) {
        let inner = match self.rest {
            _ if first == b'`' => self.until(b'`').to_vec(),
            [b'(', rest @ ..] => {
                let length = closed(rest, b'(', b')');
                self.rest = rest.get(length + 1..).unwrap_or_default();
                rest[..length].to_vec()
            }
            [b'{', rest @ ..] => {
                let length = closed(rest, b'{', b'}');
                self.rest = rest.get(length + 1..).unwrap_or_default();
                Vec::new()
            }
            [name, ..] if name.is_ascii_alphabetic() || *name == b'_' => {
                let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                let length = self.rest.iter().take_while(|byte| is_of_name(byte)).count();
                self.rest = &self.rest[length..];
                Vec::new()
            }
            [b'0'..=b'9' | b'@' | b'*' | b'#' | b'?' | b'-' | b'$' | b'!', rest @ ..] => {
                self.rest = rest;
                Vec::new()
            }
            _ => return self.text().push(first),
        };
        self.text().push(FILLED_IN);
        if let Some(depth) = self.depth.checked_sub(1) {
            read(&inner, depth, self.found);
        }
    }

    fn finish(&mut self) {
        let Some(text) = self.word.take() else { return };
        match std::mem::replace(&mut self.to, To::Word) {
            To::Word => {}
            // `trap -- LINE EXIT`.
            To::Line if text == b"--" => self.to = To::Line,
            To::Nowhere => return,
            To::Line => {
                if let Some(depth) = self.depth.checked_sub(1) {
                    read(&text, depth, self.found);
                }
            }
        }
        let role = self.next;
        let is_value = std::mem::take(&mut self.of_option);
        self.next = if is_value { role } else { after(role, &text) };
        self.of_option = !is_value && takes_value(role, &text);
        if text.starts_with(b"-") {
            // `sh -ec LINE`, `env -S LINE`.
            let options = &text[1..];
            let is_line = options.ends_with(b"c") || options == b"S" && role == Role::Command;
            if is_line && options.iter().all(u8::is_ascii_alphabetic) {
                self.to = To::Line;
            }
        } else if role == Role::Command && matches!(name_of(&text), b"eval" | b"trap") {
            self.to = To::Line;
        }
        self.found.push(Word { role, text, level: self.depth });
    }
}

/// How far it is to the bracket that closes; one is open already.
fn closed(text: &[u8], opens: u8, closes: u8) -> usize {
    let mut open = 1;
    for (at, byte) in text.iter().enumerate() {
        if *byte == opens {
            open += 1;
        } else if *byte == closes {
            open -= 1;
        }
        if open == 0 {
            return at;
        }
    }
    text.len()
}

/// What the word after this one is.
fn after(role: Role, text: &[u8]) -> Role {
    let is_assignment = || {
        let name = text.iter().position(|byte| *byte == b'=').map_or(&[][..], |at| &text[..at]);
        !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    };
    let is = |names: &[&str]| names.iter().any(|name| name.as_bytes() == name_of(text));
    match role {
        Role::Command if is(&INTERPRETERS) => Role::Script,
        Role::Command if is(&BEFORE_COMMANDS) || is_assignment() => Role::Command,
        Role::Command | Role::Script if text.starts_with(b"-") => role,
        // `bash +e FILE`.
        Role::Script if text.starts_with(b"+") => role,
        _ => Role::Argument,
    }
}

/// Whether the word after this option belongs to it: of an interpreter, `bash -euo pipefail FILE`,
/// `python3 -X dev FILE`, `ruby -I lib FILE`, `node -r ./first.js FILE`; of what stands before a command,
/// `nice -n 5 FILE`, `exec -a NAME FILE`, `sudo -u USER FILE`.
fn takes_value(role: Role, option: &[u8]) -> bool {
    const LONG: [&[u8]; 5] = [b"--rcfile", b"--init-file", b"--require", b"--import", b"--loader"];
    let (Some(b'-' | b'+'), Some(last)) = (option.first(), option.last()) else { return false };
    let is_short = option.len() > 1 && option[1..].iter().all(u8::is_ascii_alphabetic);
    match role {
        Role::Script => {
            is_short && matches!(last, b'o' | b'O' | b'W' | b'X' | b'I' | b'r')
                || LONG.contains(&option)
        }
        Role::Command => {
            option.len() == 2
                && matches!(last, b'a' | b'g' | b'n' | b'u' | b'C' | b'I' | b'L' | b'P')
        }
        Role::Argument => false,
    }
}

/// The last name of a path.
fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `c:` a command, `s:` a script, `-` nothing; `$` for what is filled in.
    fn shown(line: &str) -> Vec<String> {
        let one = |word: Word| {
            let role = match word.role {
                Role::Command => "c:",
                Role::Script => "s:",
                Role::Argument => "",
            };
            role.to_owned() + &String::from_utf8(word.text).unwrap().replace('\0', "$")
        };
        words(line.as_bytes()).into_iter().map(one).collect()
    }

    #[test]
    fn commands_scripts_and_arguments_are_told_apart() {
        for (line, expected) in [
            ("tools/x --y %f", &["c:tools/x", "--y", "%f"][..]),
            ("A=b 'my tools/x' \"y z\"", &["c:A=b", "c:my tools/x", "y z"]),
            ("python3 -u tools/x.py a", &["c:python3", "s:-u", "s:tools/x.py", "a"]),
            ("a && b | c; (d) # e", &["c:a", "c:b", "c:c", "c:d"]),
            ("sh -c 'tools/x y'", &["c:sh", "s:-c", "c:tools/x", "y", "s:tools/x y"]),
            ("git log >out 2>&1", &["c:git", "log", "2"]),
            (". \"$(dirname -- \"$0\")/../h\"", &["c:.", "c:dirname", "--", "$", "s:$/../h"]),
            ("f() { \"$D\"/x \"$@\"; }; f", &["c:f", "c:{", "c:$/x", "$", "c:}", "c:f"]),
            ("exec env A=1 ${B:-c}/x", &["c:exec", "c:env", "c:A=1", "c:$/x"]),
            ("if [ -x a ]; then a; fi", &["c:if", "c:[", "-x", "a", "]", "c:then", "c:a", "c:fi"]),
            ("`b c`/d \\\n e\\ f", &["c:b", "c", "c:$/d", "e f"]),
            (
                "bash -eu -o pipefail t/a b",
                &["c:bash", "s:-eu", "s:-o", "s:pipefail", "s:t/a", "b"],
            ),
            ("bash +e -euo pipefail t/a", &["c:bash", "s:+e", "s:-euo", "s:pipefail", "s:t/a"]),
            ("node -r ./a ./b ./c", &["c:node", "s:-r", "s:./a", "s:./b", "./c"]),
            ("sh -o; a", &["c:sh", "s:-o", "c:a"]),
            ("trap './x y' EXIT", &["c:trap", "c:./x", "y", "./x y", "EXIT"]),
            ("trap -- 'sh ./x' EXIT", &["c:trap", "--", "c:sh", "s:./x", "sh ./x", "EXIT"]),
            ("exec -a n ./a b", &["c:exec", "c:-a", "c:n", "c:./a", "b"]),
            ("nice -n 5 ./a", &["c:nice", "c:-n", "c:5", "c:./a"]),
            ("env -S 'sh ./a'", &["c:env", "c:-S", "c:sh", "s:./a", "c:sh ./a"]),
            ("bash <t/a", &["c:bash", "s:t/a"]),
            ("cat <t/a; sh <<END", &["c:cat", "c:sh"]),
            ("'", &["c:"]),
            ("\"$(", &["c:$"]),
        ] {
            assert_eq!(shown(line), expected, "{line}");
        }
    }
}
