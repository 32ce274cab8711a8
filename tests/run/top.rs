//! `tollgate top`, `status --requests` and the Prometheus text: what is on the wire is seen.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::project::{
    Daemon, PATIENCE, Project, all, can_mount, first_line, text, tollgate, until,
};
use crate::pty::Terminal;

fn json(output: &std::process::Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", all(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", all(output)))
}

/// The operation with the decision in the rates of one server.
fn find<'v>(
    rates: &'v serde_json::Value,
    operation: &str,
    decision: &str,
) -> &'v serde_json::Value {
    let all = rates["operations"].as_array().unwrap();
    let is =
        |one: &&serde_json::Value| one["operation"] == operation && one["decision"] == decision;
    all.iter().find(is).unwrap_or_else(|| panic!("no {operation} {decision} in {rates:#}"))
}

/// A server that was killed cannot remove its own.
#[test]
fn status_removes_sockets_that_killed_servers_left() {
    if !can_mount() || !rustix::process::getuid().is_root() {
        return;
    }
    let project = Project::new();
    // Makes the directory of the sockets, if it is not there.
    let _daemon = Daemon::start(&project);
    let left = format!("/run/tollgate/wq-{:016x}.sock", std::process::id());
    drop(UnixListener::bind(&left).unwrap());
    // A child that another test forks at this moment listens, too, until it executes its program.
    while UnixStream::connect(&left).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let output = tollgate().arg("status").output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    assert!(!std::path::Path::new(&left).exists());
}

/// Text in JSON is UTF-8, and paths need not be. In a mount namespace, as other tests read the table of
/// mounts as text.
#[test]
fn bytes_of_paths_that_are_not_utf8_are_in_json() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        dir=$(printf 'd\377\n.'); dir=${dir%.}; mnt=$(printf 'm\376'); mkdir "$dir" "$mnt"
        $T mount --daemon --policy none --log log "$dir" "$mnt"
        trap '$T umount --lazy "$mnt"' EXIT
        $T status --json "$mnt" >status; $T top --once --interval 0.1 --json "$mnt" >top
        $T top --once --interval 0.1 "$mnt""#;
    let output = project.in_mount_namespace(script);
    assert!(output.status.success(), "{}", all(&output));
    let home = fs::canonicalize(project.path("")).unwrap();
    let hex = |name: &[u8]| {
        let path = [home.as_os_str().as_bytes(), b"/", name].concat();
        path.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    for file in ["status", "top"] {
        let answer = fs::read_to_string(project.path(file)).unwrap();
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer[0]["dir_hex"], hex(b"d\xff\n"), "{answer:#}");
        assert_eq!(answer[0]["mount_point_hex"], hex(b"m\xfe"), "{answer:#}");
        assert!(answer[0].get("dir_now_hex").is_none(), "{answer:#}");
    }
    let shown = text(&output.stdout);
    let head = shown.lines().next().unwrap();
    assert!(head.contains("/d\u{fffd}\\n at /") && head.contains("/m\u{fffd}  ("), "{head}");
    assert!(!shown.contains("-0 requests"), "{shown}");
}

#[test]
fn requests_are_shown_by_operation_and_decision() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let _daemon = Daemon::start(&project);
    let at = |name: &str| project.path("mnt").join(name);
    for _ in 0..20 {
        fs::read(at("a.txt")).unwrap();
        fs::read(at("logs/app.log")).unwrap();
        fs::read(at("keys/id_rsa")).unwrap_err();
        fs::read(at(".env")).unwrap_err();
        fs::OpenOptions::new().write(true).open(at("docs/guide.md")).unwrap_err();
    }
    let mut status = tollgate();
    let status = status.args(["status", "--requests", "--json"]).arg(project.path("mnt"));
    let report = json(&status.output().unwrap())[0].clone();
    for (decision, at_least) in
        [("passthrough", 20), ("userspace", 20), ("denied", 20), ("read-only", 20)]
    {
        let open = find(&report, "open", decision);
        assert!(open["total"].as_u64().unwrap() >= at_least, "{open}");
        let latency = |what: &str| open["latency"][what].as_u64().unwrap();
        assert!(latency("p50_ns") > 0 && latency("p50_ns") <= latency("p99_ns"), "{open}");
        assert!(latency("p99_ns") <= latency("p999_ns"), "{open}");
    }
    assert!(find(&report, "lookup", "hidden")["total"].as_u64().unwrap() > 0);
    let threads = report["threads"].as_array().unwrap();
    assert!(threads.iter().any(|thread| thread["name"] == "tollgate-fuse-0"), "{report:#}");
    // Nothing is asked of the view by looking at it.
    let again = json(&status.output().unwrap())[0].clone();
    assert_eq!(find(&again, "open", "denied"), find(&report, "open", "denied"));
    let table =
        tollgate().args(["status", "--requests"]).arg(project.path("mnt")).output().unwrap();
    for part in ["open             denied", "p99.9", "tollgate-fuse-0"] {
        assert!(text(&table.stdout).contains(part), "{part}: {}", all(&table));
    }
}

