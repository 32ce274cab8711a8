//! What can be wrong.

/// Why a regular expression cannot be a detector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegexError {
    /// It is no regular expression.
    #[error("`{regex}`: {problem}")]
    Syntax {
        /// The expression.
        regex: String,
        /// What the parser says.
        problem: String,
    },
    /// Reports are made under its name.
    #[error("`{regex}` has no name; write NAME=REGEX, or `NAME = \"REGEX\"` in a policy")]
    NoName {
        /// The expression.
        regex: String,
    },
    /// A match may have any length, so no context would be enough.
    #[error(
        "`{regex}`: a match has no maximum length; write a bounded repetition, such as {{0,100}} in \
         place of *"
    )]
    Unbounded {
        /// The expression.
        regex: String,
    },
    /// A class in it has no member, so it never matches.
    #[error("`{regex}`: matches no text at all; a class in it has no member")]
    Never {
        /// The expression.
        regex: String,
    },
    /// A match may be too long.
    #[error("`{regex}`: a match may have {length} bytes; at most {max} are possible")]
    TooLong {
        /// The expression.
        regex: String,
        /// Of the longest match, in bytes.
        length: usize,
        /// The longest that is allowed, in bytes.
        max: usize,
    },
    /// It matches where there is nothing to mask.
    #[error("`{regex}`: matches the empty text; a match must have at least one byte")]
    Empty {
        /// The expression.
        regex: String,
    },
    /// `\A` and `\z` ask where the text begins and ends, and only a part of a file is looked at.
    #[error(r"`{regex}`: `\A` and `\z` are not possible; `^` and `$` match at line ends")]
    TextEnds {
        /// The expression.
        regex: String,
    },
    /// It compiles to more than is allowed.
    #[error("`{regex}`: {problem}")]
    TooLarge {
        /// The expression.
        regex: String,
        /// What the compiler says.
        problem: String,
    },
}

/// Why a range of a file is not masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// Files beyond the limit are denied.
    #[error("the file has {size} bytes; files of more than {max} are not redacted but denied")]
    FileTooLarge {
        /// Of the file, in bytes.
        size: u64,
        /// The limit, in bytes.
        max: u64,
    },
    /// The buffer does not begin where [`crate::Redactor::to_read`] said, or ends before the range.
    #[error(
        "the buffer has bytes {have_start} to {have_end}; {need_start} to {need_end} are needed"
    )]
    NotEnough {
        /// Where the buffer begins in the file.
        have_start: u64,
        /// Where it ends.
        have_end: u64,
        /// Where it should begin.
        need_start: u64,
        /// Where it should end at least.
        need_end: u64,
    },
}
