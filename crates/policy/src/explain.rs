//! Why an answer is what it is, rule by rule.

use std::fmt;

use serde::Serialize;

use crate::facts::{CallerFacts, Facts};
use crate::matched::Decision;
use crate::path_text::{self, shown};
use crate::policy::Policy;
use crate::rule::{Holds, Rule, RuleId, listed};
use crate::words::{Action, Kind, Mode, Operation, Verdict};

/// The answers for one inode and one caller, and what each rule had to do with them.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The path. In JSON it is a text; of one that is not UTF-8, which has U+FFFD there, all bytes stand beside
    /// it in hexadecimal, as `path_hex`.
    #[serde(flatten, serialize_with = "path_text::path")]
    pub path: Vec<u8>,
    /// Type of the inode.
    pub kind: Kind,
    /// The rule that makes it native. Verdicts and mode then hold only where the directory could
    /// not be mounted natively.
    pub native: Option<String>,
    /// The directory above it that is hidden: nobody gets past it. In JSON as `path` is.
    #[serde(flatten, serialize_with = "path_text::hidden_above")]
    pub hidden_above: Option<Vec<u8>>,
    /// How its bytes travel.
    pub mode: Mode,
    /// The rule that asks for the mode; `None` is the default.
    pub mode_rule: Option<String>,
    /// The answer to each operation asked about.
    pub operations: Vec<OperationReport>,
    /// What the kernel does when something that is seen and neither a file nor a directory is opened, of
    /// which no rule is asked; `None` for files, directories, links and what is hidden.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opening: Option<&'static str>,
    /// Every rule, in file order.
    pub rules: Vec<RuleReport>,
    /// What holds where no rule matches.
    pub default: Action,
}

/// The answer to one operation.
#[derive(Clone, Debug, Serialize)]
pub struct OperationReport {
    /// What is asked for.
    pub operation: Operation,
    /// The answer.
    pub verdict: Verdict,
    /// The error number that a refused system call gets, by name.
    pub errno: Option<&'static str>,
    /// The one that changing a part of a file gets, where it may be written as a whole alone: who may
    /// not read it for what it holds could exchange what tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_part: Option<&'static str>,
    /// The most bytes that the file may have to be shown masked, where it has more and is refused for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masked_up_to: Option<u64>,
    /// The rule that says so; `None` is the default.
    pub rule: Option<String>,
    /// The line of that rule.
    pub line: Option<usize>,
    /// What a rule that is only recorded (`mode = "audit"`) would have said, where that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audited: Option<Audited>,
}

/// The answer of a rule that is only recorded.
#[derive(Clone, Debug, Serialize)]
pub struct Audited {
    /// The answer.
    pub verdict: Verdict,
    /// The rule; `None` is the default.
    pub rule: Option<String>,
    /// The line of that rule.
    pub line: Option<usize>,
}

/// What one rule makes of the facts.
#[derive(Clone, Debug, Serialize)]
pub struct RuleReport {
    /// The rule's name.
    pub name: String,
    /// Its line, from 1.
    pub line: usize,
    /// What it does.
    pub action: Action,
    /// Whether it matches.
    pub status: Status,
}

/// Whether a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "match")]
pub enum Status {
    /// All conditions hold.
    Yes,
    /// A condition cannot be judged; it counts against the caller.
    Maybe {
        /// The first such condition.
        condition: Condition,
        /// What is not known.
        reason: String,
    },
    /// A condition does not hold.
    No {
        /// The first such condition.
        condition: Condition,
        /// What it asks for, and what was found.
        reason: String,
    },
}

/// A condition of a rule, by the word in a policy file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// `path`
    Path,
    /// `kind`
    Kind,
    /// `size`
    Size,
    /// `content`
    Content,
    /// `operation`
    Operation,
    /// `uid`
    Uid,
    /// `gid`
    Gid,
    /// `exe`
    Exe,
}

