//! What rules mean: the examples of `docs/policy.md` and the corners beside them.

use Operation::{Create, List, Read, Write};
use tollgate_policy::{
    Action, CallerFacts, CallerNeeds, Facts, HEAD_LEN, Kind, Mode, Operation, Policy, RuleId,
    Verdict,
};

const USER: CallerFacts<'static> = CallerFacts { uid: 1000, gid: 1000, exe: Some(b"/usr/bin/cat") };
const NODE: CallerFacts<'static> = CallerFacts { exe: Some(b"/usr/bin/node"), ..USER };
const UNKNOWN: CallerFacts<'static> = CallerFacts { exe: None, ..USER };

fn policy(text: &str) -> Policy {
    Policy::parse(text, "p.toml").unwrap_or_else(|error| panic!("{error}"))
}

fn file(path: &str) -> Facts<'_> {
    Facts { path: path.as_bytes(), kind: Kind::File, size: 10, head: None }
}

fn dir(path: &str) -> Facts<'_> {
    Facts { kind: Kind::Directory, ..file(path) }
}

fn verdict(policy: &Policy, facts: &Facts<'_>, operation: Operation) -> Verdict {
    policy.decide(facts, operation, &USER).verdict
}

const ISSUE: &str = r#"
default = "passthrough"

[[rule]]
name = "keys"
path = ["**/*.pem", "**/id_*"]
action = "deny"

[[rule]]
name = "docs stay as they are"
path = ["docs/**"]
operation = ["write", "create"]
exe = ["/usr/bin/node"]
action = "read-only"
"#;

#[test]
fn the_first_rule_that_matches_wins() {
    let policy = policy(ISSUE);
    for operation in Operation::ALL {
        let key = policy.decide(&file("docs/id_rsa"), operation, &NODE);
        assert_eq!(key.verdict, Verdict::Deny);
        assert_eq!(policy.rule(key.rule.unwrap()).name(), "keys");
    }
    let docs = file("docs/a.md");
    assert_eq!(policy.decide(&docs, Write, &NODE).verdict, Verdict::ReadOnly);
    assert_eq!(policy.decide(&docs, Create, &NODE).verdict, Verdict::ReadOnly);
    assert_eq!(policy.decide(&docs, Read, &NODE).verdict, Verdict::Allow);
    assert_eq!(policy.decide(&docs, Write, &USER).verdict, Verdict::Allow);
    assert_eq!(policy.decide(&docs, Write, &USER).rule, None);
}

#[test]
fn what_is_not_known_counts_against_the_caller() {
    let restricting = policy(ISSUE);
    assert_eq!(restricting.decide(&file("docs/a"), Write, &UNKNOWN).verdict, Verdict::ReadOnly);
    let allowing = policy(
        "default = \"deny\"\n[[rule]]\npath = \"**\"\nexe = \"/usr/bin/node\"\naction = \"passthrough\"",
    );
    assert_eq!(allowing.decide(&file("x"), Read, &NODE).verdict, Verdict::Allow);
    assert_eq!(allowing.decide(&file("x"), Read, &USER).verdict, Verdict::Deny);
    assert_eq!(allowing.decide(&file("x"), Read, &UNKNOWN).verdict, Verdict::Deny);
}

#[test]
fn hide_is_for_everyone() {
    let policy = policy(
        r#"
        [[rule]]
        path = "secret/open"
        action = "passthrough"
        [[rule]]
        path = "secret/**"
        uid = 1000
        action = "passthrough"
        [[rule]]
        path = ["secret/**", "**/.env"]
        kind = ["file", "symlink"]
        action = "hide"
        "#,
    );
    assert!(policy.hidden(b"secret/key", Kind::File).is_some());
    assert_eq!(verdict(&policy, &file("secret/key"), Read), Verdict::Hide);
    assert!(policy.hidden(b"secret/open", Kind::File).is_none());
    assert!(policy.hidden(b"secret", Kind::Directory).is_none());
    assert!(policy.hidden(b"secret/dir", Kind::Directory).is_none());
    assert!(policy.hidden(b"a/.env", Kind::Symlink).is_some());
    assert!(policy.hidden(b"a/.env", Kind::Fifo).is_none());
}

