//! The command line's answers to bad input, and what needs no mount.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
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
    let page = include_str!("../docs/commands.md");
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
fn a_wrong_policy_names_file_line_and_column() {
    let place = Place::new();
    let policy = place.write("p.toml", "[[rule]]\npath = \"a\"\naction = \"denied\"\n");
    let position = format!("{policy}:3:10");
    let parts = [position.as_str(), "denied", "passthrough"];
    let (dir, mnt) = (place.path("dir"), place.path("mnt"));
    tollgate(["check", &policy]).fails(1, &parts);
    tollgate(["explain", "--policy", &policy, "a"]).fails(1, &parts);
    tollgate(["mount", "--policy", &policy, &dir, &mnt]).fails(1, &parts);
    tollgate(["run", "--policy", &policy, &dir, "--", "true"]).fails(125, &parts);
}

#[test]
fn a_policy_that_cannot_be_read_is_refused() {
    let place = Place::new();
    let missing = place.path("missing");
    tollgate(["check", &missing]).fails(1, &[&format!("policy `{missing}`"), "No such file"]);
    tollgate(["check", &place.path("dir")]).fails(1, &["not a regular file"]);
    tollgate(["check", "/dev/zero"]).fails(1, &["not a regular file"]);
    let binary = place.path("binary");
    std::fs::write(&binary, b"default = \"\xff\"").unwrap();
    tollgate(["check", &binary]).fails(1, &["line 1 is not UTF-8", "byte 11"]);
    let fifo = place.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    tollgate(["check", &fifo]).fails(1, &["not a regular file"]);
}

#[test]
fn a_good_policy_is_summed_up_and_its_warnings_are_printed() {
    let place = Place::new();
    let policy = place.write(
        "p.toml",
        "[[rule]]\npath = \"**\"\naction = \"deny\"\n[[rule]]\npath = \"a\"\naction = \"hide\"\n",
    );
    let answer = tollgate(["check", &policy]);
    assert_eq!(answer.code(), 0, "{answer:?}");
    assert!(answer.out().contains("2 rules, default passthrough"), "{answer:?}");
    assert!(answer.err().contains("warning: "), "{answer:?}");
}

/// Those that are built in are rules, too, and not the policy's.
#[test]
fn explain_and_check_count_the_same_rules() {
    let place = Place::new();
    place.write("a.txt", "a");
    let dir = place.0.path().to_str().unwrap();
    let checked = tollgate(["check", "--policy", "agent", "--dir", dir]);
    let checked = checked.out();
    let rules: usize =
        checked.split_once(" rules").unwrap().0.rsplit(' ').next().unwrap().parse().unwrap();
    let explained = tollgate(["explain", "--policy", "agent", "--dir", dir, "a.txt"]);
    let explained = explained.out();
    let shown = explained.lines().filter(|line| line.starts_with("rule `")).count();
    let others = explained.split_once(" rules are about other paths").unwrap().0;
    let others: usize = others.rsplit('\n').next().unwrap().parse().unwrap();
    assert_eq!(shown + others, rules, "{checked}{explained}");
}

#[test]
fn check_takes_its_policy_as_other_commands_do_too() {
    let named = tollgate(["check", "--policy", "agent"]);
    assert_eq!(named.code(), 0, "{named:?}");
    assert_eq!(named.out(), tollgate(["check", "agent"]).out());
    tollgate(["check", "--policy", "agent", "node"]).fails(2, &["--policy"]);
}

#[test]
fn explain_says_which_rule_and_why() {
    let place = Place::new();
    let policy = place.write(
        "p.toml",
        "[[rule]]\nname = \"env\"\npath = \"**/.env\"\naction = \"hide\"\n\
         [[rule]]\nname = \"big\"\npath = \"**\"\nuid = 7\naction = \"deny\"\n",
    );
    let answer = tollgate(["explain", "--policy", &policy, "a/.env"]);
    assert_eq!(answer.code(), 0, "{answer:?}");
    assert!(answer.out().contains("hidden") && answer.out().contains("`env`"), "{answer:?}");

    let json = |arguments: &[&str]| {
        let all = [&["explain", "--json", "--policy", &policy], arguments].concat();
        let answer = tollgate(all);
        assert_eq!(answer.code(), 0, "{answer:?}");
        serde_json::from_str::<serde_json::Value>(answer.out()).unwrap()
    };
    let denied = json(&["--as", "uid=7,gid=7,exe=/bin/x", "--operation", "read", "b"]);
    assert_eq!(denied["operations"].as_array().unwrap().len(), 1);
    assert_eq!(denied["operations"][0]["rule"], "big");
    let allowed = json(&["--as", "uid=8", "--operation", "read", "b"]);
    assert!(allowed["operations"][0]["rule"].is_null());
    let directory = json(&["--dir", &place.path("dir"), "sub"]);
    assert_eq!(directory["kind"], "directory");
}

