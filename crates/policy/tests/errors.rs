//! Every mistake that a policy can have, with the text shown for it.

use tollgate_policy::Policy;

#[track_caller]
fn refused(text: &str) -> String {
    match Policy::parse(text, "p.toml") {
        Ok(_) => panic!("accepted: {text}"),
        Err(error) => error.to_string(),
    }
}

/// A rule with one line of its own, on line 3.
fn rule_with(line: &str) -> String {
    format!("[[rule]]\npath = \"a\"\n{line}\naction = \"deny\"\n")
}

#[track_caller]
fn first_line(text: &str) -> String {
    refused(text).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn an_error_shows_the_place() {
    assert_eq!(
        refused("[[rule]]\npath = \"a\"\naction = \"denied\"\n"),
        "p.toml:3:10: unknown action `denied`; allowed: passthrough, read-only, deny, hide, userspace, \
         native, redact, seal\n\
         3 | action = \"denied\"\n  \
         |          ^^^^^^^^"
    );
}

#[test]
fn columns_are_characters() {
    let text = rule_with("name = \"é\"; kind = \"é\"");
    assert!(first_line(&text).starts_with("p.toml:3:11: "), "{}", first_line(&text));
    let text = "rule = [{ name = \"éé\", path = \"a\", action = \"x\" }]";
    assert!(
        first_line(text).starts_with("p.toml:1:45: unknown action `x`"),
        "{}",
        first_line(text)
    );
}

#[test]
fn a_long_line_is_cut_around_the_place() {
    let text = format!(
        "# {0}\nrule = [{{ name = \"{0}\", path = \"a\", action = \"x\" }}]",
        "é".repeat(500)
    );
    let shown = refused(&text);
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines.len(), 3);
    let at = lines[2].chars().position(|c| c == '^').unwrap();
    assert_eq!(lines[1].chars().skip(at).take(3).collect::<String>(), "\"x\"");
    assert!(lines.iter().all(|line| line.chars().count() < 130), "{shown}");
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let shown = refused("default = \"a\\u001b[31m\"\n");
    assert!(!shown.contains('\x1b'), "{shown:?}");
    let shown = refused("[[rule]]\npath = \"x\\u001b[31m**\"\naction = \"deny\"");
    assert!(!shown.contains('\x1b'), "{shown:?}");
    let shown = refused("\"a\\u001b\" = 1\n");
    assert!(!shown.contains('\x1b'), "{shown:?}");
}

#[test]
fn a_name_stays_in_its_line() {
    for name in ["a\\n  write: allowed", "\\u001b[31m", "\\t", "\\u0085"] {
        let text = format!("[[rule]]\npath = 'a'\nname = \"{name}\"\naction = 'deny'\n");
        let expected = "p.toml:3:8: `name` has a line break or another control character; write";
        assert!(first_line(&text).starts_with(expected), "{}", first_line(&text));
    }
}

#[test]
fn toml_mistakes() {
    assert!(
        first_line("default = \n").starts_with("p.toml:1:11: "),
        "{}",
        first_line("default = \n")
    );
    for (text, expected) in [
        ("default = 'deny'\ndefault = 'deny'", "p.toml:2:1: duplicate key `default`; the first"),
        (
            "[[rule]]\npath = 'a'\n[[rule]]\n  path = [\n\"\"\"\n  path = 7\"\"\", 'b']\n\"path\" = 'c'\n",
            "p.toml:7:1: duplicate key `path`; the first is on line 4",
        ),
        ("[[rule]]\nsize = { min = 1, min = 2 }\n", "p.toml:2:19: duplicate key `min`"),
    ] {
        assert!(first_line(text).starts_with(expected), "{}", first_line(text));
    }
    assert!(first_line("[[rule]\n").starts_with("p.toml:1:8: "), "{}", first_line("[[rule]\n"));
}

