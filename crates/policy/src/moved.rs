//! What a move gets: the answers that `rename` is made of, in the order in which a view asks them.

use std::fmt;

use serde::Serialize;

use crate::explain::errno;
use crate::facts::{CallerFacts, Facts, InodeFacts};
use crate::matched::Decision;
use crate::path_text::{self, shown};
use crate::policy::Policy;
use crate::words::{Kind, Operation, Verdict};

/// A name that is to become another one.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a> {
    /// What is moved, under its old name.
    pub from: Facts<'a>,
    /// The new name, as [`Facts::path`] is.
    pub to: &'a [u8],
    /// What has the new name already.
    pub over: Option<InodeFacts<'a>>,
    /// All that lies in a directory; `None` if that is too much to be looked at.
    pub inside: Option<&'a [Inside]>,
}

/// Something in a directory that is moved, at any depth.
#[derive(Clone, Debug)]
pub struct Inside {
    /// From the directory on, beginning with a slash.
    pub path: Vec<u8>,
    /// Type of the inode.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// As [`Facts::head`] is.
    pub head: Option<Vec<u8>>,
}

/// The answer to a move.
#[derive(Clone, Debug, Serialize)]
pub struct MoveReport {
    /// The old name, as in [`crate::Explanation::path`].
    #[serde(flatten, serialize_with = "path_text::path")]
    pub path: Vec<u8>,
    /// The new name, in the same way as `to`.
    #[serde(flatten, serialize_with = "path_text::new_name")]
    pub to: Vec<u8>,
    /// Type of what is moved.
    pub kind: Kind,
    /// The error number that `rename` gets, by name; `None` if it is allowed.
    pub errno: Option<&'static str>,
    /// What is refused.
    pub reason: Option<String>,
    /// The rule that says so; `None` is the default, or that no rule says it by itself.
    pub rule: Option<String>,
    /// The line of that rule.
    pub line: Option<usize>,
}

/// Why not.
struct Refused {
    errno: &'static str,
    reason: String,
    decision: Option<Decision>,
}

impl Policy {
    /// Explains the answer to a move.
    #[must_use]
    pub fn explain_move(&self, wanted: &Move<'_>, caller: &CallerFacts<'_>) -> MoveReport {
        let enforced = self.enforced();
        let enforced = enforced.as_ref().unwrap_or(self);
        let refused = enforced.refuse_move(wanted, caller);
        let rule = refused.as_ref().and_then(|refused| refused.decision?.rule);
        MoveReport {
            path: wanted.from.path.to_vec(),
            to: wanted.to.to_vec(),
            kind: wanted.from.kind,
            errno: refused.as_ref().map(|refused| refused.errno),
            reason: refused.map(|refused| refused.reason),
            rule: rule.map(|id| enforced.rule(id).name().to_owned()),
            line: rule.map(|id| enforced.rule(id).line()),
        }
    }