#[test]
fn top_shows_what_happens_now_and_what_is_busiest_in_the_audit_log() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "echo up; while read line <a.txt; do sleep 0.01; done";
    let mut child = tollgate()
        .args(["run", "--audit-level", "opens", "--audit"])
        .arg(project.path("audit.jsonl"))
        .arg("--policy")
        .arg(project.path("policy.toml"))
        .arg(project.path("dir"))
        .args(["--", "sh", "-c", script])
        .current_dir(project.path("dir"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(first_line(&mut child), "up");
    let mut top = tollgate();
    let top = top.args(["top", "--once", "--json", "--interval", "0.5"]).arg(project.path("dir"));
    let rates = json(&top.output().unwrap())[0].clone();
    let open = find(&rates, "open", "passthrough");
    assert!(open["per_second"].as_f64().unwrap() > 1.0, "{rates:#}");
    assert_eq!(rates["kind"], "run");
    until("the audit log is written", || {
        let rates = json(&top.output().unwrap())[0].clone();
        rates["busiest"]["paths"][0]["what"] == "a.txt"
    });
    // The names are not for CMD, which is in another pid namespace.
    let inside = tollgate()
        .args(["run"])
        .arg(project.path("dir/docs"))
        .args(["--", env!("CARGO_BIN_EXE_tollgate"), "top", "--once", "--json"])
        .arg(project.path("dir"))
        .output()
        .unwrap();
    let seen = json(&inside)[0].clone();
    assert_eq!(seen["busiest"], serde_json::Value::Null, "{seen:#}");
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = top.output().unwrap();
    assert_eq!(gone.status.code(), Some(1));
    assert!(all(&gone).contains("no server of this user shows"), "{}", all(&gone));
}

/// Has control sockets of its own, for what follows in a script of a mount namespace: other tests see no
/// server of it that does not answer, and none of their views goes on here when they unmount it.
const APART: &str = r#"
    set -e; mkdir -p -m 700 /run/tollgate; mount -t tmpfs -o mode=700 tollgate /run/tollgate
    umount -a -l -t fuse.tollgate || true
    serve() { "$T" mount --daemon --policy none --log log "$1" "$2"; }
    pid_of() { "$T" status --json "$1" | grep -o '"pid_here": [0-9]*' | cut -d' ' -f2; }"#;

/// A server that is stopped is there, and has not ended.
#[test]
fn a_server_that_stops_meanwhile_is_named() {
    if !can_mount() || !rustix::process::getuid().is_root() {
        return;
    }
    let project = Project::new();
    let script = r#"
        serve dir mnt; pid=$(pid_of mnt); mkfifo said
        "$T" top --count 2 --interval 1 mnt >said & top=$!
        exec 3<said; IFS= read -r first <&3; kill -STOP $pid
        cat <&3; wait $top; kill -CONT $pid; "$T" umount mnt; echo "$pid: $first""#;
    let output = project.in_mount_namespace(&format!("{APART}{script}"));
    let said = all(&output);
    assert!(output.status.success() && said.contains("(mount, pid "), "{said}");
    let number = text(&output.stdout).lines().last().unwrap().split_once(':').unwrap().0.to_owned();
    assert!(said.contains(&format!("process {number} does not answer")), "{said}");
}

/// As under `nohup`, and as for what a script starts in the background.
#[test]
fn top_goes_on_at_signals_that_its_caller_ignored() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let _daemon = Daemon::start(&project);
    let mut top = Command::new("sh");
    top.args(["-c", r#"trap '' HUP INT; exec "$@""#, "sh", env!("CARGO_BIN_EXE_tollgate")]);
    top.args(["top", "--json", "--count", "2", "--interval", "0.5"]).arg(project.path("mnt"));
    let mut top = top.stdout(Stdio::piped()).spawn().unwrap();
    let first = first_line(&mut top);
    for signal in [Signal::HUP, Signal::INT] {
        rustix::process::kill_process(Pid::from_child(&top), signal).unwrap();
    }
    let output = top.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    assert!(first.starts_with('[') && text(&output.stdout).starts_with('['), "{}", all(&output));
}

/// A shell at a terminal that runs `top`, and what the terminal shows.
struct AtTerminal {
    terminal: Terminal,
    shell: std::process::Child,
    shown: Arc<Mutex<String>>,
}

impl AtTerminal {
    /// `script` of `shell` has `top` of the view at `mnt` as `"$@"`, `modes`, which says how the terminal gives
    /// keys, and what is [`APART`]. Whatever becomes of the shell, no server stays.
    fn start(shell: &str, script: &str, project: &Project) -> Self {
        let modes = r#"modes() { stty -a | grep -oE -- '-?(icanon|echo)\b' | tr '\n' ' '; }"#;
        let script =
            format!("{APART}\nserve dir mnt; {modes}\nset +e -m\n{script}\n\"$T\" umount mnt");
        let terminal = Terminal::new();
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", &(3 * PATIENCE).as_secs().to_string()]);
        command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["setsid", "--ctty", "--wait", shell, "-c", &script, shell]);
        command.args([env!("CARGO_BIN_EXE_tollgate"), "top", "--interval", "0.1", "mnt"]);
        command.env("T", env!("CARGO_BIN_EXE_tollgate")).env("LC_ALL", "C");
        command.current_dir(project.path(""));
        let end = || terminal.slave.try_clone().unwrap();
        command.stdin(end()).stdout(end()).stderr(end());
        let shell = command.spawn().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut screen, sink) = (terminal.master.try_clone().unwrap(), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(len @ 1..) = screen.read(&mut piece) {
                sink.lock().unwrap().push_str(&text(&piece[..len]));
            }
        });
        Self { terminal, shell, shown }
    }

    fn so_far(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    fn shows(&self, what: &str, is_shown: &dyn Fn(&str) -> bool) {
        let start = Instant::now();
        while !is_shown(&self.so_far()) {
            assert!(start.elapsed() < PATIENCE, "{what} is not in {:?}", self.so_far());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until `top` draws for the `times`th time.
    fn drawn(&self, times: usize) {
        let drawing = |shown: &str| {
            let (last, rest) = (shown.matches(ENTER).count(), shown.rsplit(ENTER).next());
            last == times && rest.is_some_and(|rest| rest.contains("(mount, pid "))
        };
        self.shows(&format!("drawing {times}"), &drawing);
    }

    /// Waits until it draws after the shell said `what`.
    fn drawn_after(&self, what: &str) {
        let drawing = |shown: &str| {
            let drawn = shown.split_once(what).and_then(|(_, rest)| rest.rsplit_once(ENTER));
            drawn.is_some_and(|(_, rest)| rest.contains("(mount, pid "))
        };
        self.shows(&format!("drawing after `{what}`"), &drawing);
    }

    fn said(&self, what: &str) {
        self.shows(&format!("`{what}`"), &|shown: &str| shown.contains(what));
    }

    fn key(&self, key: &[u8]) {
        (&self.terminal.master).write_all(key).unwrap();
    }

    fn end(mut self) {
        assert!(self.shell.wait().unwrap().success());
    }
}

/// A shell at a terminal runs `top`, which Ctrl-Z stops, `fg` continues, and Ctrl-\ ends; then another
/// one, which is stopped in a way that cannot be seen coming while another server does not answer.
#[test]
fn top_leaves_the_terminal_as_it_was_when_it_is_stopped_or_quit() {
    if !can_mount() || !rustix::process::getuid().is_root() {
        return;
    }
    let project = Project::new();
    let script = r#"
        mkdir other shown; serve other shown; other=$(pid_of shown)
        "$@"; echo "stopped $?: $(modes)"; fg >/dev/null; echo "ended $?: $(modes)"
        kill -STOP $other
        "$@"; echo "halted $?"; stty sane; fg >/dev/null; echo "over $?: $(modes)"
        kill -CONT $other; "$T" umount shown"#;
    let shell = AtTerminal::start("bash", script, &project);
    shell.drawn(1);
    shell.key(b"\x1a");
    shell.said("stopped 148: icanon echo ");
    shell.drawn(2);
    shell.key(b"\x1c");
    shell.said("ended 0: icanon echo ");
    assert_eq!(shell.so_far().matches(LEAVE).count(), 2);
    shell.drawn(3);
    let group = rustix::termios::tcgetpgrp(&shell.terminal.master).unwrap();
    rustix::process::kill_process_group(group, Signal::STOP).unwrap();
    shell.said("halted 147");
    shell.drawn(4);
    // It is read without a newline.
    shell.key(b"q");
    shell.said("over 0: icanon echo ");
    shell.end();
}

/// It was started, or continued, while a shell read a line with modes of its own.
#[test]
fn top_that_was_in_the_background_leaves_the_terminal_as_it_was_given() {
    if !can_mount() || !rustix::process::getuid().is_root() {
        return;
    }
    let project = Project::new();
    let script = r#"
        stopped() { until grep -q '^State:.T' /proc/$top/status; do sleep 0.02; done; }
        stty -icanon -echo; "$@" & top=$!; stopped
        stty sane; echo given once; fg >/dev/null; echo "paused: $(modes)"
        stty -icanon -echo; bg >/dev/null; stopped
        stty sane; echo given twice; fg >/dev/null; echo "over $?: $(modes)""#;
    // The `fg` of bash sets its own modes afterwards.
    let shell = AtTerminal::start("sh", script, &project);
    shell.drawn_after("given once");
    shell.key(b"\x1a");
    shell.said("paused: icanon echo ");
    shell.drawn_after("given twice");
    shell.key(b"q");
    shell.said("over 0: icanon echo ");
    shell.end();
}

/// As by `kill %1` of shells that send SIGCONT along. Each time it went on, it stopped again.
#[test]
fn top_in_the_background_is_ended_by_signals() {
    if !can_mount() || !rustix::process::getuid().is_root() {
        return;
    }
    let project = Project::new();
    let script = r#"
        stopped() { until grep -q '^State:.T' /proc/$1/status; do sleep 0.02; done; }
        ended() { while [ -e /proc/$1 ]; do sleep 0.02; done; wait $1; }
        "$@" & top=$!; stopped $top; kill %%; kill -CONT %%; ended $top; echo "ended $?"
        "$@" & top=$!; stopped $top; fg >/dev/null
        bg >/dev/null; stopped $top; kill -HUP %%; kill -CONT %%; ended $top; echo "hung up $?"
        (sleep 300 & echo $! >sleeper; trap '' TTOU; exec "$@" --count 3) & top=$!; ended $top
        echo "beside $?: $(grep ^State: /proc/$(cat sleeper)/status)"
        kill -KILL $(cat sleeper); echo over"#;
    let shell = AtTerminal::start("sh", script, &project);
    shell.said("ended 0");
    assert!(!shell.so_far().contains("\x1b[?"), "{:?}", shell.so_far());
    shell.drawn_after("ended 0");
    shell.key(b"\x1a");
    shell.said("hung up 0");
    let shown = shell.so_far();
    let before = shown.split("hung up 0").next().unwrap();
    assert_eq!((before.matches(ENTER).count(), before.matches(LEAVE).count()), (1, 1));
    shell.said("over");
    assert!(shell.so_far().contains("beside 0: State:\tS"), "{:?}", shell.so_far());
    shell.end();
}

/// The alternate screen, and the way back.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

#[test]
fn prometheus_reads_the_same_counters() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let output = tollgate()
        .args(["mount", "--daemon", "--metrics-port", &port.to_string()])
        .args([project.path("dir"), project.path("mnt")])
        .output()
        .unwrap();
    let _daemon = Daemon(&project);
    assert!(output.status.success(), "{}", all(&output));
    fs::read(project.path("mnt/a.txt")).unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let local = tollgate().args(["status", "--metrics"]).arg(project.path("mnt")).output().unwrap();
    let count =
        "tollgate_request_duration_seconds_count{operation=\"open\",decision=\"passthrough\"} 1";
    for text in [&response, &text(&local.stdout)] {
        assert!(text.lines().any(|line| line == count), "{text}");
        assert!(text.contains("# TYPE tollgate_request_duration_seconds histogram"), "{text}");
    }
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
}
