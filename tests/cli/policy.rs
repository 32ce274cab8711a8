//! The commands that answer for a policy without a mount: `check`, `explain`, `test`, `brief`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use super::{Answer, Place, command, tollgate};

#[test]
fn a_wrong_policy_names_file_line_and_column() {
    let place = Place::new();
    let policy = place.write("p.toml", "[[rule]]\npath = \"a\"\naction = \"denied\"\n");
    let position = format!("{policy}:3:10");
    let parts = [position.as_str(), "denied", "passthrough"];
    let (dir, mnt) = (place.path("dir"), place.path("mnt"));
    tollgate(["check", &policy]).fails(1, &parts);
    tollgate(["explain", "--policy", &policy, "a"]).fails(1, &parts);
    tollgate(["mount", "--policy", &policy, &dir, &mnt]).fails(1, &parts);
    tollgate(["run", "--policy", &policy, &dir, "--", "true"]).fails(125, &parts);
}

#[test]
fn a_policy_that_cannot_be_read_is_refused() {
    let place = Place::new();
    let missing = place.path("missing");
    tollgate(["check", &missing]).fails(1, &[&format!("policy `{missing}`"), "No such file"]);
    tollgate(["check", &place.path("dir")]).fails(1, &["not a regular file"]);
    tollgate(["check", "/dev/zero"]).fails(1, &["not a regular file"]);
    let binary = place.path("binary");
    std::fs::write(&binary, b"default = \"\xff\"").unwrap();
    tollgate(["check", &binary]).fails(1, &["line 1 is not UTF-8", "byte 11"]);
    let fifo = place.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    tollgate(["check", &fifo]).fails(1, &["not a regular file"]);
}

#[test]
fn a_good_policy_is_summed_up_and_its_warnings_are_printed() {
    let place = Place::new();
    let policy = place.write(
        "p.toml",
        "[[rule]]\npath = \"**\"\naction = \"deny\"\n[[rule]]\npath = \"a\"\naction = \"hide\"\n",
    );
    let answer = tollgate(["check", &policy]);
    assert_eq!(answer.code(), 0, "{answer:?}");
    assert!(answer.out().contains("2 rules, default passthrough"), "{answer:?}");
    assert!(answer.err().contains("warning: "), "{answer:?}");
}

/// Those that are built in are rules, too, and not the policy's.
#[test]
fn explain_and_check_count_the_same_rules() {
    let place = Place::new();
    place.write("a.txt", "a");
    let dir = place.0.path().to_str().unwrap();
    let checked = tollgate(["check", "--policy", "agent", "--dir", dir]);
    let checked = checked.out();
    let rules: usize =
        checked.split_once(" rules").unwrap().0.rsplit(' ').next().unwrap().parse().unwrap();
    let explained = tollgate(["explain", "--policy", "agent", "--dir", dir, "a.txt"]);
    let explained = explained.out();
    let shown = explained.lines().filter(|line| line.starts_with("rule `")).count();
    let others = explained.split_once(" rules are about other paths").unwrap().0;
    let others: usize = others.rsplit('\n').next().unwrap().parse().unwrap();
    assert_eq!(shown + others, rules, "{checked}{explained}");
}

#[test]
fn check_takes_its_policy_as_other_commands_do_too() {
    let named = tollgate(["check", "--policy", "agent"]);
    assert_eq!(named.code(), 0, "{named:?}");
    assert_eq!(named.out(), tollgate(["check", "agent"]).out());
    tollgate(["check", "--policy", "agent", "node"]).fails(2, &["--policy"]);
}

#[test]
fn explain_says_which_rule_and_why() {
    let place = Place::new();
    let policy = place.write(
        "p.toml",
        "[[rule]]\nname = \"env\"\npath = \"**/.env\"\naction = \"hide\"\n\
         [[rule]]\nname = \"big\"\npath = \"**\"\nuid = 7\naction = \"deny\"\n",
    );
    let answer = tollgate(["explain", "--policy", &policy, "a/.env"]);
    assert_eq!(answer.code(), 0, "{answer:?}");
    assert!(answer.out().contains("hidden") && answer.out().contains("`env`"), "{answer:?}");

    let json = |arguments: &[&str]| {
        let all = [&["explain", "--json", "--policy", &policy], arguments].concat();
        let answer = tollgate(all);
        assert_eq!(answer.code(), 0, "{answer:?}");
        serde_json::from_str::<serde_json::Value>(answer.out()).unwrap()
    };
    let denied = json(&["--as", "uid=7,gid=7,exe=/bin/x", "--operation", "read", "b"]);
    assert_eq!(denied["operations"].as_array().unwrap().len(), 1);
    assert_eq!(denied["operations"][0]["rule"], "big");
    let allowed = json(&["--as", "uid=8", "--operation", "read", "b"]);
    assert!(allowed["operations"][0]["rule"].is_null());
    let directory = json(&["--dir", &place.path("dir"), "sub"]);
    assert_eq!(directory["kind"], "directory");
}

