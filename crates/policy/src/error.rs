//! Mistakes in a policy, and where they are.

use std::fmt;
use std::ops::Range;

use crate::budget::{Budget, Over};
use crate::limits::{
    MAX_GLOBS, MAX_NATIVE, MAX_REGEXES_LEN, MAX_RULES, MAX_SPREAD_IN_ALL, MAX_VIEWS,
};
use crate::names::Names;

/// Most characters of a source line that an error shows.
const MAX_SHOWN: usize = 100;

/// The text of a policy, for turning offsets into lines.
pub(crate) struct Source<'t> {
    pub(crate) text: &'t str,
    pub(crate) origin: &'t str,
    pub(crate) names: &'t dyn Names,
    /// It was read as a policy before, and its regular expressions are known to be right.
    pub(crate) tried: bool,
    /// What was taken of what it may stand for.
    pub(crate) budget: Budget,
}

impl Source<'_> {
    pub(crate) fn error(&self, span: Range<usize>, problem: Problem) -> PolicyError {
        let place = self.place(span);
        PolicyError { place: Box::new(place), problem }
    }

    pub(crate) fn warning(&self, span: Range<usize>, message: String) -> Warning {
        Warning { place: Box::new(self.place(span)), message }
    }

    /// Line and column of an offset, both from 1, the column in characters.
    pub(crate) fn place(&self, span: Range<usize>) -> Place {
        let at = self.char_start(span.start);
        let line_start = self.text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let rest = &self.text[line_start..];
        let line_text = rest.lines().next().unwrap_or_default();
        let marked_end =
            self.char_start(span.end).clamp(at, line_start + line_text.len().max(at - line_start));
        Place {
            origin: self.origin.to_owned(),
            line: 1 + self.text[..at].matches('\n').count(),
            column: 1 + self.text[line_start..at].chars().count(),
            width: self.text[at..marked_end].chars().count().max(1),
            source: line_text.to_owned(),
        }
    }

    /// The last character boundary at or before `offset`.
    fn char_start(&self, offset: usize) -> usize {
        let mut at = offset.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }
}

/// A place in a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    origin: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
    width: usize,
    source: String,
}

impl Place {
    /// `policy.toml:7:10`
    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", Printable(&self.origin), self.line, self.column)
    }

    /// The source line with a mark under the place. Control characters are shown as spaces; of a
    /// long line only the part around the place.
    fn write_source(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.column - 1;
        let skipped = if at < MAX_SHOWN { 0 } else { at - MAX_SHOWN / 2 };
        let shown: String = self
            .source
            .chars()
            .skip(skipped)
            .take(MAX_SHOWN)
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let (left, before) = if skipped > 0 { ("...", at - skipped + 3) } else { ("", at) };
        let width = self.width.min(MAX_SHOWN - (at - skipped));
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        write!(
            f,
            "\n{number} | {left}{shown}\n{margin} | {}{}",
            " ".repeat(before),
            "^".repeat(width)
        )
    }
}

/// Text on its way to a terminal: control characters are escaped.
struct Printable<'t>(&'t str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| {
            if c.is_control() { c.escape_default().fmt(f) } else { fmt::Write::write_char(f, c) }
        })
    }
}

/// A policy that cannot be used. Shows itself as `policy.toml:7:10: what is wrong; what is
/// allowed`, with the source line below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    place: Box<Place>,
    problem: Problem,
}

impl PolicyError {
    /// The line, from 1.
    pub fn line(&self) -> usize {
        self.place.line
    }

    /// The column in characters, from 1.
    pub fn column(&self) -> usize {
        self.place.column
    }

    /// What is wrong, without the place.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.write_head(f)?;
        Printable(&self.problem.to_string()).fmt(f)?;
        self.place.write_source(f)
    }
}

impl std::error::Error for PolicyError {}

/// Something that looks like a mistake, in a policy that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    place: Box<Place>,
    message: String,
}

impl Warning {
    /// The line, from 1.
    pub fn line(&self) -> usize {
        self.place.line
    }

    /// The column in characters, from 1.
    pub fn column(&self) -> usize {
        self.place.column
    }

    /// What looks wrong.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.write_head(f)?;
        write!(f, "warning: {}", Printable(&self.message))?;
        self.place.write_source(f)
    }
}

