//! What a policy file is told: warnings of what means something else or nothing, limits, and
//! `tollgate test`. Colour goes to terminals alone.

use std::path::Path;
use std::process::{Command, Output};

fn tollgate(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).current_dir(dir).env_remove("TOLLGATE_POLICY").output().unwrap()
}

fn all(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Each is accepted, and is warned of with what to write; the marks stand below the glob.
#[test]
fn globs_that_mean_something_else_are_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    for (glob, advice, marks) in [
        (".env", "write `**/.env` for every directory", "^^^^"),
        ("!a", "takes nothing back; for an exception write a rule before this one", "^"),
        ("~/x", "no `~` and no variable stands for another place", "^"),
        ("$HOME/y", "no `~` and no variable stands for another place", "^^^^^"),
    ] {
        let text = format!("[[rule]]\npath = [\"**/other\", \"{glob}\"]\naction = \"deny\"\n");
        std::fs::write(dir.path().join("p.toml"), text).unwrap();
        let output = tollgate(dir.path(), &["check", "p.toml"]);
        assert!(output.status.success(), "{}", all(&output));
        let said = all(&output);
        for part in ["p.toml:2:", "warning", &format!("`{glob}`"), advice, "1 warning"] {
            assert!(said.contains(part), "{glob}: {part} is not in: {said}");
        }
        let mut lines = said.lines().skip_while(|line| !line.starts_with("2 | "));
        let (line, mark) = (lines.next().unwrap(), lines.next().unwrap());
        let column = mark.find('^').unwrap();
        assert_eq!(&mark[column..], marks, "{said}");
        assert_eq!(&line[column..column + marks.len()], &glob[..marks.len()], "{said}");
    }
}

/// A rule that refuses by its own mode does so under a policy that is tried out.
#[test]
fn a_mode_of_a_rules_own_holds() {
    let dir = tempfile::tempdir().unwrap();
    let rule = |mode: &str| format!("[[rule]]\npath = 'h'\naction = 'read-only'\n{mode}\n");
    for (mode, status) in [("mode = 'enforce'", 3), ("mode = 'audit'", 0), ("", 0)] {
        let text = format!("mode = 'audit'\ndefault = 'deny'\n{}", rule(mode));
        std::fs::write(dir.path().join("p.toml"), text).unwrap();
        let arguments = ["explain", "--policy", "p.toml", "--exit-code", "--operation", "write"];
        let explained = tollgate(dir.path(), &[&arguments[..], &["h/x"]].concat());
        assert_eq!(explained.status.code(), Some(status), "{mode}: {}", all(&explained));
    }
}

/// As many rules as a policy may have can be in force, with those that are built in before them.
#[test]
fn a_policy_with_as_many_rules_as_it_may_have_holds() {
    let dir = tempfile::tempdir().unwrap();
    let rules = |count: usize| -> String {
        (0..count).map(|n| format!("[[rule]]\npath = 'd/f{n}'\naction = 'deny'\n")).collect()
    };
    std::fs::create_dir_all(dir.path().join("d/d")).unwrap();
    for name in ["d/.tollgate.toml", "p.toml"] {
        std::fs::write(dir.path().join(name), rules(4096)).unwrap();
        let check = tollgate(dir.path(), &["check", name]);
        assert!(check.status.success(), "{}", all(&check));
        let explain = ["explain", "--policy", name, "--dir", "d", "--operation", "create"];
        let explained = tollgate(dir.path(), &[&explain[..], &["d/f4095"]].concat());
        let said = all(&explained);
        assert!(said.contains("EACCES, by rule `rule 4096`"), "{said}");
    }
    std::fs::write(dir.path().join("p.toml"), rules(4097)).unwrap();
    for command in ["check", "explain"] {
        let arguments = [command, "--policy", "p.toml", "d/f1"];
        let refused = tollgate(dir.path(), &arguments[..if command == "check" { 3 } else { 4 }]);
        assert!(all(&refused).contains("more than 4096 rules"), "{}", all(&refused));
    }
}

