//! A rule: its conditions, and what is known about whether they hold.

use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use regex::bytes::{Regex, RegexBuilder};

use crate::budget;
use crate::facts::{CallerFacts, InodeFacts};
use crate::glob::{Glob, unescaped};
use crate::limits::{HEAD_LEN, MAX_HELD};
use crate::redaction::Redaction;
use crate::words::{Action, Kind, KindSet, Mode, Operation, OperationSet};

/// Most memory in bytes for one compiled regular expression, and for its cache.
const MAX_REGEX_LEN: usize = 1 << 20;

/// Names a rule of one policy: its place in the file, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(u16);

impl RuleId {
    /// # Panics
    /// Past [`MAX_HELD`], which no policy reaches.
    pub(crate) fn new(index: usize) -> Self {
        assert!(index < MAX_HELD, "rule {index}, of at most {MAX_HELD}");
        Self(u16::try_from(index).expect("MAX_HELD fits 16 bits"))
    }

    /// The rule's place in the file, from 0.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// One `[[rule]]`.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) action: Action,
    pub(crate) globs: Vec<Glob>,
    pub(crate) glob_texts: Vec<String>,
    pub(crate) kinds: KindSet,
    pub(crate) operations: OperationSet,
    pub(crate) size: Option<RangeInclusive<u64>>,
    pub(crate) content: Option<Content>,
    pub(crate) caller: Option<CallerCondition>,
    /// Of a `native` rule: its directories are made if they do not exist.
    pub(crate) create: bool,
    /// What it refuses is only recorded (`mode = "audit"`).
    pub(crate) audit_only: bool,
    /// Of a `redact` rule: what is masked.
    pub(crate) redaction: Option<Arc<Redaction>>,
    /// Of a `seal` rule: what files are bound to.
    pub(crate) domain: Option<Arc<str>>,
}

/// The three answers to "does it hold?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    No,
    Maybe,
    Yes,
}

impl From<bool> for Holds {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

impl Holds {
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Yes, Self::Yes) => Self::Yes,
            _ => Self::Maybe,
        }
    }
}

impl Rule {
    /// The rule's name, or `rule N` (from 1) if it was given none.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The line, from 1, on which the rule begins.
    pub fn line(&self) -> usize {
        self.line
    }

    /// What the rule does.
    pub fn action(&self) -> Action {
        self.action
    }

    /// Its globs, as they were written.
    pub fn glob_texts(&self) -> &[String] {
        &self.glob_texts
    }

    /// The operations that the rule is about.
    pub fn operations(&self) -> OperationSet {
        self.operations
    }

    /// Whether it is about files of a certain content only.
    pub fn looks_at_content(&self) -> bool {
        self.content.is_some()
    }

    /// Whether it is about files of a certain size, or about certain callers, only.
    pub fn has_further_conditions(&self) -> bool {
        self.size.is_some() || self.caller.is_some()
    }

    /// Whether what it refuses is only recorded (`mode = "audit"`).
    pub fn is_audit_only(&self) -> bool {
        self.audit_only
    }

    /// Of a `redact` rule: what is masked.
    pub fn redaction(&self) -> Option<&Arc<Redaction>> {
        self.redaction.as_ref()
    }

    /// Of a `seal` rule: the name that its files are bound to, so that none of them can be put in
    /// the place of one of another rule.
    pub fn domain(&self) -> Option<&Arc<str>> {
        self.domain.as_ref()
    }

    /// Whether it looks at the content or the size of files that `seal` may be about. Long lists are
    /// not compared, and taken to be about the same.
    pub(crate) fn judges_what_is_sealed_by(&self, seal: &Self) -> bool {
        /// So many comparisons take a tenth of a second.
        const MAX_COMPARISONS: usize = 1 << 18;
        let is_many = || self.globs.len() * seal.globs.len() > MAX_COMPARISONS;
        let overlap =
            || self.globs.iter().any(|one| seal.globs.iter().any(|other| one.may_overlap(other)));
        self.judges_what_is_held()
            && self.kinds.has(Kind::File)
            && seal.kinds.has(Kind::File)
            && (is_many() || overlap())
    }

    pub(crate) fn refuses(&self) -> bool {
        self.action.refuses()
    }

