//! Random policies against a reference that is written for clarity alone: globs by backtracking
//! over characters, rules from top to bottom, every question from its definition.

use proptest::prelude::*;
use tollgate_policy::{
    CallerFacts, Contents, Facts, InodeFacts, Kind, Mode, Operation, Policy, RuleId, Verdict,
};

/// A rule as the generator made it.
#[derive(Clone, Debug)]
struct Plain {
    globs: Vec<String>,
    action: &'static str,
    operation: Option<Operation>,
    uid: Option<u32>,
    exe: Option<&'static str>,
    kind: Option<Kind>,
    min: Option<u64>,
    magic: Option<&'static str>,
}

impl Plain {
    fn to_toml(&self) -> String {
        let globs: Vec<_> = self.globs.iter().map(|glob| format!("'{glob}'")).collect();
        let mut text =
            format!("[[rule]]\npath = [{}]\naction = '{}'\n", globs.join(","), self.action);
        let mut line = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                text += &format!("{key} = {value}\n");
            }
        };
        line("operation", self.operation.map(|one| format!("'{one}'")));
        line("uid", self.uid.map(|uid| uid.to_string()));
        line("exe", self.exe.map(|exe| format!("'{exe}'")));
        line("kind", self.kind.map(|kind| format!("'{kind}'")));
        line("size", self.min.map(|min| format!("{{ min = {min} }}")));
        line("content", self.magic.map(|magic| format!("{{ magic = '{magic}' }}")));
        text
    }

    fn matches_inode(&self, facts: &Facts<'_>) -> bool {
        self.globs.iter().any(|glob| covers(glob, facts.path))
            && self.kind.is_none_or(|kind| kind == facts.kind)
            && self.min.is_none_or(|min| facts.kind == Kind::File && facts.size >= min)
            && self.magic.is_none_or(|magic| {
                facts.kind == Kind::File && facts.head.unwrap().starts_with(magic.as_bytes())
            })
    }

    fn matches(&self, facts: &Facts<'_>, operation: Operation, caller: &CallerFacts<'_>) -> bool {
        self.matches_inode(facts)
            && self.operation.is_none_or(|one| one == operation)
            && self.uid.is_none_or(|uid| uid == caller.uid)
            && self.exe.is_none_or(|exe| Some(exe.as_bytes()) == caller.exe)
    }

    fn is_for_everyone(&self) -> bool {
        self.operation.is_none() && self.uid.is_none() && self.exe.is_none()
    }

    fn is_fixed(&self) -> bool {
        self.is_for_everyone() && self.min.is_none() && self.magic.is_none()
    }
}

/// Whether `glob` matches `path` or a directory above it.
fn covers(glob: &str, path: &[u8]) -> bool {
    let path: Vec<char> = String::from_utf8(path.to_vec()).unwrap().chars().collect();
    let glob: Vec<char> = glob.chars().collect();
    (0..=path.len())
        .filter(|end| *end == path.len() || path[*end] == '/')
        // No name is empty: the root is matched by `**` alone.
        .any(|end| {
            if end == 0 {
                glob.split(|c| *c == '/').all(|part| part == ['*', '*'])
            } else {
                matches(&glob, &path[..end])
            }
        })
}

/// Whole-path matching, character by character.
fn matches(glob: &[char], path: &[char]) -> bool {
    match glob {
        [] => path.is_empty(),
        ['*', '*'] => true,
        ['/', '*', '*'] => path.len() > 1 && path[0] == '/',
        ['*', '*', '/', rest @ ..] => {
            let starts = (0..path.len()).filter(|at| *at == 0 || path[*at - 1] == '/');
            starts.into_iter().any(|at| matches(rest, &path[at..]))
        }
        ['*', rest @ ..] => {
            let reach = path.iter().position(|c| *c == '/').unwrap_or(path.len());
            (0..=reach).any(|end| matches(rest, &path[end..]))
        }
        ['?', rest @ ..] => {
            matches!(path, [first, tail @ ..] if *first != '/' && matches(rest, tail))
        }
        ['[', low, '-', high, ']', rest @ ..] => {
            matches!(path, [first, tail @ ..] if (*low..=*high).contains(first) && matches(rest, tail))
        }
        [c, rest @ ..] => matches!(path, [first, tail @ ..] if first == c && matches(rest, tail)),
    }
}

