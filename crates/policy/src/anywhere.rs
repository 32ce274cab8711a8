//! What holds for an inode of which not every name is known.

use crate::facts::{CallerFacts, InodeFacts};
use crate::matched::{Decision, Matched};
use crate::policy::Policy;
use crate::rule::{Holds, Rule, RuleId};
use crate::words::{Action, Kind, Mode, Operation, Verdict};

impl Policy {
    /// Whether two names can be judged differently: some rule is about a part of DIR. If not, it
    /// does not matter which names an inode has.
    #[must_use]
    pub fn tells_names_apart(&self) -> bool {
        self.about_parts && !self.is_trivial()
    }

    /// The verdict on an inode that may have any name: the strictest that a rule gives for some
    /// path. A file larger than a `redact` rule shows is denied to be read; one for which the two joined
    /// policies ask for different bytes, by rules about any paths, is denied.
    #[must_use]
    pub fn decide_anywhere(
        &self,
        facts: &InodeFacts<'_>,
        operation: Operation,
        caller: &CallerFacts<'_>,
    ) -> Decision {
        let defaults = self.parts().map(|part| part.default.verdict(operation));
        let verdict = defaults.fold(Verdict::Allow, Ord::max);
        let mut worst = Decision { verdict, rule: None };
        for (id, rule) in self.numbered() {
            let hides = rule.action == Action::Hide && rule.kinds.has(facts.kind);
            let holds = rule.holds_for_inode(facts).and(rule.holds_for_caller(caller));
            let speaks = hides || rule.operations.has(operation) && holds != Holds::No;
            let verdict = if hides { Verdict::Hide } else { rule.action.verdict(operation) };
            if speaks && verdict > worst.verdict {
                worst = Decision { verdict, rule: Some(id) };
            }
        }
        let of_bytes = self.too_large_anywhere(facts, operation).or(self.contradiction(facts));
        of_bytes.filter(|kept| kept.verdict > worst.verdict).unwrap_or(worst)
    }

    fn too_large_anywhere(&self, facts: &InodeFacts<'_>, operation: Operation) -> Option<Decision> {
        if operation != Operation::Read || facts.kind != Kind::File {
            return None;
        }
        let is_too_large = |(_, rule): &(RuleId, &Rule)| {
            let max_size = rule.redaction.as_ref().map(|redaction| redaction.max_size());
            max_size.is_some_and(|max| facts.size > max) && rule.holds_for_inode(facts) != Holds::No
        };
        let (id, _) = self.numbered().find(is_too_large)?;
        Some(Decision { verdict: Verdict::Deny, rule: Some(id) })
    }

    /// What one of the joined policies masks and the other seals, or what they seal in two domains.
    fn contradiction(&self, facts: &InodeFacts<'_>) -> Option<Decision> {
        let second = self.parts().nth(1).filter(|_| facts.kind == Kind::File)?;
        let makes = |(_, rule): &(RuleId, &Rule)| {
            (rule.redaction.is_some() || rule.domain.is_some())
                && rule.holds_for_inode(facts) != Holds::No
        };
        let (seconds, firsts): (Vec<_>, Vec<_>) =
            self.numbered().filter(makes).partition(|(id, _)| second.has(*id));
        let contradicts = |one: &Rule| {
            seconds.iter().any(|(_, other)| {
                one.domain != other.domain
                    || one.domain.is_some()
                        && (one.redaction.is_some() || other.redaction.is_some())
            })
        };
        let (id, _) = firsts.into_iter().find(|(_, rule)| contradicts(rule))?;
        Some(Decision { verdict: Verdict::Deny, rule: Some(id) })
    }

    /// The I/O mode of an inode that may have any name: the strictest that a rule asks for.
    #[must_use]
    pub fn mode_anywhere(&self, facts: &InodeFacts<'_>) -> Mode {
        let asked = self.rules.iter().filter(|rule| rule.holds_for_inode(facts) != Holds::No);
        asked.filter_map(Rule::asks_for_mode).fold(self.default_mode(), Ord::max)
    }
}

