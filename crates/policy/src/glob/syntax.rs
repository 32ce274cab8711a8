//! The text of a glob: `*`, `**`, `?`, `[...]`, `{...,...}` and `\` before a character that stands
//! for itself. Alternatives in braces are spread out into a glob each.

use super::automaton::{Glob, MAX_SEGMENTS, Segment};
use super::component::Token;
use super::spread::{Atom, MAX_ALTERNATIVES, Node, Sort, TooMuch, spread};
use crate::limits::{MAX_GLOB_LEN, MAX_SPREAD};

/// Deepest nesting of braces.
const MAX_NESTING: usize = 8;

/// A glob that cannot be used, and where in its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GlobError {
    /// Byte offset in the glob.
    pub(crate) offset: usize,
    pub(crate) problem: GlobProblem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GlobProblem {
    #[error("empty glob; write `**` for everything")]
    Empty,
    #[error("absolute glob; paths are relative to DIR: write `{0}`")]
    Absolute(String),
    #[error("absolute in one of its alternatives; paths are relative to DIR: leave that `/` out")]
    AbsoluteAlternative,
    #[error("`..` in a glob; paths are relative to DIR and do not leave it")]
    Parent,
    #[error("`.` in a glob; paths are relative to DIR: leave it out, or write `**` for all of DIR")]
    Current,
    #[error("two slashes in a row in a glob; write one")]
    EmptyComponent,
    #[error("`**` must stand alone between slashes, as in `a/**/b`; inside a name write `*`")]
    DeepInName,
    #[error("`[` without `]`; write `\\[` for the character itself")]
    OpenClass,
    #[error("`/` inside `[...]`; a class is one character of a name")]
    SlashInClass,
    #[error("`[:{0}:]` in a glob; classes have no names here: write ranges, as in `[a-zA-Z]`")]
    NamedClass(String),
    #[error("range from `{0}` down to `{1}`; write the lower end first")]
    Range(char, char),
    #[error("`{{` without `}}`; write `\\{{` for the character itself")]
    OpenBrace,
    #[error("`}}` without `{{`; write `\\}}` for the character itself")]
    CloseBrace,
    #[error("`\\` at the end of a glob; write `\\\\` for the character itself")]
    Escape,
    #[error("NUL in a glob; no name contains it")]
    Nul,
    #[error("braces nested more than {MAX_NESTING} deep")]
    Nesting,
    #[error("braces stand for more than {MAX_ALTERNATIVES} globs; write several globs")]
    Alternatives,
    #[error("{0} bytes; a glob has at most {MAX_GLOB_LEN}, as no path is longer")]
    TooLong(usize),
    #[error("braces stand for more than {MAX_SPREAD} characters; write several globs")]
    Spread,
    #[error("more than {} components in a glob; write `**` for those in the middle", MAX_SEGMENTS - 1)]
    Components,
    #[error("a glob on executables begins with `/` or `**/`")]
    RelativeExe,
    #[error("each alternative of a glob on executables begins with `/` or `**/`")]
    RelativeExeAlternative,
    #[error("`/` alone is no executable; write `/**` for all")]
    NoExe,
    #[error("`..` in a glob on executables; write the path without it")]
    ParentInExe,
    #[error("`.` in a glob on executables; leave it out")]
    CurrentInExe,
}

/// Compiles a glob over paths relative to DIR; several with braces.
pub(crate) fn compile_path(text: &str) -> Result<Vec<Glob>, GlobError> {
    let mut globs = Vec::new();
    for atoms in alternatives(text)? {
        check_relative(&atoms, text)?;
        globs.push(Glob::covering(segments(&atoms)?));
    }
    Ok(globs)
}

/// Compiles a glob over absolute paths of executables; several with braces.
pub(crate) fn compile_exe(text: &str) -> Result<Vec<Glob>, GlobError> {
    let mut globs = Vec::new();
    for atoms in alternatives(text)? {
        let relative = match &atoms[..] {
            [first, rest @ ..] if first.sort == Sort::Slash => rest,
            [first, second, ..] if first.sort == Sort::Star && second.sort == Sort::Star => &atoms,
            [first, ..] if has_special(text, &['{']) => {
                let problem = GlobProblem::RelativeExeAlternative;
                return Err(GlobError { offset: first.offset, problem });
            }
            _ => return Err(GlobError { offset: 0, problem: GlobProblem::RelativeExe }),
        };
        if relative.is_empty() {
            return Err(GlobError { offset: 0, problem: GlobProblem::NoExe });
        }
        globs.push(Glob::exact(segments(relative).map_err(in_exe)?));
    }
    Ok(globs)
}

