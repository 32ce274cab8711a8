//! What an inode would get if it held something else.
//!
//! Conditions on content and size tell what a file is at this moment. Whoever may write it could
//! exchange the few bytes that tell, and keep the rest. So the view asks whether a refusal hangs on
//! such a condition before it lets a part of the file be changed.

use crate::facts::CallerFacts;
use crate::matched::Matched;
use crate::policy::Part;
use crate::rule::{Holds, Rule};
use crate::words::{Kind, Mode, Operation, Verdict};

impl Matched<'_> {
    /// The laxest verdict on `operation` by `caller` that some content and size of an inode of this
    /// kind would have. Never stricter than [`Matched::decide`] says of any of them.
    #[must_use]
    pub fn laxest(&self, kind: Kind, operation: Operation, caller: &CallerFacts<'_>) -> Verdict {
        if self.hidden(kind).is_some() {
            return Verdict::Hide;
        }
        // The stricter of two policies counts, whatever the file holds.
        let parts = self.policy.parts().map(|part| self.laxest_of(part, kind, operation, caller));
        parts.fold(Verdict::Allow, Ord::max)
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
        caller: &CallerFacts<'_>,
    ) -> Verdict {
        let default = part.default.verdict(operation);
        let mut laxest: Option<Verdict> = None;
        let about = |rule: &Rule| rule.operations().has(operation) && rule.kinds.has(kind);
        for (_, rule) in self.of(part).filter(|(_, rule)| about(rule)) {
            let of_caller = rule.holds_for_caller(caller);
            let by_what_it_holds = rule.content.is_some() || rule.size.is_some();
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