#[test]
fn the_root_is_never_hidden() {
    let policy = policy(
        "[[rule]]\npath = \"src\"\naction = \"passthrough\"\n[[rule]]\npath = \"**\"\naction = \"hide\"",
    );
    assert!(policy.hidden(b"", Kind::Directory).is_none());
    assert_eq!(verdict(&policy, &dir(""), List), Verdict::Allow);
    assert!(policy.hidden(b"src", Kind::Directory).is_none());
    assert!(policy.hidden(b"src/x", Kind::File).is_none());
    assert!(policy.hidden(b"other", Kind::File).is_some());
}

#[test]
fn read_only_refuses_changes_alone() {
    let policy = policy("[[rule]]\npath = \"docs\"\naction = \"read-only\"");
    assert_eq!(verdict(&policy, &dir("docs"), List), Verdict::Allow);
    assert_eq!(verdict(&policy, &file("docs/a"), Read), Verdict::Allow);
    assert_eq!(verdict(&policy, &file("docs/a"), Write), Verdict::ReadOnly);
    assert_eq!(verdict(&policy, &file("docs/new"), Create), Verdict::ReadOnly);
    assert_eq!(verdict(&policy, &dir("docs"), Write), Verdict::ReadOnly);
    assert_eq!(verdict(&policy, &file("docs2/a"), Write), Verdict::Allow);
}

#[test]
fn the_default_speaks_last() {
    let denying = policy("default = \"deny\"\n[[rule]]\npath = \"out\"\naction = \"passthrough\"");
    assert_eq!(verdict(&denying, &file("out/x"), Write), Verdict::Allow);
    assert_eq!(verdict(&denying, &file("in"), Read), Verdict::Deny);
    let read_only = policy("default = \"read-only\"");
    assert_eq!(verdict(&read_only, &file("x"), Read), Verdict::Allow);
    assert_eq!(verdict(&read_only, &file("x"), Create), Verdict::ReadOnly);
    let audited = policy("default = \"userspace\"");
    assert_eq!(audited.mode(&file("x")), (Mode::Userspace, None));
    assert_eq!(verdict(&audited, &file("x"), Write), Verdict::Allow);
    assert_eq!(audited.default_action(), Action::Userspace);
}

#[test]
fn the_mode_is_the_same_for_every_caller() {
    let policy = policy(
        r#"
        [[rule]]
        path = "logs/own"
        uid = 0
        action = "passthrough"
        [[rule]]
        path = "logs"
        operation = "write"
        action = "read-only"
        [[rule]]
        path = "fast"
        action = "passthrough"
        [[rule]]
        path = ["logs", "fast/**"]
        action = "userspace"
        "#,
    );
    let userspace = policy.mode(&file("logs/own"));
    assert_eq!((userspace.0, userspace.1.map(RuleId::index)), (Mode::Userspace, Some(3)));
    assert_eq!(policy.mode(&file("fast/x")).0, Mode::Passthrough);
    assert_eq!(policy.mode(&file("other")), (Mode::Passthrough, None));
    assert_eq!(verdict(&policy, &file("logs/x"), Write), Verdict::ReadOnly);
    assert_eq!(verdict(&policy, &file("logs/x"), Read), Verdict::Allow);
}

#[test]
fn a_restriction_leaves_the_mode_to_later_rules() {
    let policy = policy(
        "[[rule]]\npath = \"docs\"\naction = \"read-only\"\n[[rule]]\npath = \"**\"\naction = \"userspace\"",
    );
    assert_eq!(policy.mode(&file("docs/a")).0, Mode::Userspace);
    assert_eq!(verdict(&policy, &file("docs/a"), Write), Verdict::ReadOnly);
}

#[test]
fn expressions_that_are_compiled_when_they_are_needed_decide_the_same() {
    let text = "[[rule]]\npath = '**'\ncontent = { regex = '^KEY-[0-9]+' }\naction = 'deny'\n";
    for policy in [policy(text), Policy::parse_tried(text, "p.toml").unwrap()] {
        let with = |head: &'static [u8]| Facts { head: Some(head), ..file("x") };
        assert_eq!(verdict(&policy, &with(b"KEY-1"), Read), Verdict::Deny);
        assert_eq!(verdict(&policy, &with(b"KEY-x"), Read), Verdict::Allow);
    }
    assert!(Policy::parse_tried("[[rule]]\npath = 7\naction = 'deny'\n", "p.toml").is_err());
}