/// What a `\` stands before is the character itself.
#[test]
fn escaped_characters_are_no_wildcards() {
    let dir = tempfile::tempdir().unwrap();
    let check = |rule: &str| {
        std::fs::write(dir.path().join("p.toml"), format!("[[rule]]\n{rule}\n")).unwrap();
        let output = tollgate(dir.path(), &["check", "p.toml"]);
        assert!(output.status.success(), "{rule}: {}", all(&output));
        all(&output)
    };
    for glob in [r"st\*r", r"\[x\]", r"\{a,b\}", r"\?"] {
        let said = check(&format!("path = '{glob}'\naction = 'deny'"));
        assert!(said.contains("0 warnings"), "{glob}: {said}");
    }
    let said = check("path = '\\.env'\naction = 'deny'");
    assert!(said.contains("matches at the top of DIR only"), "{said}");
    check("path = 'x\\*y'\naction = 'native'");
    let explained = tollgate(dir.path(), &["explain", "--policy", "p.toml", "x*y/z", "xzy/z"]);
    let said = all(&explained);
    assert_eq!(said.matches("native, by rule `rule 1`").count(), 1, "{said}");
}

/// Callers have paths without symbolic links.
#[test]
fn an_executable_behind_a_link_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    let top = top.to_str().unwrap();
    std::fs::write(dir.path().join("program"), "").unwrap();
    std::os::unix::fs::symlink("program", dir.path().join("link")).unwrap();
    let check = |exes: &str| {
        let text = format!("[[rule]]\npath = 'a'\nexe = {exes}\naction = 'deny'\n");
        std::fs::write(dir.path().join("p.toml"), text).unwrap();
        all(&tollgate(dir.path(), &["check", "p.toml"]))
    };
    for exes in ["['TOP/program']", "['TOP/none']", "['TOP/link', 'TOP/program']", "'TOP/l*k'"] {
        let said = check(&exes.replace("TOP", top));
        assert!(said.contains("0 warnings"), "{exes}: {said}");
    }
    let said = check(&"['/usr/bin/none', 'TOP/link']".replace("TOP", top));
    let expected = format!("p.toml:3:26: warning: no caller's executable is `{top}/link`: ");
    assert!(said.contains(&expected) && said.contains(&format!("`{top}/program`")), "{said}");
    // The same is said of who is asked about.
    check(&"'TOP/program'".replace("TOP", top));
    let who = format!("exe={top}/link");
    let arguments = ["explain", "--policy", "p.toml", "--exit-code", "--as", &who, "a"];
    let explained = tollgate(dir.path(), &arguments);
    assert_eq!(explained.status.code(), Some(3), "{}", all(&explained));
    let expected = format!("the answer is for `{top}/program`");
    assert!(all(&explained).contains(&expected), "{}", all(&explained));
}

/// What cannot be a policy is not proposed for one; and with `--json`, what is wrong is JSON.
#[test]
fn a_policy_that_is_wrong_or_missing_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["v", "pl2/copy2"] {
        std::fs::create_dir_all(dir.path().join(name)).unwrap();
    }
    for name in ["-", "pl2/copy3", "pl2/copy2/p"] {
        let said = all(&tollgate(dir.path(), &["check", name]));
        assert!(said.contains("cannot be read") && !said.contains("did you mean"), "{said}");
    }
    std::fs::write(dir.path().join("wrong.toml"), "default = 'no'\n").unwrap();
    let check = tollgate(dir.path(), &["check", "--json", "wrong.toml"]);
    assert_eq!(check.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(json["policy"], "wrong.toml");
    let error = json["error"].as_str().unwrap();
    assert!(error.contains("wrong.toml:1:11: unknown action `no`"), "{error}");
}

/// A glob that is wrong is marked where it is wrong.
#[test]
fn a_wrong_glob_is_marked() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[[rule]]\npath = [\"**/other\", \"a/[z\"]\naction = \"deny\"\n";
    std::fs::write(dir.path().join("p.toml"), text).unwrap();
    let said = all(&tollgate(dir.path(), &["check", "p.toml"]));
    let at = |start: &str, c: char| {
        let line = said.lines().find(|line| line.starts_with(start)).unwrap();
        line.rfind(c).unwrap()
    };
    assert_eq!(at("2 | ", '['), at("  | ", '^'), "{said}");
}

