//! `tollgate run` and `tollgate mount` at work. Needs root and /dev/fuse: without, each test says
//! so and passes, unless `TOLLGATE_REQUIRE_MOUNT=1`.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const POLICY: &str = r#"
[[rule]]
name = "env"
path = "**/.env"
action = "hide"

[[rule]]
name = "keys"
path = "**/id_*"
action = "deny"

[[rule]]
name = "docs"
path = "docs/**"
operation = ["write", "create"]
action = "read-only"

[[rule]]
name = "logs"
path = "logs/**"
action = "userspace"
"#;

const SECRET: &str = "the-secret-of-this-test";

/// Longest wait for anything here.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether mounts can be had. `false` after saying why not.
fn can_mount() -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "not root"
    } else if !Path::new("/dev/fuse").exists() {
        "no /dev/fuse"
    } else {
        return true;
    };
    assert!(
        std::env::var_os("TOLLGATE_REQUIRE_MOUNT").is_none_or(|value| value != "1"),
        "{reason}"
    );
    eprintln!("skipped: {reason}");
    false
}

struct Project {
    home: tempfile::TempDir,
}

impl Project {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("dir/.env", SECRET),
            ("dir/keys/id_rsa", SECRET),
            ("dir/a.txt", "plain\n"),
            ("dir/docs/guide.md", "guide\n"),
            ("dir/logs/app.log", "log\n"),
            ("policy.toml", POLICY),
        ] {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        std::fs::create_dir(home.path().join("mnt")).unwrap();
        Self { home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// `tollgate run --policy ... DIR --`, to be continued with CMD.
    fn run(&self) -> Command {
        let mut command = tollgate();
        command.arg("run").arg("--policy").arg(self.path("policy.toml"));
        command.arg(self.path("dir")).arg("--").current_dir(self.path("dir"));
        command
    }

    fn sh(&self, script: &str) -> Output {
        self.run().args(["sh", "-c", script]).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a script outside of the view, in a mount namespace of its own; `$T` is the program.
    fn in_mount_namespace(&self, script: &str) -> Output {
        Command::new("unshare")
            .args(["-m", "sh", "-ec", script])
            .env("T", env!("CARGO_BIN_EXE_tollgate"))
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env("LC_ALL", "C");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn all(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a line on the child's standard output.
fn first_line(child: &mut Child) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    let out = child.stdout.as_mut().unwrap();
    while out.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.extend(byte);
    }
    text(&line)
}

#[test]
fn the_command_sees_the_tree_through_the_policy() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let out = project.sh(
        "pwd; ls -A; cat a.txt; cat .env; cat keys/id_rsa; echo x >docs/guide.md; cat logs/app.log; \
         echo made >made; rm made; echo new >new",
    );
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    let dir = std::fs::canonicalize(project.path("dir")).unwrap();
    assert_eq!(
        stdout,
        format!("{}\na.txt\ndocs\nkeys\nlogs\nplain\nlog\n", dir.display()),
        "{stderr}"
    );
    assert!(stderr.contains(".env: No such file"), "{stderr}");
    assert!(stderr.contains("id_rsa: Permission denied"), "{stderr}");
    assert!(stderr.contains("docs/guide.md: Read-only file system"), "{stderr}");
    assert_eq!(std::fs::read_to_string(project.path("dir/new")).unwrap(), "new\n");
    assert!(!project.path("dir/made").exists());
}

#[test]
fn exit_codes_and_signals_pass_through() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    assert_eq!(project.sh("exit 7").status.code(), Some(7));
    assert_eq!(project.sh("exit 0").status.code(), Some(0));
    assert_eq!(project.sh("kill -TERM $$").status.signal(), Some(libc_sigterm()));
    assert_eq!(project.sh("kill -KILL $$").status.signal(), Some(9));
    let run = |program: &str| {
        let output = project.run().arg(program).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, message) = run("tollgate-no-such-program");
    assert_eq!(code, Some(127), "{message}");
    assert!(message.contains("CMD `tollgate-no-such-program` is not found in PATH"), "{message}");
    let (code, message) = run("./a.txt");
    assert_eq!(code, Some(126), "{message}");
    assert!(message.contains("CMD `./a.txt` cannot be executed: Permission denied"), "{message}");
    assert_eq!(run("./missing").0, Some(127));
}

fn libc_sigterm() -> i32 {
    rustix::process::Signal::TERM.as_raw()
}

#[test]
fn a_signal_to_tollgate_reaches_the_command() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "trap 'exit 33' USR1; echo up; while :; do sleep 0.01; done";
    let mut child =
        project.run().args(["sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(33));
}

/// Every attempt prints what it found; none may find the secret, nor leave a trace outside.
#[test]
fn a_root_command_cannot_get_past_the_view() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = std::fs::canonicalize(project.path("dir")).unwrap();
    let core_pattern = std::fs::read("/proc/sys/kernel/core_pattern").unwrap();
    let attempts = [
        "umount $D; umount -l $D; umount -R /; cat $D/.env",
        "mount --bind $D $M; cat $M/.env",
        "mount --bind $H $M; cat $M/dir/.env",
        "mount --rbind / $M; umount -l $M$D; cat $M$D/.env; umount -R $M",
        "mount --move $D $M; cat $D/.env",
        "mount -t overlay o -o lowerdir=$H:/usr $M; cat $M/dir/.env",
        "mount -t overlay o -o lowerdir=$D:/usr $M; cat $M/.env",
        "mv $H $H.moved; cat $H.moved/dir/.env; mv $H.moved $H",
        "nsenter -t 1 -m cat $D/.env",
        "cat /proc/1/root$D/.env /proc/1/cwd/.env",
        "for p in /proc/[0-9]*; do cat $p/root$D/.env; done",
        "unshare -m sh -c 'umount -l $D; cat $D/.env'",
        "unshare -Urm sh -c 'umount -l $D; cat $D/.env'",
        "unshare -Urmpf sh -c 'umount -l $D; cat $D/.env'",
        "chroot / cat $D/.env",
        "cd ..; cat ../dir/.env dir/.env",
        "ln keys/id_rsa open; cat open",
        "mv keys/id_rsa open; cat open; mv open keys/id_rsa",
        "mv keys other; cat other/id_rsa; mv other keys",
        "ln -s ../../dir/.env link; cat link; rm link",
        "cp -a keys copied; cat copied/*; rm -r copied",
        "grep -r . $D $H; tar c $D",
        "for d in /dev/[svhx]d* /dev/vd* /dev/nvme* /dev/dm-*; do dd if=$d bs=512 count=1 | wc -c; done",
        "mknod blk b 254 0; mknod blk b 8 0; cat blk; rm blk",
        "echo '|/bin/sh' >/proc/sys/kernel/core_pattern; umount /proc/sys; mount -o remount,rw /proc/sys",
        "mount -t proc proc $M; mount -t sysfs sysfs $M; mount -t devtmpfs dev $M",
    ];
    for attempt in attempts {
        std::fs::create_dir_all(project.path("m")).unwrap();
        let mut command = project.run();
        command.args(["timeout", "10", "sh", "-c", attempt]).stdin(Stdio::null());
        command.env("D", &dir).env("H", dir.parent().unwrap()).env("M", project.path("m"));
        let output = command.output().unwrap();
        assert!(!all(&output).contains(SECRET), "`{attempt}` found it: {}", all(&output));
        let _ = std::fs::remove_dir(project.path("m"));
        assert_eq!(std::fs::read_to_string(project.path("dir/.env")).unwrap(), SECRET, "{attempt}");
    }
    assert_eq!(std::fs::read("/proc/sys/kernel/core_pattern").unwrap(), core_pattern);
    assert_eq!(std::fs::read_to_string(project.path("dir/keys/id_rsa")).unwrap(), SECRET);
}

#[test]
fn disks_are_out_of_reach_of_a_root_command() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let output = project.sh("find /dev -exec test -b {} \\; -print");
    assert!(output.status.success() && output.stdout.is_empty(), "{}", all(&output));
}