fn in_exe(error: GlobError) -> GlobError {
    let problem = match error.problem {
        GlobProblem::Parent => GlobProblem::ParentInExe,
        GlobProblem::Current => GlobProblem::CurrentInExe,
        other => other,
    };
    GlobError { problem, ..error }
}

/// Whether one of these characters stands in the text of a glob and not for itself.
pub(crate) fn has_special(text: &str, special: &[char]) -> bool {
    characters(text).any(|(c, escaped)| !escaped && special.contains(&c))
}

/// The text of a glob without wildcards as the path that it stands for.
pub(crate) fn unescaped(text: &str) -> String {
    characters(text).map(|(c, _)| c).collect()
}

/// The characters of a glob's text, each with whether a `\` before it has it stand for itself.
fn characters(text: &str) -> impl Iterator<Item = (char, bool)> {
    let mut left = text.chars();
    std::iter::from_fn(move || match left.next()? {
        '\\' => Some((left.next()?, true)),
        other => Some((other, false)),
    })
}

/// All the ways to read `text`, one per choice of alternatives. At least one.
fn alternatives(text: &str) -> Result<Vec<Vec<Atom>>, GlobError> {
    if text.is_empty() {
        return Err(GlobError { offset: 0, problem: GlobProblem::Empty });
    }
    if text.len() > MAX_GLOB_LEN {
        return Err(GlobError { offset: 0, problem: GlobProblem::TooLong(text.len()) });
    }
    let mut parser = Parser { text, at: 0 };
    let nodes = parser.sequence(0)?;
    let braces = text.find('{').unwrap_or(0);
    spread(&nodes).map_err(|too_much| {
        let problem = match too_much {
            TooMuch::Alternatives => GlobProblem::Alternatives,
            TooMuch::Characters => GlobProblem::Spread,
        };
        GlobError { offset: braces, problem }
    })
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<(usize, char)> {
        let offset = self.at;
        let found = self.text[offset..].chars().next()?;
        self.at += found.len_utf8();
        Some((offset, found))
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    /// Nodes up to the end, or up to the `,` or `}` that ends an alternative.
    fn sequence(&mut self, depth: usize) -> Result<Vec<Node>, GlobError> {
        let mut nodes = Vec::new();
        while let Some(found) = self.peek() {
            if depth > 0 && matches!(found, ',' | '}') {
                break;
            }
            nodes.push(self.node(depth)?);
        }
        Ok(nodes)
    }

    fn node(&mut self, depth: usize) -> Result<Node, GlobError> {
        let offset = self.at;
        let fail = |problem| Err(GlobError { offset, problem });
        let Some((_, found)) = self.next() else { return fail(GlobProblem::Empty) };
        let sort = match found {
            '\0' => return fail(GlobProblem::Nul),
            '{' => return self.braces(offset, depth),
            '}' => return fail(GlobProblem::CloseBrace),
            '[' => Sort::Class(self.class(offset)?),
            '?' => Sort::One,
            '*' => Sort::Star,
            '/' => Sort::Slash,
            '\\' => match self.next() {
                Some((_, '/')) => Sort::Slash,
                Some((_, '\0')) => return fail(GlobProblem::Nul),
                Some((_, escaped)) => Sort::Char(escaped),
                None => return fail(GlobProblem::Escape),
            },
            other => Sort::Char(other),
        };
        Ok(Node::Atom(Atom { offset, sort }))
    }

    fn braces(&mut self, offset: usize, depth: usize) -> Result<Node, GlobError> {
        if depth == MAX_NESTING {
            return Err(GlobError { offset, problem: GlobProblem::Nesting });
        }
        let mut choices = Vec::new();
        loop {
            choices.push(self.sequence(depth + 1)?);
            match self.next() {
                Some((_, ',')) => {}
                Some(_) => return Ok(Node::Braces(choices)),
                None => return Err(GlobError { offset, problem: GlobProblem::OpenBrace }),
            }
        }
    }

    /// What follows a `[` up to its `]`. A `]` that comes first stands for itself.
    fn class(&mut self, offset: usize) -> Result<Token, GlobError> {
        let negated = matches!(self.peek(), Some('!' | '^'));
        if negated {
            self.next();
        }
        let mut ranges = Vec::new();
        loop {
            let (at, low) = self.class_char(offset)?;
            if low == ']' && !ranges.is_empty() && !self.text[at..].starts_with('\\') {
                return Ok(Token::Class { negated, ranges: ranges.into() });
            }
            if self.text[at..].starts_with('[')
                && let Some(name) = named_class(&self.text[self.at..])
            {
                let problem = GlobProblem::NamedClass(name.to_owned());
                return Err(GlobError { offset: at, problem });
            }
            let mut high = low;
            if self.peek() == Some('-') && !self.text[self.at..].starts_with("-]") {
                self.next();
                high = self.class_char(offset)?.1;
            }
            if high < low {
                return Err(GlobError { offset: at, problem: GlobProblem::Range(low, high) });
            }
            ranges.push((low, high));
        }
    }

    /// One character of a class, with where its text begins.
    fn class_char(&mut self, class: usize) -> Result<(usize, char), GlobError> {
        let open = GlobError { offset: class, problem: GlobProblem::OpenClass };
        let (at, found) = self.next().ok_or_else(|| open.clone())?;
        match found {
            '/' => Err(GlobError { offset: at, problem: GlobProblem::SlashInClass }),
            '\\' => Ok((at, self.next().ok_or(open)?.1)),
            other => Ok((at, other)),
        }
    }
}

/// The name of a class as other programs have them, behind its `[`: that of `:alpha:]`.
fn named_class(rest: &str) -> Option<&str> {
    let (name, _) = rest.strip_prefix(':')?.split_once(":]")?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic());
    is_name.then_some(name)
}

