//! All detectors together, over a range of a file.

use std::ops::Range;

use aho_corasick::{AhoCorasick, packed};

use crate::armor::{self, Armor};
use crate::assigned::{self, NAMES};
use crate::card;
use crate::detector::{Detector, Detectors, Found, Rule};
use crate::env;
use crate::error::RangeError;
use crate::formats::{FORMATS, Format};
use crate::jwt;
use crate::own::OwnRegex;
use crate::run;
use crate::tokens;
use crate::url;

/// What stands in place of a masked byte. Line breaks stay, so that lines keep their numbers.
pub const MASK: u8 = b'*';

/// The largest file that is redacted unless the caller says otherwise, in bytes.
pub const DEFAULT_FILE_MAX: u64 = 1 << 30;

/// What a detector other than those of blocks looks at, on either side: the longest match, and what
/// decides whether it is one. Also covers the line ends and word ends that an expression asks for.
const NEAR: usize = 10 << 10;
/// No word that is searched for has more bytes.
const WORD_MAX: usize = 64;
/// What those of blocks look at before a byte.
const FAR: usize = armor::BLOCK_MAX + env::LINE_MAX + (1 << 10);

const _: () = {
    assert!(NEAR > jwt::JWT_MAX + 256);
    assert!(NEAR > crate::formats::TOKEN_MAX + 256);
    assert!(NEAR > assigned::VALUE_MAX + 256);
    assert!(NEAR > url::USERINFO_MAX + 256);
    assert!(NEAR > OwnRegex::MATCH_MAX + 256);
    assert!(NEAR > env::LINE_MAX + 512);
    assert!(NEAR > armor::HEAD_MAX);
    assert!(FAR > env::QUOTED_MAX + env::LINE_MAX);
};

