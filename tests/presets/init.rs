//! What `init` writes, and names as it and others print them.

use std::process::Command;

use crate::harness::{PRESETS, Tree, all, has, private_key};
use crate::mounting::can_mount;

/// A name with an escape sequence and a line of its own steers no terminal and forges no line.
#[test]
fn names_that_steer_a_terminal_are_printed_as_text() {
    const EVIL: &str = "evil\x1b[2J\ntollgate: all is well";
    const SHOWN: &str = "evil\\x1b[2J\\ntollgate: all is well";
    let tree = Tree::new();
    tree.write(&format!("{EVIL}/token.rs"), "t = \"ghp_0123456789abcdefghijABCDEFGHIJ012345\"\n");
    tree.write(&format!("{EVIL}/.env"), "SECRET=1\n");
    tree.bare(
        "d=$(printf 'evil\\033[2J\\ntollgate: all is well'); git init -q --bare \"$d.git\"
        git -C \"$d.git\" config core.fsmonitor x; git init -q .; git add -A",
    );
    let explained = format!("{EVIL}/.env");
    let asked: [&[&str]; 4] = [
        &["check", "--dir", ".", "none"],
        &["check", "--dir", ".", "agent"],
        &["init", "--output", "../home/made.toml"],
        &["explain", "--policy", "agent", &explained],
    ];
    for arguments in asked {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let said = all(&tree.at_home(command.args(arguments)));
        assert!(!said.contains('\x1b'), "{arguments:?}: {said:?}");
        assert!(!said.contains("\ntollgate: all is well"), "{arguments:?}: {said}");
        assert!(said.contains(SHOWN), "{arguments:?}: {said}");
    }
    let repository = format!("{SHOWN}.git: ");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let said = all(&tree.at_home(command.args(["check", "--dir", ".", "none"])));
    assert!(said.contains(&repository), "{said}");
}

#[test]
fn a_policy_that_init_wrote_can_be_read_and_committed() {
    if !can_mount() || !has("git") {
        return;
    }
    for preset in PRESETS {
        let tree = Tree::new();
        tree.bare("git init -q; echo x > a.py");
        let mut init = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = tree.at_home(init.args(["init", preset]));
        assert!(output.status.success(), "{preset}: {}", all(&output));
        // Those two leave the repository as it is.
        let add = if matches!(preset, "ci" | "read-only") { "" } else { "; git add -A" };
        let policy = tree.path("p/.tollgate.toml").to_string_lossy().into_owned();
        // It is not shown, nor missed, until git has it.
        tree.works(&policy, &format!("test ! -e .tollgate.toml{add}"));
        tree.bare("test -z \"$(git ls-files .tollgate.toml)\"; git add .tollgate.toml");
        tree.works(
            &policy,
            &format!("head -1 .tollgate.toml{add}; test -n \"$(git ls-files .tollgate.toml)\""),
        );
    }
}

/// What is in the place of the file may have been put there by somebody else.
#[test]
fn init_replaces_regular_files_alone() {
    let tree = Tree::new();
    let init = || {
        let mut init = Command::new("timeout");
        init.args(["60", env!("CARGO_BIN_EXE_tollgate"), "init", "--force"]);
        tree.at_home(&mut init)
    };
    tree.bare("echo mine >../victim; ln -s ../victim .tollgate.toml");
    let output = init();
    assert_eq!(output.status.code(), Some(1), "{}", all(&output));
    assert!(all(&output).contains("not a regular file"), "{}", all(&output));
    tree.bare("test \"$(cat ../victim)\" = mine; rm .tollgate.toml; mkfifo .tollgate.toml");
    let output = init();
    assert_eq!(output.status.code(), Some(1), "{}", all(&output));
    tree.bare("rm .tollgate.toml; echo old >.tollgate.toml; ln .tollgate.toml ../victim -f");
    tree.bare("chmod 640 .tollgate.toml");
    let output = init();
    assert!(output.status.success(), "{}", all(&output));
    tree.bare(
        "grep -q rule .tollgate.toml; test \"$(cat ../victim)\" = old
         test \"$(stat -c %a .tollgate.toml)\" = 640; test \"$(ls -A)\" = .tollgate.toml",
    );
}

/// A secret in the index: what git does about it in the view, the way out, and what the history
/// holds.
#[test]
fn secrets_that_git_tracks_are_named_with_the_way_out() {
    if !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.write("keys/s.pem", &private_key(""));
    tree.bare("git init -q; echo A=1 >.env; echo a >a; git add -A; git commit -qm a");
    let say = |arguments: &[&str]| {
        let output = tree.at_home(Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments));
        assert!(output.status.success(), "{}", all(&output));
        all(&output)
    };
    let asked: [&[&str]; 2] =
        [&["check", "--dir", ".", "agent"], &["init", "agent", "--output", "../home/p.toml"]];
    for arguments in asked {
        let said = say(arguments);
        for part in [
            "`.env` is tracked by git, and rule `env files are not there` hides it",
            "`git add -A` would commit its deletion",
            "`keys/s.pem` is tracked by git, and rule `private keys` refuses to read it",
            "`git update-index --skip-worktree '.env'`",
            "the history holds tracked secrets: `git show HEAD:FILE`",
        ] {
            assert!(said.contains(part), "{arguments:?}: {part} is not in: {said}");
        }
    }
    tree.bare("git update-index --skip-worktree .env; git rm -q --cached keys/s.pem");
    let said = say(&["check", "--dir", ".", "agent"]);
    assert!(said.contains("`.env` is tracked by git (skip-worktree)"), "{said}");
    assert!(!said.contains("`keys/s.pem` is tracked"), "{said}");
}