#[test]
fn explain_looks_at_the_real_file_of_the_working_directory() {
    let place = Place::new();
    place.write("dir/real.pem", "-----BEGIN RSA PRIVATE KEY-----\n");
    place.write("dir/public.pem", "-----BEGIN CERTIFICATE-----\n");
    let explain = |path: &str| {
        let mut command = command(["explain", "--exit-code", "--operation", "read", path]);
        let output = command.current_dir(place.path("dir")).output().unwrap();
        output.status.code().unwrap()
    };
    // Under the built-in policy, which tells a key from a certificate by its content.
    assert_eq!(explain("real.pem"), 3);
    assert_eq!(explain("public.pem"), 0);
    assert_eq!(explain("not-there.pem"), 0);
    assert_eq!(explain(".env"), 3);
}

#[test]
fn explain_looks_at_the_real_file_under_a_policy_that_is_named() {
    let place = Place::new();
    place.write("dir/real.pem", "-----BEGIN RSA PRIVATE KEY-----\n");
    let explain = |path: &str| {
        let arguments = ["explain", "-p", "agent", "--exit-code", "--operation", "read", path];
        Answer(command(arguments).current_dir(place.path("dir")).output().unwrap())
    };
    assert_eq!(explain("real.pem").code(), 3);
    assert!(!explain("real.pem").err().contains("empty file"));
    let missing = explain("not-there.pem");
    assert_eq!(missing.code(), 0);
    let note =
        "taken for an empty file, or for a directory with a slash at its end: `not-there.pem`";
    assert!(missing.err().contains(note), "{missing:?}");
}

#[test]
fn explain_says_which_file_a_rule_is_in_where_two_hold() {
    let place = Place::new();
    let rule =
        |name: &str| format!("[[rule]]\nname = \"{name}\"\npath = \"a\"\naction = \"deny\"\n");
    let configured = place.write("p.toml", &rule("of the user"));
    place.write("dir/.tollgate.toml", &rule("of the directory"));
    let mut command = command(["explain", "a"]);
    let command = command.current_dir(place.path("dir")).env("TOLLGATE_POLICY", &configured);
    let answer = Answer(command.output().unwrap());
    assert!(
        answer.out().contains("rule `of the directory (.tollgate.toml)` (line 1"),
        "{answer:?}"
    );
    assert!(answer.out().contains("rule `of the user` (line 1"), "{answer:?}");
}

#[test]
fn a_brief_says_where_a_rule_goes_by_content() {
    let answer = tollgate(["brief", "--policy", "agent"]);
    let line = answer.out().lines().find(|line| line.contains("keys of cloud services"));
    assert!(line.is_some_and(|line| line.contains("of a certain content")), "{answer:?}");
    let line = answer.out().lines().find(|line| line.contains("env files are not there"));
    assert!(line.is_some_and(|line| !line.contains("of a certain")), "{answer:?}");
    for (policy, kept) in [("agent", true), ("none", false)] {
        let answer = tollgate(["brief", "--policy", policy]);
        assert_eq!(answer.out().contains("* Policy files (`.tollgate.toml`)"), kept, "{answer:?}");
    }
}

