//! Rules that never matter, exceptions that do not hold, and what cannot be reached: each is said, and
//! nothing is said of rules that do matter.

use proptest::prelude::*;
use tollgate_policy::{CallerFacts, Facts, Kind, Operation, Policy, Verdict};

/// The messages of a policy of these rules: path, action and a further line.
fn warnings(rules: &[(&str, &str, &str)]) -> Vec<String> {
    let rule = |(path, action, rest): &(&str, &str, &str)| {
        format!("[[rule]]\npath = '{path}'\naction = '{action}'\n{rest}\n")
    };
    let text: String = rules.iter().map(rule).collect();
    let policy = Policy::parse(&text, "p.toml").unwrap_or_else(|error| panic!("{error}"));
    policy.warnings().iter().map(|warning| warning.message().to_owned()).collect()
}

#[test]
fn a_rule_that_an_earlier_one_leaves_nothing_is_named() {
    for (first, later) in [
        (("a", "deny", ""), ("a/b", "hide", "")),
        (("docs/**", "deny", ""), ("docs/x", "read-only", "")),
        (("docs/**", "deny", ""), ("docs/**/*.md", "passthrough", "")),
        (("**/.env", "deny", ""), ("sub/.env", "hide", "")),
        (("**/.env", "hide", ""), ("{a,b/c}/.env", "passthrough", "uid = 7")),
        (("*", "deny", ""), ("a/b", "passthrough", "")),
        (("**/*.pem", "deny", ""), ("**/x.pem", "passthrough", "")),
        (("docs", "read-only", ""), ("docs/tmp", "passthrough", "")),
        (("docs", "deny", ""), ("docs/tmp", "userspace", "")),
        (("a", "deny", "kind = 'file'"), ("a", "hide", "kind = 'file'")),
        (("a", "deny", "kind = 'file'"), ("a", "passthrough", "size = { min = 1 }")),
        (("a", "deny", "mode = 'audit'"), ("a/b", "hide", "mode = 'audit'")),
        (("a", "passthrough", ""), ("a/b", "deny", "mode = 'audit'")),
        (("target", "native", ""), ("target/**/x", "deny", "")),
    ] {
        let said = warnings(&[first, later]);
        assert_eq!(said.len(), 1, "{first:?} {later:?}: {said:?}");
        assert!(said[0].starts_with("rule `rule 2` is never reached: "), "{said:?}");
    }
}

#[test]
fn nothing_is_said_of_a_rule_that_something_is_left_for() {
    for (first, later) in [
        (("a/b", "deny", ""), ("a", "hide", "")),
        (("docs/**", "deny", ""), ("docs", "hide", "")),
        (("**/.env", "deny", ""), ("**/.env*", "hide", "")),
        (("a", "deny", "kind = 'file'"), ("a/b", "hide", "")),
        (("a", "deny", "uid = 7"), ("a/b", "read-only", "")),
        (("a", "deny", "size = { min = 1 }"), ("a/b", "deny", "")),
        (("a", "deny", "operation = 'read'"), ("a/b", "deny", "")),
        // What is enforced decides as if the first were not there.
        (("a", "deny", "mode = 'audit'"), ("a/b", "deny", "")),
        // The I/O mode is left to later rules, and what is encrypted stays so.
        (("a", "read-only", ""), ("a/b", "userspace", "")),
        (("a", "deny", ""), ("a/b", "seal", "domain = 'd'")),
        // DIR itself is not hidden.
        (("**", "hide", ""), ("**", "deny", "operation = 'list'")),
    ] {
        assert_eq!(warnings(&[first, later]), [""; 0], "{first:?} {later:?}");
    }
    for first in [("docs/x/a", "read-only", ""), ("docs/*", "passthrough", "uid = 7")] {
        let denied = ("docs/**", "deny", "");
        assert_eq!(warnings(&[first, denied, ("docs/x", "userspace", "")]), [""; 0], "{first:?}");
    }
    let read_only = ("docs", "read-only", "");
    let rules = [read_only, ("docs/tmp", "passthrough", ""), ("docs/**", "userspace", "")];
    assert_eq!(warnings(&rules), [""; 0]);
}

#[test]
fn an_exception_that_does_not_hold_is_named() {
    for (exception, hide) in [
        (("a/k", "passthrough", "exe = '/bin/x'"), ("a/**", "hide", "")),
        (("a/k", "passthrough", "uid = 7"), ("**/k", "hide", "")),
        (("a/k", "passthrough", "size = { max = 7 }"), ("**", "hide", "")),
        (("a/k", "read-only", "gid = 7"), ("a", "hide", "")),
        (("a/k", "passthrough", "operation = 'read'"), ("a/k", "hide", "kind = 'file'")),
        (("**", "passthrough", "uid = 7"), ("**/.env", "hide", "")),
        (("docs/**", "passthrough", "uid = 7"), ("docs/a/x", "hide", "")),
    ] {
        let said = warnings(&[exception, hide]);
        assert_eq!(said.len(), 1, "{exception:?} {hide:?}: {said:?}");
        let expected = "rule `rule 1` on line 1 is no exception to this `hide`: ";
        assert!(said[0].starts_with(expected), "{said:?}");
    }
}