    /// The directories of a `native` rule, as paths without a slash at the end.
    pub(crate) fn native_directories(&self) -> impl Iterator<Item = String> + use<'_> {
        let texts = if self.action == Action::Native { &self.glob_texts[..] } else { &[] };
        texts.iter().map(|text| unescaped(text).trim_end_matches('/').to_owned())
    }

    pub(crate) fn is_about(&self, operation: Operation, kind: Kind) -> bool {
        self.operations.has(operation) && self.kinds.has(kind)
    }

    /// Whether it looks at the content or the size.
    pub(crate) fn judges_what_is_held(&self) -> bool {
        self.content.is_some() || self.size.is_some()
    }

    /// Whether the rule looks at nothing but path and kind, so that it holds for every caller,
    /// every operation and as long as the inode keeps its name.
    pub(crate) fn is_fixed(&self) -> bool {
        self.is_for_everyone() && self.size.is_none() && self.content.is_none()
    }

    /// Whether it tells names apart.
    pub(crate) fn is_about_a_part(&self) -> bool {
        self.action == Action::Hide || self.globs.iter().any(|glob| !glob.is_everything())
    }

    /// Whether the rule looks at neither caller nor operation, so that it can settle an I/O mode.
    pub(crate) fn is_for_everyone(&self) -> bool {
        self.caller.is_none() && self.operations == OperationSet::all()
    }

    /// The I/O mode that the rule settles where it matches. None if it looks at caller or
    /// operation: the mode is the same for all.
    pub(crate) fn asks_for_mode(&self) -> Option<Mode> {
        self.action.mode().filter(|_| self.is_for_everyone())
    }

    /// Whether the conditions on the inode other than its path hold.
    pub(crate) fn holds_for_inode(&self, facts: &InodeFacts<'_>) -> Holds {
        self.holds_for_content(facts, None)
    }

    /// The same where it may be `known` whether the condition on the content holds.
    pub(crate) fn holds_for_content(&self, facts: &InodeFacts<'_>, known: Option<bool>) -> Holds {
        if !self.kinds.has(facts.kind) || !self.size_holds(facts) {
            return Holds::No;
        }
        let by_content = |content: &Content| match known {
            Some(holds) if facts.kind == Kind::File => holds.into(),
            _ => content.holds(facts),
        };
        self.content.as_ref().map_or(Holds::Yes, by_content)
    }

    pub(crate) fn size_holds(&self, facts: &InodeFacts<'_>) -> bool {
        self.size
            .as_ref()
            .is_none_or(|range| facts.kind == Kind::File && range.contains(&facts.size))
    }

    /// Whether its condition on the caller holds.
    pub(crate) fn holds_for_caller(&self, caller: &CallerFacts<'_>) -> Holds {
        self.caller.as_ref().map_or(Holds::Yes, |condition| condition.holds(caller))
    }

    /// The same for anybody.
    pub(crate) fn holds_for_some_caller(&self) -> Holds {
        if self.caller.is_some() { Holds::Maybe } else { Holds::Yes }
    }
}

/// A condition on the first bytes of a regular file. What is given must all hold.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    /// The file begins with one of these; none given means any.
    pub(crate) magic: Vec<Box<[u8]>>,
    pub(crate) regex: Option<Pattern>,
}

impl Content {
    pub(crate) fn holds(&self, facts: &InodeFacts<'_>) -> Holds {
        if facts.kind != Kind::File {
            return Holds::No;
        }
        match facts.head {
            Some(head) => self.matches(head).into(),
            None if facts.size == 0 => self.matches(b"").into(),
            None => Holds::Maybe,
        }
    }

    fn matches(&self, head: &[u8]) -> bool {
        let head = &head[..head.len().min(HEAD_LEN)];
        (self.magic.is_empty() || self.magic.iter().any(|magic| head.starts_with(magic)))
            && self.regex.as_ref().is_none_or(|regex| regex.is_match(head))
    }
}

/// A regular expression.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    text: Arc<str>,
    /// Once it was needed: that takes up to a few milliseconds.
    compiled: Arc<OnceLock<Regex>>,
}

impl Pattern {
    /// An expression that is tried now, with what it takes at most in bytes.
    ///
    /// # Errors
    /// When it is wrong, or too large.
    pub(crate) fn new(text: &str) -> Result<(Self, usize), regex::Error> {
        let (compiled, weight) = compile(text)?;
        Ok((Self { text: text.into(), compiled: Arc::new(compiled.into()) }, weight))
    }

    /// One that was tried before, with [`Pattern::new`].
    pub(crate) fn tried(text: &str) -> Self {
        Self { text: text.into(), compiled: Arc::default() }
    }

    /// # Panics
    /// If it was never tried, and is wrong.
    fn is_match(&self, head: &[u8]) -> bool {
        let compiled = || compile(&self.text).expect("an expression that was tried before").0;
        self.compiled.get_or_init(compiled).is_match(head)
    }
}

fn compile(text: &str) -> Result<(Regex, usize), regex::Error> {
    budget::build(RegexBuilder::new(text).dfa_size_limit(MAX_REGEX_LEN), MAX_REGEX_LEN)
}

/// A condition on who asks. What is given must all hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallerCondition {
    /// Sorted; `None` means any.
    pub(crate) uids: Option<Vec<u32>>,
    /// Sorted; `None` means any.
    pub(crate) gids: Option<Vec<u32>>,
    pub(crate) exes: Option<Vec<Glob>>,
}

impl CallerCondition {
    fn holds(&self, caller: &CallerFacts<'_>) -> Holds {
        Holds::from(listed(self.uids.as_ref(), caller.uid))
            .and(listed(self.gids.as_ref(), caller.gid).into())
            .and(self.exe_holds(caller))
    }

    pub(crate) fn exe_holds(&self, caller: &CallerFacts<'_>) -> Holds {
        match (&self.exes, caller.exe) {
            (None, _) => Holds::Yes,
            (Some(_), None) => Holds::Maybe,
            (Some(globs), Some(exe)) => globs.iter().any(|glob| glob.matches_exactly(exe)).into(),
        }
    }

    /// Whether no caller can meet both conditions, as far as the ids tell.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        disjoint(self.uids.as_ref(), other.uids.as_ref())
            || disjoint(self.gids.as_ref(), other.gids.as_ref())
    }
}

/// Whether `id` is in a sorted list; `None` lists everyone.
pub(crate) fn listed(list: Option<&Vec<u32>>, id: u32) -> bool {
    list.is_none_or(|ids| ids.binary_search(&id).is_ok())
}

fn disjoint(one: Option<&Vec<u32>>, other: Option<&Vec<u32>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => !one.iter().any(|id| other.binary_search(id).is_ok()),
        _ => false,
    }
}