/// What is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Not TOML.
    #[error("{0}")]
    Syntax(String),
    /// Longer than a policy may be.
    #[error("policy of more than {allowed} bytes, which is the most")]
    TooLong {
        /// Bytes found.
        found: usize,
        /// Bytes allowed.
        allowed: usize,
    },
    /// A key that does not exist here.
    #[error("unknown key `{found}` in {place}; allowed: {allowed}")]
    UnknownKey {
        /// The key.
        found: String,
        /// Where it stands.
        place: &'static str,
        /// The keys that may stand there.
        allowed: String,
    },
    /// A word that is not in the list.
    #[error(transparent)]
    Word(#[from] crate::words::UnknownWord),
    /// A word for `mode` that is not in the list.
    #[error("mode `{0}`; allowed: enforce, audit")]
    RuleMode(String),
    /// A rule to be recorded only, which would refuse nothing.
    #[error("`mode = \"audit\"` records what a rule would refuse, and `{0}` refuses nothing")]
    NothingToAudit(crate::words::Action),
    /// A value of the wrong type.
    #[error("`{key}` is {found}; allowed: {allowed}")]
    Type {
        /// The key.
        key: &'static str,
        /// The type found.
        found: String,
        /// The types allowed.
        allowed: &'static str,
    },
    /// A key that has to be there.
    #[error("rule without `{key}`; {advice}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What to write.
        advice: &'static str,
    },
    /// A list of what a rule holds for, with nothing in it.
    #[error("`{key}` is empty, so that the rule could never match; {advice}")]
    Empty {
        /// The key.
        key: &'static str,
        /// What to write.
        advice: &'static str,
    },
    /// Another value with nothing in it.
    #[error("`{key}` is empty; {advice}")]
    SaysNothing {
        /// The key.
        key: &'static str,
        /// What to write.
        advice: &'static str,
    },
    /// A name that would end the line it is shown in.
    #[error("`name` has a line break or another control character; write it in one line")]
    NameControls,
    /// A name given twice.
    #[error(
        "second rule named `{name}`; the first is on line {first} (without a name it is `rule N`)"
    )]
    DuplicateName {
        /// The name.
        name: String,
        /// Line of the first rule.
        first: usize,
    },
    /// A glob that cannot be used.
    #[error("glob `{glob}`: {reason}")]
    Glob {
        /// The glob.
        glob: String,
        /// What is wrong.
        reason: String,
    },
    /// A regular expression that cannot be used.
    #[error("regex: {0}")]
    Regex(String),
    /// A magic value that cannot be used.
    #[error("magic: {0}")]
    Magic(String),
    /// A number that cannot be used.
    #[error("`{key}` is {found}; allowed: {allowed}")]
    Number {
        /// The key.
        key: &'static str,
        /// The value found.
        found: String,
        /// The values allowed.
        allowed: &'static str,
    },
    /// A name of a user or a group that nobody has.
    #[error("`{key}` names `{found}`, and there is no such {what} here; a number would do, too")]
    UnknownName {
        /// The key.
        key: &'static str,
        /// The name.
        found: String,
        /// `user` or `group`.
        what: &'static str,
    },
    /// A size range with nothing in it.
    #[error("size from {min} up to {max} bytes holds for no file; `min` must not be above `max`")]
    SizeRange {
        /// Lower end in bytes.
        min: u64,
        /// Upper end in bytes.
        max: u64,
    },
    /// A `hide` rule with a condition that it cannot have.
    #[error(
        "`hide` cannot depend on `{0}`: the kernel remembers names, and what a name stands for, for every \
         caller alike; allowed: path, kind"
    )]
    HideCondition(&'static str),
    /// A `userspace` rule with a condition that it cannot have.
    #[error(
        "`userspace` cannot depend on `{0}`: it is an I/O mode, and an inode has one mode for every caller \
         and operation at a time; allowed: path, kind, size, content"
    )]
    ModeCondition(&'static str),
    /// A `redact` rule with a condition that it cannot have.
    #[error(
        "`redact` cannot depend on `{0}`: whoever opens a file gets the same bytes as everybody; \
         allowed: path, kind, size, content"
    )]
    RedactCondition(&'static str),
    /// A `seal` rule with a condition that it cannot have.
    #[error(
        "`seal` cannot depend on `{0}`: a file is sealed for everybody and as long as it has its \
         name; allowed: path, kind"
    )]
    SealCondition(&'static str),
    /// A key in a rule whose action does not use it.
    #[error("`{key}` belongs to `{belongs}` rules; this one is `{action}`")]
    KeyOfOther {
        /// The key.
        key: &'static str,
        /// The action that takes it.
        belongs: crate::words::Action,
        /// The action of the rule.
        action: crate::words::Action,
    },
    /// A name of a detector that none has.
    #[error("`detectors`: {0}")]
    Detector(#[from] tollgate_redact::UnknownDetector),
    /// Too many expressions of one rule.
    #[error("`regexes` has more than {} expressions", crate::limits::MAX_REGEXES)]
    TooManyRegexes,
    /// A `domain` that is empty or too long.
    #[error("`domain` has {found} bytes; allowed: 1 to {}", crate::limits::MAX_DOMAIN_LEN)]
    DomainLength {
        /// How many it has.
        found: usize,
    },
    /// `default = "redact"` or `default = "seal"`.
    #[error(
        "the default cannot be `{0}`; end with a rule of path `**`, kind `file` and action `{0}`"
    )]
    MadeByDefault(crate::words::Action),
    /// A `native` rule with a condition.
    #[error("`native` cannot depend on `{0}`: what is native is not asked about; allowed: path")]
    NativeCondition(&'static str),
    /// A `native` rule whose path is a glob.
    #[error(
        "`native` takes directories by their own path; `{0}` has wildcards in it; list the \
         directories"
    )]
    NativeGlob(String),
    /// A `native` rule after one that may decide over what is in its directory.
    #[error(
        "rule `{rule}` on line {line} comes first and reaches into `{directory}`, which cannot be \
         native then; move this rule before it if its files may be read and written by everyone"
    )]
    NativeReached {
        /// The directory.
        directory: String,
        /// The rule before.
        rule: String,
        /// Its line.
        line: usize,
    },
    /// A `seal` rule after one that looks at what is encrypted below.
    #[error(
        "rule `{rule}` on line {line} comes first and looks at the {condition} of files that this rule may \
         seal: what lies below is encrypted, so it would be judged by other bytes; move this rule before \
         it, or give one of them other paths"
    )]
    SealedJudged {
        /// The rule before.
        rule: String,
        /// Its line.
        line: usize,
        /// `content` or `size`.
        condition: &'static str,
    },
    /// Too many native directories.
    #[error("more than {MAX_NATIVE} native directories; name one above several of them")]
    TooManyNative,
    /// `default = "native"`.
    #[error("the default cannot be `native`; without a rule everything is `passthrough`")]
    NativeByDefault,
    /// `create` in a rule that makes nothing.
    #[error("`create` belongs to `native` rules; this one is `{0}`")]
    CreateWithoutNative(crate::words::Action),
    /// `default = "hide"`.
    #[error(
        "the default cannot be `hide`; end with a rule of path `**` and action `hide`, after the rules for \
         what is to be seen"
    )]
    HideByDefault,
    /// Too many rules.
    #[error("more than {MAX_RULES} rules; a rule takes a list of globs")]
    TooManyRules,
    /// Too many globs.
    #[error("more than {} globs in one policy, braces spread out", MAX_GLOBS)]
    TooManyGlobs,
    /// Globs that stand for too much.
    #[error(
        "globs of more than {} characters in one policy, braces spread out; write fewer \
         alternatives, or wildcards in their place",
        MAX_SPREAD_IN_ALL
    )]
    GlobsTooLong,
    /// Regular expressions that take too much together.
    #[error(
        "the regular expressions take more than {} MiB compiled, all together; write smaller \
         repetitions, `(?:...)` for groups, or fewer rules with `regex`", MAX_REGEXES_LEN >> 20
    )]
    RegexesTooLarge,
    /// A `[[view]]` of no directory.
    #[error("`[[view]]` without `dir`; add the directory, as in `dir = \"~/notes\"`")]
    ViewWithoutDir,
    /// A directory that depends on where one stands, or is named by a way around.
    #[error(
        "`dir = \"{}\"` of a `[[view]]`: allowed is a path that begins with `/` or `~/`, or is \
         `~`, without `..` and NUL, and not `/` itself", dir.escape_debug()
    )]
    ViewDir {
        /// What was found.
        dir: String,
    },
    /// Two views of one directory.
    #[error("second `[[view]]` of `{dir}`; the first is on line {first}")]
    SecondView {
        /// The directory.
        dir: String,
        /// Line of the first.
        first: usize,
    },
    /// Too many views.
    #[error("more than {MAX_VIEWS} `[[view]]` tables in one policy")]
    TooManyViews,
}

impl From<Over> for Problem {
    fn from(over: Over) -> Self {
        match over {
            Over::Globs => Self::TooManyGlobs,
            Over::Spread => Self::GlobsTooLong,
            Over::Regexes => Self::RegexesTooLarge,
        }
    }
}
