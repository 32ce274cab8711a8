//! What holds for a file under its further names, for who asks why it is refused under this one.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tollgate_policy::{CallerFacts, Decision, InodeFacts, Kind, Operation, Policy, Verdict};

use crate::links::stat_beneath;
use crate::lower;
use crate::moving::Turn;
use crate::neighbours::Elsewhere;
use crate::paths::{KnownPaths, Names};
use crate::policies::InForce;
use crate::view::View;

/// Another name of a file under which it may be refused: one in DIR, or in the directory of another
/// view of the same server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FurtherName {
    /// The directory of the view whose rules refuse, if it is another one.
    pub view: Option<PathBuf>,
    /// The name of the rule that refuses; `None` for the default.
    pub rule: Option<String>,
    /// What callers get.
    pub errno: Errno,
    /// There may be names that are not known, and every rule counts for those.
    pub is_unknown: bool,
}

impl View {
    /// Why `who` may not do `operation` on the file at `path`, relative to DIR, though the rules allow
    /// it under that name: the strictest of its further names. Conditions on contents aside. It may
    /// have to be searched for, for as long as a request would.
    #[must_use]
    pub fn refused_by_further_name(
        &self,
        path: &Path,
        operation: Operation,
        who: &CallerFacts<'_>,
    ) -> Option<FurtherName> {
        let path = path.as_os_str().as_bytes().to_vec();
        let stat = stat_beneath(self.fds.root().as_fd(), &path)?;
        if !self.has_names_to_find(&stat) {
            return None;
        }
        let known = KnownPaths::from_iter([path]);
        let Names { paths, all_known, elsewhere } = self.all_names(known, &stat, None, Turn::Free);
        let kind = Kind::from_mode(stat.mode());
        let facts = InodeFacts { kind, size: stat.size(), head: Some(&[]) };
        let decide = |policy: &Policy, path: &[u8]| policy.at(path).decide(&facts, operation, who);
        let anywhere = |policy: &Policy| policy.decide_anywhere(&facts, operation, who);
        let own = self.admission.policy();
        let mut all: Vec<_> =
            paths[1..].iter().map(|path| Found::of(own, decide(own, path), None)).collect();
        if !all_known {
            all.push(Found { is_unknown: true, ..Found::of(own, anywhere(own), None) });
        }
        let Elsewhere { names, unknown } = elsewhere;
        for (rules, path) in names {
            let made = rules.policy.at(&path).mode(&facts);
            let mut decision = decide(&rules.policy, &path);
            // This view does not make the bytes that another one would.
            if made.0.is_made() && decision.verdict < Verdict::Deny {
                decision = Decision { verdict: Verdict::Deny, rule: made.1 };
            }
            all.push(Found::of(&rules.policy, decision, self.directory_of(rules)));
        }
        for rules in unknown {
            let found = Found::of(&rules.policy, anywhere(&rules.policy), self.directory_of(rules));
            all.push(Found { is_unknown: true, ..found });
        }
        all.into_iter().max_by_key(|found| found.verdict)?.refused()
    }

    /// The directory of another view, whose rules these are.
    fn directory_of(&self, rules: &InForce) -> Option<PathBuf> {
        let place =
            self.neighbours().find(|place| std::ptr::eq(place.policies.current(), rules))?;
        let path = lower::path_of(place.root.as_fd())?;
        Some(PathBuf::from(OsStr::from_bytes(&path)))
    }
}

/// What the rules of one view say of one name.
struct Found {
    verdict: Verdict,
    rule: Option<String>,
    view: Option<PathBuf>,
    is_unknown: bool,
}

impl Found {
    fn of(policy: &Policy, decision: Decision, view: Option<PathBuf>) -> Self {
        let rule = decision.rule.map(|rule| policy.rule(rule).name().to_owned());
        Self { verdict: decision.verdict, rule, view, is_unknown: false }
    }

    fn refused(self) -> Option<FurtherName> {
        let errno = match self.verdict {
            Verdict::Allow => return None,
            Verdict::ReadOnly => Errno::ROFS,
            Verdict::Deny => Errno::ACCESS,
            Verdict::Hide => Errno::NOENT,
        };
        let Self { rule, view, is_unknown, .. } = self;
        Some(FurtherName { view, rule, errno, is_unknown })
    }
}
