//! Words that stand for values, both ways.

use crate::error::Error;

pub(super) fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    words.iter().find(|(_, each)| each == value).map_or("?", |(word, _)| word)
}

pub(super) fn value_of<T: Copy>(
    words: &[(&str, T)],
    word: &str,
    what: &'static str,
) -> Result<T, Error> {
    let found = words.iter().find(|(each, _)| *each == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        Error::BadWord { word: word.into(), what, allowed: allowed.join(", ") }
    })
}