#[test]
fn explain_looks_at_the_real_file_of_the_working_directory() {
    let place = Place::new();
    place.write("dir/real.pem", "-----BEGIN RSA PRIVATE KEY-----\n");
    place.write("dir/public.pem", "-----BEGIN CERTIFICATE-----\n");
    let explain = |path: &str| {
        let mut command = command(["explain", "--exit-code", "--operation", "read", path]);
        let output = command.current_dir(place.path("dir")).output().unwrap();
        output.status.code().unwrap()
    };
    // Under the built-in policy, which tells a key from a certificate by its content.
    assert_eq!(explain("real.pem"), 3);
    assert_eq!(explain("public.pem"), 0);
    assert_eq!(explain("not-there.pem"), 0);
    assert_eq!(explain(".env"), 3);
}

#[test]
fn explain_looks_at_the_real_file_under_a_policy_that_is_named() {
    let place = Place::new();
    place.write("dir/real.pem", "-----BEGIN RSA PRIVATE KEY-----\n");
    let explain = |path: &str| {
        let arguments = ["explain", "-p", "agent", "--exit-code", "--operation", "read", path];
        Answer(command(arguments).current_dir(place.path("dir")).output().unwrap())
    };
    assert_eq!(explain("real.pem").code(), 3);
    assert!(!explain("real.pem").err().contains("empty file"));
    let missing = explain("not-there.pem");
    assert_eq!(missing.code(), 0);
    let note =
        "taken for an empty file, or for a directory with a slash at its end: `not-there.pem`";
    assert!(missing.err().contains(note), "{missing:?}");
}

#[test]
fn explain_says_which_file_a_rule_is_in_where_two_hold() {
    let place = Place::new();
    let rule =
        |name: &str| format!("[[rule]]\nname = \"{name}\"\npath = \"a\"\naction = \"deny\"\n");
    let configured = place.write("p.toml", &rule("of the user"));
    place.write("dir/.tollgate.toml", &rule("of the directory"));
    let mut command = command(["explain", "a"]);
    let command = command.current_dir(place.path("dir")).env("TOLLGATE_POLICY", &configured);
    let answer = Answer(command.output().unwrap());
    assert!(
        answer.out().contains("rule `of the directory (.tollgate.toml)` (line 1"),
        "{answer:?}"
    );
    assert!(answer.out().contains("rule `of the user` (line 1"), "{answer:?}");
}

#[test]
fn a_brief_says_where_a_rule_goes_by_content() {
    let answer = tollgate(["brief", "--policy", "agent"]);
    let line = answer.out().lines().find(|line| line.contains("keys of cloud services"));
    assert!(line.is_some_and(|line| line.contains("of a certain content")), "{answer:?}");
    let line = answer.out().lines().find(|line| line.contains("env files are not there"));
    assert!(line.is_some_and(|line| !line.contains("of a certain")), "{answer:?}");
    for (policy, kept) in [("agent", true), ("none", false)] {
        let answer = tollgate(["brief", "--policy", policy]);
        assert_eq!(answer.out().contains("* Policy files (`.tollgate.toml`)"), kept, "{answer:?}");
    }
}

#[test]
fn a_policy_that_allows_everything_is_warned_of() {
    let place = Place::new();
    let empty = place.write("empty.toml", "# nothing yet\n");
    let answer = tollgate(["check", &empty]);
    assert_eq!(answer.code(), 0, "{answer:?}");
    assert!(answer.err().contains("has no rules and allows everything"), "{answer:?}");
    assert!(answer.out().contains("0 rules, default passthrough, 1 warning\n"), "{answer:?}");
    let answer = tollgate(["check", "--json", &empty]);
    let report: serde_json::Value = serde_json::from_str(answer.out()).unwrap();
    let message = report["warnings"][0]["message"].as_str().unwrap_or_default();
    assert!(message.contains("has no rules and allows everything"), "{report}");
    let closed = place.write("closed.toml", "default = \"read-only\"\n");
    assert_eq!(tollgate(["check", &closed]).err(), "");
}

