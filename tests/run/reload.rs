//! A changed policy, for a server that runs.

use std::fs;
use std::io::Read;
use std::process::{Output, Stdio};

use crate::project::{Daemon, Project, SECRET, all, can_mount, first_line, text, tollgate, until};

fn reload(project: &Project) -> Output {
    tollgate().arg("reload").arg(project.path("dir")).output().unwrap()
}

#[test]
fn a_new_policy_holds_at_once_in_both_directions() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let daemon = Daemon::start(&project);
    let at = |path: &str| project.path("mnt").join(path);
    // The kernel remembers all of them.
    assert!(fs::metadata(at(".env")).is_err());
    assert_eq!(fs::read_to_string(at("a.txt")).unwrap(), "plain\n");
    assert!(fs::read(at("keys/id_rsa")).is_err());
    let mut held = fs::File::open(at("a.txt")).unwrap();
    let policy = "[[rule]]\nname = 'new'\npath = 'a.txt'\naction = 'hide'\n\
                  [[rule]]\nname = 'guide'\npath = 'docs'\naction = 'deny'\n";
    fs::write(project.path("policy.toml"), policy).unwrap();
    let out = reload(&project);
    assert!(out.status.success(), "{}", all(&out));
    let said = text(&out.stdout);
    assert!(said.contains("1 of 1 open files cannot be taken back"), "{said}");
    assert!(said.contains("\n    a.txt\n"), "{said}");
    assert_eq!(fs::read_to_string(at(".env")).unwrap(), SECRET);
    assert_eq!(fs::read_to_string(at("keys/id_rsa")).unwrap(), SECRET);
    let gone = fs::File::open(at("a.txt")).unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
    let names: Vec<_> =
        fs::read_dir(project.path("mnt")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.contains(&".env".into()) && !names.contains(&"a.txt".into()), "{names:?}");
    assert!(fs::read(at("docs/guide.md")).is_err());
    assert!(fs::read_dir(at("docs")).is_err(), "a directory that is denied is listed");
    let mut rest = String::new();
    held.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "plain\n");
    drop(daemon);
}

/// However they were open: a small file that is only read (its pages are the kernel's), another that
/// is written too, and one of which every read is seen. One that is masked shows less than now.
#[test]
fn open_files_that_show_more_than_the_new_policy_are_named() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    for name in ["small", "written", "masked"] {
        let text = "url https://app:s3cret-word@host/\n";
        fs::write(project.path("dir").join(name), text).unwrap();
    }
    let redact = |path: &str, detector: &str| {
        format!("[[rule]]\npath = '{path}'\naction = 'redact'\ndetectors = ['{detector}']\n")
    };
    let seen = |path: &str| format!("[[rule]]\npath = '{path}'\naction = 'userspace'\n");
    let policy = |rules: String| fs::write(project.path("policy.toml"), rules).unwrap();
    policy(seen("logs/**") + &redact("masked", "url-password"));
    // A small file is served from the kernel's pages once it is settled.
    std::thread::sleep(std::time::Duration::from_secs(4));
    let _daemon = Daemon::start(&project);
    let at = |path: &str| project.path("mnt").join(path);
    let _small = fs::File::open(at("small")).unwrap();
    let _written = fs::File::options().read(true).write(true).open(at("written")).unwrap();
    let _seen = fs::File::open(at("logs/app.log")).unwrap();
    let _masked = fs::File::open(at("masked")).unwrap();
    policy(["small", "written", "logs/**"].map(|path| redact(path, "card")).concat());
    let said = text(&reload(&project).stdout);
    assert!(said.contains("3 of 4 open files cannot be taken back"), "{said}");
    policy(["small", "written", "logs/**"].map(seen).concat());
    let said = text(&reload(&project).stdout);
    assert!(said.contains("2 of 4 open files cannot be taken back"), "{said}");
    assert!(said.contains("\n    small\n") && said.contains("\n    written\n"), "{said}");
}

/// Of a file with several names, nobody need have met the one that is refused.
#[test]
fn open_files_that_are_refused_by_another_name_are_named() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let (dir, at) = (project.path("dir"), |path: &str| project.path("mnt").join(path));
    for name in ["denied", "hidden"] {
        fs::hard_link(dir.join("a.txt"), dir.join(name)).unwrap();
    }
    let _daemon = Daemon::start(&project);
    let _held = fs::File::open(at("a.txt")).unwrap();
    for (name, action) in [("denied", "deny"), ("hidden", "hide")] {
        let policy = format!("[[rule]]\npath = '{name}'\naction = '{action}'\n");
        fs::write(project.path("policy.toml"), policy).unwrap();
        let said = text(&reload(&project).stdout);
        assert!(said.contains("1 of 1 open files cannot be taken back"), "{name}: {said}");
        assert!(said.contains("\n    a.txt\n"), "{name}: {said}");
        assert!(fs::File::open(at("a.txt")).is_err(), "{name}");
    }
}