#[test]
fn other_paths_to_the_same_tree_are_covered() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mkdir whole exact below disk dir/disk
        mount --bind . whole; mount --bind dir exact; mount --bind dir/keys below
        mount -t tmpfs disk disk; mount --bind disk dir/disk; cp dir/.env disk/.env
        cat disk/.env whole/dir/.env exact/.env below/id_rsa >/dev/null
        set +e
        $T run --policy policy.toml dir -- sh -c '
            cat disk/.env whole/dir/.env exact/.env below/id_rsa; cat exact/a.txt
            umount exact; umount -l whole; cat exact/.env whole/dir/.env'
        echo; $T run --policy policy.toml exact -- cat dir/.env whole/dir/.env dir/a.txt";
    let output = project.in_mount_namespace(script);
    assert!(!all(&output).contains(SECRET), "{}", all(&output));
    assert_eq!(text(&output.stdout), "plain\n\nplain\n", "{}", all(&output));
}

#[test]
fn the_view_and_what_the_command_left_are_gone_afterwards() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = project.path("dir").to_str().unwrap().to_owned();
    let name = format!("tollgate-left-{}", std::process::id());
    let script =
        format!("exec 3<a.txt; (exec -a {name} sleep 100) & (setsid sleep 101 &) ; exit 0");
    let output = project.run().args(["bash", "-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", all(&output));
    assert!(!is_running(&name), "a process that CMD left lives on");
    assert!(!mounts().contains(&place));
}

