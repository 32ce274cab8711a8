//! Rules about files whose bytes the view makes: `redact` and `seal`.

use tollgate_policy::{
    CallerFacts, Facts, InodeFacts, Kind, Made, Mode, Operation, Policy, PolicyError, Verdict,
};
use tollgate_redact::Detector;

fn parse(rest: &str) -> Result<Policy, PolicyError> {
    Policy::parse(&format!("[[rule]]\npath = 'a/**'\n{rest}\n"), "p.toml")
}

fn policy(text: &str) -> Policy {
    Policy::parse(text, "p.toml").unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn refused(rest: &str) -> String {
    let Err(error) = parse(rest) else { panic!("`{rest}` is taken") };
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

const FILE: InodeFacts<'_> = InodeFacts { kind: Kind::File, size: 9, head: None };

fn facts(path: &str) -> Facts<'_> {
    Facts { path: path.as_bytes(), kind: Kind::File, size: 9, head: None }
}

fn made(policy: &Policy, path: &str) -> Made {
    let mut made = Made::default();
    policy.at(path.as_bytes()).made(&FILE, &mut made);
    made
}

fn redact(path: &str, rest: &str) -> String {
    format!("[[rule]]\npath = '{path}'\naction = 'redact'\n{rest}\n")
}

fn seal(path: &str, domain: &str) -> String {
    format!("[[rule]]\npath = '{path}'\naction = 'seal'\ndomain = '{domain}'\n")
}

#[test]
fn a_redacted_file_is_read_and_not_written() {
    let policy = policy(&redact("a/**", ""));
    let nobody = CallerFacts { uid: 1, gid: 1, exe: None };
    let verdict = |operation| policy.decide(&facts("a/x"), operation, &nobody).verdict;
    assert_eq!(verdict(Operation::Read), Verdict::Allow);
    assert_eq!(verdict(Operation::Write), Verdict::ReadOnly);
    assert_eq!(verdict(Operation::Create), Verdict::ReadOnly);
    assert_eq!(policy.mode(&facts("a/x")).0, Mode::Redacted);
    assert_eq!(policy.mode(&facts("b")).0, Mode::Passthrough);
    assert!(policy.makes_bytes() && !policy.seals() && !policy.is_trivial());
    let [one] = &made(&policy, "a/x").redactions[..] else { panic!("one rule") };
    assert!(!one.detectors().contains(&Detector::Env), "the default ones");
    assert_eq!(one.max_size(), 1 << 30);
}

#[test]
fn an_earlier_rule_about_an_operation_or_a_caller_does_not_let_a_redacted_file_be_changed() {
    let root = CallerFacts { uid: 0, gid: 0, exe: None };
    let all = [Kind::File, Kind::Directory, Kind::Symlink];
    for condition in ["operation = ['write', 'create']", "uid = 0", "exe = '/usr/bin/*'"] {
        let lets = format!("[[rule]]\npath = '**'\naction = 'passthrough'\n{condition}\n");
        let one = policy(&(lets.clone() + &redact("a/**", "name = 'red'")));
        for (kind, operation) in all.iter().flat_map(|kind| Operation::ALL.map(|one| (*kind, one)))
        {
            let facts = Facts { kind, ..facts("a/x") };
            let decision = one.decide(&facts, operation, &root);
            let changes = matches!(operation, Operation::Write | Operation::Create);
            let expected = if changes { Verdict::ReadOnly } else { Verdict::Allow };
            assert_eq!(decision.verdict, expected, "{condition} {kind} {operation}");
            if changes {
                let rule = decision.rule.map(|id| one.rule(id).name());
                assert_eq!(rule, Some("red"), "{condition} {kind} {operation}");
            }
        }
        let decision = one.decide(&facts("b"), Operation::Write, &root);
        assert_eq!(decision.verdict, Verdict::Allow, "{condition}");
        // A stricter answer stays.
        let denies = lets.replace("passthrough", "deny").replace("/usr/bin/*", "**");
        let two = policy(&(denies + &redact("a/**", "")));
        let decision = two.decide(&facts("a/x"), Operation::Write, &root);
        assert_eq!(decision.verdict, Verdict::Deny, "{condition}");
    }
    // An exception for everybody is not redacted, and an earlier one by path holds.
    let exception = "[[rule]]\npath = 'a/x'\naction = 'passthrough'\n";
    let three = policy(&(exception.to_owned() + &redact("a/**", "")));
    let decision = three.decide(&facts("a/x"), Operation::Write, &root);
    assert_eq!(
        (decision.verdict, three.mode(&facts("a/x")).0),
        (Verdict::Allow, Mode::Passthrough)
    );
}

#[test]
fn detectors_expressions_and_the_limit_are_read() {
    let text = redact(
        "**",
        "detectors = ['env', 'card', 'env']\nregexes = { ticket = 'ACME-[0-9]{8}' }\n\
         max_size = '2 MiB'",
    );
    let [one] = &made(&policy(&text), "x").redactions[..] else { panic!("one rule") };
    assert_eq!(one.detectors(), [Detector::Card, Detector::Env]);
    assert_eq!((one.regexes()[0].name(), one.max_size()), ("ticket", 2 << 20));
    let only = policy(&redact("**", "regexes = { ticket = 'ACME-[0-9]{8}' }"));
    let made = made(&only, "x");
    assert!(made.redactions[0].detectors().is_empty(), "expressions alone were asked for");
}

#[test]
fn mistakes_are_named_where_they_are() {
    for (rest, expected) in [
        (
            "action = 'redact'\ndetectors = ['token', 'tokn']",
            "p.toml:4:23: `detectors`: `tokn` is no detector; there are private-key, token, \
             url-password, jwt, card, assigned, env",
        ),
        (
            "action = 'redact'\ndetectors = []",
            "p.toml:4:13: `detectors` is empty; leave it out for \
             the default ones",
        ),
        (
            "action = 'redact'\nregexes = { all = 'x.*' }",
            "p.toml:4:19: regex: `x.*`: a match has no maximum length; write a bounded repetition, \
             such as {0,100} in place of *",
        ),
        (
            "action = 'redact'\nregexes = 'x'",
            "p.toml:4:11: `regexes` is a string; allowed: a table of names with expressions, such as { \
             ticket = 'ACME-[0-9]{8}' }",
        ),
        (
            "action = 'redact'\nuid = 7",
            "p.toml:4:1: `redact` cannot depend on `uid`: whoever opens a file gets the same bytes as \
             everybody; allowed: path, kind, size, content",
        ),
        (
            "action = 'deny'\nmax_size = 7",
            "p.toml:4:1: `max_size` belongs to `redact` rules; this one is `deny`",
        ),
        (
            "action = 'redact'\ndomain = 'x'",
            "p.toml:4:1: `domain` belongs to `seal` rules; this one is `redact`",
        ),
        (
            "action = 'seal'",
            "p.toml:1:1: rule without `domain`; write `domain = \"NAME\"`; files are bound to it, and \
             open under no other",
        ),
        ("action = 'seal'\ndomain = ''", "p.toml:4:10: `domain` has 0 bytes; allowed: 1 to 255"),
        (
            "action = 'seal'\ndomain = 'v'\ncontent = { magic = 'x' }",
            "p.toml:5:1: `seal` cannot depend on `content`: a file is sealed for everybody and as long \
             as it has its name; allowed: path, kind",
        ),
        (
            "action = 'redact'\nmode = 'audit'",
            "p.toml:4:1: `mode = \"audit\"` records what a rule would refuse, and `redact` refuses \
             nothing",
        ),
    ] {
        assert_eq!(refused(rest), expected);
    }
}

#[test]
fn a_move_must_not_mask_less() {
    let policy = policy(
        &[
            redact("all/**", "detectors = ['token', 'card']"),
            redact("few/**", "detectors = ['token']"),
            redact("small/**", "detectors = ['token']\nmax_size = 10"),
            "[[rule]]\npath = 'seen/**'\naction = 'userspace'\n".to_owned(),
        ]
        .concat(),
    );
    let weakens = |from: &str, to: &str| {
        policy.at(from.as_bytes()).weakens(&FILE, &policy.at(to.as_bytes()), &FILE)
    };
    assert!(weakens("all/x", "few/x") && !weakens("few/x", "all/x"));
    assert!(weakens("small/x", "few/x") && !weakens("few/x", "small/x"));
    assert!(weakens("few/x", "plain") && weakens("few/x", "seen/x"));
    assert!(
        !weakens("plain", "few/x") && !weakens("seen/x", "few/x") && !weakens("all/x", "all/y")
    );
}

#[test]
fn what_is_sealed_stays_so_and_what_is_not_too() {
    let policy = policy(&[seal("vault/**", "v"), seal("other/**", "o")].concat());
    let weakens = |from: &str, to: &str| {
        policy.at(from.as_bytes()).weakens(&FILE, &policy.at(to.as_bytes()), &FILE)
    };
    assert!(policy.seals() && policy.mode(&facts("vault/x")).0 == Mode::Sealed);
    assert!(!weakens("vault/x", "vault/y"));
    assert!(weakens("vault/x", "plain") && weakens("plain", "vault/x"));
    assert!(weakens("vault/x", "other/x"));
    assert_eq!(made(&policy, "vault/x").domains, ["v".into()]);
}

/// Two names, two policies, or a content that is not known: all that may be meant holds.
#[test]
fn everything_that_may_be_meant_holds() {
    let text = redact("**/*.txt", "detectors = ['card']\ncontent = { magic = 'x' }")
        + &redact("**", "detectors = ['env']");
    let one = policy(&text);
    assert_eq!(made(&one, "a.txt").redactions.len(), 2);
    assert_eq!(made(&one, "a").redactions.len(), 1);
    let mut anywhere = Made::default();
    one.made_anywhere(&FILE, &mut anywhere);
    assert_eq!(anywhere.redactions.len(), 2);
    let other = policy(&redact("a", "detectors = ['token']"));
    let both = one.joined(other, " (2)").unwrap();
    assert_eq!((made(&both, "a").redactions.len(), made(&both, "b").redactions.len()), (2, 1));
    assert_eq!(both.mode(&facts("a")).0, Mode::Redacted);
}

#[test]
fn an_explanation_names_the_mode() {
    let policy = policy(&redact("a/**", ""));
    let nobody = CallerFacts { uid: 1, gid: 1, exe: None };
    let text = policy.explain(&facts("a/x"), None, &nobody).to_string();
    assert!(text.contains("  write: refused with EROFS, by rule `rule 1` (line 1)"), "{text}");
    assert!(text.contains("  I/O mode: redacted, by rule `rule 1`"), "{text}");
}

/// What lies below is encrypted: a key would not be found in it, and a small file be a large one.
#[test]
fn what_is_sealed_is_not_judged_by_content_or_size() {
    let judging =
        |path: &str, rest: &str| format!("[[rule]]\nname = 'j'\npath = '{path}'\n{rest}\n");
    let content = "action = 'deny'\ncontent = { regex = 'PRIVATE KEY' }";
    let size = "action = 'passthrough'\nsize = { min = 100 }";
    let sealed = seal("v/**", "x");
    for (path, rest, condition) in [
        ("**", content, "content"),
        ("**/*.pem", content, "content"),
        ("v", size, "size"),
        ("v/deep/*", "action = 'read-only'\nsize = { max = 5 }\nexe = ['/bin/a']", "size"),
    ] {
        let first = judging(path, rest);
        let error = Policy::parse(&format!("{first}{sealed}"), "p.toml").unwrap_err();
        let said = error.to_string();
        let parts =
            [&format!("rule `j` on line 1 comes first and looks at the {condition}"), "p.toml:"];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert_eq!(error.line(), first.lines().count() + 1, "{said}");
        // Behind the rule that seals it says nothing about what that seals.
        policy(&format!("{sealed}{first}"));
        // Two policies at once have no order.
        for (one, other) in [(&first, &sealed), (&sealed, &first)] {
            let error = policy(one).joined(policy(other), " (2)").unwrap_err();
            assert!(error.to_string().contains("judge by content or size"), "{error}");
        }
    }
    let elsewhere = judging("docs/**", content);
    let directories = judging("**", "kind = 'directory'\naction = 'deny'\nsize = { min = 1 }");
    for harmless in [elsewhere, directories, judging("**", "action = 'deny'\nuid = [1]")] {
        policy(&format!("{harmless}{sealed}"));
        policy(&harmless).joined(policy(&sealed), " (2)").unwrap();
    }
}

/// Each of two policies is to hold: a file is not shown in a way that one of them does not have.
#[test]
fn what_two_policies_make_in_two_ways_is_denied() {
    let nobody = CallerFacts { uid: 1, gid: 1, exe: None };
    let ways = [seal("a/**", "one"), seal("a/**", "two"), redact("a/**", "")];
    for one in &ways {
        for other in &ways {
            let both = policy(one).joined(policy(other), " (2)").unwrap();
            let expected = if one == other { None } else { Some(Verdict::Deny) };
            for operation in [Operation::Read, Operation::Write, Operation::Create] {
                let verdict = both.decide(&facts("a/x"), operation, &nobody).verdict;
                let alone = policy(one).decide(&facts("a/x"), operation, &nobody).verdict;
                assert_eq!(verdict, expected.unwrap_or(alone), "{one}{other}{operation}");
                assert_eq!(both.decide(&facts("b"), operation, &nobody).verdict, Verdict::Allow);
            }
            let explained = both.explain(&facts("a/x"), Some(Operation::Read), &nobody);
            assert_eq!(explained.operations[0].errno == Some("EACCES"), one != other);
        }
    }
}
