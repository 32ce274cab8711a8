//! `action = "native"`: directories by their own path, which no earlier rule reaches into.

use tollgate_policy::{
    CallerFacts, Facts, Kind, MAX_NATIVE, Mode, NativeDirectory, Operation, Policy, Verdict,
};

fn rule(path: &str, rest: &str) -> String {
    format!("[[rule]]\npath = {path}\n{rest}\n")
}

fn native(path: &str) -> String {
    rule(&format!("'{path}'"), "action = 'native'")
}

fn policy(text: &str) -> Policy {
    Policy::parse(text, "p.toml").unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn refused(text: &str) -> String {
    let error = Policy::parse(text, "p.toml").map(|_| ()).unwrap_err().to_string();
    error.lines().next().unwrap_or_default().to_owned()
}

fn warnings(text: &str) -> Vec<String> {
    policy(text).warnings().iter().map(|warning| warning.message().to_owned()).collect()
}

fn directories(text: &str) -> Vec<(String, bool)> {
    let directory = |one: NativeDirectory| (one.path, one.create);
    policy(text).native().into_iter().map(directory).collect()
}

#[test]
fn directories_are_listed_once_and_without_those_inside_others() {
    let made = rule("['out/gen/', 'dist']", "action = 'native'\ncreate = true");
    let text = native("target") + &native("target/debug") + &made;
    let text = text + &native("targets") + &native("dist");
    let expected = [("target", false), ("out/gen", true), ("dist", true), ("targets", false)];
    assert_eq!(directories(&text), expected.map(|(path, create)| (path.to_owned(), create)));
    assert!(policy("").native().is_empty());
    // An escaped character is no wildcard.
    assert_eq!(directories(&native(r"x\*y/\[z\]/")), [("x*y/[z]".to_owned(), false)]);
    // The outer one counts wherever it stands.
    assert_eq!(directories(&(native("a/b") + &native("a"))), [("a".to_owned(), false)]);
}

#[test]
fn everybody_may_do_everything_where_it_is_served_all_the_same() {
    let policy = policy(&(native("target") + &rule("'**'", "action = 'deny'")));
    let caller = CallerFacts { uid: 1, gid: 1, exe: None };
    let facts =
        |path: &'static str| Facts { path: path.as_bytes(), kind: Kind::File, size: 1, head: None };
    for operation in Operation::ALL {
        let decide = |path| policy.decide(&facts(path), operation, &caller).verdict;
        assert_eq!(decide("target"), Verdict::Allow);
        assert_eq!(decide("target/.env"), Verdict::Allow);
        assert_eq!(decide("targets"), Verdict::Deny);
    }
    assert_eq!(policy.mode(&facts("target/.env")).0, Mode::Passthrough);
    assert!(policy.weakens(&facts("x"), &facts("target/x")));
}

#[test]
fn what_cannot_be_native_is_refused() {
    for path in ["'target/*'", "'**'", "'{a,b}'", "['a', 'b?']", "'[ab]'", "'a\\*b*'"] {
        let error = refused(&rule(path, "action = 'native'"));
        assert!(error.starts_with("p.toml:2:8: `native` takes directories by"), "{error}");
    }
    for path in ["'/target'", "'../target'", "'.'", "''"] {
        assert!(refused(&rule(path, "action = 'native'")).contains("glob"), "{path}");
    }
    for condition in ["kind = 'directory'", "uid = 0", "operation = 'read'", "exe = '/a'"] {
        let error = refused(&rule("'target'", &format!("{condition}\naction = 'native'")));
        assert!(error.starts_with("p.toml:3:1: `native` cannot depend on `"), "{error}");
    }
    let error = refused(&rule("'a'", "action = 'deny'\ncreate = true"));
    assert_eq!(error, "p.toml:4:1: `create` belongs to `native` rules; this one is `deny`");
    let error = refused(&rule("'a'", "action = 'native'\ncreate = 1"));
    assert_eq!(error, "p.toml:4:10: `create` is an integer; allowed: true or false");
    assert!(refused("default = 'native'").contains("the default cannot be `native`"));
    let many: String = (0..=MAX_NATIVE).map(|number| native(&format!("d{number}"))).collect();
    assert!(refused(&many).contains("more than 64 native directories"));
}

#[test]
fn a_rule_before_it_that_could_reach_into_it_is_named() {
    for path in ["**", "**/.env", "target/x", "target", "*/x", "{src,target}"] {
        for rest in [
            "action = 'deny'",
            "action = 'hide'",
            "action = 'userspace'",
            "action = 'read-only'\noperation = 'write'",
            "action = 'deny'\nuid = 7",
            "action = 'deny'\nkind = 'socket'",
        ] {
            let first = rule(&format!("'{path}'"), &format!("name = 'first'\n{rest}"));
            let error = refused(&(first + &native("target")));
            let expected = "rule `first` on line 1 comes first and reaches into `target`, which";
            assert!(error.contains(expected), "{path} {rest}: {error}");
        }
    }
    for path in ["src", "target2", "*.txt", "src/**/.env", "targe?s"] {
        let first = rule(&format!("'{path}'"), "action = 'deny'");
        assert_eq!(directories(&(first + &native("target"))).len(), 1, "{path}");
    }
    // What allows everything anyway takes nothing away.
    let allows = rule("'**'", "uid = 7\naction = 'passthrough'");
    assert_eq!(directories(&(allows + &native("target"))).len(), 1);
}

#[test]
fn a_later_rule_about_nothing_but_its_inside_is_warned_of() {
    for path in ["target/x", "target/**/.env", "target", "target/*"] {
        let warnings = warnings(&(native("target") + &rule(&format!("'{path}'"), "action='deny'")));
        assert_eq!(warnings.len(), 1, "{path}: {warnings:?}");
        assert!(warnings[0].contains("rule `rule 2` is never reached"), "{warnings:?}");
    }
    for path in ["'**/.env'", "['target/x', 'src/x']", "'targets'"] {
        let text = native("target") + &rule(path, "action = 'deny'");
        assert_eq!(warnings(&text), [""; 0], "{path}");
    }
}

#[test]
fn a_hidden_directory_on_the_way_is_warned_of() {
    let hidden = rule("'**'", "name = 'rest'\naction = 'hide'");
    let warnings = warnings(&(native("a/b/c") + &hidden));
    assert_eq!(
        warnings,
        [
            "`a/b/c` cannot be reached: rule `rest` on line 4 hides `a`; allow the directories on the \
          way before it"
        ]
    );
    let way = rule("['a', 'a/b']", "kind = 'directory'\naction = 'passthrough'");
    assert_eq!(self::warnings(&(native("a/b/c") + &way + &hidden)), [""; 0]);
}

#[test]
fn an_explanation_names_the_rule() {
    let policy = policy(&native("target"));
    let caller = CallerFacts { uid: 1, gid: 1, exe: None };
    let explain = |path: &'static str| {
        let facts = Facts { path: path.as_bytes(), kind: Kind::File, size: 0, head: None };
        policy.explain(&facts, None, &caller)
    };
    assert_eq!(explain("target/a").native.as_deref(), Some("rule 1"));
    assert!(explain("target").to_string().contains("  native, by rule `rule 1`: "));
    assert_eq!(explain("a").native, None);
}
