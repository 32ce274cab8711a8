//! CMD answers as a server does, with what it likes.

use serde_json::json;
use tollgate_control::Directory;

use crate::project::{Project, all, can_mount, text};

/// A line end, and what clears a terminal.
const STEERS: &str = "\n/forged at /m\u{1b}[2J";

/// Not a test: the server that CMD starts. Ends with a file that the test makes.
#[test]
#[ignore = "a program for the other test"]
fn server() {
    let word = |text: &str| format!("{text}{STEERS}");
    let report = json!({
        "pid": 1, "kind": word("mount"), "dir": word("/d"), "mount_point": word("/m"),
        "policy": word("/p"), "started": word("then"), "native": [word("n")],
        "audit": { "file": word("/etc/passwd"), "last_error": word("full") },
        "sandbox": { "mode": word("on"), "reason": word("none") },
        "keep_awake": { "text": word("auto") }, "transport": { "kind": word("devfuse") },
        "negotiated": { "protocol": word("7"), "features": [word("f")] },
    });
    let directory = Directory::of_user("tollgate");
    let _server = directory.serve("view", move |_, _| report.to_string()).unwrap();
    serve_until_the_end();
}

/// Not a test: a server that CMD starts, which has the socket `$OTHER` in the place of its own once it
/// has said that it shows /d.
#[test]
#[ignore = "a program for the other test"]
fn exchanging_server() {
    let other = std::env::var_os("OTHER").unwrap();
    let own = std::sync::Arc::new(std::sync::OnceLock::<std::path::PathBuf>::new());
    let socket = std::sync::Arc::clone(&own);
    let report = json!({ "pid": 1, "dir": "/d", "mount_point": "/d" });
    let answer = move |_: &tollgate_control::Peer, _: &str| {
        if let Some(socket) = socket.get() {
            let link = socket.with_extension("link");
            let _ = std::os::unix::fs::symlink(&other, &link);
            let _ = std::fs::rename(link, socket);
        }
        report.to_string()
    };
    let server = Directory::of_user("tollgate").serve("view", answer).unwrap();
    own.set(server.path().to_owned()).unwrap();
    serve_until_the_end();
}

/// Not a test: a server that CMD starts, which answers nothing.
#[test]
#[ignore = "a program for the other test"]
fn silent_server() {
    let answer = |_: &tollgate_control::Peer, _: &str| {
        serve_until_the_end();
        String::new()
    };
    let _server = Directory::of_user("tollgate").serve("view", answer).unwrap();
    serve_until_the_end();
}

fn serve_until_the_end() {
    std::fs::write("serves", "").unwrap();
    while !std::path::Path::new("end").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Runs `script` among sockets of its own, as other tests have servers, too. `cmd SERVER` in it has CMD
/// of a `run` of `other` serve.
fn beside_servers_of_a_command(project: &Project, script: &str) -> std::process::Output {
    let before = r#"
        mkdir -p -m 700 /run/tollgate; mount -t tmpfs -o mode=700 sockets /run/tollgate; mkdir other
        cmd() {
            $T run --quiet --policy none other -- $CMD --ignored --exact forged::$1 --nocapture >cmd 2>&1 &
            for i in $(seq 1000); do [ -e other/serves ] && break; sleep 0.02; done
        }
        trap 'touch other/end; wait; umount -l mnt 2>/dev/null || true' EXIT
        "#;
    let command = std::env::current_exe().unwrap();
    let script = [before, script].concat().replace("$CMD", command.to_str().unwrap());
    project.in_mount_namespace(&script)
}

#[test]
fn a_server_of_the_command_does_not_pass_a_reload_on_to_another_one() {
    if !can_mount() || !rustix::process::getuid().is_root() {
        return;
    }
    let project = Project::new();
    let script = r#"
        $T mount --daemon --policy policy.toml dir mnt; export OTHER=$(echo /run/tollgate/view-*)
        cmd exchanging_server; echo '# all' >policy.toml
        $T reload /d && echo done
        [ -e mnt/.env ] && echo reloaded; true"#;
    let output = beside_servers_of_a_command(&project, script);
    assert!(output.status.success(), "{}", all(&output));
    assert_eq!(text(&output.stdout), "", "{}", all(&output));
    assert!(text(&output.stderr).contains("was started in a `tollgate run`"), "{}", all(&output));
}

#[test]
fn a_silent_server_of_the_command_is_not_taken_for_that_of_a_dead_view() {
    if !can_mount() || !rustix::process::getuid().is_root() {
        return;
    }
    let project = Project::new();
    let script = r#"
        $T mount --policy none dir mnt 2>/dev/null & server=$!
        for i in $(seq 1000); do [ -e mnt/a.txt ] && break; sleep 0.02; done
        kill -9 $server; wait $server || true
        cmd silent_server
        $T mount --daemon --policy none dir mnt; cat mnt/a.txt; $T umount mnt"#;
    let output = beside_servers_of_a_command(&project, script);
    assert!(output.status.success(), "{}", all(&output));
    assert_eq!(text(&output.stdout), "plain\n", "{}", all(&output));
}

#[test]
fn a_server_of_the_command_neither_forges_lines_nor_chooses_an_audit_log() {
    if !can_mount() || !rustix::process::getuid().is_root() {
        return;
    }
    let project = Project::new();
    // Among sockets of its own: other tests have servers, too.
    let script = r#"
        mkdir -p -m 700 /run/tollgate; mount -t tmpfs -o mode=700 sockets /run/tollgate
        $T run --policy none dir -- $CMD --ignored --exact forged::server --nocapture >cmd 2>&1 &
        trap 'touch dir/end; wait' EXIT
        for i in $(seq 1000); do [ -e dir/serves ] && break; sleep 0.02; done
        $T status --verbose >status; $T audit >none 2>&1 && exit 1
        $T run --policy none --audit log dir/docs -- $T audit >own"#;
    let command = std::env::current_exe().unwrap();
    let script = script.replace("$CMD", command.to_str().unwrap());
    let output = project.in_mount_namespace(&script);
    let read = |name: &str| text(&std::fs::read(project.path(name)).unwrap());
    assert!(output.status.success(), "{}{}", all(&output), read("cmd"));
    let status = read("status");
    assert!(status.contains("/d\\n/forged at /m\\x1b[2J at"), "{status}");
    assert!(!status.contains('\u{1b}') && !status.contains("\n/forged"), "{status}");
    let none = read("none");
    assert!(none.contains("but for what was started in a `tollgate run`"), "{none}");
    assert!(!read("own").is_empty(), "{}", all(&output));
}
