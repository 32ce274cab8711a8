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
    std::fs::write("serves", "").unwrap();
    while !std::path::Path::new("end").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
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