/// What one of the words that are searched for may begin.
#[derive(Clone, Copy, Debug)]
enum Word {
    Token(&'static Format),
    Jwt,
    Url,
    Name((u8, &'static str)),
}

/// Masks what its detectors find. Shared by threads; a call allocates only for what it finds.
#[derive(Debug)]
pub struct Redactor {
    detectors: Detectors,
    words: Vec<Words>,
    armor: Armor,
    file_max: u64,
}

impl Redactor {
    /// Prepares the search.
    #[must_use]
    pub fn new(detectors: Detectors) -> Redactor {
        let words = Words::of(&detectors);
        Redactor { detectors, words, armor: Armor::new(), file_max: DEFAULT_FILE_MAX }
    }

    /// Files of more than `bytes` are refused.
    #[must_use]
    pub fn with_file_max(mut self, bytes: u64) -> Redactor {
        self.file_max = bytes;
        self
    }

    /// How many bytes before a range decide about it, at most.
    #[must_use]
    pub fn before(&self) -> usize {
        let far = [Detector::PrivateKey, Detector::Env].iter().any(|d| self.detectors.has(*d));
        if far { FAR } else { NEAR }
    }

    /// How many bytes behind a range decide about it, at most.
    #[must_use]
    pub fn after(&self) -> usize {
        NEAR
    }

    /// What must be read to mask `range` of a file that has `size` bytes now.
    ///
    /// # Errors
    /// [`RangeError::FileTooLarge`]: such a file is to be denied.
    pub fn to_read(&self, range: Range<u64>, size: u64) -> Result<Range<u64>, RangeError> {
        if size > self.file_max {
            return Err(RangeError::FileTooLarge { size, max: self.file_max });
        }
        let end = range.end.saturating_add(self.after() as u64);
        Ok(range.start.saturating_sub(self.before() as u64)..end.min(size.max(range.start)))
    }

    /// Masks `range` of a file within `buffer`, whose first byte is at `buffer_at` in the file.
    /// `at_end`: the file has nothing behind `buffer`. Bytes of the buffer outside of the range
    /// stay as they are, and must not be shown. `report` learns what was found, in no order.
    ///
    /// The result is the range of the whole file masked at once.
    ///
    /// # Errors
    /// [`RangeError::NotEnough`] if the buffer has less around the range than decides about it.
    pub fn mask_range<'a>(
        &'a self,
        buffer: &mut [u8],
        buffer_at: u64,
        at_end: bool,
        range: Range<u64>,
        mut report: impl FnMut(Found<'a>),
    ) -> Result<(), RangeError> {
        let wanted = self.within(buffer.len(), buffer_at, at_end, &range)?;
        let start = wanted.start;
        for hit in self.search(buffer, buffer_at == 0, wanted) {
            let secret = &mut buffer[hit.bytes.clone()];
            for byte in secret.iter_mut().filter(|byte| !matches!(byte, b'\n' | b'\r')) {
                *byte = MASK;
            }
            let bytes = hit.bytes.start - start..hit.bytes.end - start;
            report(Found { bytes, ..hit });
        }
        Ok(())
    }

    /// Masks a whole text.
    pub fn mask_all<'a>(&'a self, text: &mut [u8], report: impl FnMut(Found<'a>)) {
        let range = 0..text.len() as u64;
        let done = self.mask_range(text, 0, true, range, report);
        debug_assert!(done.is_ok(), "a whole text has no surroundings");
    }

    /// The range's place in the buffer.
    fn within(
        &self,
        length: usize,
        buffer_at: u64,
        at_end: bool,
        range: &Range<u64>,
    ) -> Result<Range<usize>, RangeError> {
        let have_end = buffer_at.saturating_add(length as u64);
        let need_start = range.start.saturating_sub(self.before() as u64);
        let need_end = match at_end {
            true => range.end,
            false => range.end.saturating_add(self.after() as u64),
        };
        if buffer_at > need_start || need_end > have_end || range.start > range.end {
            let have_start = buffer_at;
            return Err(RangeError::NotEnough { have_start, have_end, need_start, need_end });
        }
        let place = |at: u64| usize::try_from(at - buffer_at).expect("within the buffer's length");
        Ok(place(range.start)..place(range.end))
    }

    /// What is found of each detector, cut to `wanted`.
    fn search<'a>(&'a self, text: &[u8], from_start: bool, wanted: Range<usize>) -> Vec<Found<'a>> {
        let mut hits = Hits { wanted: wanted.clone(), found: Vec::new() };
        // What is only searched for near the range.
        let from = wanted.start.saturating_sub(NEAR);
        let near = from..text.len().min(wanted.end.saturating_add(NEAR));
        let on = |detector| self.detectors.has(detector);
        // What begins behind the range is none of its bytes.
        let begins = from..text.len().min(wanted.end + WORD_MAX);
        for words in &self.words {
            words.search(&text[begins.clone()], |word, at| {
                word.judge(text, near.start + at, &mut hits);
            });
        }
        if on(Detector::Card) {
            card::cards(&text[near.clone()], |range| {
                hits.add(Detector::Card, None, near.start + range.start..near.start + range.end);
            });
        }
        if on(Detector::Jwt) {
            let add = |range: Range<usize>| {
                hits.add(Detector::Jwt, None, near.start + range.start..near.start + range.end);
            };
            run::JWT.rests(&text[near.clone()], add);
        }
        if on(Detector::PrivateKey) {
            self.armor.blocks(text, |range| hits.add(Detector::PrivateKey, None, range));
            run::KEY.rests(text, |range| hits.add(Detector::PrivateKey, None, range));
        }
        if on(Detector::Env) {
            env::values(text, from_start, |range| hits.add(Detector::Env, None, range));
        }
        for own in &self.detectors.own {
            own.matches(&text[near.clone()], |range| {
                let range = near.start + range.start..near.start + range.end;
                hits.push(Rule::Own(own.name()), None, range);
            });
        }
        hits.found
    }
}

/// What was found so far.
struct Hits<'a> {
    wanted: Range<usize>,
    found: Vec<Found<'a>>,
}

impl<'a> Hits<'a> {
    fn add(&mut self, detector: Detector, kind: Option<&'static str>, range: Range<usize>) {
        self.push(Rule::Named(detector), kind, range);
    }

    fn push(&mut self, rule: Rule<'a>, kind: Option<&'static str>, range: Range<usize>) {
        let bytes = range.start.max(self.wanted.start)..range.end.min(self.wanted.end);
        if bytes.is_empty() {
            return;
        }
        // Matches at every place overlap: there are never more than the range has bytes.
        if let Some(last) = self.found.last_mut()
            && (last.rule, last.kind) == (rule, kind)
            && (last.bytes.start..last.bytes.end).contains(&bytes.start)
        {
            last.bytes.end = last.bytes.end.max(bytes.end);
        } else {
            let began_before = range.start < self.wanted.start;
            self.found.push(Found { rule, kind, bytes, began_before });
        }
    }
}

