//! The command line's answers to bad input, and what needs no mount.

mod policy;
mod repositories;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn tollgate<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Answer {
    let output = command(arguments).output().unwrap();
    Answer(output)
}

fn command<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).env("LC_ALL", "C");
    command
}

/// What a call printed, and how it ended.
#[derive(Debug)]
struct Answer(Output);

impl Answer {
    fn code(&self) -> i32 {
        self.0.status.code().unwrap()
    }

    fn out(&self) -> &str {
        std::str::from_utf8(&self.0.stdout).unwrap()
    }

    fn err(&self) -> &str {
        std::str::from_utf8(&self.0.stderr).unwrap()
    }

    /// Failed with `code` and a message that holds each of `parts`, and printed no result.
    #[track_caller]
    fn fails(&self, code: i32, parts: &[&str]) {
        for part in parts {
            assert!(self.err().contains(part), "`{part}` is not in: {}", self.err());
        }
        assert_eq!(self.code(), code, "{self:?}");
        assert_eq!(self.out(), "");
    }
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for directory in ["dir/sub", "mnt", "full/x", "other"] {
            std::fs::create_dir_all(place.0.path().join(directory)).unwrap();
        }
        place.write("file", "");
        place.write("dir/.env", "SECRET=1\n");
        place.write("dir/script", "not a program\n");
        place
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.path().join(name), text).unwrap();
        self.path(name)
    }
}

#[test]
fn help_and_version_are_printed_and_no_arguments_are_wrong() {
    let version = tollgate(["--version"]);
    assert_eq!(version.code(), 0);
    assert!(version.out().starts_with(&format!("tollgate {}", env!("CARGO_PKG_VERSION"))));
    let help = tollgate(["--help"]);
    assert_eq!(help.code(), 0);
    for part in ["run", "mount", "umount", "status", "check", "explain", "demo", "Examples:"] {
        assert!(help.out().contains(part), "{part}");
    }
    assert_eq!(tollgate::<&str>([]).code(), 2);
}