/// By what the policy says of the repository's own files.
#[test]
fn a_brief_says_what_git_can_do_under_the_policy() {
    let place = Place::new();
    for directory in ["dir/.git/hooks", "dir/.git/objects", "dir/.git/refs"] {
        std::fs::create_dir_all(place.path(directory)).unwrap();
    }
    place.write("dir/.git/HEAD", "ref: refs/heads/main\n");
    place.write("dir/.git/config", "[core]\n\tbare = false\n");
    let of_git = |path: &str| {
        place.write("p.toml", &format!("[[rule]]\npath = '{path}'\naction = 'read-only'\n"))
    };
    let (index, hooks) = (of_git(".git/index*"), "p.toml");
    let said = |policy: &str| {
        let answer = tollgate(["brief", "--policy", policy, &place.path("dir")]);
        assert_eq!(answer.code(), 0, "{answer:?}");
        let line = answer.out().lines().find(|line| line.starts_with("* ") && line.contains("git"));
        line.unwrap_or_else(|| panic!("{answer:?}")).to_owned()
    };
    for policy in ["ci", "read-only", &index] {
        let line = said(policy);
        assert!(
            line.contains("only be read") && !line.contains("works: commit"),
            "{policy}: {line}"
        );
    }
    let line = said("agent");
    assert!(line.contains("commit") && line.contains("hooks and settings cannot"), "{line}");
    let line = said("none");
    assert!(line.contains("works: commit") && !line.contains("cannot be changed"), "{line}");
    assert!(!line.contains("tracked file that is read-only"), "{line}");
    of_git(".git/hooks");
    let line = said(&place.path(hooks));
    assert!(line.contains("hooks cannot") && !line.contains("settings"), "{line}");
    of_git(".git/config");
    let line = said(&place.path(hooks));
    assert!(line.contains("settings cannot") && line.contains("--no-track"), "{line}");
    let rest = "default = 'read-only'\n[[rule]]\npath = ['.git', 'src']\naction = 'passthrough'\n";
    let line = said(&place.write("p.toml", rest));
    assert!(line.contains("works: commit") && line.contains("tracked file that is read-only"));
    let hidden = place.write("p.toml", "[[rule]]\npath = '.git'\naction = 'hide'\n");
    assert!(said(&hidden).contains("does not work"), "{}", said(&hidden));
}

#[test]
fn a_policy_that_allows_everything_is_warned_of() {
    let place = Place::new();
    let empty = place.write("empty.toml", "# nothing yet\n");
    let answer = tollgate(["check", &empty]);
    assert_eq!(answer.code(), 0, "{answer:?}");
    assert!(answer.err().contains("has no rules and allows everything"), "{answer:?}");
    assert!(answer.out().contains("0 rules, default passthrough, 1 warning\n"), "{answer:?}");
    let answer = tollgate(["check", "--json", &empty]);
    let report: serde_json::Value = serde_json::from_str(answer.out()).unwrap();
    let message = report["warnings"][0]["message"].as_str().unwrap_or_default();
    assert!(message.contains("has no rules and allows everything"), "{report}");
    let closed = place.write("closed.toml", "default = \"read-only\"\n");
    assert_eq!(tollgate(["check", &closed]).err(), "");
}

/// As it is where a disk was full, or while an editor saves it.
#[test]
fn a_policy_file_of_no_bytes_is_wrong() {
    let place = Place::new();
    let empty = place.write("empty.toml", "");
    let answer = tollgate(["check", &empty]);
    assert_eq!(answer.code(), 1, "{answer:?}");
    assert!(answer.err().contains("empty.toml` is empty"), "{answer:?}");
    let answer = tollgate(["explain", "--policy", &empty, "a"]);
    assert_eq!(answer.code(), 1, "{answer:?}");
}

