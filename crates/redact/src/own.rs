//! Regular expressions of the caller's.

use std::ops::Range;

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, Look};

use crate::error::RegexError;

/// A regular expression whose matches have a maximum length, so that those that reach into a range
/// of a file can be found by looking at a little more than the range.
///
/// It is matched at every place, not only behind the match before: whether a place matches does not
/// depend on where the text that is looked at begins. `^` and `$` match at line ends. Unicode
/// classes are allowed; bytes that are no UTF-8 match nothing but `(?-u:.)` and the like.
#[derive(Clone, Debug)]
pub struct OwnRegex {
    name: String,
    regex: Regex,
}

impl OwnRegex {
    /// The longest match that an expression may have, in bytes.
    pub const MATCH_MAX: usize = 4096;
    /// What a compiled expression may take, in bytes.
    pub const SIZE_MAX: usize = 4 << 20;

    /// Reads `regex`; reports are made under `name`.
    ///
    /// # Errors
    /// If it has no name, is no regular expression, matches the empty text or nothing, or has matches that are longer than
    /// [`OwnRegex::MATCH_MAX`] or have no maximum length.
    pub fn new(name: &str, regex: &str) -> Result<OwnRegex, RegexError> {
        let named = || regex.to_owned();
        if name.is_empty() {
            return Err(RegexError::NoName { regex: named() });
        }
        let parsed = ParserBuilder::new().multi_line(true).utf8(false).build().parse(regex);
        let hir = parsed.map_err(|problem| RegexError::Syntax {
            regex: named(),
            problem: problem.to_string(),
        })?;
        check(&hir, regex)?;
        let builder = &mut RegexBuilder::new(regex);
        let built = builder.multi_line(true).size_limit(Self::SIZE_MAX).build();
        let regex = built.map_err(|problem| RegexError::TooLarge {
            regex: named(),
            problem: problem.to_string(),
        })?;
        Ok(OwnRegex { name: name.to_owned(), regex })
    }

    /// The name that reports are made under.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The expression as it was given.
    #[must_use]
    pub fn pattern(&self) -> &str {
        self.regex.as_str()
    }

    /// Calls `emit` with the match at each place that has one.
    pub(crate) fn matches(&self, text: &[u8], mut emit: impl FnMut(Range<usize>)) {
        let mut from = 0;
        while let Some(found) = self.regex.find_at(text, from) {
            emit(found.range());
            from = found.start() + 1;
        }
    }
}

fn check(hir: &Hir, regex: &str) -> Result<(), RegexError> {
    let regex = regex.to_owned();
    let properties = hir.properties();
    match properties.minimum_len() {
        None => return Err(RegexError::Never { regex }),
        Some(0) => return Err(RegexError::Empty { regex }),
        Some(_) => {}
    }
    let looks = properties.look_set();
    if looks.contains(Look::Start) || looks.contains(Look::End) {
        return Err(RegexError::TextEnds { regex });
    }
    match properties.maximum_len() {
        None => Err(RegexError::Unbounded { regex }),
        Some(length) if length > OwnRegex::MATCH_MAX => {
            Err(RegexError::TooLong { regex, length, max: OwnRegex::MATCH_MAX })
        }
        Some(_) => Ok(()),
    }
}