/// As all that only prints.
#[test]
fn help_that_nobody_reads_ends_without_a_word() {
    for arguments in [&["run", "--help"][..], &["help", "mount"], &["--version"]] {
        let (read, written) = std::io::pipe().unwrap();
        drop(read);
        let output = command(arguments).stdout(written).output().unwrap();
        assert!(!output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

/// The names of sub-commands that a help text lists.
fn listed(help: &str) -> Vec<String> {
    let entry = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let within = help.lines().skip_while(|line| !line.starts_with("Usage:")).skip(1);
    let commands = within.take_while(|line| !line.starts_with("Options:"));
    let named = commands.filter(entry).filter_map(|line| line.split_whitespace().next());
    let is_name = |name: &&str| name.starts_with(|c: char| c.is_ascii_lowercase());
    named.filter(|name| is_name(name) && *name != "help").map(str::to_owned).collect()
}

/// All commands, with their sub-commands.
fn all_commands() -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for command in listed(tollgate(["--help"]).out()) {
        let inner = listed(tollgate([command.as_str(), "--help"]).out());
        all.extend(inner.iter().map(|one| vec![command.clone(), one.clone()]));
        all.push(vec![command]);
    }
    assert!(all.len() > 20, "{all:?}");
    all
}

#[test]
fn every_command_has_an_example_and_json_where_the_page_says_so() {
    let page = include_str!("../../docs/commands.md");
    let from = page.find("These commands have it:").unwrap();
    let listed = &page[from..from + page[from..].find('.').unwrap()];
    let mut with_json = Vec::new();
    for command in all_commands() {
        let help = tollgate(command.iter().map(String::as_str).chain(["--help"]));
        let name = command.join(" ");
        assert!(help.code() == 0 && help.out().contains("Example"), "{name} has no example");
        let shown = help.out().contains(&format!("\n  tollgate {name}"));
        assert!(shown || help.out().contains("tollgate "), "{name}: no call of it is shown");
        if help.out().contains("--json") && help.out().contains("      --json\n") {
            with_json.push(name);
        }
    }
    for name in &with_json {
        assert!(listed.contains(&format!("`{name}`")), "docs/commands.md: {name} has --json");
    }
    assert_eq!(listed.matches('`').count() / 2, with_json.len(), "{with_json:?} and {listed}");
}

#[test]
fn help_is_in_groups_and_fits_the_terminal() {
    let place = |help: &str, word: &str| help.find(word).unwrap_or_else(|| panic!("no {word}"));
    let help = tollgate(["--help"]);
    let order =
        ["\n  run ", "\n  init ", "\nPolicies:", "\n  status ", "\nFor engineers", "\n  wq "];
    let places: Vec<_> = order.iter().map(|word| place(help.out(), word)).collect();
    assert!(places.is_sorted(), "{}", help.out());
    let mut narrow = command(["--help"]);
    let answer = Answer(narrow.env("COLUMNS", "60").output().unwrap());
    // What follows is laid out by clap, which asks the terminal alone.
    let commands = &answer.out()[..place(answer.out(), "Options:")];
    let widest = commands.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(60), "{commands}");
}

#[test]
fn a_command_without_dashes_is_told_of_them() {
    tollgate(["run", "p", "ls", "-l"]).fails(125, &["`tollgate run p -- ls -l`"]);
    tollgate(["run", "ls"]).fails(125, &["`tollgate run -- ls`"]);
    tollgate(["run", "/tmp"]).fails(125, &["`tollgate run /tmp -- CMD`"]);
}

#[test]
fn users_and_groups_are_named() {
    let place = Place::new();
    let policy = place.write(
        "p.toml",
        "[[rule]]\nname = \"r\"\npath = \"a\"\nuid = [\"root\", 7]\naction = \"deny\"\n",
    );
    let explain = |who: &str| {
        let arguments = ["explain", "--exit-code", "--policy", &policy, "--as", who, "a"];
        tollgate(arguments).code()
    };
    assert_eq!(
        (explain("uid=root"), explain("uid=0"), explain("uid=7"), explain("uid=8")),
        (3, 3, 3, 0)
    );
    tollgate(["explain", "--as", "gid=no-such-group", "a"]).fails(2, &["`no-such-group`"]);
    let wrong =
        place.write("w.toml", "[[rule]]\npath = \"a\"\nuid = \"rooot\"\naction = \"deny\"\n");
    tollgate(["check", &wrong]).fails(1, &["w.toml:3:7", "`rooot`", "no such user", "^^^^^^^"]);
}

#[test]
fn a_warning_says_so_once_and_one_is_not_two() {
    let place = Place::new();
    let policy = place.write("p.toml", "[[rule]]\npath = \".env\"\naction = \"hide\"\n");
    let answer = tollgate(["check", &policy]);
    assert!(answer.out().contains("1 rule, default passthrough, 1 warning\n"), "{answer:?}");
    assert_eq!(answer.err().matches("warning").count(), 1, "{answer:?}");
    assert!(answer.err().contains("p.toml:2:9: warning: glob `.env`"), "{answer:?}");
}

#[test]
fn the_doctor_says_what_it_found() {
    let place = Place::new();
    let dir = place.path("dir");
    let answer = tollgate(["doctor", "--json", &dir]);
    let report: serde_json::Value = serde_json::from_str(answer.out()).unwrap();
    assert_eq!(report["version"], 1);
    assert_eq!(answer.code(), i32::from(report["works"] != true), "{report:#}");
    let checks = report["checks"].as_array().unwrap();
    let broken = checks.iter().any(|check| check["state"] == "broken");
    assert_eq!(report["works"], !broken, "{report:#}");
    for check in checks {
        let state = check["state"].as_str().unwrap();
        assert!(["ok", "without", "broken", "note"].contains(&state), "{check}");
        assert!(state != "without" || check["effect"].is_string(), "{check}");
        assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
    }
    let text = tollgate(["doctor", &dir]);
    assert_eq!(text.code(), answer.code());
    for check in checks {
        assert!(text.out().contains(check["name"].as_str().unwrap()), "{check}");
    }
    // The same that `run` meets.
    let ran = tollgate(["run", "--policy", "none", &dir, "--", "true"]);
    assert_eq!(ran.code() == 0, report["works"] == true, "{ran:?} {report:#}");
    tollgate(["doctor", &place.path("missing")]).fails(1, &["does not exist"]);
}

#[test]
fn unknown_flags_and_commands_are_named() {
    tollgate(["mount", "--polcy", "x", "a", "b"]).fails(2, &["--polcy", "--policy"]);
    tollgate(["munt"]).fails(2, &["munt", "mount"]);
    tollgate(["mount", "a"]).fails(2, &["<MNT>"]);
    tollgate(["run", "--unknown", "a", "--", "b"]).fails(125, &["--unknown"]);
}

#[test]
fn run_wants_a_command_after_two_dashes() {
    tollgate(["run", "."]).fails(125, &["<CMD>", "-- "]);
    tollgate(["run", ".", "true"]).fails(125, &["true"]);
    tollgate(["run", ".", "--"]).fails(125, &["<CMD>"]);
}

#[test]
fn numbers_out_of_range_say_what_would_be_right() {
    tollgate(["mount", "--threads", "0", "a", "b"]).fails(2, &["'0'", "from 1 to 256"]);
    tollgate(["mount", "--attr-timeout=-1", "a", "b"]).fails(2, &["'-1'", "seconds from 0"]);
    tollgate(["mount", "--attr-timeout", "-1", "a", "b"]).fails(2, &["'-1'", "seconds from 0"]);
    tollgate(["mount", "--max-descriptors", "3", "a", "b"]).fails(2, &["'3'", "at least 32"]);
    tollgate(["mount", "--audit-keep", "1", "a", "b"]).fails(2, &["--audit <FILE>"]);
    tollgate(["mount", "--log", "x", "a", "b"]).fails(2, &["--daemon"]);
    tollgate(["explain", "--as", "uid=x", "a"]).fails(2, &["uid=`x`"]);
    tollgate(["explain", "--as", "user=x", "a"]).fails(2, &["`user=x`", "uid=USER"]);
    tollgate(["completions", "csh"]).fails(2, &["csh", "bash"]);
}

#[test]
fn a_directory_that_cannot_be_shown_is_refused() {
    let place = Place::new();
    let (missing, file, mnt) = (place.path("missing"), place.path("file"), place.path("mnt"));
    let names = |path: &str, why: &str| format!("DIR `{path}` {why}");
    for (path, why) in [(&missing, "does not exist"), (&file, "is not a directory")] {
        let message = names(path, why);
        tollgate(["mount", path, &mnt]).fails(1, &["tollgate: mount: ", &message]);
        tollgate(["mount", "--daemon", path, &mnt]).fails(1, &[&message]);
        tollgate(["run", path, "--", "true"]).fails(125, &["tollgate: run: ", &message]);
    }
    tollgate(["run", "/", "--", "true"]).fails(125, &["DIR is `/`"]);
}

#[test]
fn a_directory_that_cannot_be_read_is_refused() {
    let place = Place::new();
    let closed = place.path("other");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read_dir(&closed).is_ok() {
        eprintln!("skipped: this user may read every directory");
        return;
    }
    tollgate(["mount", &closed, &place.path("mnt")]).fails(1, &["permission denied"]);
}

#[test]
fn a_mount_point_that_does_not_do_is_refused() {
    let place = Place::new();
    let dir = place.path("dir");
    for (name, why) in [
        ("missing", "does not exist"),
        ("file", "is not a directory"),
        ("full", "is not empty"),
        ("dir", "is DIR itself"),
        ("dir/sub", "lies inside DIR"),
        (".", "contains DIR"),
    ] {
        let mnt = place.path(name);
        let message = format!("MNT `{mnt}` {why}");
        tollgate(["mount", &dir, &mnt]).fails(1, &[&message]);
        tollgate(["mount", "--daemon", &dir, &mnt]).fails(1, &[&message]);
    }
    tollgate(["mount", &dir, "/proc"]).fails(1, &["MNT `/proc` is already a mount point"]);
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let place = Place::new();
    let dir = place.path("dir");
    let log = r#"{"time":"t","event":"request","operation":"open","outcome":"passthrough","access":"read","path":"a"}"#;
    let log = place.write("log", log);
    for arguments in [
        &["check", "--dir", &dir][..],
        &["explain", "a"],
        &["brief", &dir],
        &["doctor", &dir],
        &["status", "--json"],
        &["learn", &log],
        &["topology"],
        &["init", "-o", "-"],
        &["--help"],
    ] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let output = command(arguments).current_dir(&dir).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("the output cannot be written: No space left"), "{said}");
    }
}