/// Also where its rules are about all files alike. One that refuses nothing is as none.
#[test]
fn no_policy_file_can_be_made_under_a_policy_that_refuses_something() {
    const KEYS: &str = "[[rule]]\npath = '**'\ncontent = { regex = 'KEY' }\naction = 'deny'\n";
    const RECORDED: &str = "[[rule]]\npath = '**'\naction = 'deny'\nmode = 'audit'\n";
    const SEEN: &str = "[[rule]]\npath = '**'\naction = 'userspace'\n";
    const OWN: &str =
        "default = 'read-only'\n[[rule]]\npath = '**'\nuid = 7\naction = 'passthrough'\n";
    let place = Place::new();
    let explained = |options: &[&str], path: &str| {
        let mut explain = command(["explain", "--exit-code", "--operation", "create", path]);
        let explain = explain
            .args(options)
            .args(["--as", "uid=7"])
            .current_dir(place.path("dir"))
            .env("HOME", place.path("dir"));
        explain.env_remove("TOLLGATE_POLICY").env_remove("XDG_CONFIG_HOME");
        Answer(explain.output().unwrap())
    };
    let brief = |options: &[&str]| {
        let mut brief = command(["brief"]);
        let brief = brief.args(options).arg(place.path("dir")).env("HOME", place.path("dir"));
        brief.env_remove("TOLLGATE_POLICY").env_remove("XDG_CONFIG_HOME");
        let answer = Answer(brief.output().unwrap());
        answer.out().contains("Policy files (`.tollgate.toml`) are the user's")
    };
    let files = [".tollgate.toml", "sub/.tollgate.toml", ".config/tollgate/config.toml"];
    for (policy, is_kept) in [(KEYS, true), (OWN, true), (SEEN, false), (RECORDED, false)] {
        let named = place.write("p.toml", policy);
        let options = ["--policy", &named];
        for file in files {
            let answer = explained(&options, file);
            assert_eq!(answer.code(), if is_kept { 3 } else { 0 }, "{policy}{file}: {answer:?}");
        }
        assert_eq!(explained(&options, "sub/other").code(), 0, "{policy}");
        assert_eq!(brief(&options), is_kept, "{policy}");
    }
    // Whoever has one in DIR has it kept, whatever it says.
    for policy in [KEYS, OWN, SEEN, RECORDED, "default = 'passthrough'\n"] {
        place.write("dir/.tollgate.toml", policy);
        for file in files {
            let answer = explained(&[], file);
            assert_eq!(answer.code(), 3, "{policy}{file}: {answer:?}");
        }
        assert!(brief(&[]), "{policy}");
    }
    assert_eq!(explained(&["--policy", "none"], "sub/.tollgate.toml").code(), 0);
    assert!(!brief(&["--policy", "none"]));
    // Where nothing can be made, there is nothing to keep, and no rule about names is needed for it.
    let rule = |operations: &str| {
        format!(
            "default = 'deny'\n[[rule]]\npath = '**'\noperation = [{operations}]\n\
             action = 'passthrough'\n"
        )
    };
    for (policy, by_rule) in [
        ("default = 'read-only'\n", false),
        (&rule("'read', 'list'"), false),
        (&rule("'read', 'create'"), true),
    ] {
        let named = place.write("p.toml", policy);
        let options = ["--policy", &named];
        assert!(brief(&options), "{policy}");
        let answer = explained(&options, "sub/.tollgate.toml");
        assert_eq!(answer.code(), 3, "{policy}{answer:?}");
        assert_eq!(answer.out().contains("policy files"), by_rule, "{policy}{answer:?}");
    }
}

/// As `run` would find it.
#[test]
fn check_finds_the_policy_of_the_directory() {
    let place = Place::new();
    place.write(".tollgate.toml", "[[rule]]\npath = 'a'\naction = 'deny'\n");
    let check = || {
        let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        check.arg("check").current_dir(place.path("")).env_remove("TOLLGATE_POLICY");
        check.env("XDG_CONFIG_HOME", place.path("none")).output().unwrap()
    };
    let output = check();
    assert!(
        String::from_utf8_lossy(&output.stdout).contains(".tollgate.toml: 1 rule"),
        "{output:?}"
    );
    place.write(".tollgate.toml", "[[view]]\ndir = '/srv'\n");
    let said = String::from_utf8_lossy(&check().stderr).into_owned();
    assert!(said.contains("found in DIR cannot have `[[view]]` tables"), "{said}");
}

#[test]
fn explain_finds_a_path_however_it_is_named() {
    let place = Place::new();
    let policy = place.write("p.toml", "[[rule]]\npath = '**/.env'\naction = 'hide'\n");
    let dir = place.path("dir");
    let asked = |paths: &[&str]| {
        let mut command = command(["explain", "--json", "--dir", &dir, "--policy", &policy]);
        Answer(command.args(paths).current_dir(place.path("dir/sub")).output().unwrap())
    };
    let whole = place.path("dir/.env");
    for path in ["../.env", &whole, "../sub/./../.env"] {
        let answer = asked(&[path]);
        assert_eq!(answer.code(), 0, "{answer:?}");
        let json: serde_json::Value = serde_json::from_str(answer.out()).unwrap();
        assert_eq!(json["path"], ".env", "{json}");
    }
    // One that is outside does not keep the others from being answered.
    let answer = asked(&["/etc/passwd", "../.env"]);
    assert_eq!(answer.code(), 1, "{answer:?}");
    let json: serde_json::Value = serde_json::from_str(answer.out()).unwrap();
    assert_eq!((json[0]["path"].as_str(), json.as_array().unwrap().len()), (Some(".env"), 1));
    assert!(answer.err().contains("PATH `/etc/passwd` is not in DIR"), "{answer:?}");
}