fn verdict(action: &str, operation: Operation) -> Verdict {
    let changes = matches!(operation, Operation::Write | Operation::Create);
    match action {
        "read-only" if changes => Verdict::ReadOnly,
        "deny" => Verdict::Deny,
        "hide" => Verdict::Hide,
        _ => Verdict::Allow,
    }
}

fn hidden(rules: &[Plain], facts: &Facts<'_>) -> Option<usize> {
    let first = rules.iter().position(|rule| rule.is_fixed() && rule.matches_inode(facts));
    first.filter(|at| rules[*at].action == "hide" && !facts.path.is_empty())
}

fn decide(
    default: &str,
    rules: &[Plain],
    facts: &Facts<'_>,
    operation: Operation,
    caller: &CallerFacts<'_>,
) -> (Verdict, Option<usize>) {
    if let Some(rule) = hidden(rules, facts) {
        return (Verdict::Hide, Some(rule));
    }
    let root = facts.path.is_empty();
    let first = rules.iter().position(|rule| {
        rule.matches(facts, operation, caller) && !(rule.action == "hide" && root)
    });
    (verdict(first.map_or(default, |at| rules[at].action), operation), first)
}

fn mode(default: &str, rules: &[Plain], facts: &Facts<'_>) -> (Mode, Option<usize>) {
    let first = rules.iter().position(|rule| {
        rule.matches_inode(facts)
            && rule.is_for_everyone()
            && matches!(rule.action, "passthrough" | "userspace")
    });
    let action = first.map_or(default, |at| rules[at].action);
    (if action == "userspace" { Mode::Userspace } else { Mode::Passthrough }, first)
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[ab]{1,2}", 1 => "(a|b|é)\\.(c|é)"]
}

fn any_path() -> impl Strategy<Value = String> {
    prop::collection::vec(any_name(), 0..5).prop_map(|names| names.join("/"))
}

fn any_glob() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => any_name(),
        2 => Just("**".to_owned()),
        1 => Just("*".to_owned()),
        2 => "(a|\\*|b)[ab](\\*|\\?)",
        1 => "\\*[ab.]{1,2}c?",
        1 => "[ab]{1,2}\\*",
        1 => "\\[a-b\\][ab?]{0,2}",
    ];
    let whole = prop::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"));
    whole.prop_filter("stars in a row in a name", |glob| {
        glob.split('/').all(|part| part == "**" || !part.contains("**"))
    })
}

fn any_rule() -> impl Strategy<Value = Plain> {
    let globs = prop::collection::vec(any_glob(), 1..4);
    let action =
        prop::sample::select(vec!["passthrough", "read-only", "deny", "hide", "userspace"]);
    let rare = |some| prop::option::weighted(0.25, some);
    let caller = (
        rare(prop::sample::select(Operation::ALL.to_vec()).boxed()),
        prop::option::weighted(0.25, 0_u32..3),
        prop::option::weighted(0.25, prop::sample::select(vec!["/bin/a", "/bin/b"])),
    );
    let inode = (
        prop::option::weighted(0.2, prop::sample::select(vec![Kind::File, Kind::Directory])),
        prop::option::weighted(0.2, 0_u64..4),
        prop::option::weighted(0.2, prop::sample::select(vec!["M", "MM"])),
    );
    (globs, action, caller, inode).prop_map(|(globs, action, caller, inode)| {
        let (mut operation, mut uid, mut exe) = caller;
        let (kind, mut min, mut magic) = inode;
        if matches!(action, "hide" | "userspace") {
            (operation, uid, exe) = (None, None, None);
        }
        if action == "hide" {
            (min, magic) = (None, None);
        }
        Plain { globs, action, operation, uid, exe, kind, min, magic }
    })
}

fn any_policy() -> impl Strategy<Value = (&'static str, Vec<Plain>)> {
    let default = prop::sample::select(vec!["passthrough", "read-only", "deny", "userspace"]);
    (default, prop::collection::vec(any_rule(), 0..6))
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![Kind::File, Kind::Directory, Kind::Symlink])
}

fn any_head() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "M", "MM", "x"])
}

fn compile(default: &str, rules: &[Plain]) -> Policy {
    let text: String = rules.iter().map(Plain::to_toml).collect();
    Policy::parse(&format!("default = '{default}'\n{text}"), "p.toml")
        .unwrap_or_else(|error| panic!("{error}"))
}