#[test]
fn killing_tollgate_ends_the_command_and_the_view() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let name = format!("tollgate-killed-{}", std::process::id());
    let script = format!("(exec -a {name} sleep 100) & echo up; wait");
    let mut child =
        project.run().args(["bash", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    until("the program runs", || is_running(&name));
    child.kill().unwrap();
    child.wait().unwrap();
    until("everything under CMD ends", || !is_running(&name));
    assert_eq!(std::fs::read_to_string(project.path("dir/.env")).unwrap(), SECRET);
}

fn is_running(name: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .any(|line| line.starts_with(name.as_bytes()))
}

#[test]
fn an_unprivileged_user_gets_the_same_view_in_a_user_namespace() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // A private /dev/fuse that everybody may open, as distributions have it.
    let script = "
        cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 dir
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        exec setpriv --reuid 4321 --regid 4321 --clear-groups \
            ./tollgate run --policy policy.toml dir -- sh -c '
                id -u; cat dir/a.txt; cat dir/.env; cat dir/keys/id_rsa; echo x >dir/new; stat -c %u dir/new
                umount $PWD/dir; unshare -Urm umount $PWD/dir; cat dir/.env; exit 5'";
    let output = project.in_mount_namespace(script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    assert_eq!(text(&output.stdout), "4321\nplain\n4321\n", "{all}");
    assert_eq!(output.status.code(), Some(5), "{all}");
    assert!(all.contains("not available: passthrough"), "{all}");
    assert!(all.contains("id_rsa: Permission denied"), "{all}");
}

#[test]
fn run_works_inside_run() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    std::fs::write(project.path("dir/docs/.env"), SECRET).unwrap();
    let script =
        "$T run --policy ../policy.toml docs -- sh -c 'ls -A docs; cat docs/guide.md; exit 6'";
    let mut command = project.run();
    command.args(["sh", "-c", script]).env("T", env!("CARGO_BIN_EXE_tollgate"));
    let output = command.output().unwrap();
    assert_eq!(text(&output.stdout), "guide.md\nguide\n", "{}", all(&output));
    assert_eq!(output.status.code(), Some(6), "{}", all(&output));
}