/// Others may put a link to any file of the user in its place, while the view is there.
#[test]
fn a_policy_that_comes_to_lead_out_of_dir_is_refused_without_its_content() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let (own, outside) = (project.path("dir/.tollgate.toml"), project.path("credentials"));
    fs::write(&outside, format!("[default]\n{SECRET}\n")).unwrap();
    fs::write(&own, "[[rule]]\npath = '.env'\naction = 'hide'\n").unwrap();
    let mut command = tollgate();
    command.arg("run").arg(project.path("dir")).args(["--", "sh", "-c", "echo ready; read go"]);
    command.env_remove("TOLLGATE_POLICY").env("XDG_CONFIG_HOME", project.path("none"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = command.spawn().unwrap();
    assert_eq!(first_line(&mut running), "ready");
    fs::remove_file(&own).unwrap();
    std::os::unix::fs::symlink(&outside, &own).unwrap();
    let output = reload(&project);
    drop(running.stdin.take());
    running.wait().unwrap();
    let said = all(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("it leads out of `") && !said.contains(SECRET), "{said}");
}

/// The kernel keeps targets of links for everybody, as the first policy allowed.
#[test]
fn a_policy_that_tells_callers_apart_at_links_comes_too_late() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let _daemon = Daemon::start(&project);
    let policy = "[[rule]]\npath = '**/*'\nkind = 'symlink'\nuid = 4321\naction = 'deny'\n";
    fs::write(project.path("policy.toml"), policy).unwrap();
    let out = reload(&project);
    assert_eq!(out.status.code(), Some(1));
    let said = text(&out.stderr);
    assert!(said.contains("tells callers apart at symbolic links"), "{said}");
    assert!(fs::metadata(project.path("mnt/.env")).is_err(), "the old policy holds");
}

#[test]
fn a_wrong_policy_leaves_the_old_one_in_force() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let _daemon = Daemon::start(&project);
    fs::write(project.path("policy.toml"), "[[rule]]\npath = 'x'\naction = 'dney'\n").unwrap();
    let out = reload(&project);
    assert_eq!(out.status.code(), Some(1));
    let said = text(&out.stderr);
    assert!(said.contains("keeps its policy") && said.contains("policy.toml:3:10"), "{said}");
    assert!(fs::read(project.path("mnt/keys/id_rsa")).is_err());
}

/// A file that was saved in part opens the view; that is said wherever somebody looks.
#[test]
fn a_policy_that_allows_everything_is_warned_of_at_a_reload() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let _daemon = Daemon::start(&project);
    // Of no bytes it is wrong, as a file is that an editor is about to write.
    fs::write(project.path("policy.toml"), "").unwrap();
    let out = reload(&project);
    assert_eq!(out.status.code(), Some(1), "{}", all(&out));
    assert!(text(&out.stderr).contains("policy.toml` is empty"), "{}", all(&out));
    assert!(fs::read(project.path("mnt/keys/id_rsa")).is_err(), "the old one does not hold");
    fs::write(project.path("policy.toml"), "# rules\n").unwrap();
    let warning = "has no rules and allows everything";
    let out = reload(&project);
    assert!(text(&out.stdout).contains(warning), "{}", all(&out));
    let out = tollgate().args(["reload", "--json"]).arg(project.path("dir")).output().unwrap();
    let replies: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let said = replies[0]["reloaded"]["warnings"][0].as_str();
    assert!(said.is_some_and(|said| said.contains(warning)), "{replies}");
    let log = || fs::read_to_string(project.path("log")).unwrap();
    until("the warning in the log", || log().contains(warning));
}

#[test]
fn a_native_directory_cannot_come_later() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let _daemon = Daemon::start(&project);
    let policy = "[[rule]]\npath = 'docs'\naction = 'native'\n";
    fs::write(project.path("policy.toml"), policy).unwrap();
    let out = reload(&project);
    assert!(text(&out.stderr).contains("`native` differ"), "{}", all(&out));
}

