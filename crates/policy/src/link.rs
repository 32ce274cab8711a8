//! Links in the place of a directory in which rules keep names.
//!
//! Rules go by paths, and the kernel follows a link before it asks: `.vscode -> z` would have
//! `.vscode/tasks.json` judged as `z/tasks.json`, while whoever reads it outside goes by the first.
//! So making a link is judged by what could be made in a directory of that name.

use crate::facts::{CallerFacts, Facts};
use crate::matched::Decision;
use crate::policy::Policy;
use crate::rule::{Holds, RuleId};
use crate::words::{Kind, Operation, Verdict};

impl Policy {
    /// The decision on making a symbolic link at `path` by `caller`, as far as it follows from rules
    /// about names below it: those whose globs have it, by its name, on their way
    /// (`**/.vscode/tasks.json` has `.vscode`, and no other directory). Rules about `path` itself
    /// are left to [`Policy::decide`], and so is all behind a rule that covers it.
    #[must_use]
    pub fn decide_link(&self, path: &[u8], caller: &CallerFacts<'_>) -> Decision {
        let mut strictest = Decision { verdict: Verdict::Allow, rule: None };
        for part in self.parts() {
            let rules = self.numbered().filter(|(id, rule)| {
                part.has(*id)
                    && rule.operations.has(Operation::Create)
                    && rule.size.is_none()
                    && rule.content.is_none()
                    && rule.holds_for_caller(caller) != Holds::No
            });
            if let Some(decision) = rules.into_iter().find_map(|(id, rule)| {
                if rule.globs.iter().any(|glob| glob.covers(path)) {
                    let settles = rule.kinds.has(Kind::Symlink) && rule.kinds.has(Kind::File);
                    return settles.then_some(Decision { verdict: Verdict::Allow, rule: None });
                }
                let verdict = rule.action.verdict(Operation::Create);
                let is_kept = verdict != Verdict::Allow
                    && rule.globs.iter().any(|glob| glob.leads_through(path));
                is_kept.then_some(Decision { verdict, rule: Some::<RuleId>(id) })
            }) && decision.verdict > strictest.verdict
            {
                strictest = decision;
            }
        }
        strictest
    }
}

impl Policy {
    /// [`Policy::decide`], and where a symbolic link is made [`Policy::decide_link`], too: the stricter
    /// of both.
    #[must_use]
    pub fn decide_made(
        &self,
        facts: &Facts<'_>,
        operation: Operation,
        caller: &CallerFacts<'_>,
    ) -> Decision {
        let decision = self.decide(facts, operation, caller);
        if operation != Operation::Create || facts.kind != Kind::Symlink {
            return decision;
        }
        let behind = self.decide_link(facts.path, caller);
        if behind.verdict > decision.verdict { behind } else { decision }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_on_the_way_to_what_is_kept_is_judged_as_that() {
        let rules = [
            ("**/node_modules/*/**", "passthrough"),
            ("**/.vscode/tasks.json", "read-only"),
            ("tools/hooks/x", "read-only"),
            (".git/modules/**/hooks", "deny"),
            ("*/**/.git", "read-only"),
            ("**/.env", "hide"),
            ("**/*.key", "deny"),
            ("**/.aws/config", "hide"),
            ("docs/**", "read-only"),
        ];
        let text: String = rules
            .iter()
            .map(|(path, action)| format!("[[rule]]\npath = \"{path}\"\naction = \"{action}\"\n"))
            .collect();
        let policy = Policy::parse(&text, "p").unwrap();
        let caller = CallerFacts { uid: 0, gid: 0, exe: None };
        let verdict = |path: &str| policy.decide_link(path.as_bytes(), &caller).verdict;
        for path in [".vscode", "a/b/.vscode", "tools", "tools/hooks", "docs"] {
            assert_eq!(verdict(path), Verdict::ReadOnly, "{path}");
        }
        for path in [".git", ".git/modules", ".git/modules/a"] {
            assert_eq!(verdict(path), Verdict::Deny, "{path}");
        }
        assert_eq!(verdict("x/.aws"), Verdict::Hide);
        let others =
            ["a", "a/b", "x.key", ".env", "tools/x", "node_modules/a/.vscode", "a/docs", "docs/x"];
        for path in others {
            assert_eq!(verdict(path), Verdict::Allow, "{path}");
        }
    }
}