#[test]
fn nothing_is_said_of_rules_that_are_no_exception_or_hold() {
    // It is hidden anyway.
    assert_eq!(warnings(&[("a/k", "deny", "uid = 7"), ("a/**", "hide", "")]), [""; 0]);
    let writes = ("**", "read-only", "operation = ['write', 'create']");
    assert_eq!(warnings(&[writes, ("**/.env", "hide", "")]), [""; 0]);
    // Other kinds, other paths.
    let large = ("a/k", "passthrough", "size = { min = 7 }");
    assert_eq!(warnings(&[large, ("a/*", "hide", "kind = 'directory'")]), [""; 0]);
    assert_eq!(warnings(&[("a/k", "passthrough", "uid = 7"), ("b/**", "hide", "")]), [""; 0]);
    // The example of docs/policy.md: a rule for everyone shows it.
    let seen = ("src", "userspace", "size = { min = '10 MiB' }");
    assert_eq!(warnings(&[seen, ("src", "passthrough", ""), ("**", "hide", "")]), [""; 0]);
    let denied = [("a/k", "passthrough", "uid = 7"), ("a/*", "deny", ""), ("**", "hide", "")];
    assert_eq!(warnings(&denied), [""; 0]);
}

#[test]
fn what_lies_in_a_hidden_directory_is_named() {
    assert_eq!(
        warnings(&[("a/k", "passthrough", ""), ("a", "hide", "")]),
        ["nothing below `a` can be reached: rule `rule 2` on line 5 hides `a`; allow the \
          directories on the way before it"]
    );
    for (path, above) in [("src/**", "src"), ("a/b/c", "a"), ("x/*.c", "x")] {
        let said = warnings(&[(path, "read-only", ""), ("**", "hide", "")]);
        assert!(said[0].starts_with(&format!("nothing below `{above}` can ")), "{path}: {said:?}");
        assert_eq!(said.len(), 1);
    }
    for rules in [
        [("src", "passthrough", ""), ("**", "hide", "")],
        [("a/k", "passthrough", ""), ("a", "hide", "mode = 'audit'")],
        [("a/k", "passthrough", ""), ("a/*", "hide", "")],
        [("a/k", "deny", ""), ("a", "hide", "")],
        [("**/k", "passthrough", ""), ("a", "hide", "")],
        [("a/k", "passthrough", ""), ("*", "hide", "kind = 'file'")],
    ] {
        assert_eq!(warnings(&rules), [""; 0], "{rules:?}");
    }
    let way = [
        ("a/k", "passthrough", ""),
        ("a", "passthrough", "kind = 'directory'"),
        ("**", "hide", ""),
    ];
    assert_eq!(warnings(&way), [""; 0]);
}

fn any_rule() -> impl Strategy<Value = String> {
    let path = prop::sample::select(vec![
        "**", "*", "a", "a/**", "a/b", "a/*/c", "**/b", "**/b*", "*/b", "**/[ab]", "b/**/c", "?",
    ]);
    let rest = prop::sample::select(vec!["", "", "", "uid = 7", "kind = 'file'", "mode = 'audit'"]);
    let action =
        prop::sample::select(vec!["passthrough", "read-only", "deny", "hide", "userspace"]);
    (path, action, rest)
        .prop_map(|(path, action, rest)| {
            format!("[[rule]]\npath = '{path}'\naction = '{action}'\n{rest}\n")
        })
        .prop_filter("a rule that is refused", |text| Policy::parse(text, "p").is_ok())
}

/// Fails where the two answer otherwise. How bytes travel makes a difference only where they do.
fn answer_alike(one: &Policy, other: &Policy, facts: &Facts<'_>) -> Result<(), TestCaseError> {
    for uid in [7, 8] {
        let caller = CallerFacts { uid, gid: 0, exe: None };
        for operation in Operation::ALL {
            let ask = |policy: &Policy| {
                let verdict = policy.decide(facts, operation, &caller).verdict;
                (verdict, (verdict == Verdict::Allow).then(|| policy.mode(facts).0))
            };
            prop_assert_eq!(ask(one), ask(other), "{:?} {:?}", facts, operation);
        }
    }
    Ok(())
}

proptest! {
    /// Without a rule that is said never to be reached, all answers are the same.
    #[test]
    fn a_rule_that_is_never_reached_makes_no_difference(
        rules in prop::collection::vec(any_rule(), 2..6),
        paths in prop::collection::vec("(a|b|c|bb)(/(a|b|c|bb)){0,3}", 1..8),
    ) {
        let read = |text: &str| Policy::parse(text, "p").unwrap();
        let whole = read(&rules.concat());
        let dead = whole.warnings().iter().filter(|one| one.message().contains("never reached"));
        for line in dead.map(tollgate_policy::Warning::line) {
            let kept = whole.rules().iter().zip(&rules).filter(|(rule, _)| rule.line() != line);
            let rest = read(&kept.map(|(_, text)| &**text).collect::<String>());
            for path in paths.iter().map(String::as_bytes).chain([&b""[..]]) {
                for kind in [Kind::File, Kind::Directory] {
                    let facts = Facts { path, kind, size: 1, head: None };
                    answer_alike(&whole, &rest, &facts)?;
                    if let (Some(whole), Some(rest)) = (whole.enforced(), rest.enforced()) {
                        answer_alike(&whole, &rest, &facts)?;
                    }
                }
            }
        }
    }
}