/// What is not named is counted, and what is still to be done is named before what was done.
#[test]
fn secrets_that_are_not_named_are_counted() {
    if !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare(
        "git init -q; mkdir d; for n in $(seq 25); do mkdir d/$n; echo A=1 >d/$n/.env; done
        git add -A; git commit -qm a",
    );
    for number in 0..25 {
        let token = "t = \"ghp_0123456789abcdefghijABCDEFGHIJ012345\"\n";
        tree.write(&format!("r/{number}.rs"), token);
    }
    let say = |arguments: &[&str]| {
        let output = tree.at_home(Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments));
        assert!(output.status.success(), "{}", all(&output));
        all(&output)
    };
    let check = ["check", "--dir", ".", "agent"];
    let init = ["init", "agent", "--force", "--output", "../home/p.toml"];
    let rest = "and 5 more that rules keep and git tracks";
    for arguments in [&check[..], &init] {
        let said = say(arguments);
        assert!(said.contains(rest), "{arguments:?}: {said}");
        assert_eq!(said.matches("update-index --skip-worktree 'd/").count(), 20, "{said}");
    }
    tree.bare("git ls-files d | head -n 20 | xargs git update-index --skip-worktree");
    let said = say(&check);
    assert_eq!(said.matches("update-index --skip-worktree 'd/").count(), 5, "{said}");
    assert!(said.contains(rest), "{said}");
    let said = say(&init);
    assert_eq!(said.matches("` can be read: ").count(), 8, "{said}");
    assert!(said.contains("and 17 more that look like secrets can be read"), "{said}");
}

/// Lists have an end, the figures beside them none.
#[test]
fn init_and_check_count_more_files_than_they_list() {
    let tree = Tree::new();
    for number in 0..1_025 {
        tree.write(&format!("d{number}/.env"), "A=1\n");
    }
    let say = |arguments: &[&str]| {
        all(&tree.at_home(Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments)))
    };
    let said = say(&["init", "agent", "--output", "../home/p.toml"]);
    assert!(said.contains(" and 1017 more\n"), "{said}");
    let said = say(&["check", "--dir", ".", "none"]);
    assert!(said.contains("and 1005 more (--json lists up to 1000)"), "{said}");
}

/// git commits what it reads, without a word.
#[test]
fn what_is_masked_and_tracked_is_named() {
    if !has("git") {
        return;
    }
    let tree = Tree::new();
    let token = "ghp_9QeWJKY40uvSwMFLZDe1f8rESQedUStPKR0C";
    tree.write("conf", &format!("tok = {token}\n"));
    tree.write(
        "r.toml",
        "[[rule]]\nname = \"all\"\npath = \"**\"\nkind = \"file\"\naction = \"redact\"\n",
    );
    tree.bare("git init -q; echo A=1 >.env; echo a >a; git add -A; git commit -qm a");
    let check = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = tree.at_home(command.arg("check").args(arguments));
        assert!(output.status.success(), "{}", all(&output));
        all(&output)
    };
    let said = check(&["--dir", ".", "r.toml"]);
    let warning = "`conf` is tracked by git, and rule `all` masks secrets in it: in the view \
                   `git commit -a` may commit the masked text";
    assert!(said.contains(warning), "{said}");
    assert!(!said.contains("`a` is tracked"), "nothing is masked in it: {said}");
    // Its name says more than its content.
    assert!(said.contains(".env: preset `agent`") && said.contains("is masked"), "{said}");
    assert!(!said.contains("conf: it holds"), "{said}");
    // Other detectors leave it as it is.
    tree.write(
        "card.toml",
        "[[rule]]\npath = \"conf\"\naction = \"redact\"\ndetectors = [\"card\"]\n",
    );
    let narrow = check(&["--dir", ".", "card.toml"]);
    assert!(narrow.contains("conf: it holds what looks like a key or a token"), "{narrow}");
    let plain = check(&["--dir", ".", "none"]);
    assert!(plain.contains("conf: it holds what looks like a key or a token"), "{plain}");
    let report: serde_json::Value = serde_json::from_str(
        check(&["--json", "--dir", ".", "r.toml"])
            .lines()
            .filter(|line| !line.starts_with("tollgate"))
            .collect::<Vec<_>>()
            .join("\n")
            .as_str(),
    )
    .unwrap();
    assert_eq!(report["tracked"][0]["masked"], true, "{report}");
}

/// How many files each rule is about, which are about none, and what looks like a secret.
#[test]
fn check_counts_what_each_rule_decides_over() {
    let tree = Tree::new();
    tree.write(
        "policy.toml",
        "[[rule]]\nname = \"docs\"\npath = \"docs/**\"\naction = \"deny\"\n\
         [[rule]]\nname = \"none\"\npath = \"none\"\naction = \"hide\"\n",
    );
    for name in ["docs/a", "docs/b", ".env"] {
        tree.write(name, "A=secret\n");
    }
    let check = |json: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output =
            tree.at_home(command.arg("check").args(json).args(["--dir", ".", "policy.toml"]));
        String::from_utf8(output.stdout).unwrap()
    };
    let report: serde_json::Value = serde_json::from_str(&check(&["--json"])).unwrap();
    let counts: Vec<_> = report["rules"].as_array().unwrap().iter().collect();
    assert_eq!(
        (counts[0]["decides_over"].as_u64(), counts[1]["decides_over"].as_u64()),
        (Some(2), Some(0))
    );
    assert_eq!(report["uncovered"][0]["path"], ".env");
    let said = check(&[]);
    assert!(said.contains("1 rule decides over nothing here"), "{said}");
}