fn check_relative(atoms: &[Atom], text: &str) -> Result<(), GlobError> {
    match atoms.first() {
        None => Err(GlobError { offset: 0, problem: GlobProblem::Empty }),
        Some(Atom { offset, sort: Sort::Slash }) => {
            let problem = match text.trim_start_matches('/') {
                "" => GlobProblem::Absolute("**".to_owned()),
                rest if rest.len() < text.len() => GlobProblem::Absolute(rest.to_owned()),
                rest if !has_special(rest, &['{']) => {
                    GlobProblem::Absolute(unescaped(rest).trim_start_matches('/').to_owned())
                }
                _ => GlobProblem::AbsoluteAlternative,
            };
            Err(GlobError { offset: *offset, problem })
        }
        Some(_) => Ok(()),
    }
}

fn segments(atoms: &[Atom]) -> Result<Vec<Segment>, GlobError> {
    let mut parts: Vec<&[Atom]> = atoms.split(|atom| atom.sort == Sort::Slash).collect();
    // A slash at the end says "directory", which a glob without it covers as well.
    if parts.len() > 1 && parts.last().is_some_and(|part| part.is_empty()) {
        parts.pop();
    }
    let offset = atoms.first().map_or(0, |atom| atom.offset);
    // One more may come: `**` at the end of an executable's glob.
    if parts.len() >= MAX_SEGMENTS {
        return Err(GlobError { offset, problem: GlobProblem::Components });
    }
    // Of an empty part, the slash after it.
    let mut at = 0;
    let begin = |part: &&[Atom]| {
        let offset = atoms.get(at).map_or(offset, |atom| atom.offset);
        at += part.len() + 1;
        offset
    };
    let begins: Vec<_> = parts.iter().map(begin).collect();
    parts.into_iter().zip(begins).map(|(part, begin)| segment(part, begin)).collect()
}

fn segment(atoms: &[Atom], offset: usize) -> Result<Segment, GlobError> {
    let fail = |problem| Err(GlobError { offset, problem });
    let sorts: Vec<&Sort> = atoms.iter().map(|atom| &atom.sort).collect();
    match sorts[..] {
        [] => return fail(GlobProblem::EmptyComponent),
        [Sort::Char('.')] => return fail(GlobProblem::Current),
        [Sort::Char('.'), Sort::Char('.')] => return fail(GlobProblem::Parent),
        [Sort::Star] => return Ok(Segment::Any),
        [Sort::Star, Sort::Star] => return Ok(Segment::Deep),
        _ => {}
    }
    if let Some(two) = atoms.windows(2).find(|two| two.iter().all(|one| one.sort == Sort::Star)) {
        return Err(GlobError { offset: two[0].offset, problem: GlobProblem::DeepInName });
    }
    let tokens = tokens(atoms);
    Ok(match &tokens[..] {
        [Token::Text(name)] => Segment::Name(name.clone()),
        _ => Segment::Wild(tokens.into()),
    })
}

fn tokens(atoms: &[Atom]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut text = String::new();
    for atom in atoms {
        let token = match &atom.sort {
            Sort::Char(c) => {
                text.push(*c);
                continue;
            }
            Sort::One => Token::One,
            Sort::Class(class) => class.clone(),
            // A component holds no slash: it was split there.
            Sort::Star | Sort::Slash => Token::Star,
        };
        flush(&mut text, &mut tokens);
        tokens.push(token);
    }
    flush(&mut text, &mut tokens);
    tokens
}

