//! Here-documents of shells, and what Vim has like them: nothing in one opens or closes anything.

/// One whose text begins on the next line.
pub(super) struct Document {
    /// The line that ends it.
    end: Vec<u8>,
    /// What may stand before that.
    blanks: &'static [u8],
}

/// What begins with the `<` at the start of `text`: how long that is, and whether it is one.
pub(super) fn begun(text: &[u8]) -> (usize, Option<Document>) {
    let signs = text.iter().take_while(|byte| **byte == b'<').count();
    if signs != 2 {
        return (signs, None);
    }
    let mut blanks: &[u8] = match text.get(2) {
        Some(b'-') => b"\t",
        Some(b'~') => b"\t ",
        _ => b"",
    };
    let mut at = behind_blanks(text, 2 + usize::from(!blanks.is_empty()));
    // Words of Vim's.
    while let Some(word) =
        [&b"trim "[..], b"eval "].iter().find(|word| text[at..].starts_with(word))
    {
        blanks = b"\t ";
        at = behind_blanks(text, at + word.len());
    }
    let (length, end) = word(&text[at..]);
    // `<<:` is YAML's.
    let is_one = length > 0 && end.first() != Some(&b':');
    (at + length, is_one.then_some(Document { end, blanks }))
}

fn behind_blanks(text: &[u8], at: usize) -> usize {
    at + text[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

/// A word of a shell without its quotes, and how long it is with them. No line ends a document that is
/// to end at several.
fn word(text: &[u8]) -> (usize, Vec<u8>) {
    let (mut at, mut found, mut quote) = (0, Vec::new(), None);
    while let Some(&byte) = text.get(at) {
        match byte {
            _ if quote == Some(byte) => quote = None,
            b'"' | b'\'' if quote.is_none() => quote = Some(byte),
            b'\\' if quote.is_none() => {
                at += 1;
                found.extend(text.get(at).filter(|byte| **byte != b'\n'));
            }
            _ if quote.is_none() && (byte.is_ascii_whitespace() || b";&|<>()`".contains(&byte)) => {
                break;
            }
            _ => found.push(byte),
        }
        at += 1;
    }
    (at.min(text.len()), found)
}

/// Behind the line that ends `document`, whose text begins at `at`; `None` if no line does. A line
/// that a backslash may join to the one before ends none.
pub(super) fn behind(text: &[u8], mut at: usize, document: &Document) -> Option<usize> {
    let mut is_joined = false;
    for line in text.get(at..)?.split_inclusive(|byte| *byte == b'\n') {
        at += line.len();
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let blank = line.iter().take_while(|byte| document.blanks.contains(byte)).count();
        if !is_joined && line[blank..] == document.end {
            return Some(at);
        }
        is_joined = line.ends_with(b"\\");
    }
    None
}