#[test]
fn content_and_size() {
    let policy = policy(
        r"
        [[rule]]
        path = '**'
        content = { magic = ['\x7fELF', '#!'] }
        action = 'userspace'
        [[rule]]
        path = '**'
        size = { max = '1 KiB' }
        content = { regex = '(?m)^-----BEGIN [A-Z ]+ KEY' }
        action = 'deny'
        ",
    );
    let with = |head: &'static [u8]| Facts { head: Some(head), ..file("x") };
    assert_eq!(policy.mode(&with(b"\x7fELF\x02")).0, Mode::Userspace);
    assert_eq!(policy.mode(&with(b"\x7fELG")).0, Mode::Passthrough);
    assert_eq!(policy.mode(&file("x")).0, Mode::Userspace);
    let key = with(b"x\n-----BEGIN RSA PRIVATE KEY");
    assert_eq!(verdict(&policy, &key, Read), Verdict::Deny);
    assert_eq!(verdict(&policy, &Facts { size: 1025, ..key }, Read), Verdict::Allow);
    assert_eq!(verdict(&policy, &with(b"hello"), Read), Verdict::Allow);
    assert_eq!(verdict(&policy, &file("x"), Read), Verdict::Deny);
    // Nothing but regular files has content, and an empty one needs no look.
    assert_eq!(verdict(&policy, &dir("x"), Read), Verdict::Allow);
    assert_eq!(verdict(&policy, &Facts { size: 0, ..file("x") }, Read), Verdict::Allow);
    assert!(policy.needs_head(b"x", Kind::File, 10));
    assert!(!policy.needs_head(b"x", Kind::File, 0));
    assert!(!policy.needs_head(b"x", Kind::Directory, 10));
}

#[test]
fn only_the_first_bytes_are_content() {
    let policy = policy("[[rule]]\npath = '**'\ncontent = { regex = 'x$' }\naction = 'deny'");
    let mut head = vec![b'a'; HEAD_LEN + 1];
    head[HEAD_LEN] = b'x';
    assert_eq!(verdict(&policy, &Facts { head: Some(&head), ..file("f") }, Read), Verdict::Allow);
    head[HEAD_LEN - 1] = b'x';
    assert_eq!(verdict(&policy, &Facts { head: Some(&head), ..file("f") }, Read), Verdict::Deny);
}

#[test]
fn callers_are_asked_for_only_where_it_matters() {
    let policy = policy(
        r#"
        [[rule]]
        path = "a"
        uid = 3
        action = "deny"
        [[rule]]
        path = "a/b"
        exe = "/bin/sh"
        kind = "file"
        action = "deny"
        [[rule]]
        path = "a"
        action = "read-only"
        [[rule]]
        path = "**"
        gid = 7
        exe = "/bin/sh"
        action = "deny"
        "#,
    );
    let needs = |path: &str, kind| policy.needs_caller(path.as_bytes(), kind);
    assert_eq!(needs("a", Kind::File), CallerNeeds { ids: true, exe: false });
    assert_eq!(needs("a/b", Kind::File), CallerNeeds { ids: true, exe: true });
    assert_eq!(needs("a/b", Kind::Directory), CallerNeeds { ids: true, exe: false });
    assert_eq!(needs("c", Kind::File), CallerNeeds { ids: true, exe: true });
    assert_eq!(Policy::allow_all().needs_caller(b"a", Kind::File), CallerNeeds::default());
}

#[test]
fn ids_are_lists() {
    let policy = policy("[[rule]]\npath = \"x\"\nuid = [5, 1000]\ngid = 7\naction = \"deny\"");
    let ask =
        |uid, gid| policy.decide(&file("x"), Read, &CallerFacts { uid, gid, exe: None }).verdict;
    assert_eq!(ask(1000, 7), Verdict::Deny);
    assert_eq!(ask(5, 7), Verdict::Deny);
    assert_eq!(ask(1000, 8), Verdict::Allow);
    assert_eq!(ask(6, 7), Verdict::Allow);
}