fn flush(text: &mut String, tokens: &mut Vec<Token>) {
    if !text.is_empty() {
        tokens.push(Token::Text(std::mem::take(text).into_bytes().into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str) -> (usize, String) {
        let error = compile_path(text).unwrap_err();
        (error.offset, error.problem.to_string())
    }

    #[test]
    fn mistakes_are_named_where_they_are() {
        assert_eq!(refused("").1, "empty glob; write `**` for everything");
        assert_eq!(
            refused("/etc/x"),
            (0, "absolute glob; paths are relative to DIR: write `etc/x`".into())
        );
        assert_eq!(refused("/").1, "absolute glob; paths are relative to DIR: write `**`");
        let leave_out =
            "absolute in one of its alternatives; paths are relative to DIR: leave that `/` out";
        assert_eq!(refused("{a,/b}"), (3, leave_out.into()));
        assert_eq!(refused("{}/a").1, leave_out);
        assert_eq!(refused(r"\/a").1, "absolute glob; paths are relative to DIR: write `a`");
        assert_eq!(refused("a/../b").0, 2);
        assert_eq!(refused("./a").0, 0);
        assert_eq!(refused("a//b").1, "two slashes in a row in a glob; write one");
        assert_eq!(refused("ab/x**").0, 4);
        assert_eq!(refused("a/[bc").0, 2);
        assert_eq!(refused("a/[b/c]").0, 4);
        assert_eq!(
            refused("[z-a]"),
            (1, "range from `z` down to `a`; write the lower end first".into())
        );
        assert_eq!(
            refused("a[[:alpha:]_]"),
            (
                2,
                "`[:alpha:]` in a glob; classes have no names here: write ranges, as in `[a-zA-Z]`"
                    .into()
            )
        );
        assert!(compile_path("[[:]").is_ok() && compile_path(r"[\[:alpha:]").is_ok());
        assert_eq!(refused("a{b,c").0, 1);
        assert_eq!(refused("ab}").0, 2);
        assert_eq!(refused("ab\\").0, 2);
        assert_eq!(refused("a\0b").0, 1);
        assert_eq!(
            refused(&"{a,b}".repeat(9)).1.split(';').next(),
            Some("braces stand for more than 256 globs")
        );
        assert_eq!(refused(&"{".repeat(9)).0, 8);
        assert_eq!(
            refused(&vec!["a"; 64].join("/")).1.split(';').next(),
            Some("more than 62 components in a glob")
        );
        assert_eq!(refused("{a,}").1, "empty glob; write `**` for everything");
    }

    #[test]
    fn executables_are_absolute() {
        let error = compile_exe("node").unwrap_err();
        assert_eq!(error.problem, GlobProblem::RelativeExe);
        assert!(compile_exe("/usr/bin/node").is_ok());
        for (text, offset, expected) in [
            ("{/a,b}", 4, GlobProblem::RelativeExeAlternative),
            ("/", 0, GlobProblem::NoExe),
            ("/a/../b", 3, GlobProblem::ParentInExe),
            ("/a/./b", 3, GlobProblem::CurrentInExe),
        ] {
            let error = compile_exe(text).unwrap_err();
            assert_eq!((error.offset, error.problem), (offset, expected), "{text}");
        }
        assert!(compile_exe("**/node").is_ok());
    }

    #[test]
    fn braces_spread_out() {
        let globs = compile_path("{src,a/{b,c}}/*.{rs,c}").unwrap();
        assert_eq!(globs.len(), 6);
        assert!(globs.iter().any(|glob| glob.covers(b"a/c/x.rs")));
        assert!(!globs.iter().any(|glob| glob.covers(b"a/x.rs")));
    }

    #[test]
    fn what_is_escaped_is_not_special() {
        for text in [r"st\*r", r"\[x\]", r"\{a,b\}", r"a\\b", r"\\\*", "é"] {
            assert!(!has_special(text, &['*', '?', '[', '{']), "{text}");
        }
        for text in ["st*r", r"\\*", r"\[[x]", r"\{{a,b}"] {
            assert!(has_special(text, &['*', '?', '[', '{']), "{text}");
        }
        assert_eq!(unescaped(r"x\*y/\\z"), r"x*y/\z");
    }

    #[test]
    fn escapes_stand_for_themselves() {
        let literal = &compile_path(r"a\*b\[c\]\{\}\\").unwrap()[0];
        assert!(literal.covers(br"a*b[c]{}\"));
        let class = &compile_path(r"[]\-x-]y").unwrap()[0];
        for name in [&b"]y"[..], b"-y", b"xy"] {
            assert!(class.covers(name), "{name:?}");
        }
        assert!(!class.covers(b"zy"));
    }
}