#[test]
fn a_hang_up_sent_by_a_process_reloads() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let daemon = Daemon::start(&project);
    fs::write(project.path("policy.toml"), "# all\n").unwrap();
    let pid = i32::try_from(daemon.status()["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    until("the reload", || fs::read(project.path("mnt/keys/id_rsa")).is_ok());
    let said = || fs::read_to_string(project.path("log")).unwrap();
    until("the message", || said().contains("is in force"));
}

#[test]
fn the_command_cannot_have_its_policy_reloaded() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = format!(
        "echo >{}; {} reload --all; cat keys/id_rsa",
        project.path("policy.toml").display(),
        env!("CARGO_BIN_EXE_tollgate")
    );
    let out = project.sh(&script);
    assert!(!text(&out.stdout).contains(SECRET), "{}", all(&out));
}

#[test]
fn what_nobody_shows_cannot_be_reloaded() {
    let out = tollgate().args(["reload", "/nowhere"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("no server of this user shows `/nowhere`"), "{}", all(&out));
}

/// A preset is fitted to DIR again, where CMD may have made a repository that names files of anybody.
#[test]
fn a_repository_that_names_files_out_of_reach_does_not_keep_a_preset_from_a_reload() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let out = tollgate()
        .args(["mount", "--daemon", "--sandbox", "strict", "--policy", "agent"])
        .args([project.path("dir"), project.path("mnt")])
        .output()
        .unwrap();
    let _daemon = Daemon(&project);
    assert!(out.status.success(), "{}", all(&out));
    let out = reload(&project);
    assert!(out.status.success() && !all(&out).contains("warning"), "{}", all(&out));
    let repository = |name: &str| {
        let git = project.path("mnt").join(name).join(".git");
        fs::create_dir_all(git.join("hooks")).unwrap();
        fs::write(git.join("HEAD"), "x").unwrap();
        git
    };
    let include = "[include]\npath = /etc/hostname\n";
    fs::write(repository("settings").join("config"), include).unwrap();
    let out = reload(&project);
    assert!(out.status.success(), "{}", all(&out));
    assert!(text(&out.stdout).contains("warning: `"), "{}", all(&out));
    let hook = repository("hooks").join("hooks/pre-commit");
    std::os::unix::fs::symlink("/etc/hostname", hook).unwrap();
    let out = reload(&project);
    assert!(out.status.success(), "{}", all(&out));
}

/// A daemon leaves the directory that a relative name was meant from.
#[test]
fn a_daemon_finds_a_policy_with_a_relative_name_again() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let out = tollgate()
        .args(["mount", "--daemon", "--policy", "policy.toml", "dir", "mnt"])
        .current_dir(project.path(""))
        .output()
        .unwrap();
    let _daemon = Daemon(&project);
    assert!(out.status.success(), "{}", all(&out));
    fs::write(project.path("policy.toml"), "# all\n").unwrap();
    let out = reload(&project);
    assert!(out.status.success(), "{}", all(&out));
    let file = fs::canonicalize(project.path("policy.toml")).unwrap();
    assert!(text(&out.stdout).contains(file.to_str().unwrap()), "{}", all(&out));
    assert_eq!(fs::read_to_string(project.path("mnt/.env")).unwrap(), SECRET);
}

/// A handle is named by what it was opened for.
#[test]
fn a_file_that_is_open_as_it_may_be_is_not_named() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let policy = |text: &str| fs::write(project.path("policy.toml"), text).unwrap();
    let rule = |path: &str, operation: &str| {
        format!("[[rule]]\npath = '{path}'\noperation = '{operation}'\naction = 'deny'\n")
    };
    let hidden = "[[rule]]\npath = 'docs'\nkind = 'directory'\naction = 'hide'\n";
    let to = |what: &str, rule: String| rule.replace("action", &format!("{what}\naction"));
    policy("default = 'passthrough'\n");
    let _daemon = Daemon::start(&project);
    let at = |path: &str| project.path("mnt").join(path);
    let _read = fs::File::open(at("a.txt")).unwrap();
    let _written = fs::File::options().append(true).open(at("docs/guide.md")).unwrap();
    let named = || {
        let out = tollgate().args(["reload", "--json"]).arg(project.path("dir")).output().unwrap();
        let replies: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(replies[0]["reloaded"]["open"], 2, "{replies}");
        replies[0]["reloaded"]["still_open"].to_string()
    };
    for (text, expected) in [
        ("default = 'passthrough'\n".to_owned(), "[]"),
        (rule("a.txt", "write") + &rule("docs/**", "read"), "[]"),
        ("default = 'read-only'\n".to_owned(), "[\"docs/guide.md\"]"),
        (rule("a.txt", "read") + &rule("docs/**", "read"), "[\"a.txt\"]"),
        // Whoever has it open.
        (to("kind = 'file'\nuid = 4321", rule("a.txt", "read")), "[\"a.txt\"]"),
        (to("kind = 'file'\ngid = 4321", rule("docs/**", "write")), "[\"docs/guide.md\"]"),
        (to("kind = 'file'\nuid = 4321", rule("docs/**", "read")), "[]"),
        // What is read only if it holds something else is not changed in part.
        (to("content = { regex = '.' }", rule("docs/**", "read")), "[\"docs/guide.md\"]"),
        (hidden.to_owned(), "[\"docs/guide.md\"]"),
    ] {
        policy(&text);
        assert_eq!(named(), expected, "{text}");
    }
}