#[test]
fn trivial_policies_are_known() {
    assert!(Policy::allow_all().is_trivial());
    assert!(policy("").is_trivial());
    assert!(policy("[[rule]]\npath = \"x\"\naction = \"passthrough\"").is_trivial());
    assert!(!policy("default = \"userspace\"").is_trivial());
    assert!(!policy(ISSUE).is_trivial());
}

#[test]
fn renames_that_weaken() {
    let policy = policy(
        r#"
        [[rule]]
        path = "**/*.pem"
        action = "deny"
        [[rule]]
        path = "docs"
        operation = "write"
        exe = "/usr/bin/node"
        action = "read-only"
        [[rule]]
        path = "audited"
        action = "userspace"
        [[rule]]
        path = "private"
        action = "hide"
        "#,
    );
    let weakens = |from, to| policy.weakens(&file(from), &file(to));
    assert!(weakens("a.pem", "a.txt"));
    assert!(!weakens("a.txt", "a.pem"));
    assert!(!weakens("a.pem", "docs/b.pem"));
    assert!(weakens("docs/a", "a"));
    assert!(!weakens("docs/a", "docs/b"));
    assert!(!weakens("a", "docs/a"));
    assert!(weakens("audited/x", "x"));
    assert!(weakens("audited/x", "docs/x"));
    assert!(!weakens("x", "audited/x"));
    assert!(weakens("private/x", "x.pem"));
    assert!(!weakens("x.pem", "private/x"));
    assert!(!Policy::allow_all().weakens(&file("a"), &file("b")));
}

#[test]
fn weakening_looks_at_callers() {
    let policy = policy(
        r#"
        [[rule]]
        path = "one"
        uid = 1
        action = "deny"
        [[rule]]
        path = "two"
        uid = 2
        action = "deny"
        [[rule]]
        path = "both"
        uid = [1, 2]
        action = "deny"
        "#,
    );
    let weakens = |from, to| policy.weakens(&file(from), &file(to));
    assert!(weakens("one", "two"));
    assert!(weakens("both", "one"));
    assert!(!weakens("one", "one/x"));
    assert!(!weakens("free", "two"));
}

/// A rule behind another about the same callers never speaks, not even where the caller is not
/// known: or else a move that weakens nothing for any caller would for those.
#[test]
fn rules_behind_others_say_nothing() {
    let policy = policy(
        r#"
        [[rule]]
        path = ["x", "y"]
        exe = "/usr/bin/node"
        action = "passthrough"
        [[rule]]
        path = "x"
        exe = "/usr/bin/node"
        action = "deny"
        "#,
    );
    assert!(!policy.weakens(&file("x"), &file("y")));
    assert_eq!(policy.decide(&file("x"), Read, &UNKNOWN).verdict, Verdict::Allow);
}

#[test]
fn a_name_under_the_same_rules_is_as_good_however_many_there_are() {
    let rule = |uid: u32| {
        let action = if uid.is_multiple_of(2) { "deny" } else { "read-only" };
        format!("[[rule]]\npath = ['x', 'y']\nuid = {uid}\naction = '{action}'\n")
    };
    let many = policy(&(0..100).map(rule).collect::<String>());
    assert!(!many.weakens(&file("x"), &file("y")));
    assert!(!many.weakens(&file("z"), &file("y")));
    assert!(many.weakens(&file("x"), &file("z")));
}

/// A content that is not known may turn out either way.
#[test]
fn a_mode_that_may_be_laxer_weakens() {
    let policy = policy(
        r#"
        [[rule]]
        path = "y"
        content = { magic = "a" }
        action = "passthrough"
        [[rule]]
        path = "**"
        content = { magic = "ab" }
        action = "userspace"
        "#,
    );
    assert!(policy.weakens(&file("x"), &file("y")));
    assert!(!policy.weakens(&file("y"), &file("x")));
    let abc = |path| Facts { head: Some(b"abc"), ..file(path) };
    assert!(policy.weakens(&abc("x"), &abc("y")));
}