#[test]
fn explain_refuses_paths_outside() {
    let place = Place::new();
    tollgate(["explain", "/etc/passwd"]).fails(1, &["PATH `/etc/passwd` is not in DIR"]);
    tollgate(["explain", "a/../../b"]).fails(1, &["PATH `a/../../b` is not in DIR"]);
    let dir = place.path("dir");
    tollgate(["explain", "--dir", &dir, "missing"]).fails(1, &["PATH `missing`", "No such file"]);
    tollgate(["explain", "--dir", &place.path("file"), "a"]).fails(1, &["is not a directory"]);
}

#[test]
fn a_path_that_is_not_utf8_can_be_explained() {
    let place = Place::new();
    let odd = [&b"q\"q"[..], b"b\\n", b"a\nb", b"e\x1b", b"a\xff\nb", "e\u{301}".as_bytes()];
    let odd = odd.map(OsStr::from_bytes);
    let explain = |options: &[&str], paths: &[&OsStr]| {
        let fixed = ["explain"].iter().chain(options).map(OsStr::new);
        let mut command = command(fixed.chain(paths.iter().copied()));
        let answer = Answer(command.current_dir(place.path("dir")).output().unwrap());
        assert_eq!(answer.code(), 0, "{answer:?}");
        answer
    };
    let json = |options: &[&str], paths: &[&OsStr]| {
        let answer = explain(&[&["--json"], options].concat(), paths);
        serde_json::from_str::<serde_json::Value>(answer.out()).unwrap()
    };
    let all = json(&[], &odd);
    for (path, said) in odd.iter().zip(all.as_array().unwrap()) {
        assert_eq!(said["path"], path.to_string_lossy().as_ref(), "{said}");
        assert_eq!(said.get("path_hex").is_some(), path.to_str().is_none(), "{said}");
    }
    assert_eq!(all[4]["path_hex"], "61ff0a62");
    let moved = json(&["--to", "z\"z"], &[odd[4]]);
    assert_eq!((&moved["to"], &moved["path_hex"]), (&"z\"z".into(), &"61ff0a62".into()));
    assert!(moved.get("to_hex").is_none(), "{moved}");
    let text = explain(&[], &odd);
    for shown in ["q\"q (", "b\\\\n (", "a\\nb (", "e\\x1b (", "a\\xff\\nb (", "e\u{301} ("] {
        assert!(text.out().lines().any(|line| line.starts_with(shown)), "{shown} in {text:?}");
    }
    let hidden = place.write("p.toml", "[[rule]]\npath = 'a\"b'\naction = 'hide'\n");
    let below = json(&["--policy", &hidden], &[OsStr::from_bytes(b"a\"b/c")]);
    assert_eq!(below["hidden_above"], "a\"b", "{below}");
}

#[test]
fn names_of_secrets_that_are_not_utf8_can_be_told_apart() {
    let place = Place::new();
    std::fs::create_dir(place.path("own")).unwrap();
    for name in [b"a\xff.pem", b"a\xfe.pem"] {
        let file = Path::new(&place.path("own")).join(OsStr::from_bytes(name));
        std::fs::write(file, "-----BEGIN RSA PRIVATE KEY-----\n").unwrap();
    }
    let policy = place.write("p.toml", "[[rule]]\npath = 'x'\naction = 'deny'\n");
    let check = ["check", "--dir", &place.path("own"), &policy].map(str::to_owned);
    let report = tollgate(check.iter().map(String::as_str).chain(["--json"]));
    let report: serde_json::Value = serde_json::from_str(report.out()).unwrap();
    let hex: Vec<_> =
        report["uncovered"].as_array().unwrap().iter().map(|one| &one["path_hex"]).collect();
    assert_eq!(hex, ["61fe2e70656d", "61ff2e70656d"], "{report}");
    let text = tollgate(&check);
    assert!(text.out().contains("a\\xfe.pem: ") && text.out().contains("a\\xff.pem: "), "{text:?}");
}

