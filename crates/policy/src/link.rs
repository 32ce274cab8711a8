//! Links in the place of a directory in which rules keep names.
//!
//! Rules go by paths, and the kernel follows a link before it asks: `.vscode -> z` would have
//! `.vscode/tasks.json` judged as `z/tasks.json`, while whoever reads it outside goes by the first.
//! So making a link is judged by what could be made in a directory of that name.

use crate::facts::{CallerFacts, Facts};
use crate::matched::Decision;
use crate::policy::Policy;
use crate::rule::{Holds, Rule};
use crate::words::{Kind, Operation, Verdict};

impl Policy {
    /// The decision on making a symbolic link at `path` by `caller`, as far as it follows from rules
    /// about names below it: those whose globs have it, by its name, on their way
    /// (`**/.vscode/tasks.json` has `.vscode`, and no other directory). Rules about `path` itself
    /// are left to [`Policy::decide`], and so is all behind a rule that covers it. Where it is not known
    /// whether a rule holds for the caller, the strictest that is possible; see
    /// [`Policy::link_needs_exe`].
    #[must_use]
    pub fn decide_link(&self, path: &[u8], caller: &CallerFacts<'_>) -> Decision {
        let mut strictest = Decision { verdict: Verdict::Allow, rule: None };
        for part in self.parts() {
            let rules = self.numbered().filter(|(id, rule)| part.has(*id) && is_about_links(rule));
            for (id, rule) in rules {
                let holds = rule.holds_for_caller(caller);
                if holds == Holds::No {
                    continue;
                }
                let settles = if rule.globs.iter().any(|glob| glob.covers(path)) {
                    rule.kinds.has(Kind::Symlink) && rule.kinds.has(Kind::File)
                } else {
                    let verdict = rule.action.verdict(Operation::Create);
                    let is_kept = verdict != Verdict::Allow
                        && rule.globs.iter().any(|glob| glob.leads_through(path));
                    if is_kept && verdict > strictest.verdict {
                        strictest = Decision { verdict, rule: Some(id) };
                    }
                    is_kept
                };
                // One that only may hold leaves it to the later ones, too.
                if settles && holds == Holds::Yes {
                    break;
                }
            }
        }
        strictest
    }

    /// Whether [`Policy::decide_link`] may depend on the caller's executable, whatever the path.
    #[must_use]
    pub fn link_needs_exe(&self) -> bool {
        let asks = |rule: &Rule| rule.caller.as_ref().is_some_and(|caller| caller.exes.is_some());
        !self.is_trivial() && self.rules.iter().any(|rule| is_about_links(rule) && asks(rule))
    }
}

/// Whether a rule has a say on what is made, whatever it holds.
fn is_about_links(rule: &Rule) -> bool {
    rule.operations.has(Operation::Create) && rule.size.is_none() && rule.content.is_none()
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

    #[test]
    fn who_is_not_known_makes_no_link_that_somebody_may_not() {
        let rule = |line: &str| format!("[[rule]]\n{line}\n");
        let symlinks = rule("path = '**'\nkind = 'symlink'\naction = 'passthrough'");
        let git = rule("path = '**'\nexe = '/usr/bin/git'\naction = 'passthrough'");
        let tasks = rule("path = '**/.vscode/tasks.json'\naction = 'read-only'");
        let by_node = rule("path = '**/.vscode/x'\nexe = '/usr/bin/node'\naction = 'read-only'");
        let all = rule("path = '**/.vscode/*.json'\naction = 'deny'");
        for (text, expected) in [
            (symlinks + &git + &tasks, Verdict::ReadOnly),
            (git + &tasks, Verdict::ReadOnly),
            (by_node.clone(), Verdict::ReadOnly),
            (by_node + &all, Verdict::Deny),
        ] {
            let policy = Policy::parse(&text, "p").unwrap();
            let verdict = |exe: Option<&[u8]>| {
                let caller = CallerFacts { uid: 0, gid: 0, exe };
                policy.decide_link(b".vscode", &caller).verdict
            };
            let unknown = verdict(None);
            assert_eq!(unknown, expected, "{text}");
            for exe in [&b"/bin/sh"[..], b"/usr/bin/git", b"/usr/bin/node"] {
                assert!(verdict(Some(exe)) <= unknown, "{}: {text}", exe.escape_ascii());
            }
        }
    }

    #[test]
    fn whether_links_depend_on_who_makes_them() {
        for (rule, expected) in [
            ("path = 'a/b'\nexe = '/usr/bin/node'\naction = 'deny'", true),
            ("path = 'a/b'\nexe = '/bin/x'\noperation = 'create'\naction = 'read-only'", true),
            ("path = 'a/b'\nexe = '/bin/x'\noperation = 'read'\naction = 'deny'", false),
            ("path = 'a/b'\nuid = 0\naction = 'deny'", false),
            ("path = 'a/b'\nexe = '/usr/bin/node'\naction = 'passthrough'", false),
        ] {
            let policy = Policy::parse(&format!("[[rule]]\n{rule}\n"), "p").unwrap();
            assert_eq!(policy.link_needs_exe(), expected, "{rule}");
        }
    }
}