#[test]
fn a_demo_that_is_ended_leaves_nothing() {
    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;
    let home = tempfile::tempdir().unwrap();
    let mut demo = command(["demo"]);
    demo.env("TMPDIR", home.path()).stdout(std::process::Stdio::piped());
    let mut demo = demo.stderr(std::process::Stdio::null()).spawn().unwrap();
    demo.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let pid = rustix::process::Pid::from_child(&demo);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(demo.wait().unwrap().signal(), Some(2));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn umount_touches_nothing_that_is_not_ours() {
    let place = Place::new();
    let dir = place.path("dir");
    tollgate(["umount", "/proc"]).fails(1, &["`/proc` is a mount of type proc"]);
    tollgate(["umount", "--lazy", "/proc"]).fails(1, &["not a Tollgate view"]);
    tollgate(["umount", &dir]).fails(1, &["is not a mount point"]);
    tollgate(["umount", &place.path("missing")]).fails(1, &["does not exist"]);
    assert!(Path::new("/proc/self").exists());
}

#[test]
fn the_audit_log_cannot_lie_where_it_could_be_changed() {
    let place = Place::new();
    let (dir, mnt) = (place.path("dir"), place.path("mnt"));
    let refused = |file: &str, parts: &[&str]| {
        tollgate(["mount", "--audit", file, &dir, &mnt]).fails(1, parts);
        tollgate(["run", "--audit", file, &dir, "--", "true"]).fails(125, parts);
    };
    refused(&place.path("dir/log"), &["lies inside DIR"]);
    refused(&place.path("missing/log"), &["directory of audit file"]);
    std::os::unix::fs::symlink(&dir, place.path("link")).unwrap();
    refused(&place.path("link/log"), &["lies inside DIR"]);
    let policy = place.write("p.toml", "default = 'passthrough'\n");
    for log in [&policy, &policy.replace("p.toml", "p")] {
        // The second is rotated to that name.
        let file = place.write(if *log == policy { "p.toml" } else { "p.1" }, "default = 'deny'\n");
        let arguments = ["mount", "--policy", &file, "--audit", log, &dir, &mnt];
        tollgate(arguments).fails(1, &[&format!("the policy is read from `{file}`")]);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "default = 'deny'\n");
    }
}

