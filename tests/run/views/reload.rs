//! `reload` of a policy with views.

use std::io::{BufRead, BufReader, Read};

use super::*;

/// Views begin and end with the server; rules of all of them are read again by one reload.
#[test]
fn a_reload_says_which_views_it_does_not_change() {
    if !can_mount() {
        return;
    }
    let project = project();
    let mut command = run(&project, "several.toml", "dir", &["--quiet"]);
    command.args(["--", "sh", "-c", "echo ready; read go; cat ../notes/plan; read go"]);
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(running.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let policy = fs::read_to_string(project.path("several.toml")).unwrap();
    let change = |policy: &str| {
        fs::write(project.path("several.toml"), policy).unwrap();
        let mut reload = tollgate();
        reload.arg("reload").arg(project.path("dir")).output().unwrap()
    };
    let output = change(&policy.replace("path = \"secret\"", "path = [\"secret\", \"plan\"]"));
    assert!(output.status.success(), "{}", all(&output));
    assert_eq!(text(&output.stdout).matches("is in force\n").count(), 3, "{}", all(&output));
    let output = change(&format!("{policy}\n[[view]]\ndir = \"~\"\n"));
    assert_eq!(output.status.code(), Some(1), "{}", all(&output));
    let told = all(&output);
    assert!(
        told.contains("is in force, but for this:") && told.contains("of `~` is new"),
        "{told}"
    );
    // One that a view cannot have, or that is wrong: all keep theirs.
    let native = "[[rule]]\npath = \"docs\"\naction = \"native\"\n";
    for (wrong, why) in [(native, "`native` differ"), ("[[rule]]\npath = 5\n", "several.toml:2:8")]
    {
        let output =
            change(&format!("{wrong}{}", policy.replace("[\"secret\", \"plan\"]", "\"x\"")));
        let told = all(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("3 of 3 views kept") && !told.contains("is in force"), "{told}");
        assert_eq!(told.matches(why).count(), 1, "{told}");
    }
    let at = policy.rfind("[[view]]").unwrap();
    let output = change(&policy[..at].replace("path = \"secret\"", "path = \"**\""));
    let told = all(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("data` is gone") && told.contains("1 of 3 views kept"), "{told}");
    drop(running.stdin.take());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "plan is hidden by now");
    running.wait().unwrap();
}

/// A policy that `run` would refuse in DIR is no policy to reload: the rules that held go on to hold.
#[test]
fn a_reload_does_not_take_views_from_a_policy_that_was_found_in_dir() {
    if !can_mount() {
        return;
    }
    let project = project();
    let own = project.path("dir/.tollgate.toml");
    fs::write(project.path("dir/hidden"), "text").unwrap();
    fs::write(&own, "[[rule]]\npath = \"hidden\"\naction = \"hide\"\n").unwrap();
    let mut command = tollgate();
    command.args(["run", "--quiet"]).arg(project.path("dir"));
    command.args(["--", "sh", "-c", "echo ready; read go; cat hidden; echo $?"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = command.spawn().unwrap();
    let mut said = BufReader::new(running.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    fs::write(&own, "[[view]]\ndir = \"/etc\"\n[[rule]]\npath = \"x\"\naction = \"deny\"\n")
        .unwrap();
    let output = tollgate().arg("reload").arg(project.path("dir")).output().unwrap();
    let told = all(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let refused = ".tollgate.toml:1:1: a policy that is found in DIR cannot have `[[view]]` tables";
    assert!(told.contains("keeps its policy") && told.contains(refused), "{told}");
    drop(running.stdin.take());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "1\n", "it is still hidden");
    running.wait().unwrap();
}

/// `mount` shows DIR alone: a view that is added later is not in force, and what would show it is
/// said. One that was there at the start was told of then.
#[test]
fn a_reload_of_a_mount_says_that_a_view_is_not_in_force() {
    if !can_mount() {
        return;
    }
    let project = project();
    let notes = project.path("notes");
    let output = project.in_mount_namespace(&format!(
        "mount -t tmpfs none /run; cp several.toml p.toml
        $T mount --daemon --log log --policy p.toml dir mnt; $T reload dir && echo whole
        printf '[[view]]\\ndir = \"{}/sub\"\\n' >>p.toml; mkdir notes/sub
        $T reload dir || echo in part; $T reload --json dir | grep -c not_applied
        kill -HUP $($T status --json | grep -o '\"pid\": [0-9]*' | grep -o '[0-9]*$')
        until [ $(grep -c 'is new' log) = 1 ]; do sleep 0.1; done; $T umount mnt",
        notes.display()
    ));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("in force\nwhole\n") && out.contains("in part\n1\n"), "{out}{err}");
    let new =
        out.lines().find(|line| line.contains("is new")).unwrap_or_else(|| panic!("{out}{err}"));
    assert!(new.contains("notes/sub` is new: `mount` shows DIR alone"), "{new}");
    assert!(new.contains("`tollgate mount --policy ") && new.contains("notes/sub MNT`"), "{new}");
    assert!(err.contains("a part of the policy is not in force"), "{err}");
}

/// `run` would not start by such a policy.
#[test]
fn a_reload_cannot_hide_dir_in_the_view_around_it() {
    if !can_mount() {
        return;
    }
    let project = project();
    let mut command = run(&project, "home.toml", "home/work/dir", &["--quiet"]);
    command.args(["--", "sh", "-c", "echo ready; read go; cat \"$PWD/a.txt\""]);
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut running), "ready");
    let policy = "[[view]]\ndir = \"~\"\n[[view.rule]]\nname = \"all\"\npath = \"work\"\n\
                  action = \"hide\"\n";
    fs::write(project.path("home.toml"), policy).unwrap();
    let reload = tollgate().arg("reload").arg(project.path("home/work/dir")).output().unwrap();
    let said = all(&reload);
    assert_eq!(reload.status.code(), Some(1), "{said}");
    assert!(
        said.contains("does not show in the [[view]]") && said.contains("rule `all`"),
        "{said}"
    );
    drop(running.stdin.take());
    assert_eq!(first_line(&mut running), "plain");
    running.wait().unwrap();
    let output = sh(run(&project, "home.toml", "home/work/dir", &[]), "true");
    assert_eq!(output.status.code(), Some(125), "{}", all(&output));
}