#[test]
fn moves_of_directories() {
    let policy = policy(
        r#"
        [[rule]]
        path = ["**/*.pem", "**/.env", "vault/key", "src/**/gen/*.c"]
        action = "deny"
        "#,
    );
    let neutral =
        |from: &str, to: &str| policy.subtree_move_is_neutral(from.as_bytes(), to.as_bytes());
    assert!(neutral("a", "b"));
    assert!(neutral("a/b/c", "d"));
    assert!(!neutral("vault", "b"));
    assert!(!neutral("b", "vault"));
    assert!(!neutral("a.pem", "b"));
    assert!(neutral("a.pem", "b.pem"));
    assert!(neutral("src/a", "src/b"));
    assert!(!neutral("src/a", "b"));
    assert!(!neutral("src/gen", "src/other"));
    assert!(neutral("vault/x", "b"));
}

#[test]
fn strange_names_are_names() {
    let policy = policy(
        r#"
        [[rule]]
        path = ["**/*.pem", "Secret"]
        action = "deny"
    "#,
    );
    for path in
        [&b"\xff\xfe.pem"[..], b"a\nb/c.pem", b" .pem", "ü/é.pem".as_bytes(), b"x.pem/", b"//x.pem"]
    {
        let facts = Facts { path, ..file("") };
        assert_eq!(verdict(&policy, &facts, Read), Verdict::Deny, "{path:?}");
    }
    // Bytes, not letters: another case or another normal form is another name.
    for path in ["secret", "x.PEM", "x.pem "] {
        assert_eq!(verdict(&policy, &file(path), Read), Verdict::Allow, "{path:?}");
    }
}

#[test]
fn explanations_name_the_condition() {
    let policy = policy(ISSUE);
    let explanation = policy.explain(&file("docs/a.md"), Some(Write), &USER);
    assert_eq!(
        explanation.to_string(),
        "docs/a.md (file)\n\
         \x20 write: allowed, by the default `passthrough`\n\
         \x20 I/O mode: passthrough, by the default `passthrough`\n\
         rule `docs stay as they are` (line 9, read-only): no: exe: `/usr/bin/cat` does not match\n\
         1 rule is about other paths\n"
    );
    assert_eq!(
        format!("{explanation:#}"),
        "docs/a.md (file)\n\
         \x20 write: allowed, by the default `passthrough`\n\
         \x20 I/O mode: passthrough, by the default `passthrough`\n\
         rule `keys` (line 4, deny): no: path: not covered by `**/*.pem`, `**/id_*`\n\
         rule `docs stay as they are` (line 9, read-only): no: exe: `/usr/bin/cat` does not match\n"
    );
    let json = serde_json::to_value(policy.explain(&file("docs/a.md"), None, &UNKNOWN)).unwrap();
    assert_eq!(json["operations"][1]["operation"], "write");
    assert_eq!(json["operations"][1]["verdict"], "read-only");
    assert_eq!(json["operations"][1]["line"], 9);
    assert_eq!(json["rules"][1]["status"]["match"], "maybe");
    assert_eq!(json["rules"][1]["status"]["condition"], "exe");
    let strange = Facts { path: b"a\xff\n", ..file("") };
    let strange = policy.explain(&strange, None, &USER);
    assert!(strange.to_string().starts_with("a\\xff\\n (file)\n"), "{strange}");
    let json = serde_json::to_value(&strange).unwrap();
    assert_eq!(
        (json["path"].as_str(), json["path_hex"].as_str()),
        (Some("a\u{fffd}\n"), Some("61ff0a"))
    );
}

#[test]
fn what_is_only_recorded_is_explained_beside_what_is_enforced() {
    let text = "mode = 'audit'\n[[rule]]\nname = 'keys'\npath = 'key'\naction = 'deny'\n";
    let policy = Policy::parse(text, "p.toml").unwrap();
    let facts = Facts { path: b"key", kind: Kind::File, size: 0, head: None };
    let caller = CallerFacts { uid: 1, gid: 1, exe: None };
    let explained = policy.explain(&facts, Some(Operation::Read), &caller);
    let one = &explained.operations[0];
    assert_eq!((one.verdict, one.rule.as_deref()), (Verdict::Allow, None));
    let audited = one.audited.as_ref().unwrap();
    assert_eq!((audited.verdict, audited.rule.as_deref()), (Verdict::Deny, Some("keys")));
    let shown = explained.to_string();
    assert!(shown.contains("recorded only: refused with EACCES"), "{shown}");
    assert!(policy.enforced().unwrap().is_trivial());
}

