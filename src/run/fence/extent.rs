//! How far the value of a setting goes, by quotes, brackets and indentation: the forms of shells, of
//! TOML, YAML and INI together, as a file may be of any. What goes too far is left out of a copy
//! with the value; what stops too early would show a part of a secret.

use super::here_document;

/// Text that a search for the end of a value may look through in vain, before the rest of the file
/// counts as the value: without a limit, the time would grow with the square of its length.
const VAIN_MAX: usize = 64;

/// Finds where values of one text end.
pub(super) struct Extents<'t> {
    text: &'t [u8],
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
    pub(super) fn of(text: &'t [u8]) -> Self {
        Self { text, in_vain: 0 }
    }

    /// The end of the line in which what was begun on the line `start..end` is complete, with the
    /// lines behind it that are indented as a part of it.
    pub(super) fn end(&mut self, start: usize, end: usize) -> usize {
        let end = self.closed(start, end);
        self.indented(start, end, false).unwrap_or(end)
    }

    /// The same for a key that has no value on its own line, `None` if it has none below either.
    pub(super) fn end_below(&mut self, start: usize, end: usize) -> Option<usize> {
        let closed = self.closed(start, end);
        self.indented(start, closed, true).or_else(|| (closed > end).then_some(closed))
    }

    /// Fish knows escapes between single quotes, other shells and TOML do not.
    fn closed(&mut self, start: usize, end: usize) -> usize {
        [false, true]
            .into_iter()
            .fold(end, |far, escapes| far.max(self.closed_with(start, end, escapes)))
    }

    fn closed_with(&mut self, start: usize, end: usize, escapes: bool) -> usize {
        match closed(self.text, start, escapes) {
            Ok(at) => at,
            Err(_) if self.in_vain >= VAIN_MAX => self.text.len(),
            // An apostrophe that is none: `password = it's`.
            Err(Open::Quote(_)) => {
                self.in_vain += 1;
                end
            }
            Err(_) => self.text.len(),
        }
    }

    /// Behind the last of the lines from `at` on that are indented deeper than the one at `start`.
    /// Empty lines and comments may stand between. With `lists`, items of a list need no deeper
    /// indentation; those of Vim begin with a backslash.
    fn indented(&self, start: usize, mut at: usize, lists: bool) -> Option<usize> {
        let own = indentation(self.text.get(start..)?);
        let mut found = None;
        while let Some(rest) = self.text.get(at..).filter(|rest| !rest.is_empty()) {
            let line = rest.split_inclusive(|byte| *byte == b'\n').next()?;
            let blank = line.len() - line.trim_ascii_start().len();
            let words = line.trim_ascii();
            let is_item = lists && blank == own && words.starts_with(b"- ");
            at += line.len();
            if words.is_empty() || words.starts_with(b"#") || words.starts_with(b";") {
                continue;
            }
            if blank <= own && !is_item && !words.starts_with(b"\\") {
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

/// Behind the first end of a line, from `at` on, at which nothing is open; else what was opened first.
fn closed(text: &[u8], mut at: usize, escapes: bool) -> Result<usize, Open> {
    let mut open: Vec<Open> = Vec::new();
    let mut documents = Vec::new();
    // What is no blank before.
    let mut before = b',';
    while let Some(&byte) = text.get(at) {
        let rest = &text[at..];
        let mut step = 1;
        match open.last() {
            Some(&Open::Quote(quote)) => match byte {
                b'\\' if quote != b'\'' || escapes => step = 2,
                _ if byte == quote => drop(open.pop()),
                b'$' if quote == b'"' && rest.starts_with(b"$(") => {
                    open.push(Open::Bracket(b')'));
                    step = 2;
                }
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
                b'\n' => {
                    for document in documents.drain(..) {
                        // As one that never ends.
                        let behind = here_document::behind(text, at + step, &document);
                        step = behind.ok_or(Open::Bracket(byte))? - at;
                    }
                    if inside.is_none() {
                        return Ok(at + step);
                    }
                }
                b'<' => {
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
                    open.push(Open::Bracket(closing(byte)));
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

fn closing(bracket: u8) -> u8 {
    match bracket {
        b'(' => b')',
        b'[' => b']',
        _ => b'}',
    }
}
