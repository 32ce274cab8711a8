//! Here-documents of shells, and what Vim has like them: nothing in one opens or closes anything.

/// One whose text begins on the next line.
pub(super) struct Document {
    /// The line that ends it.
    end: Vec<u8>,
    /// Blanks may stand before that.
    is_indented: bool,
}

/// What begins with the `<` at the start of `text`: how long that is, and whether it is one.
pub(super) fn begun(text: &[u8]) -> (usize, Option<Document>) {
    let signs = text.iter().take_while(|byte| **byte == b'<').count();
    if signs != 2 {
        return (signs, None);
    }
    let mut is_indented = matches!(text.get(2), Some(b'-' | b'~'));
    let mut at = behind_blanks(text, 2 + usize::from(is_indented));
    // Words of Vim's.
    while let Some(word) =
        [&b"trim "[..], b"eval "].iter().find(|word| text[at..].starts_with(word))
    {
        is_indented = true;
        at = behind_blanks(text, at + word.len());
    }
    let (length, end) = word(&text[at..]);
    // A number is shifted, and `<<:` is YAML's.
    let is_one =
        end.first().is_some_and(|byte| byte.is_ascii_alphabetic() || b"_!%@".contains(byte));
    (at + length, is_one.then_some(Document { end, is_indented }))
}

fn behind_blanks(text: &[u8], at: usize) -> usize {
    at + text[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

/// A word of a shell without its quotes, and how long it is with them.
fn word(text: &[u8]) -> (usize, Vec<u8>) {
    let (mut at, mut found, mut quote) = (0, Vec::new(), None);
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\n' => break,
            _ if quote == Some(byte) => quote = None,
            b'"' | b'\'' if quote.is_none() => quote = Some(byte),
            b'\\' if quote.is_none() => {}
            _ if quote.is_none() && (byte.is_ascii_whitespace() || b";&|<>()`".contains(&byte)) => {
                break;
            }
            _ => found.push(byte),
        }
        at += 1;
    }
    (at, found)
}

/// Behind the line that ends `document`, whose text begins at `at`; `None` if no line does.
pub(super) fn behind(text: &[u8], mut at: usize, document: &Document) -> Option<usize> {
    for line in text.get(at..)?.split_inclusive(|byte| *byte == b'\n') {
        at += line.len();
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = if document.is_indented { line.trim_ascii_start() } else { line };
        if line == document.end {
            return Some(at);
        }
    }
    None
}