const CALLERS: [CallerFacts<'static>; 6] = [
    CallerFacts { uid: 0, gid: 0, exe: Some(b"/bin/a") },
    CallerFacts { uid: 0, gid: 0, exe: Some(b"/bin/b") },
    CallerFacts { uid: 1, gid: 0, exe: Some(b"/bin/a") },
    CallerFacts { uid: 1, gid: 0, exe: Some(b"/bin/c") },
    CallerFacts { uid: 2, gid: 0, exe: Some(b"/bin/b") },
    CallerFacts { uid: 3, gid: 0, exe: Some(b"/bin/c") },
];

/// `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig { failure_persistence: None, cases: asked.cases.max(500), ..asked }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn answers_are_those_of_the_reference(
        (default, rules) in any_policy(),
        paths in prop::collection::vec(any_path(), 1..6),
        kind in any_kind(),
        size in 0_u64..5,
        head in any_head(),
    ) {
        let policy = compile(default, &rules);
        // A policy that allows everything names no rule.
        let named = |rule| if policy.is_trivial() { None } else { rule };
        for path in &paths {
            let facts = Facts { path: path.as_bytes(), kind, size, head: Some(head.as_bytes()) };
            let found = policy.hidden(facts.path, kind).map(RuleId::index);
            prop_assert_eq!(found, hidden(&rules, &facts), "hidden {:?}", path);
            let (found, rule) = policy.mode(&facts);
            let (expected, by) = mode(default, &rules, &facts);
            prop_assert_eq!((found, rule.map(RuleId::index)), (expected, named(by)), "mode {:?}", path);
            for operation in Operation::ALL {
                for caller in &CALLERS {
                    let found = policy.decide(&facts, operation, caller);
                    let (verdict, by) = decide(default, &rules, &facts, operation, caller);
                    prop_assert_eq!(
                        (found.verdict, found.rule.map(RuleId::index)),
                        (verdict, named(by)),
                        "{:?} {:?} {:?}", path, operation, caller
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_not_needed_makes_no_difference(
        (default, rules) in any_policy(),
        path in any_path(),
        kind in any_kind(),
        size in 1_u64..5,
        head in any_head(),
    ) {
        let policy = compile(default, &rules);
        let facts = Facts { path: path.as_bytes(), kind, size, head: Some(head.as_bytes()) };
        let blind = Facts { head: None, ..facts };
        let needs = policy.needs_caller(facts.path, kind);
        for operation in Operation::ALL {
            for caller in &CALLERS {
                let full = policy.decide(&facts, operation, caller);
                if !policy.needs_head(facts.path, kind, size) {
                    prop_assert_eq!(full, policy.decide(&blind, operation, caller));
                    prop_assert_eq!(policy.mode(&facts), policy.mode(&blind));
                }
                if !needs.exe {
                    prop_assert_eq!(full, policy.decide(&facts, operation, &CallerFacts { exe: None, ..*caller }));
                }
                if !needs.ids {
                    prop_assert_eq!(full, policy.decide(&facts, operation, &CallerFacts { uid: 77, gid: 77, ..*caller }));
                }
            }
        }
    }

    /// Where everybody may read, no caller, content or size is refused or not passed through; and where
    /// no rule of the policy has a condition, the other way round.
    #[test]
    fn where_everybody_may_read_nothing_depends_on_who_or_what(
        (default, rules) in any_policy(),
        path in any_path(),
    ) {
        let policy = compile(default, &rules);
        let all_may = policy.at(path.as_bytes()).lets_everybody_read();
        let mut plain = true;
        for head in ["", "M", "MM", "x"] {
            for size in 0_u64..5 {
                let kind = Kind::File;
                let facts = Facts { path: path.as_bytes(), kind, size, head: Some(head.as_bytes()) };
                plain &= mode(default, &rules, &facts).0 == Mode::Passthrough;
                for caller in &CALLERS {
                    let verdict = decide(default, &rules, &facts, Operation::Read, caller).0;
                    plain &= verdict == Verdict::Allow;
                }
            }
        }
        prop_assert!(!all_may || plain);
        let has_conditions = |rule: &Plain| {
            rule.operation.is_some() || rule.uid.is_some() || rule.exe.is_some()
                || rule.min.is_some() || rule.magic.is_some()
        };
        prop_assert!(all_may == plain || rules.iter().any(has_conditions));
    }

    /// What was found out about a content, under one name, answers for the content itself, under
    /// another; what was not found out there is said to be needed.
    #[test]
    fn what_is_known_of_a_content_answers_for_it(
        (default, rules) in any_policy(),
        (path, other) in (any_path(), any_path()),
        kind in any_kind(),
        size in 1_u64..5,
        head in any_head(),
    ) {
        let policy = compile(default, &rules);
        let facts = InodeFacts { kind, size, head: Some(head.as_bytes()) };
        let blind = InodeFacts { head: None, ..facts };
        let mut judged = policy.at(path.as_bytes());
        judged.judge_content(&blind);
        prop_assert_eq!(judged.contents(), &Contents::default(), "nothing to try it on");
        judged.judge_content(&facts);
        prop_assert!(!judged.needs_head(kind, size));
        let mut elsewhere = policy.at(other.as_bytes());
        elsewhere.take_over_contents(judged.contents().clone());
        if elsewhere.needs_head(kind, size) {
            elsewhere.judge_content(&facts);
        }
        for (known, path) in [(&judged, &path), (&elsewhere, &other)] {
            let plain = policy.at(path.as_bytes());
            prop_assert_eq!(known.mode(&blind), plain.mode(&facts));
            prop_assert_eq!(known.mode(&facts), plain.mode(&facts));
            for operation in Operation::ALL {
                for caller in &CALLERS {
                    let expected = plain.decide(&facts, operation, caller);
                    prop_assert_eq!(known.decide(&blind, operation, caller), expected);
                    prop_assert_eq!(known.decide(&facts, operation, caller), expected);
                }
            }
            // Whatever others hold, or this one holds later, is not known.
            prop_assert!(known.is_like(&plain));
            for operation in Operation::ALL {
                prop_assert_eq!(
                    known.laxest(kind, operation, &CALLERS[0]),
                    plain.laxest(kind, operation, &CALLERS[0])
                );
            }
        }
    }

    /// Whatever the file holds, no answer is laxer; and one of them is so lax where the conditions
    /// on what it holds do not exclude each other.
    #[test]
    fn the_laxest_answer_is_that_of_some_content(
        (default, rules) in any_policy(),
        path in any_path(),
        kind in any_kind(),
    ) {
        let policy = compile(default, &rules);
        let rules_at = policy.at(path.as_bytes());
        // Every size is 0 at least: that is no condition.
        let conditions = rules.iter().filter(|rule| rule.min.is_some() || rule.magic.is_some()).count()
            + rules.iter().filter(|rule| rule.min == Some(0)).count();
        for operation in Operation::ALL {
            for caller in &CALLERS {
                let laxest = rules_at.laxest(kind, operation, caller);
                let mut found = Vec::new();
                for head in ["", "M", "MM", "x"] {
                    for size in 0_u64..5 {
                        let facts = Facts { path: path.as_bytes(), kind, size, head: Some(head.as_bytes()) };
                        found.push(decide(default, &rules, &facts, operation, caller).0);
                    }
                }
                prop_assert!(found.iter().all(|one| laxest <= *one), "{:?} {:?}", laxest, found);
                prop_assert!(conditions > 1 || found.contains(&laxest), "{:?} {:?}", laxest, found);
            }
        }
    }

    #[test]
    fn what_some_caller_is_refused_is_never_missed(
        (default, rules) in any_policy(),
        path in any_path(),
        kind in any_kind(),
        size in 0_u64..5,
        head in any_head(),
    ) {
        let policy = compile(default, &rules);
        let rules_at = policy.at(path.as_bytes());
        let facts = InodeFacts { kind, size, head: Some(head.as_bytes()) };
        for caller in &CALLERS {
            let refuses = |operation| rules_at.decide(&facts, operation, caller).verdict != Verdict::Allow;
            for operation in Operation::ALL {
                prop_assert!(!refuses(operation) || rules_at.may_refuse(&facts, operation));
            }
            let laxest = rules_at.laxest(kind, Operation::Read, caller);
            let hangs_on_it = refuses(Operation::Read) && laxest == Verdict::Allow;
            prop_assert!(!hangs_on_it || rules_at.may_refuse_in_part(&facts));
        }
    }

    #[test]
    fn what_is_not_known_never_helps(
        (default, rules) in any_policy(),
        path in any_path(),
        kind in any_kind(),
        size in 1_u64..5,
        head in any_head(),
    ) {
        let policy = compile(default, &rules);
        let facts = Facts { path: path.as_bytes(), kind, size, head: Some(head.as_bytes()) };
        let blind = Facts { head: None, ..facts };
        prop_assert!(policy.mode(&blind).0 >= policy.mode(&facts).0);
        for operation in Operation::ALL {
            for caller in &CALLERS {
                let full = policy.decide(&facts, operation, caller).verdict;
                let unknown = CallerFacts { exe: None, ..*caller };
                prop_assert!(policy.decide(&blind, operation, caller).verdict >= full);
                prop_assert!(policy.decide(&facts, operation, &unknown).verdict >= full);
                prop_assert!(policy.decide(&blind, operation, &unknown).verdict >= full);
            }
        }
    }

    /// "Does not weaken" is a promise about every caller, known or not.
    #[test]
    fn a_move_said_to_be_safe_gives_nobody_more(
        (default, rules) in any_policy(),
        from in any_path(),
        to in any_path(),
        kind in any_kind(),
        size in 0_u64..5,
        head in prop::option::of(any_head()),
    ) {
        let policy = compile(default, &rules);
        let head = head.map(str::as_bytes);
        let from = Facts { path: from.as_bytes(), kind, size, head };
        let to = Facts { path: to.as_bytes(), ..from };
        if policy.weakens(&from, &to) {
            return Ok(());
        }
        // What was not known to the question may come to be known.
        let heads = if head.is_some() || size == 0 { vec![head] } else { vec![None, Some(&b""[..]), Some(b"M"), Some(b"MM")] };
        for head in heads {
            let (from, to) = (Facts { head, ..from }, Facts { head, ..to });
            prop_assert!(policy.mode(&to).0 >= policy.mode(&from).0);
            for operation in Operation::ALL {
                if operation == Operation::List && kind != Kind::Directory {
                    continue;
                }
                for caller in CALLERS.iter().flat_map(|known| [*known, CallerFacts { exe: None, ..*known }]) {
                    let before = policy.decide(&from, operation, &caller).verdict;
                    let after = policy.decide(&to, operation, &caller).verdict;
                    prop_assert!(after >= before, "{:?} {:?}: {:?} to {:?}", operation, caller, before, after);
                }
            }
        }
    }

    #[test]
    fn a_neutral_move_changes_nothing_below(
        (default, rules) in any_policy(),
        from in any_path(),
        to in any_path(),
        below in prop::collection::vec(any_path(), 1..8),
    ) {
        let policy = compile(default, &rules);
        if !policy.subtree_move_is_neutral(from.as_bytes(), to.as_bytes()) {
            return Ok(());
        }
        for path in below.iter().filter(|path| !path.is_empty()) {
            let join = |dir: &str| if dir.is_empty() { path.clone() } else { format!("{dir}/{path}") };
            let (old, new) = (join(&from), join(&to));
            let old = Facts { path: old.as_bytes(), kind: Kind::File, size: 3, head: Some(b"M") };
            let new = Facts { path: new.as_bytes(), ..old };
            prop_assert_eq!(policy.mode(&old), policy.mode(&new));
            for caller in &CALLERS {
                for operation in Operation::ALL {
                    prop_assert_eq!(
                        policy.decide(&old, operation, caller),
                        policy.decide(&new, operation, caller)
                    );
                }
            }
        }
    }

    /// A second opinion on globs from the `globset` crate, asked for the path and each directory
    /// above.
    #[test]
    fn globs_agree_with_globset(glob in any_glob(), path in any_path()) {
        // There `?` is one byte, here one character; and the root is not a path there.
        if path.is_empty() || (glob.contains('?') && !path.is_ascii()) {
            return Ok(());
        }
        let theirs = globset::GlobBuilder::new(&glob).literal_separator(true).build().unwrap();
        let theirs = theirs.compile_matcher();
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        let expected = ends.into_iter().any(|end| theirs.is_match(&path[..end]));
        let policy = Policy::parse(&format!("[[rule]]\npath = '{glob}'\naction = 'deny'"), "p").unwrap();
        let facts = Facts { path: path.as_bytes(), kind: Kind::File, size: 0, head: None };
        let found = policy.decide(&facts, Operation::Read, &CALLERS[0]).verdict == Verdict::Deny;
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_text_is_an_answer(text in "\\PC{0,200}") {
        let _ = Policy::parse(&text, "p.toml");
    }
}
