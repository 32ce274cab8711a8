//! What an inode would get if it held something else, or somebody else asked.
//!
//! Conditions on content and size tell what a file is at this moment. Whoever may write it could
//! exchange the few bytes that tell, and keep the rest. So the view asks whether a refusal hangs on
//! such a condition before it lets a part of the file be changed.

use crate::facts::{CallerFacts, InodeFacts};
use crate::matched::Matched;
use crate::policy::Part;
use crate::rule::{Holds, Rule};
use crate::words::{Kind, Mode, Operation, Verdict};

impl Matched<'_> {
    /// The laxest verdict on `operation` by `caller` that some content and size of an inode of this
    /// kind would have. Never stricter than [`Matched::decide`] says of any of them.
    #[must_use]
    pub fn laxest(&self, kind: Kind, operation: Operation, caller: &CallerFacts<'_>) -> Verdict {
        self.laxest_for(kind, operation, |rule| rule.holds_for_caller(caller))
    }

    fn laxest_for(
        &self,
        kind: Kind,
        operation: Operation,
        of_caller: impl Fn(&Rule) -> Holds,
    ) -> Verdict {
        if self.hidden(kind).is_some() {
            return Verdict::Hide;
        }
        // The stricter of two policies counts, whatever the file holds.
        let parts =
            self.policy.parts().map(|part| self.laxest_of(part, kind, operation, &of_caller));
        parts.fold(Verdict::Allow, Ord::max)
    }

    /// Whether `operation` is refused to some caller. Never wrongly `false`.
    #[must_use]
    pub fn may_refuse(&self, facts: &InodeFacts<'_>, operation: Operation) -> bool {
        self.decide_for(facts, operation, Rule::holds_for_some_caller).verdict != Verdict::Allow
    }

    /// Whether some caller who may write the inode is refused to change a part of it, since what it
    /// holds has reading it refused. Never wrongly `false`.
    #[must_use]
    pub fn may_refuse_in_part(&self, facts: &InodeFacts<'_>) -> bool {
        let laxest = || self.laxest_for(facts.kind, Operation::Read, Rule::holds_for_some_caller);
        let about = |rule: &Rule| rule.is_about(Operation::Read, facts.kind);
        let mut parts = self.policy.parts();
        // Without such a condition, who is refused would be so whatever it held.
        parts.any(|part| self.of(part).any(|(_, rule)| about(rule) && rule.judges_what_is_held()))
            && self.may_refuse(facts, Operation::Read)
            && laxest() == Verdict::Allow
    }

    /// Whether these rules let everybody read a regular file, whatever it holds, and the kernel read it by
    /// itself. Never wrongly `true`.
    #[must_use]
    pub fn lets_everybody_read(&self) -> bool {
        self.hidden(Kind::File).is_none()
            && self.policy.parts().all(|part| self.part_lets_everybody_read(part))
    }

    fn part_lets_everybody_read(&self, part: Part) -> bool {
        let about_reading = |rule: &&Rule| {
            rule.kinds.has(Kind::File)
                && (rule.operations.has(Operation::Read) || rule.is_for_everyone())
        };
        let (mut verdict, mut mode) = (None, None);
        for rule in self.of(part).map(|(_, rule)| rule).filter(about_reading) {
            // It depends on the condition; with one on the operation, another rule settles the mode.
            if !rule.is_fixed() {
                return false;
            }
            verdict = verdict.or(Some(rule.action.verdict(Operation::Read)));
            mode = mode.or(rule.action.mode());
            if mode.is_some() {
                break;
            }
        }
        verdict.unwrap_or(part.default.verdict(Operation::Read)) == Verdict::Allow
            && mode.unwrap_or(part.default_mode()) == Mode::Passthrough
    }

    fn laxest_of(
        &self,
        part: Part,
        kind: Kind,
        operation: Operation,
        of_caller: impl Fn(&Rule) -> Holds,
    ) -> Verdict {
        let default = part.default.verdict(operation);
        let mut laxest: Option<Verdict> = None;
        for (_, rule) in self.of(part).filter(|(_, rule)| rule.is_about(operation, kind)) {
            let of_caller = of_caller(rule);
            let by_what_it_holds = rule.judges_what_is_held();
            if of_caller == Holds::No || by_what_it_holds && kind != Kind::File {
                continue;
            }
            let verdict = rule.action.verdict(operation);
            laxest = Some(laxest.map_or(verdict, |known| known.min(verdict)));
            if of_caller == Holds::Yes && !by_what_it_holds {
                return laxest.unwrap_or(verdict);
            }
        }
        laxest.map_or(default, |known| known.min(default))
    }
}
