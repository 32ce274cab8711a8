//! Two policies that hold together: each answer is the stricter of the two.

use proptest::prelude::*;
use tollgate_policy::{CallerFacts, CannotJoin, Facts, Kind, Mode, Operation, Policy, Verdict};

fn policy(text: &str) -> Policy {
    Policy::parse(text, "p.toml").unwrap_or_else(|error| panic!("{error}"))
}

fn rule(path: &str, rest: &str) -> String {
    format!("[[rule]]\npath = '{path}'\n{rest}\n")
}

const PATHS: [&str; 7] = ["", "a", "a/b", "a/b/c", "keys", "keys/x", "z"];
const KINDS: [Kind; 3] = [Kind::File, Kind::Directory, Kind::Symlink];

fn facts(path: &str, kind: Kind) -> Facts<'_> {
    Facts { path: path.as_bytes(), kind, size: 1, head: None }
}

fn callers() -> [CallerFacts<'static>; 3] {
    [(0, None), (7, Some(&b"/bin/x"[..])), (8, Some(&b"/bin/y"[..]))]
        .map(|(uid, exe)| CallerFacts { uid, gid: uid, exe })
}

fn any_rule() -> impl Strategy<Value = String> {
    let path = prop::sample::select(vec!["**", "a", "a/**", "**/b", "keys", "**/x", "z*"]);
    let condition = prop::sample::select(vec![
        "",
        "uid = 7",
        "exe = '/bin/x'",
        "operation = 'read'",
        "operation = ['write', 'create']",
        "kind = 'file'",
        "size = { min = 1 }",
        "content = { magic = 'x' }",
        "mode = 'audit'",
    ]);
    let action =
        prop::sample::select(vec!["passthrough", "read-only", "deny", "hide", "userspace"]);
    (path, condition, action)
        .prop_map(|(path, condition, action)| {
            rule(path, &format!("{condition}\naction = '{action}'"))
        })
        .prop_filter("a rule that is refused", |text| Policy::parse(text, "p").is_ok())
}

fn any_policy() -> impl Strategy<Value = String> {
    let default = prop::sample::select(vec!["passthrough", "read-only", "deny", "userspace"]);
    (default, prop::collection::vec(any_rule(), 0..5))
        .prop_map(|(default, rules)| format!("default = '{default}'\n{}", rules.concat()))
}

proptest! {
    #[test]
    fn each_answer_is_the_stricter_of_two(one in any_policy(), other in any_policy()) {
        let both = policy(&one).joined(policy(&other), " (2)").unwrap();
        let (one, other) = (policy(&one), policy(&other));
        for path in PATHS {
            for kind in KINDS {
                let facts = facts(path, kind);
                let stricter = one.mode(&facts).0.max(other.mode(&facts).0);
                prop_assert_eq!(both.mode(&facts).0, stricter);
                let hidden = one.hidden(facts.path, kind).or(other.hidden(facts.path, kind));
                prop_assert_eq!(both.hidden(facts.path, kind).is_some(), hidden.is_some());
                for caller in callers() {
                    for operation in Operation::ALL {
                        let ask = |policy: &Policy| policy.decide(&facts, operation, &caller).verdict;
                        prop_assert_eq!(ask(&both), ask(&one).max(ask(&other)), "{}", path);
                    }
                }
            }
        }
    }

    /// What is only recorded refuses nothing in two policies either.
    #[test]
    fn rules_that_are_only_recorded_stay_so(one in any_policy(), other in any_policy()) {
        let both = policy(&one).joined(policy(&other), " (2)").unwrap();
        let enforced = |policy: Policy| policy.enforced().unwrap_or(policy);
        let (both, one, other) = (enforced(both), enforced(policy(&one)), enforced(policy(&other)));
        for path in PATHS {
            let facts = facts(path, Kind::File);
            for operation in Operation::ALL {
                let ask = |policy: &Policy| {
                    policy.decide(&facts, operation, &callers()[1]).verdict
                };
                prop_assert_eq!(ask(&both), ask(&one).max(ask(&other)));
            }
        }
    }

    /// A move that gives more under one of the policies is never called harmless, unless the other
    /// refuses as much before and after.
    #[test]
    fn a_weaker_name_is_noticed(one in any_policy(), other in any_policy()) {
        let both = policy(&one).joined(policy(&other), " (2)").unwrap();
        for from in PATHS {
            for to in PATHS {
                let (before, after) = (facts(from, Kind::File), facts(to, Kind::File));
                let more = callers().iter().any(|caller| {
                    [Operation::Read, Operation::Write, Operation::Create].iter().any(|operation| {
                        both.decide(&after, *operation, caller).verdict
                            < both.decide(&before, *operation, caller).verdict
                    })
                });
                prop_assert!(!more || both.weakens(&before, &after), "{from} to {to}");
            }
        }
    }
}