#[test]
fn a_directory_as_standard_input_is_refused() {
    let place = Place::new();
    let dir = place.path("dir");
    let door = std::fs::File::open(&dir).unwrap();
    let output = command(["run", &dir, "--", "true"]).stdin(door).output().unwrap();
    Answer(output).fails(125, &["standard input is a directory"]);
}

#[test]
fn status_without_a_server_says_so() {
    let place = Place::new();
    tollgate(["status", &place.path("mnt")]).fails(1, &["no server of this user shows at"]);
    let list = tollgate(["status", "--json"]);
    assert_eq!(list.code(), 0, "{list:?}");
    assert!(serde_json::from_str::<serde_json::Value>(list.out()).unwrap().is_array());
}

#[test]
fn a_synthetic_machine_is_shown_and_cut_into_pods() {
    let arguments = ["topology", "--synthetic", "numa:2 l3:2 core:4 pu:2", "--scope", "cache"];
    let tree = tollgate(arguments);
    assert_eq!(tree.code(), 0, "{tree:?}");
    assert!(
        tree.out().contains("node 1") && tree.out().contains("scope cache has 4 pods"),
        "{tree:?}"
    );
    let json = tollgate(arguments.into_iter().chain(["--json"]));
    let value: serde_json::Value = serde_json::from_str(json.out()).unwrap();
    assert_eq!(value["cpus"].as_array().unwrap().len(), 32);
    assert_eq!(value["pods"].as_array().unwrap().len(), 4);
    assert_eq!(tollgate(["topology"]).code(), 0);
    tollgate(["topology", "--synthetic", "numa:x"]).fails(1, &["tollgate: topology: ", "numa:x"]);
    tollgate(["topology", "--scope", "socket"]).fails(2, &["socket", "cache_shard"]);
}