impl Policy {
    /// Explains the answer to `operation`, or to all of them.
    pub fn explain(
        &self,
        facts: &Facts<'_>,
        operation: Option<Operation>,
        caller: &CallerFacts<'_>,
    ) -> Explanation {
        let (mode, mode_rule) = self.mode(facts);
        let name = |id: RuleId| self.rule(id).name().to_owned();
        let operations = operation.map_or(Operation::ALL.to_vec(), |one| vec![one]);
        let enforced = self.enforced();
        let enforced = enforced.as_ref().unwrap_or(self);
        let above = enforced.hidden_above(facts.path);
        let report = |operation| {
            let decision = match above {
                Some((_, rule)) => Decision { verdict: Verdict::Hide, rule: Some(rule) },
                None => enforced.decide_made(facts, operation, caller),
            };
            let whole = self.decide_made(facts, operation, caller);
            let audited = (decision.verdict < whole.verdict).then(|| Audited {
                verdict: whole.verdict,
                rule: whole.rule.map(name),
                line: whole.rule.map(|id| self.rule(id).line()),
            });
            let writes = operation == Operation::Write && decision.verdict == Verdict::Allow;
            let inode = facts.inode();
            let is_too_large = decision.verdict == Verdict::Deny && above.is_none() && {
                let matched = enforced.at(facts.path);
                matched.too_large_to_redact(&inode, operation) == Some(decision)
            };
            OperationReport {
                operation,
                verdict: decision.verdict,
                masked_up_to: is_too_large
                    .then(|| enforced.at(facts.path).redacted_up_to(&inode))
                    .flatten(),
                in_part: if writes { enforced.refused_in_part(facts, caller) } else { None },
                errno: match above {
                    Some(_) => Some("ENOENT"),
                    None => errno(decision.verdict, operation),
                },
                rule: decision.rule.map(|id| enforced.rule(id).name().to_owned()),
                line: decision.rule.map(|id| enforced.rule(id).line()),
                audited,
            }
        };
        let rules = self.rules().iter().map(|rule| RuleReport {
            name: rule.name().to_owned(),
            line: rule.line(),
            action: rule.action(),
            status: status(rule, facts, operation, caller),
        });
        let operations: Vec<_> = operations.into_iter().map(report).collect();
        let is_hidden = operations.iter().any(|one| one.verdict == Verdict::Hide);
        Explanation {
            path: facts.path.to_vec(),
            kind: facts.kind,
            opening: if is_hidden { None } else { opening(facts.kind, operation) },
            native: self.native_rule(facts.path).map(|rule| rule.name().to_owned()),
            hidden_above: above.map(|(length, _)| facts.path[..length].to_vec()),
            mode,
            mode_rule: mode_rule.map(name),
            operations,
            rules: rules.collect(),
            default: self.default_action(),
        }
    }
}

/// Who is asked when an inode of `kind` is opened that is no file and no directory.
fn opening(kind: Kind, operation: Option<Operation>) -> Option<&'static str> {
    if matches!(operation, Some(Operation::Create | Operation::List)) {
        return None;
    }
    match kind {
        Kind::Fifo => Some(
            "the kernel opens a FIFO as its permissions say, and asks no rule; `write` is about \
             renaming, removing and changing it",
        ),
        Kind::Socket => Some(
            "the kernel connects to a socket as its permissions say, and asks no rule; `write` is \
             about renaming, removing and changing it",
        ),
        Kind::CharDevice | Kind::BlockDevice => Some(
            "a device node cannot be opened in a view (EACCES); `write` is about renaming, removing \
             and changing it",
        ),
        Kind::File | Kind::Directory | Kind::Symlink => None,
    }
}

impl Explanation {
    /// Says of a path where something is to be made that the directory is missing which it would be in, or
    /// is none: nobody gets to the rules about making it.
    #[must_use]
    pub fn without_directory(mut self, errno: &'static str) -> Self {
        self.operations.iter_mut().for_each(|answer| answer.errno = Some(errno));
        self
    }
}

impl Policy {
    /// Explains the answer to making something at a path that `taken` has already. Nobody gets to the
    /// rules about making it: what is seen is there, what is hidden cannot be replaced.
    pub fn explain_taken(
        &self,
        facts: &Facts<'_>,
        taken: Kind,
        caller: &CallerFacts<'_>,
    ) -> Explanation {
        let mut explanation = self.explain(facts, Some(Operation::Create), caller);
        let enforced = self.enforced();
        let enforced = enforced.as_ref().unwrap_or(self);
        let hiding = enforced.hidden(facts.path, taken).map(|id| enforced.rule(id));
        for answer in &mut explanation.operations {
            match hiding {
                _ if explanation.hidden_above.is_some() => {}
                None => answer.errno = Some(EXISTS),
                Some(rule) if answer.verdict == Verdict::Allow => {
                    answer.verdict = Verdict::Hide;
                    answer.errno = errno(Verdict::Hide, Operation::Create);
                    (answer.rule, answer.line) = (Some(rule.name().to_owned()), Some(rule.line()));
                }
                Some(_) => {}
            }
        }
        explanation
    }
}

/// What a name that is there gets.
const EXISTS: &str = "EEXIST";