/// As it is where a disk was full, or while an editor saves it.
#[test]
fn a_policy_file_of_no_bytes_is_wrong() {
    let place = Place::new();
    let empty = place.write("empty.toml", "");
    let answer = tollgate(["check", &empty]);
    assert_eq!(answer.code(), 1, "{answer:?}");
    assert!(answer.err().contains("empty.toml` is empty"), "{answer:?}");
    let answer = tollgate(["explain", "--policy", &empty, "a"]);
    assert_eq!(answer.code(), 1, "{answer:?}");
}

/// As `run` would find it.
#[test]
fn check_finds_the_policy_of_the_directory() {
    let place = Place::new();
    place.write(".tollgate.toml", "[[rule]]\npath = 'a'\naction = 'deny'\n");
    let check = || {
        let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        check.arg("check").current_dir(place.path("")).env_remove("TOLLGATE_POLICY");
        check.env("XDG_CONFIG_HOME", place.path("none")).output().unwrap()
    };
    let output = check();
    assert!(
        String::from_utf8_lossy(&output.stdout).contains(".tollgate.toml: 1 rule"),
        "{output:?}"
    );
    place.write(".tollgate.toml", "[[view]]\ndir = '/srv'\n");
    let said = String::from_utf8_lossy(&check().stderr).into_owned();
    assert!(said.contains("found in DIR cannot have `[[view]]` tables"), "{said}");
}

#[test]
fn explain_finds_a_path_however_it_is_named() {
    let place = Place::new();
    let policy = place.write("p.toml", "[[rule]]\npath = '**/.env'\naction = 'hide'\n");
    let dir = place.path("dir");
    let asked = |paths: &[&str]| {
        let mut command = command(["explain", "--json", "--dir", &dir, "--policy", &policy]);
        Answer(command.args(paths).current_dir(place.path("dir/sub")).output().unwrap())
    };
    let whole = place.path("dir/.env");
    for path in ["../.env", &whole, "../sub/./../.env"] {
        let answer = asked(&[path]);
        assert_eq!(answer.code(), 0, "{answer:?}");
        let json: serde_json::Value = serde_json::from_str(answer.out()).unwrap();
        assert_eq!(json["path"], ".env", "{json}");
    }
    // One that is outside does not keep the others from being answered.
    let answer = asked(&["/etc/passwd", "../.env"]);
    assert_eq!(answer.code(), 1, "{answer:?}");
    let json: serde_json::Value = serde_json::from_str(answer.out()).unwrap();
    assert_eq!((json[0]["path"].as_str(), json.as_array().unwrap().len()), (Some(".env"), 1));
    assert!(answer.err().contains("PATH `/etc/passwd` is not in DIR"), "{answer:?}");
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
fn explain_refuses_paths_outside() {
    let place = Place::new();
    tollgate(["explain", "/etc/passwd"]).fails(1, &["PATH `/etc/passwd` is not in DIR"]);
    tollgate(["explain", "a/../../b"]).fails(1, &["PATH `a/../../b` is not in DIR"]);
    let dir = place.path("dir");
    tollgate(["explain", "--dir", &dir, "missing"]).fails(1, &["PATH `missing`", "No such file"]);
    tollgate(["explain", "--dir", &place.path("file"), "a"]).fails(1, &["is not a directory"]);
}

#[test]
fn a_path_that_is_not_utf8_can_be_explained() {
    let odd = OsStr::from_bytes(b"a\xff\nb");
    let answer = tollgate([OsStr::new("explain"), OsStr::new("--json"), odd]);
    assert_eq!(answer.code(), 0, "{answer:?}");
    assert!(serde_json::from_str::<serde_json::Value>(answer.out()).is_ok());
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

/// What a rule only records, or refuses to a program that is named, can be read.
#[test]
fn check_and_test_go_by_what_is_enforced() {
    let place = Place::new();
    std::fs::create_dir(place.path("own")).unwrap();
    place.write("own/s.log", "token = ghp_aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bD1fG3hJ5\n");
    let rule = "[[rule]]\npath = '**/*.log'\naction = 'deny'\n";
    let dir = place.path("own");
    for (condition, found) in [
        ("", false),
        ("mode = 'audit'\n", true),
        ("exe = '/usr/bin/no-such'\n", true),
        ("uid = 0\n", !rustix::process::getuid().is_root()),
    ] {
        let policy = place.write("p.toml", &format!("{rule}{condition}"));
        let answer = tollgate(["check", "--dir", &dir, &policy]);
        let none = "no file that looks like a secret can be read";
        assert_eq!(!answer.out().contains(none), found, "{condition}: {answer:?}");
    }
    let tests = |expect: &str| {
        let test = format!(
            "policy = 'p.toml'\ndir = 'own'\n[[test]]\npath = 's.log'\noperation = 'read'\nexpect = '{expect}'\n"
        );
        tollgate(["test", &place.write("t.toml", &test)]).code()
    };
    place.write("p.toml", &format!("{rule}mode = 'audit'\n"));
    assert_eq!((tests("allow"), tests("deny")), (0, 1), "it is only recorded");
    place.write("p.toml", rule);
    assert_eq!((tests("allow"), tests("deny")), (1, 0));
}

#[test]
fn what_is_below_a_hidden_directory_is_hidden_to_check_and_test() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("own/h")).unwrap();
    place.write("own/h/.env", "TOKEN=ghp_aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bD1fG3hJ5\n");
    let rule = "[[rule]]\npath = 'h'\nkind = 'directory'\naction = 'hide'\n";
    let policy = place.write("p.toml", rule);
    let answer = tollgate(["check", "--dir", &place.path("own"), &policy]);
    assert!(answer.out().contains("no file that looks like a secret can be read"), "{answer:?}");
    let test = "policy = 'p.toml'\ndir = 'own'\n[[test]]\npath = 'h/.env'\noperation = 'read'\nexpect = 'hide'\n";
    let answer = tollgate(["test", &place.write("t.toml", test)]);
    assert_eq!(answer.code(), 0, "{answer:?}");
}