#[test]
fn a_rule_that_is_enforced_by_itself_refuses_under_a_policy_that_is_only_recorded() {
    let text = "mode = 'audit'\ndefault = 'deny'\n[[rule]]\npath = 'h'\naction = 'read-only'\n\
                mode = 'enforce'\n[[rule]]\npath = 'k'\naction = 'deny'\n";
    let policy = Policy::parse(text, "p.toml").unwrap();
    let recorded: Vec<_> =
        policy.rules().iter().map(tollgate_policy::Rule::is_audit_only).collect();
    assert_eq!(recorded, [false, true]);
    let enforced = policy.enforced().unwrap();
    for (path, expected) in
        [("h/x", Verdict::ReadOnly), ("k", Verdict::Allow), ("other", Verdict::Allow)]
    {
        assert_eq!(verdict(&enforced, &file(path), Write), expected, "{path}");
        let explained = policy.explain(&file(path), Some(Write), &USER);
        let one = &explained.operations[0];
        assert_eq!((one.verdict, one.audited.is_none()), (expected, path == "h/x"), "{path}");
    }
}

/// The kernel opens these itself, or not at all.
#[test]
fn of_what_no_rule_is_asked_is_explained() {
    let text = "[[rule]]\npath = 'h'\naction = 'hide'\n[[rule]]\npath = 'p'\naction = 'deny'\n";
    let policy = Policy::parse(text, "p.toml").unwrap();
    let explain = |path: &'static str, kind, operation| {
        policy.explain(&Facts { kind, ..file(path) }, operation, &USER)
    };
    let fifo = explain("p", Kind::Fifo, None);
    assert!(fifo.to_string().contains("the kernel opens a FIFO"), "{fifo}");
    assert!(explain("p", Kind::Socket, Some(Write)).to_string().contains("connects to a socket"));
    let device = serde_json::to_value(explain("p", Kind::CharDevice, Some(Read))).unwrap();
    assert!(device["opening"].as_str().unwrap().contains("EACCES"), "{device}");
    for (path, kind, operation) in [
        ("h", Kind::Fifo, None),
        ("p", Kind::File, None),
        ("p", Kind::Directory, None),
        ("p", Kind::Fifo, Some(Operation::Create)),
    ] {
        assert_eq!(explain(path, kind, operation).opening, None, "{path} {kind} {operation:?}");
    }
}

/// The view masks no more, and shows nothing of it.
#[test]
fn a_file_that_is_too_large_to_be_masked_is_refused() {
    let text = "[[rule]]\nname = 'small'\npath = 'a'\naction = 'redact'\nmax_size = '100 B'\n";
    let policy = Policy::parse(text, "p.toml").unwrap();
    for (size, expected) in [(100, Verdict::Allow), (101, Verdict::Deny)] {
        let facts = Facts { size, ..file("a") };
        assert_eq!(verdict(&policy, &facts, Operation::Read), expected, "{size}");
        assert_eq!(verdict(&policy, &facts, Write), Verdict::ReadOnly, "{size}");
        let explained = policy.explain(&facts, Some(Operation::Read), &USER);
        let one = &explained.operations[0];
        let refused = expected == Verdict::Deny;
        assert_eq!((one.verdict, one.masked_up_to), (expected, refused.then_some(100)));
        assert_eq!(one.rule.as_deref(), Some("small"));
        assert_eq!(explained.to_string().contains("larger than the 100 bytes"), refused);
    }
    let other = Policy::parse(&text.replace("100 B", "50 B"), "q.toml").unwrap();
    let both = policy.joined(other, " (q)").unwrap();
    let facts = Facts { size: 51, ..file("a") };
    assert_eq!(verdict(&both, &facts, Operation::Read), Verdict::Deny, "the lower limit holds");
}