/// The reports in what `status --json` printed.
fn reports(text: &str) -> Vec<serde_json::Value> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn status_shows_the_servers_of_outer_and_inner_pid_namespaces() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let inner = "$T run --policy ../policy.toml docs -- $T status --json";
    let mut command = project.run();
    command.args(["sh", "-c", inner]).env("T", env!("CARGO_BIN_EXE_tollgate"));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", all(&output));
    let dir = std::fs::canonicalize(project.path("dir")).unwrap();
    let reports = reports(&text(&output.stdout));
    let server = |dir: &Path| {
        let shown = |report: &&serde_json::Value| report["mount_point"] == dir.to_str().unwrap();
        reports.iter().find(shown).unwrap_or_else(|| panic!("no {dir:?} in {reports:?}"))
    };
    // Neither server lives in the innermost pid namespace, where `status` runs.
    for dir in [&dir, &dir.join("docs")] {
        let report = server(dir);
        assert_eq!(report["pid_here"], serde_json::Value::Null, "{report}");
        assert_eq!(report["kind"], "run");
    }
    assert_ne!(server(&dir)["pid"], server(&dir.join("docs"))["pid"]);
}

#[test]
fn status_outside_shows_a_nested_run_with_the_pid_that_can_be_used_there() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let docs = std::fs::canonicalize(project.path("dir/docs")).unwrap();
    let script = "exec $T run docs -- sh -c 'echo up; read line'";
    let mut command = project.run();
    command.args(["sh", "-c", script]).env("T", env!("CARGO_BIN_EXE_tollgate"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut child), "up");
    let output = tollgate().args(["status", "--json"]).arg(&docs).output().unwrap();
    let report = reports(&text(&output.stdout)).remove(0);
    let pid = &report["pid_here"];
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(line.contains("run\0docs"), "{line}");
    assert_ne!(report["pid"], *pid, "it knows itself by another number");
    let output = tollgate().arg("status").arg(&docs).output().unwrap();
    let expected = format!("(pid {pid}, {} in its own pid namespace)", report["pid"]);
    assert!(text(&output.stdout).contains(&expected), "{}", all(&output));
    drop(child.stdin.take());
    child.wait().unwrap();
    let output = tollgate().args(["status", "--json"]).arg(&docs).output().unwrap();
    assert!(all(&output).contains("no server of this user shows"), "{}", all(&output));
}

#[test]
fn every_refused_open_is_in_the_audit_log_when_run_ends() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let log = project.path("audit.jsonl");
    let output = tollgate()
        .args(["run", "--audit-level", "refused", "--audit"])
        .arg(&log)
        .arg("--policy")
        .arg(project.path("policy.toml"))
        .arg(project.path("dir"))
        .args(["--", "sh", "-c", "for i in $(seq 500); do true <keys/id_rsa; done"])
        .current_dir(project.path("dir"))
        .output()
        .unwrap();
    let text = std::fs::read_to_string(&log).unwrap();
    let records: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 500, "{}", all(&output));
    for record in &records {
        assert_eq!(record["path"], "keys/id_rsa");
        assert_eq!((&record["errno"], &record["rule"]), (&"EACCES".into(), &"keys".into()));
        assert_eq!(record["uid"], 0);
    }
}

/// A daemon at `mnt`, unmounted when the test ends, however it ends.
struct Daemon<'p>(&'p Project);

impl<'p> Daemon<'p> {
    fn start(project: &'p Project) -> Self {
        let output = Self::try_start(project);
        assert!(output.status.success(), "{}", all(&output));
        Self(project)
    }

    fn try_start(project: &Project) -> Output {
        tollgate()
            .args(["mount", "--daemon", "--policy"])
            .arg(project.path("policy.toml"))
            .arg("--log")
            .arg(project.path("log"))
            .args([project.path("dir"), project.path("mnt")])
            .output()
            .unwrap()
    }