#[test]
fn a_brief_says_what_holds_where_nothing_is_listed() {
    let place = Place::new();
    let brief = |policy: &str| {
        let policy = place.write("p.toml", policy);
        tollgate(["brief", "--policy", &policy, &place.path("dir")]).out().to_owned()
    };
    let said = brief("default = 'deny'\n[[rule]]\npath = 'src'\naction = 'passthrough'\n");
    assert!(said.contains("Nothing can be used but what the policy allows"), "{said}");
    let said = brief("[[rule]]\npath = 'src'\naction = 'deny'\nmode = 'audit'\n");
    assert!(!said.contains("`src`"), "{said}");
    let said = brief("[[rule]]\npath = 'src'\naction = 'redact'\n");
    assert!(said.contains("with `*` in place of what looks like a secret"), "{said}");
    let more = format!("[[view]]\ndir = '{}'\n", place.path("more"));
    let said = brief(&(more.clone() + "[[view.rule]]\npath = 'key'\naction = 'deny'\n"));
    assert!(said.contains(&format!("hold in `{}`", place.path("more"))), "{said}");
    assert!(!said.contains("Fenced:"), "{said}");
    let policy =
        place.write("p.toml", &(String::from("default = 'deny'\nmode = 'audit'\n") + &more));
    let said = tollgate(["brief", "--json", "--policy", &policy, &place.path("dir")]);
    let said: serde_json::Value = serde_json::from_str(said.out()).unwrap();
    assert_eq!(said["default"], "passthrough", "{said}");
    assert_eq!(said["views"][0], place.path("more").as_str(), "{said}");
}

#[test]
fn tests_whose_policy_or_directory_is_not_there_are_named() {
    let place = Place::new();
    for (key, head) in
        [("policy", "policy = 'no-such'"), ("dir", "policy = 'agent'\ndir = 'no-such'")]
    {
        let text = format!("{head}\n[[test]]\npath = 'a'\nexpect = 'allow'\n");
        let tests = place.write("t.toml", &text);
        tollgate(["test", &tests]).fails(1, &[&format!("tests `{tests}`: `{key}`: "), "no-such"]);
    }
}

/// What it led to held until it went away: nothing, or the policy of DIR alone, would hold in its place.
#[test]
fn a_configuration_that_leads_nowhere_is_an_error() {
    for link in [
        "home/.config/tollgate/policy.toml",
        "home/.config/tollgate/config.toml",
        "home/.config/tollgate",
    ] {
        let place = Place::new();
        place.write("dir/a", "");
        let link = std::path::PathBuf::from(place.path(link));
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", &link).unwrap();
        let mut command = command(["explain", "a"]);
        let command = command.current_dir(place.path("dir")).env("HOME", place.path("home"));
        let answer = Answer(command.env_remove("XDG_CONFIG_HOME").output().unwrap());
        assert_eq!(answer.code(), 1, "{link:?}: {answer:?}");
        assert!(answer.err().contains("cannot be read"), "{link:?}: {answer:?}");
    }
}
