//! `tollgate mount`, `umount` and `status`.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use crate::project::{
    Daemon, PATIENCE, Project, all, can_mount, first_line, kill, text, tollgate, until,
    until_within,
};

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
    // The mount namespaces of other tests, which began meanwhile, may show the view, too.
    let has_ended = || std::fs::read_to_string(&log).unwrap().contains("is unmounted");
    until_within(4 * PATIENCE, "the server ends", has_ended);
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
    for (limit, works) in [(95, false), (96, true)] {
        let script = format!(
            "ulimit -n {limit}; $T mount --daemon --log log dir mnt; cat mnt/a.txt; $T umount mnt"
        );
        let output = project.in_mount_namespace(&script);
        assert_eq!(text(&output.stdout) == "plain\n", works, "{}", all(&output));
        assert_eq!(all(&output).contains("a server needs 96 at least"), !works, "{}", all(&output));
    }
}

/// Those of removed files wait to be closed together.
#[test]
fn a_server_with_few_descriptors_removes_many_files() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let output = project.in_mount_namespace(
        "ulimit -n 100; $T mount --daemon --log log dir mnt; mkdir mnt/many; \
         for n in $(seq 20); do (cd mnt/many; seq 300 | xargs touch); rm -r mnt/many/*; done; \
         rmdir mnt/many && echo none is left; $T umount mnt",
    );
    assert_eq!(text(&output.stdout), "none is left\n", "{}", all(&output));
}

/// It says once that it is ready, and how many threads serve.
#[test]
fn a_signal_unmounts_the_foreground_server() {
    if !can_mount() {
        return;
    }
    for options in [&["--transport", "devfuse", "--threads", "3"][..], &["--threads", "1"], &[]] {
        let project = Project::new();
        let mut server = tollgate()
            .arg("mount")
            .args(options)
            .args([project.path("dir"), project.path("mnt")])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until("the view is there", || project.path("mnt/a.txt").exists());
        let status =
            || tollgate().args(["status", "--json"]).arg(project.path("mnt")).output().unwrap();
        // The view is there a moment before the server can be asked.
        until("the server answers", || status().status.success());
        let report = reports(&text(&status().stdout)).remove(0);
        let pid = rustix::process::Pid::from_child(&server);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert_eq!(server.wait().unwrap().code(), Some(0));
        assert!(!project.path("mnt/a.txt").exists());
        let mut said = String::new();
        server.stderr.unwrap().read_to_string(&mut said).unwrap();
        let ready: Vec<_> = said.lines().filter(|line| line.contains("ready: ")).collect();
        assert_eq!(ready.len(), 1, "{said}");
        assert!(said.contains("is unmounted"), "{said}");
        let rings = &report["transport"]["rings"];
        let serves = match (rings["threads"].as_u64(), options) {
            (Some(1), _) => format!("io_uring with 1 ring and {} helper", rings["helpers"]),
            (Some(n), _) => format!("io_uring with {n} rings and {} helper", rings["helpers"]),
            (None, [.., "3"]) => "3 threads".to_owned(),
            (None, [.., "1"]) => "1 thread".to_owned(),
            (None, _) => " thread".to_owned(),
        };
        assert!(ready[0].contains(&serves), "{options:?}: {said}\n{report}");
    }
}

/// What the user decided comes first, and what became of it; what the server does inside only with
/// `--verbose`, behind that.
#[test]
fn status_begins_with_what_the_user_decided() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let _daemon = Daemon::start(&project);
    assert!(std::fs::read(project.path("mnt/keys/id_rsa")).is_err());
    let labels = |options: &[&str]| -> Vec<String> {
        let output =
            tollgate().arg("status").args(options).arg(project.path("mnt")).output().unwrap();
        assert!(output.status.success(), "{}", all(&output));
        let lines = text(&output.stdout);
        let lines = lines.lines().skip(1).filter(|line| !line.starts_with("    "));
        lines.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
    };
    let decided = ["server", "policy", "refused", "refusals", "last"];
    let inside = ["opens", "features"];
    let (short, long) = (labels(&[]), labels(&["--verbose"]));
    assert_eq!(short[..decided.len()], decided, "{short:?}");
    assert_eq!(long[..decided.len()], decided, "{long:?}");
    for label in inside {
        assert!(!short.iter().any(|one| one == label), "{short:?}");
        assert!(long.iter().any(|one| one == label), "{long:?}");
    }
    let troubles = short.len() - decided.len();
    assert_eq!(short[decided.len()..], long[decided.len()..decided.len() + troubles], "{long:?}");
}