impl Word {
    fn judge(self, text: &[u8], at: usize, hits: &mut Hits<'_>) {
        let (detector, kind, range) = match self {
            Self::Token(format) => {
                let detector =
                    if format.kind == "age" { Detector::PrivateKey } else { Detector::Token };
                (detector, Some(format.kind), tokens::token(format, text, at))
            }
            Self::Jwt => (Detector::Jwt, None, jwt::jwt(text, at)),
            Self::Url => (Detector::UrlPassword, None, url::password(text, at)),
            Self::Name(name) => (Detector::Assigned, None, assigned::value(name, text, at)),
        };
        if let Some(range) = range {
            hits.add(detector, kind, range);
        }
    }
}

/// Words that are searched for together.
#[derive(Debug)]
struct Words {
    meaning: Vec<Word>,
    searcher: Searcher,
}

#[derive(Debug)]
enum Searcher {
    /// 16 or 32 places at a time.
    Packed(packed::Searcher),
    /// Where the CPU has no such instructions.
    Plain(AhoCorasick),
}

impl Words {
    /// More words in one search make it slower than a second search.
    const MAX: usize = 32;

    fn of(detectors: &Detectors) -> Vec<Words> {
        let mut all: Vec<(&'static str, Word)> = Vec::new();
        for format in FORMATS {
            let key = format.kind == "age";
            if detectors.has(if key { Detector::PrivateKey } else { Detector::Token }) {
                all.push((format.start, Word::Token(format)));
            }
        }
        if detectors.has(Detector::Jwt) {
            all.extend(jwt::STARTS.map(|start| (start, Word::Jwt)));
        }
        if detectors.has(Detector::UrlPassword) {
            all.push((url::START, Word::Url));
        }
        if detectors.has(Detector::Assigned) {
            all.extend(NAMES.iter().map(|name| (name.1, Word::Name(*name))));
        }
        // A search looks at as many bytes of each word as its shortest word has.
        all.sort_by_key(|(word, _)| word.len());
        all.chunks(Self::MAX).map(Words::new).collect()
    }

    fn new(words: &[(&'static str, Word)]) -> Words {
        let texts = || words.iter().map(|(text, _)| text);
        let packed = packed::Config::new().builder().extend(texts()).build();
        let searcher = packed.map_or_else(
            || Searcher::Plain(AhoCorasick::new(texts()).expect("short words")),
            Searcher::Packed,
        );
        Words { meaning: words.iter().map(|(_, word)| *word).collect(), searcher }
    }

    /// Calls `each` with every word at every place, also where they overlap: what is found at a
    /// place must not depend on where the search began.
    fn search(&self, text: &[u8], mut each: impl FnMut(Word, usize)) {
        let mut from = 0;
        loop {
            let span = aho_corasick::Span { start: from, end: text.len() };
            let found = match &self.searcher {
                Searcher::Packed(packed) => packed.find_in(text, span),
                Searcher::Plain(plain) => plain.find(aho_corasick::Input::new(text).span(span)),
            };
            let Some(found) = found else { return };
            each(self.meaning[found.pattern().as_usize()], found.start());
            from = found.start() + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At one place, one word is found.
    #[test]
    fn no_word_begins_with_another() {
        let all = Detectors::only(&Detector::ALL);
        let mut words: Vec<&str> = FORMATS.iter().map(|format| format.start).collect();
        words.extend(jwt::STARTS);
        words.extend(NAMES.iter().map(|name| name.1));
        words.push(url::START);
        assert_eq!(Words::of(&all).iter().map(|w| w.meaning.len()).sum::<usize>(), words.len());
        assert!(words.iter().all(|word| word.len() <= WORD_MAX));
        for (index, word) in words.iter().enumerate() {
            for (other_index, other) in words.iter().enumerate() {
                assert!(index == other_index || !other.starts_with(word), "{word} {other}");
            }
        }
    }
}