    fn status(&self) -> serde_json::Value {
        let output =
            tollgate().args(["status", "--json"]).arg(self.0.path("mnt")).output().unwrap();
        assert!(output.status.success(), "{}", all(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()[0].clone()
    }

    fn umount(&self) -> Output {
        tollgate().arg("umount").arg(self.0.path("mnt")).output().unwrap()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = tollgate().args(["umount", "--lazy"]).arg(self.0.path("mnt")).output();
    }
}

fn kill(report: &serde_json::Value) -> i32 {
    let pid = i32::try_from(report["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    pid.as_raw_nonzero().get()
}

#[test]
fn a_daemon_is_ready_when_mount_returns_and_reports_what_it_does() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let daemon = Daemon::start(&project);
    assert_eq!(std::fs::read_to_string(project.path("mnt/a.txt")).unwrap(), "plain\n");
    assert!(std::fs::read(project.path("mnt/.env")).is_err());
    assert!(std::fs::read(project.path("mnt/keys/id_rsa")).is_err());
    let report = daemon.status();
    assert_eq!(report["kind"], "mount");
    assert_eq!(report["view"]["counts"]["refused_deny"], 1, "{report}");
    assert!(report["view"]["counts"]["hidden"].as_u64().unwrap() >= 1, "{report}");
    assert!(report["negotiated"]["features"].as_array().unwrap().len() > 5, "{report}");

    let again = Daemon::try_start(&project);
    assert_eq!(again.status.code(), Some(1));
    assert!(all(&again).contains("is already a mount point"), "{}", all(&again));

    let busy = std::fs::File::open(project.path("mnt/a.txt")).unwrap();
    assert!(all(&daemon.umount()).contains("is in use"));
    drop(busy);
    until("the view is unmounted", || daemon.umount().status.success());
    let log = project.path("log");
    until("the server ends", || std::fs::read_to_string(&log).unwrap().contains("is unmounted"));
}

#[test]
fn what_a_dead_server_left_is_cleaned_by_the_next_start_and_by_umount() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let daemon = Daemon::start(&project);
    let first = kill(&daemon.status());
    until("the server is dead", || std::fs::read_dir(project.path("mnt")).is_err());
    let daemon = {
        let _left = std::mem::ManuallyDrop::new(daemon);
        Daemon::start(&project)
    };
    let report = daemon.status();
    assert_ne!(report["pid"], first);
    assert_eq!(std::fs::read_to_string(project.path("mnt/a.txt")).unwrap(), "plain\n");

    kill(&report);
    until("the server is dead", || std::fs::read_dir(project.path("mnt")).is_err());
    assert!(daemon.umount().status.success());
    assert_eq!(std::fs::read_dir(project.path("mnt")).unwrap().count(), 0);
}

#[test]
fn a_mount_point_inside_the_tree_by_another_path_is_refused() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "mkdir alias dir/empty; mount --bind dir alias; $T mount dir alias/empty";
    let output = project.in_mount_namespace(script);
    assert!(all(&output).contains("lies inside DIR"), "{}", all(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_service_manager_is_told_when_the_view_is_ready() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let manager = std::os::unix::net::UnixDatagram::bind(project.path("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let output = tollgate()
        .args(["mount", "--daemon"])
        .args([project.path("dir"), project.path("mnt")])
        .env("NOTIFY_SOCKET", project.path("notify"))
        .output()
        .unwrap();
    let daemon = Daemon(&project);
    assert!(output.status.success(), "{}", all(&output));
    let mut bytes = [0; 100];
    let len = manager.recv(&mut bytes).unwrap();
    let expected = format!("READY=1\nMAINPID={}", daemon.status()["pid"]);
    assert_eq!(text(&bytes[..len]), expected);
}

#[test]
fn more_descriptors_than_the_process_may_open_are_refused() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "ulimit -n 100; $T mount --max-descriptors 50 dir mnt";
    let output = project.in_mount_namespace(script);
    assert!(all(&output).contains("--max-descriptors 50"), "{}", all(&output));
    assert!(all(&output).contains("at most 36"), "{}", all(&output));
}

#[test]
fn a_signal_unmounts_the_foreground_server() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let mut server = tollgate()
        .arg("mount")
        .args([project.path("dir"), project.path("mnt")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the view is there", || project.path("mnt/a.txt").exists());
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert!(!project.path("mnt/a.txt").exists());
    let mut said = String::new();
    server.stderr.unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.matches("ready: ").count(), 1, "{said}");
    assert!(said.contains("is unmounted"), "{said}");
}