#[test]
fn the_rule_that_decided_keeps_its_name_and_equal_names_are_told_apart() {
    let one = rule("keys", "name = 'keys'\naction = 'read-only'");
    let other = rule("keys", "name = 'keys'\naction = 'deny'") + &rule("z", "action = 'hide'");
    let both = policy(&one).joined(policy(&other), " (.tollgate.toml)").unwrap();
    let decided = |path, operation| {
        let decision = both.decide(&facts(path, Kind::File), operation, &callers()[0]);
        (decision.verdict, decision.rule.map(|rule| both.rule(rule).name().to_owned()))
    };
    let denied = (Verdict::Deny, Some("keys (.tollgate.toml)".to_owned()));
    assert_eq!(decided("keys", Operation::Write), denied);
    assert_eq!(decided("z", Operation::Read), (Verdict::Hide, Some("rule 2".to_owned())));
    assert_eq!(decided("a", Operation::Read), (Verdict::Allow, None));
    assert_eq!(both.mode(&facts("a", Kind::File)).0, Mode::Passthrough);
}

#[test]
fn a_rule_in_front_stays_with_the_first() {
    let both = policy("default = 'passthrough'\n")
        .joined(
            policy(&("default = 'read-only'\n".to_owned() + &rule("a", "action = 'passthrough'"))),
            "",
        )
        .unwrap();
    let both = both.preceded_by(policy(&rule("a", "action = 'deny'"))).unwrap();
    let verdict =
        |path| both.decide(&facts(path, Kind::File), Operation::Write, &callers()[0]).verdict;
    assert_eq!((verdict("a"), verdict("z")), (Verdict::Deny, Verdict::ReadOnly));
}

#[test]
fn native_directories_that_the_other_reaches_into_are_refused() {
    let native = rule("target", "name = 'build'\naction = 'native'");
    let reaches = rule("**/.env", "name = 'env'\naction = 'hide'");
    let expected = |other: &str| CannotJoin::Native {
        directory: "target".to_owned(),
        native: "build".to_owned(),
        other: other.to_owned(),
    };
    let join = |one: &str, other: &str| policy(one).joined(policy(other), "").err();
    assert_eq!(join(&native, &reaches), Some(expected("rule `env`")));
    assert_eq!(join(&reaches, &native), Some(expected("rule `env`")));
    let default = "default = 'read-only'\n";
    assert_eq!(join(&native, default), Some(expected("the default `read-only`")));
    assert_eq!(join(&native, &rule("src/.env", "action = 'hide'")), None);
    let message = join(&native, &reaches).unwrap().to_string();
    assert!(message.contains("`target` native") && message.contains("rule `env`"), "{message}");
}

#[test]
fn names_of_both_stay_unique() {
    let named = |names: &[&str]| {
        let rule =
            |name: &&str| format!("[[rule]]\nname = '{name}'\npath = 'a'\naction = 'deny'\n");
        policy(&names.iter().map(rule).collect::<String>())
    };
    let both = named(&["x"]).joined(named(&["x", "x (2)", "y"]), " (2)").unwrap();
    let names: Vec<_> = both.rules().iter().map(tollgate_policy::Rule::name).collect();
    assert_eq!(names, ["x", "x (2)", "x (2) (2)", "y"]);
}