#[test]
fn keys_and_types() {
    for (text, expected) in [
        (
            "defualt = \"deny\"",
            "p.toml:1:1: unknown key `defualt` in a policy; allowed: default, mode, rule, view",
        ),
        ("rule = 3", "p.toml:1:8: `rule` is an integer; allowed: tables, each headed `[[rule]]`"),
        (
            "[rule]\npath = \"a\"",
            "p.toml:1:1: `rule` is a table; allowed: tables, each headed `[[rule]]`",
        ),
        ("rule = [1]", "p.toml:1:9: `rule` is an integer; allowed: tables, each headed `[[rule]]`"),
        ("default = 1", "p.toml:1:11: `default` is an integer; allowed: a string"),
        (
            "default = \"hide\"",
            "p.toml:1:11: the default cannot be `hide`; end with a rule of path `**` and action `hide`, \
             after the rules for what is to be seen",
        ),
        (
            "default = \"seal\"",
            "p.toml:1:11: the default cannot be `seal`; end with a rule of path `**`, kind `file` and \
             action `seal`",
        ),
        (
            "\n[[rule]]\naction = \"deny\"",
            "p.toml:2:1: rule without `path`; write `path = \"**\"` for everything",
        ),
        (
            "\n[[rule]]\npath = \"x\"",
            "p.toml:2:1: rule without `action`; allowed: passthrough, read-only, deny, hide, userspace, native, \
             redact, seal",
        ),
        (
            "[[rule]]\npath = []\naction = \"deny\"",
            "p.toml:2:8: `path` is empty, so that the rule could never match; write `path = \"**\"` for \
             everything",
        ),
        (
            "[[rule]]\npath = [\"a\", 7]\naction = \"deny\"",
            "p.toml:2:14: `path` is an integer; allowed: a string or a list of strings",
        ),
    ] {
        assert_eq!(first_line(text), expected);
    }
}

#[test]
fn conditions() {
    for (line, expected) in [
        (
            "paht = 1",
            "p.toml:3:1: unknown key `paht` in a rule; allowed: name, path, kind, size, content, \
             operation, exe, uid, gid, action, mode, create, detectors, regexes, max_size, domain",
        ),
        ("mode = \"log\"", "p.toml:3:8: mode `log`; allowed: enforce, audit"),
        (
            "operation = [\"read\", \"delete\"]",
            "p.toml:3:22: unknown operation `delete`; allowed: read, write, create, list",
        ),
        (
            "operation = []",
            "p.toml:3:13: `operation` is empty, so that the rule could never match; leave it out to mean all",
        ),
        (
            "kind = \"dir\"",
            "p.toml:3:8: unknown kind `dir`; allowed: file, directory, symlink, fifo, socket, char-device, \
             block-device",
        ),
        ("uid = -1", "p.toml:3:7: `uid` is -1; allowed: 0 to 4294967295"),
        ("gid = [1, 0x1_0000_0000]", "p.toml:3:11: `gid` is 0x100000000; allowed: 0 to 4294967295"),
        (
            "uid = \"root\"",
            "p.toml:3:7: `uid` names `root`, and there is no such user here; a number would do, too",
        ),
        (
            "uid = true",
            "p.toml:3:7: `uid` is a boolean; allowed: a number, a name, or a list of them",
        ),
        (
            "gid = [1, 2.5]",
            "p.toml:3:11: `gid` is a float; allowed: a number, a name, or a list of them",
        ),
        (
            "exe = \"node\"",
            "p.toml:3:8: glob `node`: a glob on executables begins with `/` or `**/`",
        ),
        (
            "exe = [\"/usr/b[in\"]",
            "p.toml:3:15: glob `/usr/b[in`: `[` without `]`; write `\\[` for the character itself",
        ),
        (
            "size = \">1 MiB\"",
            "p.toml:3:8: `size` is a string; allowed: a table such as { min = \"1 KiB\", max = \"10 MiB\" }",
        ),
        (
            "size = { min = \"1 MB\" }",
            "p.toml:3:16: `min` is \"1 MB\"; allowed: a number of bytes, or a string of a whole number and one \
             of B, KiB, MiB, GiB, TiB",
        ),
        (
            "size = { max = \"99999999999 TiB\" }",
            "p.toml:3:16: `max` is \"99999999999 TiB\"; allowed: fewer than 16777216 TiB (2^64 bytes)",
        ),
        (
            "size = { min = 2, max = 1 }",
            "p.toml:3:8: size from 2 up to 1 bytes holds for no file; `min` must not be above `max`",
        ),
        ("size = {}", "p.toml:3:8: `size` is empty; give `min`, `max` or both"),
        ("size = { mni = 1 }", "p.toml:3:10: unknown key `mni` in `size`; allowed: min, max"),
        ("content = {}", "p.toml:3:11: `content` is empty; give `magic`, `regex` or both"),
        ("content = { regex = 'a(b' }", "p.toml:3:23: regex: unclosed group"),
        (
            "content = { regex = 'a{3,2}' }",
            "p.toml:3:23: regex: invalid repetition count range, the start must be <= the end",
        ),
        (
            "content = { regex = '(\\w{500}){500}' }",
            "p.toml:3:21: regex: needs more than 1048576 bytes compiled; write smaller repetitions",
        ),
        ("content = { magic = '\\x7g' }", "p.toml:3:22: magic: `\\x` takes two hexadecimal digits"),
        (
            "content = { magic = 'a\\n' }",
            "p.toml:3:23: magic: `\\` begins `\\xNN` or `\\\\`; best written in single quotes",
        ),
        ("content = { magic = '' }", "p.toml:3:21: magic: 0 bytes; allowed: 1 to 65536"),
        ("name = \"\"", "p.toml:3:8: `name` is empty; leave it out to have the rule numbered"),
        (
            "content = { magic = [] }",
            "p.toml:3:21: `magic` is empty; leave it out, or give the first bytes",
        ),
    ] {
        assert_eq!(first_line(&rule_with(line)), expected);
    }
}