/// What a refused caller gets. A hidden name cannot be made: "no such file" makes no sense for a
/// creation.
pub(crate) fn errno(verdict: Verdict, operation: Operation) -> Option<&'static str> {
    match verdict {
        Verdict::Allow => None,
        Verdict::ReadOnly => Some("EROFS"),
        Verdict::Hide if operation != Operation::Create => Some("ENOENT"),
        Verdict::Hide | Verdict::Deny => Some("EACCES"),
    }
}

impl Policy {
    /// What changing a part of a file gets that may be written: what reading it gets, where another
    /// content or size would let it be read.
    fn refused_in_part(&self, facts: &Facts<'_>, caller: &CallerFacts<'_>) -> Option<&'static str> {
        let read = self.decide(facts, Operation::Read, caller).verdict;
        let laxest = || self.at(facts.path).laxest(facts.kind, Operation::Read, caller);
        let hangs_on_it = read != Verdict::Allow && laxest() == Verdict::Allow;
        if hangs_on_it { errno(read, Operation::Read) } else { None }
    }

    /// The first directory on the way to `path` that is hidden, as the length of its path in bytes, and
    /// by which rule.
    #[must_use]
    pub fn hidden_above(&self, path: &[u8]) -> Option<(usize, RuleId)> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut above = slashes.map(|(at, _)| at);
        above.find_map(|at| Some((at, self.hidden(&path[..at], Kind::Directory)?)))
    }

    /// The rule that makes a path native. No earlier rule reaches there, so that the first one that
    /// covers it decides.
    fn native_rule(&self, path: &[u8]) -> Option<&Rule> {
        let native = self.rules().iter().filter(|rule| rule.action() == Action::Native);
        native.into_iter().find(|rule| rule.globs.iter().any(|glob| glob.covers(path)))
    }
}

fn status(
    rule: &Rule,
    facts: &Facts<'_>,
    operation: Option<Operation>,
    caller: &CallerFacts<'_>,
) -> Status {
    let checks = [
        path_check(rule, facts),
        kind_check(rule, facts),
        size_check(rule, facts),
        content_check(rule, facts),
        operation_check(rule, operation),
    ];
    let all = checks.into_iter().chain(caller_checks(rule, caller)).collect::<Vec<_>>();
    let first = |wanted| all.iter().find(|(_, holds, _)| *holds == wanted).cloned();
    if let Some((condition, _, reason)) = first(Holds::No) {
        return Status::No { condition, reason };
    }
    match first(Holds::Maybe) {
        Some((condition, _, reason)) => Status::Maybe { condition, reason },
        None => Status::Yes,
    }
}

type Check = (Condition, Holds, String);

fn path_check(rule: &Rule, facts: &Facts<'_>) -> Check {
    let covered = rule.globs.iter().any(|glob| glob.covers(facts.path));
    (Condition::Path, covered.into(), format!("not covered by {}", list(&rule.glob_texts)))
}

fn kind_check(rule: &Rule, facts: &Facts<'_>) -> Check {
    let reason = format!("a {}, not one of: {}", facts.kind, rule.kinds);
    (Condition::Kind, rule.kinds.has(facts.kind).into(), reason)
}

fn size_check(rule: &Rule, facts: &Facts<'_>) -> Check {
    let reason = match &rule.size {
        Some(range) if facts.kind == Kind::File => {
            format!("{} bytes, not within {} to {}", facts.size, range.start(), range.end())
        }
        _ => format!("a {} has no size to compare", facts.kind),
    };
    (Condition::Size, rule.size_holds(&facts.inode()).into(), reason)
}

fn content_check(rule: &Rule, facts: &Facts<'_>) -> Check {
    let holds = rule.content.as_ref().map_or(Holds::Yes, |content| content.holds(&facts.inode()));
    let reason = match holds {
        Holds::Maybe => "the content is not known",
        _ if facts.kind != Kind::File => "only regular files have content",
        _ => "the first bytes do not match",
    };
    (Condition::Content, holds, reason.to_owned())
}

fn operation_check(rule: &Rule, operation: Option<Operation>) -> Check {
    let listed = operation.is_none_or(|operation| rule.operations().has(operation));
    (Condition::Operation, listed.into(), format!("only about {}", rule.operations()))
}