    fn refuse_move(&self, wanted: &Move<'_>, caller: &CallerFacts<'_>) -> Option<Refused> {
        let Move { from, to, over, .. } = wanted;
        let target = Facts { path: to, ..*from };
        let ask = |facts: &Facts<'_>, operation, what: &str| {
            let decision = self.decide_made(facts, operation, caller);
            Some(Refused {
                errno: errno(decision.verdict, operation)?,
                reason: what.to_owned(),
                decision: Some(decision),
            })
        };
        let over = || over.map(|inode| Facts { path: to, ..inode.at(to) });
        let border = match self.native_border(from.path, to) {
            Border::None => None,
            Border::Crossed => Some(Refused {
                errno: "EXDEV",
                reason: "the border of a native directory lies between, so `mv` copies".to_owned(),
                decision: None,
            }),
            // The kernel asks for the old name before it looks what is mounted at the new one.
            Border::Mount(native) => ask(from, Operation::Write, "the old name cannot be removed")
                .filter(|refused| refused.errno == "ENOENT")
                .or_else(|| Some(busy(&native))),
            // No view is asked about what is in it.
            Border::Inside => return self.hidden_on_the_way(from.path, to),
        };
        self.hidden_on_the_way(from.path, to)
            .or(border)
            .or_else(|| ask(from, Operation::Write, "the old name cannot be removed"))
            .or_else(|| ask(&target, Operation::Create, "the new name cannot be made"))
            .or_else(|| self.not_made_below(wanted, caller))
            .or_else(|| self.weaker(wanted, caller))
            .or_else(|| ask(&over()?, Operation::Write, "what has that name cannot be replaced"))
            .or_else(|| self.native_below(from.path, to))
    }

    fn hidden_on_the_way(&self, from: &[u8], to: &[u8]) -> Option<Refused> {
        let (length, rule, path) = [from, to].into_iter().find_map(|path| {
            let (length, rule) = self.hidden_above(path)?;
            Some((length, rule, path))
        })?;
        Some(Refused {
            errno: "ENOENT",
            reason: format!("`{}` is hidden", shown(&path[..length])),
            decision: Some(Decision { verdict: Verdict::Hide, rule: Some(rule) }),
        })
    }

    /// Whether the names lie in different mounts, as native directories are: the kernel says so before
    /// it looks at what has them.
    #[must_use]
    pub fn move_crosses_a_border(&self, from: &[u8], to: &[u8]) -> bool {
        matches!(self.native_border(from, to), Border::Crossed)
    }

    /// Native directories are mounts of their own. The kernel compares those that the names are in, and
    /// then looks whether something is mounted at a name itself.
    fn native_border(&self, from: &[u8], to: &[u8]) -> Border {
        let all = self.native();
        let within = |path: &[u8]| {
            let lies_in = |dir: &str| path != dir.as_bytes() && lies_at(path, dir.as_bytes());
            all.iter().position(|one| lies_in(&one.path))
        };
        if within(from) != within(to) {
            return Border::Crossed;
        }
        if within(from).is_some() {
            return Border::Inside;
        }
        let mut mounts = all.into_iter().filter(|one| [from, to].contains(&one.path.as_bytes()));
        mounts.next().map_or(Border::None, |one| Border::Mount(one.path))
    }

    /// A view looks last whether a mount would move along.
    fn native_below(&self, from: &[u8], to: &[u8]) -> Option<Refused> {
        let below = |path: &[u8]| {
            let mut all = self.native().into_iter();
            all.find(|one| lies_at(one.path.as_bytes(), path))
        };
        below(from).or_else(|| below(to)).map(|native| busy(&native.path))
    }

    /// What is in a directory is judged as made under its new name.
    fn not_made_below(&self, wanted: &Move<'_>, caller: &CallerFacts<'_>) -> Option<Refused> {
        let Move { from, to, inside, .. } = wanted;
        if self.subtree_move_is_neutral(from.path, to) {
            return None;
        }
        inside.unwrap_or_default().iter().find_map(|one| {
            let made = |dir: &[u8]| {
                let path = [dir, &one.path].concat();
                let facts = Facts { path: &path, kind: one.kind, size: 0, head: Some(&[]) };
                let decision = self.decide_made(&facts, Operation::Create, caller);
                errno(decision.verdict, Operation::Create).map(|errno| (errno, decision))
            };
            let (errno, decision) = made(to).filter(|_| made(from.path).is_none())?;
            let path = shown(&[to, &one.path[..]].concat());
            let reason = format!("`{path}` cannot be made, and would be there");
            Some(Refused { errno, reason, decision: Some(decision) })
        })
    }

    /// Whether the new name would give somebody more.
    fn weaker(&self, wanted: &Move<'_>, caller: &CallerFacts<'_>) -> Option<Refused> {
        let Move { from, to, inside, .. } = wanted;
        let refused = |reason| Some(Refused { errno: "EXDEV", reason, decision: None });
        let weaker = if self.weakens(from, &Facts { path: to, ..*from }) {
            refused("the new name would allow more than the old one, so `mv` copies".to_owned())
        } else if from.kind != Kind::Directory || self.subtree_move_is_neutral(from.path, to) {
            None
        } else if let Some(inside) = inside {
            let one = inside.iter().find(|one| self.may_weaken(from.path, to, one))?;
            let path = shown(&[from.path, &one.path].concat());
            refused(format!("more would be allowed on `{path}` there, so `mv` copies"))
        } else {
            refused("too much is in it to be looked at, so `mv` copies".to_owned())
        };
        weaker.map(|weaker| self.kept_below(wanted, caller).unwrap_or(weaker))
    }

    fn may_weaken(&self, from: &[u8], to: &[u8], one: &Inside) -> bool {
        let path = |dir: &[u8]| [dir, &one.path].concat();
        let (from, to) = (path(from), path(to));
        let weakens = |head| {
            let inode = InodeFacts { kind: one.kind, size: one.size, head };
            self.weakens(&inode.at(&from), &inode.at(&to))
        };
        // Without them, also true if some first bytes would make it weaker.
        weakens(None) && (one.head.is_none() || weakens(one.head.as_deref()))
    }

    /// A directory of which the caller could not remove all is not to be copied by one half. What is
    /// hidden comes last, with the error that removing the directory itself would get.
    fn kept_below(&self, wanted: &Move<'_>, caller: &CallerFacts<'_>) -> Option<Refused> {
        let mut hidden = None;
        let kept = wanted.inside.unwrap_or_default().iter().find_map(|one| {
            let path = [wanted.from.path, &one.path].concat();
            if let Some(rule) = self.hidden(&path, one.kind) {
                hidden = Some((path, rule));
                return None;
            }
            if self.needs_head(&path, one.kind, one.size) {
                return None;
            }
            let facts = Facts { path: &path, kind: one.kind, size: 0, head: Some(&[]) };
            let decision = self.decide(&facts, Operation::Write, caller);
            let errno = errno(decision.verdict, Operation::Write)?;
            let reason = format!("`{}` cannot be removed", shown(&path));
            Some(Refused { errno, reason, decision: Some(decision) })
        });
        kept.or_else(|| {
            let (path, rule) = hidden?;
            let reason = format!("`{}` is hidden, and would stay", shown(&path));
            let decision = Decision { verdict: Verdict::Hide, rule: Some(rule) };
            Some(Refused { errno: "ENOTEMPTY", reason, decision: Some(decision) })
        })
    }
}