/// What a rule only records, or refuses to a program that is named, can be read.
#[test]
fn check_and_test_go_by_what_is_enforced() {
    let place = Place::new();
    std::fs::create_dir(place.path("own")).unwrap();
    place.write("own/s.log", "token = ghp_aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bD1fG3hJ5\n");
    let rule = "[[rule]]\npath = '**/*.log'\naction = 'deny'\n";
    let dir = place.path("own");
    for (condition, found) in [
        ("", false),
        ("mode = 'audit'\n", true),
        ("exe = '/usr/bin/no-such'\n", true),
        ("uid = 0\n", !rustix::process::getuid().is_root()),
    ] {
        let policy = place.write("p.toml", &format!("{rule}{condition}"));
        let answer = tollgate(["check", "--dir", &dir, &policy]);
        let none = "no file that looks like a secret can be read";
        assert_eq!(!answer.out().contains(none), found, "{condition}: {answer:?}");
    }
    let tests = |expect: &str| {
        let test = format!(
            "policy = 'p.toml'\ndir = 'own'\n[[test]]\npath = 's.log'\noperation = 'read'\nexpect = '{expect}'\n"
        );
        tollgate(["test", &place.write("t.toml", &test)]).code()
    };
    place.write("p.toml", &format!("{rule}mode = 'audit'\n"));
    assert_eq!((tests("allow"), tests("deny")), (0, 1), "it is only recorded");
    place.write("p.toml", rule);
    assert_eq!((tests("allow"), tests("deny")), (1, 0));
}

#[test]
fn what_is_below_a_hidden_directory_is_hidden_to_check_and_test() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("own/h")).unwrap();
    place.write("own/h/.env", "TOKEN=ghp_aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bD1fG3hJ5\n");
    let rule = "[[rule]]\npath = 'h'\nkind = 'directory'\naction = 'hide'\n";
    let policy = place.write("p.toml", rule);
    let answer = tollgate(["check", "--dir", &place.path("own"), &policy]);
    assert!(answer.out().contains("no file that looks like a secret can be read"), "{answer:?}");
    let test = "policy = 'p.toml'\ndir = 'own'\n[[test]]\npath = 'h/.env'\noperation = 'read'\nexpect = 'hide'\n";
    let answer = tollgate(["test", &place.write("t.toml", test)]);
    assert_eq!(answer.code(), 0, "{answer:?}");
}

#[test]
fn a_brief_says_what_holds_where_nothing_is_listed() {
    let place = Place::new();
    let brief = |policy: &str| {
        let policy = place.write("p.toml", policy);
        tollgate(["brief", "--policy", &policy, &place.path("dir")]).out().to_owned()
    };
    let said = brief("default = 'deny'\n[[rule]]\npath = 'src'\naction = 'passthrough'\n");
    assert!(said.contains("Nothing can be used but what the policy allows"), "{said}");
    let said = brief("[[rule]]\npath = 'src'\naction = 'deny'\nmode = 'audit'\n");
    assert!(!said.contains("`src`"), "{said}");
    let said = brief("[[rule]]\npath = 'src'\naction = 'redact'\n");
    assert!(said.contains("with `*` in place of what looks like a secret"), "{said}");
    let more = format!("[[view]]\ndir = '{}'\n", place.path("more"));
    let said = brief(&(more.clone() + "[[view.rule]]\npath = 'key'\naction = 'deny'\n"));
    assert!(said.contains(&format!("hold in `{}`", place.path("more"))), "{said}");
    assert!(!said.contains("Fenced:"), "{said}");
    let policy =
        place.write("p.toml", &(String::from("default = 'deny'\nmode = 'audit'\n") + &more));
    let said = tollgate(["brief", "--json", "--policy", &policy, &place.path("dir")]);
    let said: serde_json::Value = serde_json::from_str(said.out()).unwrap();
    assert_eq!(said["default"], "passthrough", "{said}");
    assert_eq!(said["views"][0], place.path("more").as_str(), "{said}");
}

#[test]
fn a_brief_is_about_the_view_whose_directory_is_named() {
    let place = Place::new();
    let policy = format!(
        "[[rule]]\npath = 'top'\naction = 'deny'\n[[view]]\ndir = '{}'\n\
         [[view.rule]]\npath = 'key'\naction = 'deny'\n",
        place.path("dir")
    );
    let policy = place.write("p.toml", &policy);
    let answer = tollgate(["brief", "--policy", &policy, &place.path("dir")]);
    assert_eq!(answer.code(), 0, "{answer:?}");
    assert!(answer.out().contains("`key`") && !answer.out().contains("`top`"), "{answer:?}");
    // The other one is named beside DIR, and not beside itself.
    assert!(!answer.out().contains("hold in"), "{answer:?}");
}