impl Matched<'_> {
    /// Whether the same rules cover both paths, so that no question tells them apart.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        std::ptr::eq(self.policy, other.policy) && self.same_set(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Kind;

    fn policy(text: &str) -> Policy {
        Policy::parse(text, "p.toml").unwrap()
    }

    #[test]
    fn names_are_told_apart_by_rules_about_a_part() {
        let rule = |path, action| format!("[[rule]]\npath = '{path}'\naction = '{action}'\n");
        assert!(!policy("").tells_names_apart());
        assert!(!policy("default = 'read-only'").tells_names_apart());
        assert!(!policy(&rule("**", "userspace")).tells_names_apart());
        assert!(!policy(&rule("a", "passthrough")).tells_names_apart());
        assert!(policy(&rule("a", "deny")).tells_names_apart());
        assert!(policy(&(rule("**", "userspace") + &rule("a", "deny"))).tells_names_apart());
    }

    #[test]
    fn the_strictest_rule_counts_wherever_it_stands() {
        let policy = policy(
            "[[rule]]\npath = 'open'\naction = 'userspace'\n\
             [[rule]]\npath = 'docs'\noperation = 'write'\naction = 'read-only'\n\
             [[rule]]\npath = 'keys'\nuid = 7\naction = 'deny'\n",
        );
        let facts = InodeFacts { kind: Kind::File, size: 1, head: None };
        let verdict = |operation, uid| {
            let caller = CallerFacts { uid, gid: 0, exe: None };
            policy.decide_anywhere(&facts, operation, &caller).verdict
        };
        assert_eq!(verdict(Operation::Read, 1), Verdict::Allow);
        assert_eq!(verdict(Operation::Write, 1), Verdict::ReadOnly);
        assert_eq!(verdict(Operation::Read, 7), Verdict::Deny);
        assert_eq!(policy.mode_anywhere(&facts), Mode::Userspace);
        let hides = Policy::parse("[[rule]]\npath = 'a'\naction = 'hide'\n", "p.toml").unwrap();
        let caller = CallerFacts { uid: 1, gid: 1, exe: None };
        let decision = hides.decide_anywhere(&facts, Operation::Read, &caller);
        assert_eq!(decision.verdict, Verdict::Hide);
    }

    /// As [`Policy::decide`] says of some path.
    #[test]
    fn what_no_bytes_can_be_shown_of_is_denied() {
        let caller = CallerFacts { uid: 1, gid: 1, exe: None };
        let verdict = |policy: &Policy, kind, size, operation| {
            let facts = InodeFacts { kind, size, head: None };
            let anywhere = policy.decide_anywhere(&facts, operation, &caller).verdict;
            let there = policy.decide(&facts.at(b"a"), operation, &caller).verdict;
            assert_eq!(anywhere, there, "{kind:?} of {size}, {operation:?}");
            anywhere
        };
        let one = |action: &str| policy(&format!("[[rule]]\npath = 'a'\n{action}\n"));
        let redacts = one("action = 'redact'\nmax_size = '1 KiB'");
        for (size, expected) in [(1024, Verdict::Allow), (1025, Verdict::Deny)] {
            assert_eq!(verdict(&redacts, Kind::File, size, Operation::Read), expected);
            assert_eq!(verdict(&redacts, Kind::Directory, size, Operation::Read), Verdict::Allow);
        }
        let twice = |first: &str, other: &str| {
            let joined = one(first).joined(one(other), " (2)").unwrap();
            verdict(&joined, Kind::File, 1, Operation::Read)
        };
        let [d, e] = ["d", "e"].map(|domain| format!("action = 'seal'\ndomain = '{domain}'"));
        let redact = "action = 'redact'";
        for (first, other, expected) in [
            (&*d, redact, Verdict::Deny),
            (redact, &*d, Verdict::Deny),
            (&d, &e, Verdict::Deny),
            (&d, &d, Verdict::Allow),
            (redact, redact, Verdict::Allow),
            (&d, "action = 'userspace'", Verdict::Allow),
        ] {
            assert_eq!(twice(first, other), expected, "{first} and {other}");
        }
    }
}