#[test]
fn a_wrong_clear_plan_is_refused() {
    tollgate(["hugepage", "tune", "--plan", "nonsense"]).fails(1, &["nonsense"]);
    tollgate(["hugepage", "tune", "--rounds", "0"]).fails(2, &["'0'"]);
}

#[test]
fn completions_are_scripts() {
    for (shell, part) in
        [("bash", "complete -F"), ("zsh", "#compdef tollgate"), ("fish", "complete -c tollgate")]
    {
        let answer = tollgate(["completions", shell]);
        assert!(answer.code() == 0 && answer.out().contains(part), "{shell}");
        assert!(answer.out().contains("max-descriptors"), "{shell}");
    }
}

/// A server that hangs up before it is asked must not end `status` without a word: programs that
/// only print take the default action of SIGPIPE.
#[test]
fn a_server_that_hangs_up_is_left_out_of_the_list() {
    let place = Place::new();
    let runtime = place.0.path().join("runtime");
    let sockets = runtime.join("tollgate");
    std::fs::create_dir_all(&sockets).unwrap();
    std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o700)).unwrap();
    let listener = sockets.join("view-0123456789abcdef.sock");
    let listener = std::os::unix::net::UnixListener::bind(listener).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let program = place.0.path().join("tollgate");
    // By another process: a child that a test beside this one has just forked may hold what is open
    // here to be written, and a file open to be written cannot be executed.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_tollgate")).arg(&program).status();
    assert!(copied.unwrap().success());
    let mut status = Command::new(&program);
    status.args(["status", "--json"]).env("XDG_RUNTIME_DIR", &runtime);
    if rustix::process::geteuid().is_root() {
        // The directory of root's sockets is that of this machine.
        std::fs::set_permissions(place.0.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(&runtime, Some(65534), Some(65534)).unwrap();
        std::os::unix::fs::chown(&sockets, Some(65534), Some(65534)).unwrap();
        std::os::unix::process::CommandExt::uid(&mut status, 65534);
    }
    for _ in 0..50 {
        let answer = Answer(status.output().unwrap());
        assert_eq!(answer.out(), "[]\n", "{answer:?}");
        assert_eq!(answer.code(), 0, "{answer:?}");
    }
}

/// `/tmp/tollgate-UID` may have been made by anybody.
#[test]
fn a_directory_of_sockets_that_is_not_private_is_named_with_what_to_do() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: root alone can make directories of other users");
    }
    let place = Place::new();
    let runtime = place.0.path().join("runtime");
    let sockets = runtime.join("tollgate");
    std::fs::create_dir_all(&sockets).unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.0.path(), open.clone()).unwrap();
    let program = place.0.path().join("tollgate");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_tollgate")).arg(&program).status();
    assert!(copied.unwrap().success());
    let user = 65534;
    for (owner, mode, remedy) in [
        (user, 0o755, "is open to others: `chmod 700` it"),
        (user, 0o770, "is open to others: `chmod 700` it"),
        (
            4321,
            0o777,
            "is not a directory of this user: set XDG_RUNTIME_DIR to a directory of your",
        ),
    ] {
        std::os::unix::fs::chown(&sockets, Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut status = Command::new(&program);
        status.arg("status").env("XDG_RUNTIME_DIR", &runtime);
        std::os::unix::process::CommandExt::uid(&mut status, user);
        let said = Answer(status.output().unwrap());
        let told = format!("`{}` {remedy}", sockets.display());
        assert!(said.code() != 0 && said.err().contains(&told), "{said:?} without {told}");
    }
}