/// As a view does, to which they are one path.
#[test]
fn tests_judge_a_path_with_dots_as_the_path_without() {
    let place = Place::new();
    place.write("p.toml", "[[rule]]\npath = 'a/b'\naction = 'deny'\n");
    for head in ["", "dir = 'dir'\n"] {
        let paths = "['a/b', 'a/./b', './a//b', 'a/b/.']";
        let test = format!("policy = 'p.toml'\n{head}[[test]]\npath = {paths}\nexpect = 'deny'\n");
        let answer = tollgate(["test", &place.write("t.toml", &test)]);
        assert_eq!(answer.code(), 0, "{answer:?}");
    }
}

/// Which rules hold there is known by the directory, as it is to a view.
#[test]
fn tests_of_a_directory_go_by_its_view() {
    let place = Place::new();
    let policy = format!(
        "[[rule]]\npath = 'secret'\naction = 'hide'\n[[view]]\ndir = '{}'\n\
         default = 'read-only'\n",
        place.path("dir")
    );
    place.write("p.toml", &policy);
    place.write("dir/secret", "s");
    let expect = |path: &str, operation: &str, expected: &str| {
        format!("[[test]]\npath = '{path}'\noperation = '{operation}'\nexpect = '{expected}'\n")
    };
    let in_view = expect("secret", "read", "allow") + &expect("f", "write", "read-only");
    let in_dir = expect("secret", "read", "hide") + &expect("f", "write", "allow");
    for (head, right, wrong) in [("dir = 'dir'\n", &in_view, &in_dir), ("", &in_dir, &in_view)] {
        for (tests, code) in [(right, 0), (wrong, 1)] {
            let text = format!("policy = 'p.toml'\n{head}{tests}");
            let answer = tollgate(["test", &place.write("t.toml", &text)]);
            assert_eq!(answer.code(), code, "{text}{answer:?}");
        }
    }
}

#[test]
fn tests_whose_policy_or_directory_is_not_there_are_named() {
    let place = Place::new();
    for (key, head) in
        [("policy", "policy = 'no-such'"), ("dir", "policy = 'agent'\ndir = 'no-such'")]
    {
        let text = format!("{head}\n[[test]]\npath = 'a'\nexpect = 'allow'\n");
        let tests = place.write("t.toml", &text);
        tollgate(["test", &tests]).fails(1, &[&format!("tests `{tests}`: `{key}`: "), "no-such"]);
    }
}

/// What it led to held until it went away: nothing, or the policy of DIR alone, would hold in its place.
#[test]
fn a_configuration_that_leads_nowhere_is_an_error() {
    for link in [
        "home/.config/tollgate/policy.toml",
        "home/.config/tollgate/config.toml",
        "home/.config/tollgate",
    ] {
        let place = Place::new();
        place.write("dir/a", "");
        let link = std::path::PathBuf::from(place.path(link));
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", &link).unwrap();
        let mut command = command(["explain", "a"]);
        let command = command.current_dir(place.path("dir")).env("HOME", place.path("home"));
        let answer = Answer(command.env_remove("XDG_CONFIG_HOME").output().unwrap());
        assert_eq!(answer.code(), 1, "{link:?}: {answer:?}");
        assert!(answer.err().contains("cannot be read"), "{link:?}: {answer:?}");
    }
}