fn caller_checks(rule: &Rule, caller: &CallerFacts<'_>) -> Vec<Check> {
    let Some(condition) = &rule.caller else { return Vec::new() };
    let ids = |ids: &Option<Vec<u32>>| {
        let texts: Vec<_> = ids.iter().flatten().map(ToString::to_string).collect();
        format!("not one of: {}", texts.join(", "))
    };
    let exe = match caller.exe {
        None => "the executable is not known".to_owned(),
        Some(exe) => format!("`{}` does not match", shown(exe)),
    };
    vec![
        (Condition::Uid, listed(condition.uids.as_ref(), caller.uid).into(), ids(&condition.uids)),
        (Condition::Gid, listed(condition.gids.as_ref(), caller.gid).into(), ids(&condition.gids)),
        (Condition::Exe, condition.exe_holds(caller), exe),
    ]
}

fn list(globs: &[String]) -> String {
    let shown: Vec<_> = globs.iter().take(5).map(|glob| format!("`{glob}`")).collect();
    let more = globs.len() - shown.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Path => "path",
            Self::Kind => "kind",
            Self::Size => "size",
            Self::Content => "content",
            Self::Operation => "operation",
            Self::Uid => "uid",
            Self::Gid => "gid",
            Self::Exe => "exe",
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("matches"),
            Self::Maybe { condition, reason } => write!(f, "may match: {condition}: {reason}"),
            Self::No { condition, reason } => write!(f, "no: {condition}: {reason}"),
        }
    }
}

/// Rules about other paths are counted; `{:#}` shows them, too. Listing is left out for what is no
/// directory, unless it is all that was asked.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "DIR itself" } else { &shown(&self.path) };
        writeln!(f, "{path} ({})", self.kind)?;
        let about_lists = self.kind == Kind::Directory || self.operations.len() == 1;
        let asked = |one: &&OperationReport| about_lists || one.operation != Operation::List;
        for one in self.operations.iter().filter(asked) {
            match (one.verdict, one.operation) {
                (Verdict::Hide, operation) if self.hidden_above.is_some() => {
                    let above = shown(self.hidden_above.as_deref().unwrap_or_default());
                    write!(f, "  {operation}: no such directory (ENOENT), `{above}` is hidden ")?;
                }
                _ if one.errno == Some(EXISTS) => {
                    writeln!(f, "  create: the name is there already ({EXISTS})")?;
                    continue;
                }
                (_, Operation::Create) if matches!(one.errno, Some("ENOENT" | "ENOTDIR")) => {
                    let errno = one.errno.unwrap_or_default();
                    writeln!(f, "  create: there is no directory that it could be in ({errno})")?;
                    continue;
                }
                (Verdict::Hide, Operation::Create) => {
                    write!(f, "  create: hidden, the name cannot be made (EACCES), ")?;
                }
                (verdict, operation) => write!(f, "  {operation}: {verdict}, ")?,
            }
            if let Some(errno) = one.in_part {
                write!(f, "but as a whole alone, in part {errno}, ")?;
            }
            match (&one.rule, one.line) {
                (Some(rule), Some(line)) => writeln!(f, "by rule `{rule}` (line {line})")?,
                _ => writeln!(f, "by the default `{}`", self.default)?,
            }
            if let Some(most) = one.masked_up_to {
                writeln!(f, "    it is larger than the {most} bytes up to which it is masked")?;
            }
            if let Some(audited) = &one.audited {
                let rule = audited.rule.as_deref().unwrap_or("the default");
                writeln!(f, "    recorded only: {}, by `{rule}`", audited.verdict)?;
            }
        }
        if let Some(opening) = self.opening {
            writeln!(f, "  {opening}")?;
        }
        if let Some(rule) = &self.native {
            writeln!(
                f,
                "  native, by rule `{rule}`: the lower directory itself, without a request or an \
                 audit record, if it is the one that was there when the view was mounted"
            )?;
        }
        match &self.mode_rule {
            Some(rule) => writeln!(f, "  I/O mode: {}, by rule `{rule}`", self.mode)?,
            None => writeln!(f, "  I/O mode: {}, by the default `{}`", self.mode, self.default)?,
        }
        let all = f.alternate();
        let elsewhere = |rule: &&RuleReport| {
            matches!(rule.status, Status::No { condition: Condition::Path, .. }) && !all
        };
        for rule in self.rules.iter().filter(|rule| !elsewhere(rule)) {
            let RuleReport { name, line, action, status } = rule;
            writeln!(f, "rule `{name}` (line {line}, {action}): {status}")?;
        }
        match self.rules.iter().filter(elsewhere).count() {
            0 => Ok(()),
            1 => writeln!(f, "1 rule is about other paths"),
            count => writeln!(f, "{count} rules are about other paths"),
        }
    }
}
