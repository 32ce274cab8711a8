//! `run --user`: the server of root answers CMD's user, who learns what holds for a path and no more.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::fs::{Gid, Uid};
use serde_json::Value;

use crate::project::{Project, all, can_mount, first_line, text};

const USER: u32 = 4321;

/// What `tollgate` says in a script of CMD, which is of the user; `options` are those of `run`.
fn said(options: &str, script: &str) -> (String, String) {
    let project = Project::new();
    let output = project.in_mount_namespace(&format!(
        "chmod 755 .; cp $T ./tollgate; chmod 755 ./tollgate; export T=$PWD/tollgate
        chmod 444 dir/a.txt; chmod 777 dir/docs
        $T run --quiet --user {USER}:{USER} {options} dir -- sh -c '{script}'"
    ));
    (text(&output.stdout), all(&output))
}

#[test]
fn the_user_of_cmd_is_told_what_holds_for_a_path() {
    if !can_mount() {
        return;
    }
    for fence in ["", "--fence off"] {
        let options = format!("{fence} --policy policy.toml");
        let script = "id -u; $T why a.txt; $T why --write a.txt; $T why .env
            $T why --write docs/new; $T why /etc/hostname; $T why --write /etc/hosts; $T why --json keys/id_rsa; $T status";
        let (said, all) = said(&options, script);
        for line in [
            "/a.txt: yes, by the default",
            "/a.txt: no (EACCES), allowed by the policy, but not by its permissions",
            "/.env: no (ENOENT), by rule `env`",
            "/docs/new: no (EROFS), by rule `docs`",
            "/etc/hostname: yes",
            "\"allowed\": false",
            "  server     run, up",
        ] {
            assert!(said.contains(line), "{line}: {all}");
        }
        assert!(said.starts_with("4321\n"), "{all}");
        // What its permissions refuse, no option of the fence allows.
        let hosts = said.lines().find(|line| line.starts_with("/etc/hosts")).unwrap();
        assert!(hosts.contains("no (EACCES)") && !hosts.contains("--allow"), "{hosts}");
    }
}

/// Each directory has a server of its own in the same process.
#[test]
fn rules_of_further_directories_are_told_too() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let other = project.path("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("seen"), "x").unwrap();
    let policy = format!(
        "[[view]]\ndir = '{}'\n[[view.rule]]\nname = 'inner'\npath = 'secret'\naction = 'hide'\n",
        other.display()
    );
    std::fs::write(project.path("views.toml"), policy).unwrap();
    let output = project.in_mount_namespace(
        "chmod 755 .; cp $T ./tollgate; chmod 755 ./tollgate; export T=$PWD/tollgate O=$PWD/other
        $T run --quiet --user 4321:4321 --policy views.toml dir -- \
            sh -c '$T why $O/seen; $T why $O/secret; $T status'",
    );
    let said = text(&output.stdout);
    assert!(said.contains("/other/seen: yes"), "{}", all(&output));
    assert!(said.contains("by rule `inner`"), "{}", all(&output));
    assert_eq!(said.matches("  server     run").count(), 2, "{}", all(&output));
}

#[test]
fn what_is_not_for_the_user_is_not_told() {
    if !can_mount() {
        return;
    }
    let script = "cat .env; $T status --json; $T status --requests; $T status --metrics
        $T top --once; $T reload; ls /run/tollgate-users /run/tollgate";
    let (said, all) = said("--policy policy.toml", script);
    let report: Value = serde_json::from_str(said.split("\n]").next().unwrap())
        .or_else(|_| serde_json::from_str(&format!("{}\n]", said.split("\n]").next().unwrap())))
        .unwrap_or_else(|_| panic!("{all}"));
    let mut keys: Vec<_> = report[0].as_object().unwrap().keys().map(String::as_str).collect();
    keys.retain(|key| !["pid_here", "other_views"].contains(key));
    keys.sort_unstable();
    let few = ["brief", "dir", "kind", "mount_point", "started", "uptime_seconds", "version"];
    assert_eq!(keys, few, "{all}");
    assert!(all.contains("that is for the user who started the server, and root"), "{all}");
    for secret in ["policy.toml", "read_bytes", "in force"] {
        assert!(!all.contains(secret), "{secret}: {all}");
    }
}

/// A `run` whose CMD waits, and the socket of its user.
struct Waiting(Child, PathBuf);

impl Waiting {
    fn new(project: &Project, options: &[&str]) -> Self {
        let entered = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(project.path(""), entered).unwrap();
        let mut command = project.run_with(&[&["--user", "4321:4321"], options].concat());
        let command = command.args(["sh", "-c", "echo $TOLLGATE_CONTROL; read end"]);
        let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let socket = PathBuf::from(first_line(&mut run));
        assert!(socket.starts_with("/run/tollgate-users"), "{socket:?}");
        Self(run, socket)
    }

    fn end(mut self) {
        writeln!(self.0.stdin.take().unwrap(), "end").unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

/// The reply to `request` of `user`.
fn ask(user: u32, socket: &Path, request: &str) -> Result<String, String> {
    let ask = || {
        rustix::thread::set_thread_groups(&[]).unwrap();
        let (gid, uid) = (Gid::from_raw(user), Uid::from_raw(user));
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        tollgate_control::ask(socket, request).map_err(|error| format!("{error:?}"))
    };
    // Ids are each thread's own, and this one ends with them.
    std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
}

#[test]
fn nobody_else_is_answered_and_nothing_is_changed() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let waiting = Waiting::new(&project, &[]);
    let socket = waiting.1.clone();
    let command = |name: &str| format!("{{\"command\":\"{name}\"}}");
    for name in ["reload", "requests", "metrics", "stop", "unmount"] {
        let reply = ask(USER, &socket, &command(name)).unwrap();
        assert!(reply.starts_with("{\"error\":"), "{name}: {reply}");
    }
    assert!(ask(USER, &socket, &command("status")).unwrap().contains("\"brief\":true"));
    let refused = ask(USER + 1, &socket, &command("status")).unwrap_err();
    assert!(refused.contains("PermissionDenied"), "{refused}");
    // Even where the file's permissions let it in.
    let anybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&socket, anybody).unwrap();
    let reply = ask(USER + 1, &socket, &command("status")).unwrap();
    assert!(reply.contains("not user 4322"), "{reply}");
    // Nobody lists the sockets of others.
    let directory = std::fs::metadata(socket.parent().unwrap()).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&directory) & 0o777, 0o711);
    waiting.end();
    assert!(!socket.exists(), "it is removed");
}

#[test]
fn who_joins_a_session_is_answered() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let name = format!("guest-{}", std::process::id());
    let first = Waiting::new(&project, &["--session", &name]);
    let mut command = crate::project::tollgate();
    command.args([
        "run",
        "--quiet",
        "--session",
        &name,
        "--",
        "sh",
        "-c",
        "echo $TOLLGATE_CONTROL",
    ]);
    let output = command.current_dir(project.path("dir")).output().unwrap();
    assert_eq!(text(&output.stdout).trim(), first.1.to_str().unwrap(), "{}", all(&output));
    first.end();
}