#[test]
fn globs_say_where() {
    let glob =
        |text: &str| first_line(&format!("[[rule]]\npath = [\"ok\", {text}]\naction = \"deny\""));
    assert_eq!(
        glob("\"/etc/*\""),
        "p.toml:2:16: glob `/etc/*`: absolute glob; paths are relative to DIR: write `etc/*`"
    );
    assert_eq!(
        glob("'a/../b'"),
        "p.toml:2:18: glob `a/../b`: `..` in a glob; paths are relative to DIR and do not leave it"
    );
    assert_eq!(
        glob("\"ab**\""),
        "p.toml:2:18: glob `ab**`: `**` must stand alone between slashes, as in `a/**/b`; inside a name write `*`"
    );
    // Written with an escape, the string as a whole is the place.
    assert_eq!(
        glob("\"\\u0061/b[\""),
        "p.toml:2:15: glob `a/b[`: `[` without `]`; write `\\[` for the character itself"
    );
}

#[test]
fn what_the_kernel_cannot_honour() {
    let rule = |line: &str, action: &str| {
        first_line(&format!("[[rule]]\npath = \"a\"\n{line}\naction = \"{action}\""))
    };
    let conditions = ["operation = \"read\"", "exe = \"/bin/sh\"", "uid = 0", "gid = 0"];
    for condition in conditions {
        let key = condition.split(' ').next().unwrap();
        assert_eq!(
            rule(condition, "hide"),
            format!(
                "p.toml:3:1: `hide` cannot depend on `{key}`: the kernel remembers names, and what a name \
                 stands for, for every caller alike; allowed: path, kind"
            )
        );
        assert_eq!(
            rule(condition, "userspace"),
            format!(
                "p.toml:3:1: `userspace` cannot depend on `{key}`: it is an I/O mode, and an inode has one \
                 mode for every caller and operation at a time; allowed: path, kind, size, content"
            )
        );
    }
    for condition in ["size = { min = 1 }", "content = { magic = 'x' }"] {
        assert!(rule(condition, "hide").contains("`hide` cannot depend on"));
        let userspace = format!("[[rule]]\npath = \"a\"\n{condition}\naction = \"userspace\"");
        assert!(Policy::parse(&userspace, "p.toml").is_ok());
    }
}

#[test]
fn names_are_unique() {
    let text = "[[rule]]\nname = \"x\"\npath = \"a\"\naction = \"deny\"\n\
                [[rule]]\nname = \"x\"\npath = \"b\"\naction = \"deny\"\n";
    let error = first_line(text);
    assert!(
        error.starts_with("p.toml:6:8: second rule named `x`; the first is on line 1"),
        "{error}"
    );
    let numbered = "[[rule]]\nname = \"rule 2\"\npath = \"a\"\naction = \"deny\"\n\
                    [[rule]]\npath = \"b\"\naction = \"deny\"\n";
    let error = first_line(numbered);
    assert!(
        error.starts_with("p.toml:5:1: second rule named `rule 2`; the first is on line 1"),
        "{error}"
    );
}

