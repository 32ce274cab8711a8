//! Wildcards inside one path component.
//!
//! A component is seen as a sequence of characters: a valid UTF-8 sequence is one, any other byte
//! is one by itself. So `?` is one `é`, and it is also one byte of a name that is not UTF-8.

/// A piece of a component pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Token {
    /// These bytes.
    Text(Box<[u8]>),
    /// `?`: one character.
    One,
    /// `*`: any characters, also none.
    Star,
    /// `[...]`: one character in (or, negated, not in) the ranges.
    Class { negated: bool, ranges: Box<[(char, char)]> },
}

impl Token {
    /// What it takes, in characters and ranges.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Text(bytes) => bytes.len(),
            Self::One | Self::Star => 1,
            Self::Class { ranges, .. } => 1 + ranges.len(),
        }
    }
}

/// Whether `text` as a whole matches `tokens`. At most `tokens.len() * text.len()` steps.
pub(crate) fn matches(tokens: &[Token], text: &[u8]) -> bool {
    // As most patterns are. What the text begins with begins a character, so that the star ends
    // between two characters wherever the text is found.
    if let [Token::Star, Token::Text(end)] = tokens {
        return text.ends_with(end);
    }
    let (mut token, mut at) = (0, 0);
    // Where to go on after the last star, once it takes one character more.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let step = match tokens.get(token) {
            Some(Token::Star) => {
                token += 1;
                retry = Some((token, at));
                continue;
            }
            Some(one) => consumed(one, &text[at..]),
            None if at == text.len() => return true,
            None => None,
        };
        if let Some(length) = step {
            token += 1;
            at += length;
        } else {
            let Some((after_star, from)) = retry else { return false };
            let Some((_, length)) = first_char(&text[from..]) else { return false };
            retry = Some((after_star, from + length));
            (token, at) = (after_star, from + length);
        }
    }
}

/// How many bytes of `text` the token takes, if it fits. Not for stars.
fn consumed(token: &Token, text: &[u8]) -> Option<usize> {
    match token {
        Token::Text(bytes) => text.starts_with(bytes).then_some(bytes.len()),
        Token::Star => Some(0),
        Token::One => first_char(text).map(|(_, length)| length),
        Token::Class { negated, ranges } => {
            let (found, length) = first_char(text)?;
            let inside =
                found.is_some_and(|c| ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)));
            (inside != *negated).then_some(length)
        }
    }
}

/// The first character and its length in bytes; `None` in front of the length 1 for a byte that is
/// not part of valid UTF-8.
fn first_char(text: &[u8]) -> Option<(Option<char>, usize)> {
    let first = *text.first()?;
    if first.is_ascii() {
        return Some((Some(char::from(first)), 1));
    }
    let window = &text[..text.len().min(4)];
    let valid = match std::str::from_utf8(window) {
        Ok(valid) => valid,
        Err(error) => std::str::from_utf8(&window[..error.valid_up_to()]).unwrap_or_default(),
    };
    Some(valid.chars().next().map_or((None, 1), |c| (Some(c), c.len_utf8())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(literal: &str) -> Token {
        Token::Text(literal.as_bytes().into())
    }

    #[test]
    fn stars_backtrack() {
        let tokens = [Token::Star, text("ab"), Token::Star, text("c")];
        assert!(matches(&tokens, b"aabxabc"));
        assert!(matches(&tokens, b"abc"));
        assert!(!matches(&tokens, b"abcd"));
        assert!(!matches(&tokens, b""));
    }

    #[test]
    fn a_question_mark_is_one_character() {
        assert!(matches(&[Token::One], "é".as_bytes()));
        assert!(matches(&[Token::One], b"\xff"));
        assert!(!matches(&[Token::One, Token::One], "é".as_bytes()));
        assert!(matches(&[Token::One, Token::One], b"\xc3("));
        assert!(!matches(&[Token::Star, Token::One, Token::One], "é".as_bytes()));
    }

    #[test]
    fn classes_know_characters() {
        let vowels = Token::Class { negated: false, ranges: [('a', 'e'), ('é', 'é')].into() };
        assert!(matches(std::slice::from_ref(&vowels), "é".as_bytes()));
        assert!(!matches(std::slice::from_ref(&vowels), b"f"));
        let others = Token::Class { negated: true, ranges: [('a', 'z')].into() };
        assert!(matches(std::slice::from_ref(&others), b"\xff"));
        assert!(!matches(&[others], b"q"));
    }

    #[test]
    fn a_long_name_against_many_stars_ends_soon() {
        let mut tokens = Vec::new();
        for _ in 0..100 {
            tokens.extend([Token::Star, text("a")]);
        }
        tokens.push(text("b"));
        assert!(!matches(&tokens, &[b'a'; 255]));
    }
}
