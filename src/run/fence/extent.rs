//! How far the value of a setting goes, by quotes, brackets and indentation: the forms of TOML, YAML,
//! INI and Vim together, as a file may be of any; those of shells by themselves. What goes too far is left out of a copy
//! with the value; what stops too early would show a part of a secret.

use super::{here_document, shell};

/// Text that a search for the end of a value may look through in vain, before the rest of the file
/// counts as the value: without a limit, the time would grow with the square of its length.
const VAIN_MAX: usize = 64;

/// Finds where values of one text end.
pub(super) struct Extents<'t> {
    text: &'t [u8],
    is_shell: bool,
    in_vain: usize,
}

/// What is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    /// Until this byte.
    Quote(u8),
    /// Until three of it.
    Triple(u8),
    /// Until this closing bracket.
    Bracket(u8),
}

impl<'t> Extents<'t> {
    pub(super) fn of(text: &'t [u8], is_shell: bool) -> Self {
        Self { text, is_shell, in_vain: 0 }
    }

    /// The end of the line in which what was begun on the line `start..end` is complete, with the
    /// lines behind it that are indented as a part of it. `None` where it is not clear.
    pub(super) fn end(&mut self, start: usize, end: usize) -> Option<usize> {
        if self.is_shell {
            return shell::complete(self.text, start, end);
        }
        // Some know escapes between single quotes, others do not.
        let far = self.closed(start, end, false)?.max(self.closed(start, end, true)?);
        Some(self.indented(start, far).unwrap_or(far))
    }

    fn closed(&mut self, start: usize, end: usize, escapes: bool) -> Option<usize> {
        match closed(self.text, start, end, escapes) {
            Ok(at) => Some(at),
            // An apostrophe that is none: `password = it's`.
            Err(Open::Quote(_)) if self.in_vain < VAIN_MAX => {
                self.in_vain += 1;
                Some(end)
            }
            Err(_) => None,
        }
    }

    /// Behind the last of the lines from `at` on that are indented deeper than the one at `start`.
    /// Empty lines and comments may stand between. Items of a list need no deeper indentation; those
    /// of Vim begin with a backslash.
    fn indented(&self, start: usize, mut at: usize) -> Option<usize> {
        let own = indentation(self.text.get(start..)?);
        let mut found = None;
        while let Some(rest) = self.text.get(at..).filter(|rest| !rest.is_empty()) {
            let line = rest.split_inclusive(|byte| *byte == b'\n').next()?;
            let blank = line.len() - line.trim_ascii_start().len();
            let words = line.trim_ascii();
            let is_comment = words.starts_with(b"#") || words.starts_with(b";");
            let is_item = blank == own && words.starts_with(b"- ") || words.starts_with(b"\\");
            at += line.len();
            if words.is_empty() || is_comment && blank <= own {
                continue;
            }
            if blank <= own && !is_item {
                break;
            }
            found = Some(at);
        }
        found
    }
}

/// Blanks at the start, with the dashes of a list in YAML.
fn indentation(line: &[u8]) -> usize {
    line.iter()
        .enumerate()
        .position(|(at, byte)| {
            let is_dash = *byte == b'-' && line.get(at + 1) == Some(&b' ');
            !matches!(byte, b' ' | b'\t') && !is_dash
        })
        .unwrap_or(0)
}

/// The first end of a line behind `at`, from `least` on, at which nothing is open; else what was
/// opened first.
fn closed(text: &[u8], mut at: usize, least: usize, escapes: bool) -> Result<usize, Open> {
    let mut open: Vec<Open> = Vec::new();
    let mut documents = Vec::new();
    // What is no blank before.
    let mut before = b',';
    // In what ends the last long string of Lua.
    let mut long = 0;
    while let Some(&byte) = text.get(at) {
        let rest = &text[at..];
        let mut step = 1;
        match open.last() {
            Some(&Open::Quote(quote)) => match byte {
                b'\\' if quote != b'\'' || escapes => step = 2,
                _ if byte == quote => drop(open.pop()),
                _ => {}
            },
            Some(&Open::Triple(quote)) => {
                if byte == b'\\' && quote == b'"' {
                    step = 2;
                } else if rest.starts_with(&[quote; 3]) {
                    // Quotes of the text may stand right before those that end it.
                    step = rest.iter().take(5).take_while(|byte| **byte == quote).count();
                    open.pop();
                }
            }
            inside => match byte {
                b'\\' => step = 2,
                b'\n' if inside.is_none() => {
                    for document in documents.drain(..) {
                        // As one that never ends.
                        let behind = here_document::behind(text, at + step, &document);
                        step = behind.ok_or(Open::Bracket(byte))? - at;
                    }
                    if at + step >= least.max(long) {
                        return Ok(at + step);
                    }
                }
                b'<' if inside.is_none() => {
                    let (length, found) = here_document::begun(rest);
                    step = length;
                    documents.extend(found);
                }
                b'#' if at == 0 || text[at - 1].is_ascii_whitespace() => {
                    step = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                }
                b'"' | b'\'' if rest.starts_with(&[byte; 3]) => {
                    open.push(Open::Triple(byte));
                    step = 3;
                }
                b'"' | b'\'' | b'`' => open.push(Open::Quote(byte)),
                b'(' | b'[' | b'{' if inside.is_some() || b"=:$,([{".contains(&before) => {
                    let bracket = Open::Bracket(closing(byte));
                    if let Some(end) = long_end(rest).filter(|_| at >= long) {
                        // It may be one of another kind, too.
                        long = at + 1 + find(rest, &end).ok_or(bracket)?;
                    }
                    open.push(bracket);
                }
                _ if inside == Some(&Open::Bracket(byte)) => drop(open.pop()),
                _ => {}
            },
        }
        if !byte.is_ascii_whitespace() {
            before = byte;
        }
        at += step;
    }
    open.first().map_or(Ok(text.len()), |first| Err(*first))
}

/// What ends a string of Lua, `[[ … ]]` or `[=[ … ]=]`, if `text` begins like one.
fn long_end(text: &[u8]) -> Option<Vec<u8>> {
    let level = text[1..].iter().take_while(|byte| **byte == b'=').count();
    let is_one = text[0] == b'[' && text.get(1 + level) == Some(&b'[');
    is_one.then(|| [&b"]"[..], &text[1..=level], b"]"].concat())
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|found| found == part)
}

fn closing(bracket: u8) -> u8 {
    match bracket {
        b'(' => b')',
        b'[' => b']',
        _ => b'}',
    }
}