#[test]
fn maxima() {
    let long = "#".repeat(tollgate_policy::MAX_TEXT_LEN + 1);
    assert_eq!(
        first_line(&long),
        "p.toml:1:1: policy of more than 4194304 bytes, which is the most"
    );
    let rules = "[[rule]]\npath=\"a\"\naction=\"deny\"\n".repeat(tollgate_policy::MAX_RULES + 1);
    assert_eq!(
        first_line(&rules),
        "p.toml:12289:1: more than 4096 rules; a rule takes a list of globs"
    );
    let many = "\"{a,b,c,d}{a,b,c,d}{a,b,c,d}{a,b,c,d}\",".repeat(257);
    let globs = format!("[[rule]]\npath = [{many}]\naction = \"deny\"");
    assert_eq!(
        first_line(&globs),
        "p.toml:2:9993: more than 65536 globs in one policy, braces spread out"
    );
}

fn warnings(text: &str) -> Vec<String> {
    let policy = Policy::parse(text, "p.toml").unwrap();
    let shown = policy.warnings().iter().map(ToString::to_string);
    shown.map(|warning| warning.lines().next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn suspicious_rules_are_named() {
    let rule = |path: &str, rest: &str| format!("[[rule]]\npath = \"{path}\"\n{rest}\n");
    let deny = "action = \"deny\"";
    assert_eq!(
        warnings(&(rule("**", "name = \"all\"\naction = \"deny\"") + &rule("x", deny))),
        [
            "p.toml:5:1: warning: rule `rule 2` is never reached: rule `all` on line 1 matches all that it matches"
        ]
    );
    assert_eq!(
        warnings(&(rule("{x,y}", deny) + &rule("y", "kind = \"file\"\naction = \"hide\""))).len(),
        1
    );
    // Only one kind, only one operation, only one caller: the second rule is reached.
    for condition in ["kind = \"file\"", "operation = \"read\"", "uid = 0", "size = { min = 1 }"] {
        let first = rule("**", &format!("{condition}\n{deny}"));
        assert_eq!(warnings(&(first + &rule("x", deny))), [""; 0]);
    }
    // `read-only` leaves the I/O mode to later rules.
    let read_only = rule("**", "action = \"read-only\"");
    assert_eq!(warnings(&(read_only.clone() + &rule("x", "action = \"userspace\""))), [""; 0]);
    assert_eq!(warnings(&(read_only + &rule("x", deny))).len(), 1);
    assert_eq!(
        warnings(&rule("*.pem", deny)),
        [
            "p.toml:2:9: warning: glob `*.pem` matches at the top of DIR only; write `**/*.pem` for every directory"
        ]
    );
    assert_eq!(
        warnings(&rule("x", "operation = \"read\"\naction = \"read-only\"")),
        [
            "p.toml:1:1: warning: `read-only` refuses write and create; a rule about neither refuses nothing"
        ]
    );
    assert_eq!(
        warnings(&rule("x", "kind = \"directory\"\nsize = { min = 1 }\naction = \"deny\"")),
        [
            "p.toml:1:1: warning: the rule never matches: size and content are those of regular files"
        ]
    );
    let exception = rule("keys", "uid = 0\naction = \"passthrough\"");
    assert_eq!(
        warnings(&(exception + &rule("keys", "action = \"hide\""))),
        [
            "p.toml:5:1: warning: rule `rule 1` on line 1 is no exception to this `hide`: names are hidden from \
          everyone; only a rule without operation, caller, size and content can be one"
        ]
    );
}

#[test]
fn a_rule_that_refuses_nothing_has_nothing_to_audit() {
    let text = "[[rule]]\npath = \"a\"\naction = \"userspace\"\nmode = \"audit\"\n";
    assert_eq!(
        first_line(text),
        "p.toml:4:1: `mode = \"audit\"` records what a rule would refuse, and `userspace` refuses nothing"
    );
}

/// The warnings of a policy of one rule, each with its source line and mark.
fn marked(path: &str, action: &str) -> Vec<String> {
    let text = format!("[[rule]]\npath = {path}\naction = \"{action}\"\n");
    let policy = Policy::parse(&text, "p.toml").unwrap_or_else(|error| panic!("{error}"));
    policy.warnings().iter().map(ToString::to_string).collect()
}

#[test]
fn globs_that_mean_something_else_are_marked() {
    assert_eq!(
        marked("[\"src\", \".env\"]", "hide"),
        ["p.toml:2:17: warning: glob `.env` matches at the top of DIR only; write `**/.env` for \
          every directory\n2 | path = [\"src\", \".env\"]\n  |                 ^^^^"]
    );
    assert_eq!(
        marked("\"!docs/x\"", "deny"),
        [
            "p.toml:2:9: warning: glob `!docs/x` is about names that begin with `!`, and takes nothing \
          back; for an exception write a rule before this one, with path `docs/x` and action \
          `passthrough`\n2 | path = \"!docs/x\"\n  |         ^"
        ]
    );
    for (glob, part) in [("~/.ssh", "~"), ("$HOME/.aws/**", "$HOME"), ("${XDG}/x", "${XDG}")] {
        let warnings = marked(&format!("\"{glob}\""), "deny");
        assert_eq!(warnings.len(), 1, "{glob}");
        assert!(warnings[0].contains(&format!("a name `{part}` in DIR")), "{warnings:?}");
        let mark = warnings[0].lines().last().unwrap().trim_start_matches([' ', '|']);
        assert_eq!(mark, "^".repeat(part.len()), "{warnings:?}");
    }
}

#[test]
fn globs_that_mean_what_they_say_are_not_marked() {
    let fine = [
        "[\".env\", \"**/.env\"]",
        "\"docs\"",
        "\"Makefile\"",
        "\".github\"",
        "\"a~\"",
        "\"$\"",
        "\"$1.txt\"",
        "\"x/!y\"",
        "\"certs/server.pem\"",
        "\"**/.env\"",
    ];
    for path in fine {
        assert_eq!(marked(path, "deny"), Vec::<String>::new(), "{path}");
    }
    // What may be read and not changed is no secret.
    assert_eq!(marked("\".envrc\"", "read-only"), Vec::<String>::new());
}

#[test]
fn the_mark_stands_under_the_wrong_character_of_a_glob() {
    let place = |glob: &str| {
        let text = format!("[[rule]]\npath = [\"é\", '{glob}']\naction = \"deny\"\n");
        let shown = refused(&text);
        let lines: Vec<_> = shown.lines().collect();
        let at = lines[2].chars().position(|c| c == '^').unwrap();
        lines[1].chars().skip(at).collect::<String>().trim_end_matches("']").to_owned()
    };
    assert_eq!(place("a/b//c"), "/c");
    assert_eq!(place("src/[abc"), "[abc");
    assert_eq!(place("src/{a,b"), "{a,b");
    assert_eq!(place("é/a**b"), "**b");
    assert_eq!(place("a/../b"), "../b");
    assert_eq!(place("x/[z-a]"), "z-a]");
}

struct Team;

impl tollgate_policy::Names for Team {
    fn user(&self, name: &str) -> Option<u32> {
        (name == "alice").then_some(1000)
    }

    fn group(&self, name: &str) -> Option<u32> {
        (name == "staff").then_some(50)
    }
}

#[test]
fn users_and_groups_have_names_where_somebody_looks_them_up() {
    let parse = |line: &str| {
        Policy::parse_with(&rule_with(line), "p.toml", &Team).map_err(|error| error.to_string())
    };
    let decides = |line: &str, uid, gid| {
        let facts = tollgate_policy::Facts {
            path: b"a",
            kind: tollgate_policy::Kind::File,
            size: 0,
            head: None,
        };
        let caller = tollgate_policy::CallerFacts { uid, gid, exe: None };
        let policy = parse(line).unwrap();
        policy.decide(&facts, tollgate_policy::Operation::Read, &caller).rule.is_some()
    };
    assert!(decides("uid = \"alice\"", 1000, 0) && !decides("uid = \"alice\"", 1001, 0));
    assert!(decides("uid = [7, \"alice\"]", 7, 0) && decides("gid = \"staff\"", 0, 50));
    let error = parse("uid = [\"alice\", \"bob\"]").err().unwrap();
    assert!(
        error.starts_with("p.toml:3:17: `uid` names `bob`, and there is no such user"),
        "{error}"
    );
    assert!(parse("gid = \"alice\"").err().unwrap().contains("no such group"));
}
