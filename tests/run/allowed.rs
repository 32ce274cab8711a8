//! What `--allow` opens, and what it does not; a `run` in a `run` in a `run`; what is said of
//! variables.

use std::process::Stdio;

use crate::project::{Project, all, can_mount, text, tollgate};

#[test]
fn what_is_allowed_to_be_changed_holds_around_dir_too() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // The directory above DIR would be shown read-only, as it lies in /tmp.
    let place = project.path("");
    // A policy in it would be CMD's to rewrite.
    let elsewhere = tempfile::tempdir().unwrap();
    let policy = elsewhere.path().join("policy.toml");
    std::fs::copy(project.path("policy.toml"), &policy).unwrap();
    let mut command = tollgate();
    command.args(["run", "--sandbox", "strict", "--allow", &format!("{}:rw", place.display())]);
    let output = command
        .arg("--policy")
        .arg(policy)
        .arg(project.path("dir"))
        .args(["--", "sh", "-c", "echo new >../beside; cat .env"])
        .current_dir(project.path("dir"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(std::fs::read_to_string(project.path("beside")).unwrap(), "new\n");
    assert!(all(&output).contains(".env: No such file"), "{}", all(&output));
}

#[test]
fn sockets_of_sessions_stay_hidden() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let session = format!("hidden-{}", std::process::id());
    for rights in ["", ":rw"] {
        let mut command =
            project.run_with(&["--session", &session, "--allow", &format!("/run{rights}")]);
        let output = command
            .args(["sh", "-c", "ls -A /run/tollgate-sessions | wc -l; ls -d /run/tollgate"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(text(&output.stdout), "0\n/run/tollgate\n", "{}", all(&output));
    }
}

#[test]
fn a_run_in_a_run_in_a_run_works() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let own = env!("CARGO_BIN_EXE_tollgate");
    let inner = [own, "run", "--quiet", "--policy", "none", ".", "--"];
    let mut command = project.run();
    command.args(inner).args(inner).args(inner);
    let output =
        command.args(["sh", "-c", "cat a.txt .env"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(text(&output.stdout), "plain\n", "{}", all(&output));
    assert!(all(&output).contains(".env: No such file"), "{}", all(&output));
}

#[test]
fn variables_with_secrets_in_their_values_are_left_out_and_named() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let mut command = project.run_with(&["--env", "NOT_SET_HERE"]);
    command
        .args(["sh", "-c", "env"])
        .env("ACCOUNT", r#"{"type": "service", "private_key": "planted"}"#)
        .env("REMOTE", " https://ghp_0123456789abcdefplanted@github.com/a/b")
        .env("STORE", "Server=db;Password=planted;")
        .env("HEADER", "AUTHORIZATION: basic cGxhbnRlZA==")
        .env("SETTINGS", r#"{"colour": "green"}"#);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("SETTINGS=") && !out.contains("planted"), "{out}");
    assert!(!out.contains("HEADER="), "{out}");
    assert!(said.contains("look like secrets: ACCOUNT, HEADER, REMOTE, STORE"), "{said}");
    let unset = "warning: --env: not set here, so CMD does not get it: NOT_SET_HERE";
    assert!(said.contains(unset), "{said}");
    let quiet =
        project.run_with(&["--quiet", "--env", "NOT_SET_HERE"]).arg("true").output().unwrap();
    let said = text(&quiet.stderr);
    assert!(said.contains(unset) && said.lines().count() == 1, "{said}");
}