/// Who may not read a file for what it holds may only replace it: that is not allowed as such.
#[test]
fn a_file_that_is_written_as_a_whole_alone_is_said_to_be_so() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write(
        "p.toml",
        "[[rule]]\npath = \"**/*.pem\"\ncontent = { regex = \"KEY\" }\noperation = \"read\"\naction = \"deny\"\n",
    );
    let expecting = |word: &str, content: &str| {
        let text = format!(
            "policy = \"p.toml\"\n[[test]]\npath = \"a.pem\"\noperation = \"write\"\n\
             content = \"{content}\"\nexpect = \"{word}\"\n"
        );
        write("t.toml", &text);
        let output = tollgate(dir.path(), &["test", "t.toml"]);
        (output.status.success(), all(&output))
    };
    assert!(expecting("whole", "A KEY").0);
    assert!(expecting("allow", "public").0);
    assert!(!expecting("whole", "public").0);
    assert!(!expecting("refuse", "A KEY").0);
    let (holds, said) = expecting("allow", "A KEY");
    assert!(!holds && said.contains("write of `a.pem` is whole"), "{said}");
    let json = tollgate(dir.path(), &["test", "--json", "t.toml"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["failures"][0]["found"], "whole");
}

/// A file that a project does not have is judged by its name, and one that cannot be looked at fails
/// alone.
#[test]
fn a_test_of_a_path_that_is_not_there_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("p.toml", "[[rule]]\npath = \"**/.env\"\naction = \"hide\"\n");
    write(".env", "x");
    let test =
        |path: &str, more: &str| format!("[[test]]\npath = {path}\n{more}expect = \"hide\"\n");
    let expecting = |tests: &str| {
        write("t.toml", &format!("policy = \"p.toml\"\ndir = \".\"\n{tests}"));
        let output = tollgate(dir.path(), &["test", "t.toml"]);
        (output.status.code(), all(&output))
    };
    let of_the_page = test("[\".env\", \"sub/.env\"]", "");
    let made = test("\"sub/other/.env\"", "operation = \"create\"\n");
    let (status, said) = expecting(&(of_the_page.clone() + &made));
    assert_eq!(status, Some(0), "{said}");
    let note = "not in `dir`, so taken for an empty file, or for a directory with a slash at its end: \
                `sub/.env`, `sub/other/.env`";
    assert!(said.contains(note) && said.contains("7 checked, 0 failures"), "{said}");
    let (status, said) = expecting(&test("\"missing\"", ""));
    assert!(status == Some(1) && said.contains("t.toml:3: read of `missing` is allow"), "{said}");
    std::os::unix::fs::symlink(".", dir.path().join("link")).unwrap();
    let (status, said) = expecting(&(test("\"link/.env\"", "") + &of_the_page));
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("t.toml:3: PATH `link/.env`"), "{said}");
    assert!(said.contains("7 checked, 1 failure"), "{said}");
    let json = tollgate(dir.path(), &["test", "--json", "t.toml"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["not_there"], serde_json::json!(["sub/.env"]));
    assert!(json["failures"][0]["error"].as_str().unwrap().contains("symbolic link"), "{json}");
}

/// Runs a line in a terminal, where script(1) of util-linux is.
fn in_a_terminal(line: &str, dir: &Path, no_color: bool) -> Option<String> {
    let mut command = Command::new("script");
    command.args(["-qec", line, "/dev/null"]).current_dir(dir).env_remove("NO_COLOR");
    if no_color {
        command.env("NO_COLOR", "1");
    }
    Some(all(&command.output().ok()?))
}

#[test]
fn colour_goes_to_terminals_alone_and_not_where_it_is_not_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let record = r#"{"time":"2026-01-01T00:00:01.000000Z","run":"0123456789abcdef","event":"request","operation":"open","outcome":"hide","errno":"ENOENT","uid":1,"pid":7,"path":".env"}"#;
    std::fs::write(dir.path().join("log"), format!("{record}\n")).unwrap();
    let plain = tollgate(dir.path(), &["audit", "log"]);
    assert!(all(&plain).contains(".env") && !all(&plain).contains('\u{1b}'), "{}", all(&plain));
    let line = format!("{} audit log", env!("CARGO_BIN_EXE_tollgate"));
    let Some(coloured) = in_a_terminal(&line, dir.path(), false) else {
        return eprintln!("skipped: no script");
    };
    assert!(coloured.contains(".env") && coloured.contains("\u{1b}["), "{coloured}");
    let plain = in_a_terminal(&line, dir.path(), true).unwrap();
    assert!(plain.contains(".env") && !plain.contains('\u{1b}'), "{plain}");
    let wrong = format!("{} check nowhere.toml", env!("CARGO_BIN_EXE_tollgate"));
    let plain = in_a_terminal(&wrong, dir.path(), true).unwrap();
    assert!(plain.contains("nowhere.toml") && !plain.contains('\u{1b}'), "{plain}");
}