#[test]
fn a_reload_finds_the_directory_by_any_name_that_it_had() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "mkdir d m; echo 'default = \"read-only\"' >p.toml
        $T mount --daemon --log log --policy p.toml d m; mv d moved
        for name in d ./d \"$PWD/d\" moved m; do $T reload $name >/dev/null && echo $name; done
        $T umount m";
    let out = project.in_mount_namespace(script);
    let top = fs::canonicalize(project.path("")).unwrap();
    let expected = format!("d\n./d\n{}/d\nmoved\nm\n", top.display());
    assert_eq!(text(&out.stdout), expected, "{}", all(&out));
}

/// The set of them is what counts.
#[test]
fn native_directories_may_be_written_in_another_order() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    fs::create_dir_all(project.path("dir/t")).unwrap();
    let policy = |paths: &str| {
        let text = format!("[[rule]]\npath = [{paths}]\naction = 'native'\n");
        fs::write(project.path("policy.toml"), text).unwrap();
    };
    policy("'t', 'docs'");
    let _daemon = Daemon::start(&project);
    policy("'docs', 't'");
    let out = reload(&project);
    assert!(out.status.success(), "{}", all(&out));
    policy("'docs', 'keys'");
    assert_eq!(reload(&project).status.code(), Some(1));
}

/// It would have tightened the configured one, had it been there at the start.
#[test]
fn a_policy_that_comes_to_be_in_dir_is_said_not_to_hold_yet() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "export TOLLGATE_POLICY=$PWD/policy.toml
        $T mount --daemon --log log dir mnt; $T reload dir >/dev/null && echo whole
        echo 'default = \"deny\"' >dir/.tollgate.toml; $T reload dir || echo in part
        $T umount mnt; cp -r dir dir2; $T mount --daemon --log log2 --policy policy.toml dir2 mnt
        $T reload dir2 >/dev/null && echo named; $T umount mnt";
    let out = project.in_mount_namespace(script);
    let said = all(&out);
    let lines: Vec<_> = said.lines().filter(|line| !line.starts_with(' ')).collect();
    assert!(lines.contains(&"whole") && lines.contains(&"in part"), "{said}");
    assert!(lines.contains(&"named"), "{said}");
    assert!(said.contains("dir/.tollgate.toml` is new: it holds from the next start on"), "{said}");
}

/// By a signal and by the command, which different threads carry out.
#[test]
fn of_two_reloads_at_once_the_later_policy_stays() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let daemon = Daemon::start(&project);
    let pid = i32::try_from(daemon.status()["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let put = |policy: &str| {
        // Nobody reads a part of it.
        fs::write(project.path("new.toml"), policy).unwrap();
        fs::rename(project.path("new.toml"), project.path("policy.toml")).unwrap();
    };
    // It takes a while to be understood.
    let paths = |rule: usize| {
        (0..16).map(|path| format!("'**/x{rule}*/{{a,b}}{path}?',")).collect::<String>()
    };
    let rules = |rule: usize| format!("[[rule]]\npath = [{}]\naction = 'deny'\n", paths(rule));
    let earlier = "[[rule]]\npath = 'a.txt'\naction = 'deny'\n".to_owned()
        + &(0..500).map(rules).collect::<String>();
    put(&earlier);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    put("[[rule]]\npath = '.env'\naction = 'deny'\n");
    let out = reload(&project);
    assert!(out.status.success(), "{}", all(&out));
    until("the signal is obeyed", || {
        fs::read_to_string(project.path("log")).unwrap().contains("is in force")
    });
    let at = |path: &str| fs::read(project.path("mnt").join(path)).map_err(|error| error.kind());
    assert_eq!(at("a.txt").unwrap(), b"plain\n");
    assert_eq!(at(".env"), Err(std::io::ErrorKind::PermissionDenied));
}