#[test]
fn check_judges_a_file_by_all_of_its_names() {
    let place = Place::new();
    for directory in ["own/a", "own/vault", "own/logs"] {
        std::fs::create_dir_all(place.path(directory)).unwrap();
    }
    let token = "token = ghp_aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bD1fG3hJ5\n";
    for (name, other) in [("a/one.txt", "vault/one"), ("a/two.txt", "logs/two")] {
        let file = place.write(&format!("own/{name}"), token);
        std::fs::hard_link(file, place.path(&format!("own/{other}"))).unwrap();
    }
    place.write("own/a/three.txt", token);
    let policy = place.write(
        "p.toml",
        "[[rule]]\npath = 'vault'\naction = 'deny'\n[[rule]]\npath = 'logs'\naction = 'redact'\n",
    );
    let answer = tollgate(["check", "--json", "--dir", &place.path("own"), &policy]);
    let report: serde_json::Value = serde_json::from_str(answer.out()).unwrap();
    let paths = |key: &str| {
        let all = report[key].as_array().unwrap().iter();
        all.map(|one| one["path"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(paths("uncovered"), ["a/three.txt"], "{report}");
    assert_eq!(paths("covered"), ["a/one.txt", "a/two.txt", "logs/two", "vault/one"], "{report}");
}

/// Of every repository that has files in the directory.
#[test]
fn check_names_what_git_tracks_wherever_the_repository_is() {
    let place = Place::new();
    let git = |directory: &str, arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(place.path(directory)).args(arguments);
        git.output().is_ok_and(|output| output.status.success())
    };
    for directory in ["own/part/lib", "own/part/h"] {
        std::fs::create_dir_all(place.path(directory)).unwrap();
    }
    if !git("own", &["init", "-q"])
        || !git("own/part/lib", &["init", "-q", "--object-format=sha256"])
    {
        return eprintln!("skipped: no git that knows SHA-256");
    }
    for name in ["key", "part/key", "part/h/x", "part/lib/key"] {
        place.write(&format!("own/{name}"), "x");
    }
    assert!(
        git("own", &["add", "key", "part/key", "part/h"]) && git("own/part/lib", &["add", "."])
    );
    let policy = place.write(
        "p.toml",
        "[[rule]]\npath = '**/key'\naction = 'deny'\n\
         [[rule]]\npath = '**/h'\nkind = 'directory'\naction = 'hide'\n",
    );
    for (dir, expected) in [
        ("own", &["key", "part/h/x", "part/key", "part/lib/key"][..]),
        ("own/part", &["h/x", "key", "lib/key"]),
        ("own/part/lib", &["key"]),
    ] {
        let answer = tollgate(["check", "--json", "--dir", &place.path(dir), &policy]);
        let report: serde_json::Value = serde_json::from_str(answer.out()).unwrap();
        let tracked = report["tracked"].as_array().unwrap().iter();
        let mut paths: Vec<_> = tracked.map(|one| one["path"].as_str().unwrap()).collect();
        paths.sort_unstable();
        assert_eq!(paths, expected, "{dir}: {report}");
        assert_eq!(report["problems"].as_array().unwrap().len(), 0, "{report}");
    }
    let answer = tollgate(["check", "--dir", &place.path("own"), &policy]);
    let said = "`git -C 'part/lib' update-index --skip-worktree 'key'` prevents that";
    assert!(answer.err().contains(said), "{answer:?}");
}

/// A view does not know what a sealed file holds; nor does `check`.
#[test]
fn check_judges_a_sealed_file_as_explain_does() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("own/vault")).unwrap();
    let (dir, key) = (place.path("own"), place.path("key"));
    let git = |arguments: &[&str]| {
        let git = Command::new("git").args(["-C", &dir]).args(arguments).output();
        git.is_ok_and(|output| output.status.success())
    };
    if !git(&["init", "-q"]) {
        return eprintln!("skipped: no git");
    }
    // By its content, it is not refused as long as it is not sealed.
    place.write("own/vault/a.pem", "-----BEGIN CERTIFICATE-----\n");
    assert!(git(&["add", "vault"]));
    let vault = place.path("own/vault");
    for arguments in [
        &["seal", "init", "--new-key-file", &key, &dir][..],
        &["seal", "convert", "--dir", &dir, "--key-file", &key, "--domain", "vault", &vault],
    ] {
        let answer = tollgate(arguments);
        assert_eq!(answer.code(), 0, "{answer:?}");
    }
    let explained = ["explain", "--policy", "agent", "--dir", &dir, "--operation", "read"];
    let answer = tollgate(explained.iter().chain([&"vault/a.pem"]));
    assert!(answer.out().contains("rule `private keys`"), "{answer:?}");
    let answer = tollgate(["check", "--policy", "agent", "--json", "--dir", &dir]);
    let report: serde_json::Value = serde_json::from_str(answer.out()).unwrap();
    for list in ["covered", "tracked"] {
        let found = report[list].as_array().unwrap();
        let is_named =
            |one: &serde_json::Value| one["path"] == "vault/a.pem" && one["rule"] == "private keys";
        assert!(found.iter().any(is_named), "{list}: {report}");
    }
    // Where nothing refuses it, it does not look like a secret for being sealed.
    let answer = tollgate(["check", "--policy", "none", "--dir", &dir]);
    assert!(!answer.out().contains("vault/a.pem"), "{answer:?}");
}