/// What native directories mean for two names.
enum Border {
    None,
    /// It lies between them.
    Crossed,
    /// Both are in this one.
    Inside,
    /// This one is mounted at one of them.
    Mount(String),
}

fn busy(native: &str) -> Refused {
    let reason = format!("the native directory `{native}` is mounted there");
    Refused { errno: "EBUSY", reason, decision: None }
}

/// Whether `path` is `dir`, or lies in it.
fn lies_at(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

impl fmt::Display for MoveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} -> {} ({})", shown(&self.path), shown(&self.to), self.kind)?;
        let (Some(errno), Some(reason)) = (self.errno, &self.reason) else {
            return writeln!(f, "  rename: allowed");
        };
        write!(f, "  rename: refused ({errno}), {reason}")?;
        match (&self.rule, self.line) {
            (Some(rule), Some(line)) => writeln!(f, ", by rule `{rule}` (line {line})"),
            _ => writeln!(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "
        [[rule]]
        path = 'built'
        action = 'native'
        [[rule]]
        name = 'tasks'
        path = '**/.vscode/tasks.json'
        action = 'read-only'
        [[rule]]
        name = 'keys'
        path = 'keys/**'
        operation = 'read'
        action = 'deny'
        [[rule]]
        name = 'env'
        path = 'one/.env'
        action = 'hide'
        [[rule]]
        name = 'kept'
        path = 'two/kept'
        action = 'deny'
        [[rule]]
        path = 'two/.env'
        action = 'hide'";

    /// Half of it would be copied.
    #[test]
    fn what_holds_something_hidden_is_not_copied() {
        let policy = Policy::parse(POLICY, "p").unwrap();
        let caller = CallerFacts { uid: 0, gid: 0, exe: None };
        let inside = ["/.env", "/kept", "/a"].map(|path| Inside {
            path: path.into(),
            kind: Kind::File,
            size: 1,
            head: None,
        });
        let answer = |from: &'static str, inside: &[Inside]| {
            let directory = InodeFacts { kind: Kind::Directory, size: 0, head: None };
            let from = directory.at(from.as_bytes());
            let wanted = Move { from, to: b"other", over: None, inside: Some(inside) };
            let report = policy.explain_move(&wanted, &caller);
            (report.errno, report.rule.clone(), report.to_string())
        };
        let (errno, rule, text) = answer("one", &inside);
        assert_eq!((errno, rule.as_deref()), (Some("ENOTEMPTY"), Some("env")), "{text}");
        assert!(text.contains("`one/.env` is hidden, and would stay"), "{text}");
        let (errno, rule, text) = answer("two", &inside);
        assert_eq!((errno, rule.as_deref()), (Some("EACCES"), Some("kept")), "{text}");
        assert_eq!(answer("one", &inside[1..]).0, None);
    }

    #[test]
    fn a_move_says_what_stops_it() {
        let policy = Policy::parse(POLICY, "p").unwrap();
        let caller = CallerFacts { uid: 0, gid: 0, exe: None };
        let inside =
            [Inside { path: b"/tasks.json".to_vec(), kind: Kind::File, size: 1, head: None }];
        let answer = |from: &'static str, kind, to: &str| {
            let inode = InodeFacts { kind, size: 0, head: Some(&[]) };
            let inside = Some(if kind == Kind::Directory { &inside[..] } else { &[] });
            let from = inode.at(from.as_bytes());
            let wanted = Move { from, to: to.as_bytes(), over: None, inside };
            let report = policy.explain_move(&wanted, &caller);
            (report.errno, report.rule.clone(), report.to_string())
        };
        let tasks = || Some("tasks".to_owned());
        let (errno, rule, text) = answer("stage", Kind::Directory, "a/.vscode");
        assert_eq!((errno, rule), (Some("EROFS"), tasks()), "{text}");
        assert!(text.contains("`a/.vscode/tasks.json` cannot be made"), "{text}");
        assert_eq!(answer("link", Kind::Symlink, ".vscode").0, Some("EROFS"));
        assert_eq!(answer("stage", Kind::Directory, "other").0, None);
        let (errno, rule, text) = answer("keys/a", Kind::File, "a");
        assert_eq!((errno, rule), (Some("EXDEV"), None), "{text}");
        assert_eq!(answer("a", Kind::File, "built/a").0, Some("EXDEV"));
        assert_eq!(answer("built", Kind::Directory, "b").0, Some("EBUSY"));
        assert_eq!(answer("built/a", Kind::File, "built/b").0, None);
        assert_eq!(answer("built/a", Kind::Directory, "built").0, Some("EXDEV"));
        assert_eq!(answer("built", Kind::Directory, "built/a").0, Some("EXDEV"));
        assert_eq!(answer("a", Kind::Directory, "built").0, Some("EBUSY"));
        let (errno, rule, text) = answer("one/.env", Kind::Directory, "built");
        assert_eq!((errno, rule), (Some("ENOENT"), Some("env".to_owned())), "{text}");
    }
}
