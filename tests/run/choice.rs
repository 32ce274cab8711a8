//! Which policy holds, which directory it holds for, and where CMD starts.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::project::{Project, SECRET, all, can_mount, text, tollgate};

/// `tollgate run` without what the developer's own configuration says.
fn run(project: &Project, from: &Path, arguments: &[&str]) -> Output {
    plain(project, from).arg("run").args(arguments).output().unwrap()
}

fn plain(project: &Project, from: &Path) -> Command {
    let mut command = tollgate();
    command.current_dir(from).stdin(Stdio::null());
    command.env_remove("TOLLGATE_POLICY").env("XDG_CONFIG_HOME", project.path("config"));
    command
}

fn dir(project: &Project) -> PathBuf {
    std::fs::canonicalize(project.path("dir")).unwrap()
}

#[test]
fn a_home_that_is_no_directory_has_no_configuration() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    for home in ["/dev/null", "/etc/passwd"] {
        let mut command = plain(&project, &dir(&project));
        command.env_remove("XDG_CONFIG_HOME").env("HOME", home);
        let output = command.args(["run", ".", "--", "echo", "started"]).output().unwrap();
        assert_eq!(text(&output.stdout), "started\n", "{}", all(&output));
    }
}

#[test]
fn the_command_starts_in_the_directory_unless_it_is_called_from_inside() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = dir(&project);
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join(".env"), "of somebody else").unwrap();
    let shown = dir.to_str().unwrap();
    let script = "pwd; echo $PWD; cat .env";
    let output = run(&project, outside.path(), &[shown, "--", "sh", "-c", script]);
    assert_eq!(text(&output.stdout), format!("{shown}\n{shown}\n"), "{}", all(&output));
    let output = run(&project, &dir.join("docs"), &[shown, "--", "pwd"]);
    assert_eq!(text(&output.stdout), format!("{shown}/docs\n"));
    let output = run(&project, outside.path(), &["--chdir", "/", shown, "--", "pwd"]);
    assert_eq!(text(&output.stdout), "/\n");
    let output = run(&project, outside.path(), &["--chdir", "missing", shown, "--", "pwd"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(all(&output).contains("--chdir `missing` does not exist"), "{}", all(&output));
}

#[test]
fn without_a_directory_the_git_working_tree_is_meant() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = dir(&project);
    let script = "cat .env; cat ../.env; pwd; echo $TOLLGATE_RUN";
    let output = run(&project, &dir.join("docs"), &["--", "sh", "-c", script]);
    let shown = dir.to_str().unwrap();
    assert_eq!(text(&output.stdout), format!("{SECRET}{shown}/docs\n{shown}/docs\n"));
    std::fs::create_dir(dir.join(".git")).unwrap();
    std::fs::write(dir.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    let output = run(&project, &dir.join("docs"), &["--", "sh", "-c", script]);
    assert_eq!(text(&output.stdout), format!("{shown}/docs\n{shown}\n"), "{}", all(&output));
}

/// What is in DIR is changed for real: also what a shell starts, if that is the home directory.
#[test]
fn a_home_directory_is_not_taken_unless_it_is_named() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let (dir, home) = (dir(&project), dir(&project));
    let start = |arguments: &[&str]| {
        let mut command = plain(&project, &dir.join("docs"));
        command.env("HOME", &home).args(["run", "--policy", "none"]).args(arguments);
        command.output().unwrap()
    };
    let write = ["--", "sh", "-c", "echo x >>../.bashrc"];
    let output = start(&["--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", all(&output));
    // A repository of settings makes the home the top of every directory without one.
    std::fs::create_dir(dir.join(".git")).unwrap();
    std::fs::write(dir.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    let output = start(&write);
    assert_eq!(output.status.code(), Some(125), "{}", all(&output));
    assert!(text(&output.stderr).contains("your home directory"), "{}", all(&output));
    assert!(!dir.join(".bashrc").exists());
    let output = start(&[&[home.to_str().unwrap()], &write[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", all(&output));
    assert!(dir.join(".bashrc").exists());
}

/// A command may make a directory of DIR a repository, which a later call in it takes for the
/// project, without the policy of the directory above.
#[test]
fn a_policy_above_that_does_not_hold_is_named() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = dir(&project);
    std::fs::write(dir.join(".tollgate.toml"), "# all\n").unwrap();
    std::fs::create_dir(dir.join("docs/.git")).unwrap();
    std::fs::write(dir.join("docs/.git/HEAD"), "ref: refs/heads/main\n").unwrap();
    let shown = dir.display();
    let warning =
        format!("warning: `{shown}/.tollgate.toml` is not in force, as DIR is `{shown}/docs`");
    let output = run(&project, &dir.join("docs"), &["--", "true"]);
    assert!(all(&output).contains(&warning), "{}", all(&output));
    for arguments in [&["--policy", "none", "--", "true"][..], &["..", "--", "true"]] {
        let output = run(&project, &dir.join("docs"), arguments);
        assert!(
            output.status.success() && !all(&output).contains("not in force"),
            "{}",
            all(&output)
        );
    }
}

#[test]
fn a_policy_is_found_in_the_order_that_is_documented() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = dir(&project);
    let shown = dir.to_str().unwrap();
    // Each policy refuses one file, by which it is known.
    let policy = |name: &str| format!("[[rule]]\npath = \"is-{name}\"\naction = \"hide\"\n");
    for name in ["flag", "variable", "command", "user", "own"] {
        std::fs::write(dir.join(format!("is-{name}")), "").unwrap();
        std::fs::write(project.path(&format!("{name}.toml")), policy(name)).unwrap();
    }
    let write = |name: &str, text: &str| {
        let path = project.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let which = |configure: &dyn Fn(&mut Command), flag: &[&str]| {
        let mut command = plain(&project, &dir);
        command.arg("run").args(flag).args([shown, "--"]);
        configure(&mut command);
        let output = command
            .args(["sh", "-c", "ls is-* >/dev/null; ls -A | grep -v -e env"])
            .output()
            .unwrap();
        let list = text(&output.stdout);
        let names = ["flag", "variable", "command", "user", "own"];
        let hidden = names.into_iter().filter(|name| !list.contains(&format!("is-{name}")));
        (hidden.collect::<Vec<_>>().join(","), text(&output.stderr))
    };
    let none = |_: &mut Command| {};
    let (found, messages) = which(&none, &[]);
    assert_eq!(found, "");
    assert_eq!(messages.matches("built-in preset `agent`").count(), 1, "{messages}");
    let (_, messages) = which(&none, &["--quiet"]);
    assert_eq!(messages.matches("note:").count(), 0, "{messages}");
    write("dir/.tollgate.toml", &policy("own"));
    let (found, messages) = which(&none, &[]);
    assert_eq!(found, "own");
    assert!(messages.contains(".tollgate.toml`") && !messages.contains("preset"), "{messages}");
    write("config/tollgate/config.toml", "policy = \"../../user.toml\"\n");
    let (found, messages) = which(&none, &[]);
    // DIR's own policy can only make stricter what the user configured.
    assert_eq!(found, "user,own");
    assert!(messages.contains("which can only make it stricter"), "{messages}");
    write(
        "config/tollgate/config.toml",
        "policy = \"../../user.toml\"\n[commands.sh]\npolicy = \"../../command.toml\"\n",
    );
    assert_eq!(which(&none, &[]).0, "command,own");
    let variable = |command: &mut Command| {
        command.env("TOLLGATE_POLICY", project.path("variable.toml"));
    };
    assert_eq!(which(&variable, &[]).0, "variable,own");
    let flag = project.path("flag.toml");
    assert_eq!(which(&variable, &["--policy", flag.to_str().unwrap()]).0, "flag");
    write("config/tollgate/config.toml", "[commands.sh]\npolicy = \"read-only\"\n");
    let making = |program: &str| run(&project, &dir, &[shown, "--", program, "-c", "echo >made"]);
    let output = making("sh");
    assert!(all(&output).contains("policy `read-only` ([commands.sh]"), "{}", all(&output));
    assert!(all(&output).contains("Read-only file system"), "{}", all(&output));
    assert!(making("bash").status.success() && dir.join("made").exists());
    write("config/tollgate/config.toml", "polcy = 1\n");
    let output = run(&project, &dir, &[shown, "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(all(&output).contains("config.toml` is wrong\n"), "{}", all(&output));
}

/// `mount` looks for its policy where `run` does.
#[test]
fn mount_finds_its_policy_in_the_same_order() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = dir(&project);
    let mnt = project.path("own-view");
    std::fs::create_dir(&mnt).unwrap();
    let names = ["flag", "variable", "own"];
    for name in names {
        std::fs::write(dir.join(format!("is-{name}")), "").unwrap();
        let policy = format!("[[rule]]\npath = \"is-{name}\"\naction = \"hide\"\n");
        std::fs::write(project.path(&format!("{name}.toml")), policy).unwrap();
    }
    let shown_under = |variable: Option<&str>, flag: &[&str]| {
        let mut command = plain(&project, &dir);
        command.args(["mount", "--daemon"]).args(flag).args([&dir, &mnt]);
        if let Some(name) = variable {
            command.env("TOLLGATE_POLICY", project.path(name));
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", all(&output));
        let hidden = names.into_iter().filter(|name| !mnt.join(format!("is-{name}")).exists());
        let hidden = hidden.collect::<Vec<_>>().join(",");
        let secret = mnt.join(".env").exists();
        let ended = plain(&project, &dir).arg("umount").arg(&mnt).output().unwrap();
        assert!(ended.status.success(), "{}", all(&ended));
        (hidden, secret, text(&output.stderr))
    };
    let (hidden, secret, said) = shown_under(None, &[]);
    assert_eq!((hidden.as_str(), secret), ("", false), "{said}");
    assert_eq!(said.matches("built-in preset `agent`").count(), 1, "{said}");
    std::fs::rename(project.path("own.toml"), dir.join(".tollgate.toml")).unwrap();
    assert_eq!(shown_under(None, &[]).0, "own");
    assert_eq!(shown_under(Some("variable.toml"), &[]).0, "variable,own");
    let flag = project.path("flag.toml");
    assert_eq!(shown_under(Some("variable.toml"), &["--policy", flag.to_str().unwrap()]).0, "flag");
    assert!(shown_under(None, &["--policy", "none"]).1, "a view without a policy shows all");
}

/// What the developer configured holds whatever the directory says, and the other way round.
#[test]
fn the_policy_of_the_directory_only_tightens() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = dir(&project);
    let shown = dir.to_str().unwrap();
    std::fs::create_dir_all(project.path("config/tollgate")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(project.path(name), text).unwrap();
    let rule = |path: &str, action: &str| {
        format!("[[rule]]\nname = \"n-{path}\"\npath = \"{path}\"\naction = \"{action}\"\n")
    };
    // `policy.toml` beside the configuration is the user's policy, too.
    write("config/tollgate/policy.toml", &(rule(".env", "hide") + &rule("a.txt", "passthrough")));
    // It would open `.env` and shut `a.txt`.
    let own = rule(".env", "passthrough") + &rule("a.txt", "deny");
    write("dir/.tollgate.toml", &own);
    let script = "cat .env; cat a.txt; cat docs/guide.md; tollgate=$(cat .tollgate.toml); \
                  echo x >.tollgate.toml; rm -f .tollgate.toml; echo x >docs/.tollgate.toml; true";
    let output = run(&project, &dir, &[shown, "--", "sh", "-c", script]);
    let out = text(&output.stdout);
    let guide = std::fs::read_to_string(dir.join("docs/guide.md")).unwrap();
    assert_eq!(out, guide, "{}", all(&output));
    let errors = text(&output.stderr);
    assert!(errors.contains("by rule `n-a.txt (.tollgate.toml)`"), "{errors}");
    assert!(errors.contains("by rule `n-.env`") && errors.contains("policy.toml"), "{errors}");
    assert_eq!(std::fs::read_to_string(dir.join(".tollgate.toml")).unwrap(), own);
    assert!(!dir.join("docs/.tollgate.toml").exists(), "a policy for the next start in docs");
    let explained = plain(&project, &dir)
        .args(["explain", "--json", "--operation", "read", ".env", "a.txt"])
        .output()
        .unwrap();
    let answers: serde_json::Value = serde_json::from_slice(&explained.stdout).unwrap();
    assert_eq!(answers[0]["operations"][0]["errno"], "ENOENT");
    assert_eq!(answers[1]["operations"][0]["errno"], "EACCES");
    // With a policy that is named, that one holds alone.
    let output = run(&project, &dir, &["--policy", "none", shown, "--", "cat", ".env", "a.txt"]);
    assert_eq!(text(&output.stdout), format!("{SECRET}plain\n"));
    // Nobody can be asked in a native directory.
    write(
        "dir/.tollgate.toml",
        "[[rule]]\nname = \"fast\"\npath = \"build\"\naction = \"native\"\n",
    );
    write("config/tollgate/policy.toml", &rule("**/.env", "hide"));
    let output = run(&project, &dir, &[shown, "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let said = all(&output);
    for part in ["cannot hold together", "`fast`", "`build` native", "`n-**/.env`", "--policy"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
}

#[test]
fn none_is_a_bare_view_and_the_preset_agent_hides_secrets() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = dir(&project);
    let shown = dir.to_str().unwrap();
    let bare = run(&project, &dir, &["--policy", "none", shown, "--", "cat", ".env"]);
    assert_eq!(text(&bare.stdout), SECRET);
    assert_eq!(text(&bare.stderr), "");
    let fenced = run(&project, &dir, &[shown, "--", "cat", ".env", "keys/id_rsa", "a.txt"]);
    assert_eq!(text(&fenced.stdout), "plain\n");
}

#[test]
fn the_policy_of_the_directory_cannot_be_changed_in_the_view() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = dir(&project);
    let own = "default = \"passthrough\"\n";
    for (name, policy) in [(".tollgate.toml", None), ("docs/[p].toml", Some("docs/[p].toml"))] {
        std::fs::write(dir.join(name), own).unwrap();
        let mut arguments = vec![];
        if let Some(policy) = policy {
            arguments.extend(["--policy", policy]);
        }
        let script = "cat \"$F\"; echo x >\"$F\"; rm -f \"$F\"; mv \"$F\" other; ln \"$F\" hard && \
                      echo x >hard; echo x >new; mv new \"$F\"; true";
        arguments.extend([dir.to_str().unwrap(), "--", "sh", "-c", script]);
        let output =
            plain(&project, &dir).env("F", name).arg("run").args(&arguments).output().unwrap();
        // The one of DIR is hidden.
        let (shown, error) = match policy {
            None => ("", "Permission denied"),
            Some(_) => (own, "Read-only file system"),
        };
        assert_eq!(text(&output.stdout), shown, "{}", all(&output));
        assert_eq!(output.status.code(), Some(0), "{}", all(&output));
        assert_eq!(std::fs::read_to_string(dir.join(name)).unwrap(), own, "{name}");
        assert!(text(&output.stderr).contains(error), "{}", all(&output));
        std::fs::remove_file(dir.join(name)).unwrap();
    }
}

/// The next `run`, of DIR or of a directory in it, would use it.
#[test]
fn no_policy_file_is_made_under_rules_about_all_files_alike() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = dir(&project);
    let keys = "[[rule]]\npath = '**'\ncontent = { regex = 'KEY' }\naction = 'deny'\n";
    std::fs::write(project.path("keys.toml"), keys).unwrap();
    let named = project.path("keys.toml");
    let script = "mkdir s; for d in . s; do echo >$d/.tollgate.toml; echo >n; \
                  mv n $d/.tollgate.toml; ln n $d/.tollgate.toml; rm -f n; done; cat a.txt; ls -A s";
    for options in [&["--policy", named.to_str().unwrap()][..], &[]] {
        if options.is_empty() {
            std::fs::write(dir.join(".tollgate.toml"), keys).unwrap();
        }
        let arguments = [options, &[dir.to_str().unwrap(), "--", "sh", "-c", script]].concat();
        let output = run(&project, &dir, &arguments);
        assert_eq!(text(&output.stdout), "plain\n", "{}", all(&output));
        assert!(!dir.join("s/.tollgate.toml").exists(), "{}", all(&output));
        assert_eq!(dir.join(".tollgate.toml").exists(), options.is_empty(), "{}", all(&output));
        std::fs::remove_dir(dir.join("s")).unwrap();
    }
}

/// What `explain` says of each operation is what the system call gets.
#[test]
fn explain_and_the_real_errors_agree() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let policy = project.path("policy.toml");
    let policy = policy.to_str().unwrap();
    let python = "
import os, errno
def tried(do):
    try: do(); return None
    except OSError as e: return errno.errorcode[e.errno]
for name, make in [('.env', 'logs/.env'), ('keys/id_rsa', 'id_new'), ('docs/guide.md', 'docs/new')]:
    print(name, 'read', tried(lambda: os.close(os.open(name, os.O_RDONLY))))
    print(name, 'write', tried(lambda: os.close(os.open(name, os.O_WRONLY))))
    print(make, 'create', tried(lambda: os.close(os.open(make, os.O_WRONLY | os.O_CREAT))))
";
    let output = project.run().args(["python3", "-c", python]).output().unwrap();
    if output.status.code() == Some(127) {
        eprintln!("skipped: no python3");
        return;
    }
    assert!(output.status.success(), "{}", all(&output));
    assert_eq!(text(&output.stdout).lines().count(), 9);
    for line in text(&output.stdout).lines() {
        let [path, operation, found] = line.split(' ').collect::<Vec<_>>()[..] else { panic!() };
        let explained = tollgate()
            .args(["explain", "--json", "--policy", policy, "--operation", operation, path])
            .output()
            .unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&explained.stdout).unwrap();
        let errno = answer["operations"][0]["errno"].as_str().unwrap_or("None");
        assert_eq!(errno, found, "{line}");
    }
}

/// The rule that keeps a policy file names it by where it lies, however it was named.
#[test]
fn a_policy_may_be_named_by_a_path_with_dots() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    std::fs::write(project.path("dir/docs/p.toml"), "# all\n").unwrap();
    for name in ["../policy.toml", "keys/../docs/p.toml", "../dir/docs/p.toml"] {
        let mut command = tollgate();
        command.args(["run", "-p", name, "--", "sh", "-c", "echo x >>docs/p.toml; cat a.txt"]);
        let out = command.current_dir(project.path("dir")).output().unwrap();
        assert!(out.status.success(), "{name}: {}", all(&out));
        assert_eq!(text(&out.stdout), "plain\n", "{name}");
        let kept = std::fs::read_to_string(project.path("dir/docs/p.toml")).unwrap();
        assert_eq!(kept, "# all\n", "{name}");
    }
}

/// Who replaces a link on the way to the policy decides what the next reload reads.
#[test]
fn links_on_the_way_to_a_policy_are_kept() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = project.path("dir");
    let hides = "[[rule]]\npath = \"a.txt\"\naction = \"hide\"\n";
    std::fs::create_dir(dir.join("evil")).unwrap();
    std::fs::create_dir(dir.join("sub")).unwrap();
    std::fs::write(dir.join("evil/p.toml"), "").unwrap();
    std::fs::write(dir.join("sub/p.toml"), hides).unwrap();
    std::os::unix::fs::symlink("sub", dir.join("second")).unwrap();
    std::os::unix::fs::symlink("second", dir.join("first")).unwrap();
    let script = "for l in first second; do ln -sfn evil $l; mv $l gone; rm $l; done; \
                  mv sub gone; $T reload . >&2; cat a.txt; readlink first second";
    let mut command = tollgate();
    command.args(["run", "-p", "first/p.toml", "--", "sh", "-c", script]);
    command.env("T", env!("CARGO_BIN_EXE_tollgate")).current_dir(&dir);
    let out = command.output().unwrap();
    assert_eq!(text(&out.stdout), "second\nsub\n", "{}", all(&out));
    assert_eq!(std::fs::read_to_string(dir.join("sub/p.toml")).unwrap(), hides);
}

/// With a home in DIR, CMD would else choose the policy of the next start.
#[test]
fn the_users_configuration_is_kept() {
    if !can_mount() {
        return;
    }
    for (there, variable, base) in
        [(true, "HOME", ".config"), (false, "HOME", ".config"), (true, "XDG_CONFIG_HOME", "c")]
    {
        let project = Project::new();
        let dir = project.path("dir");
        // The directory of the configuration is a link into DIR.
        std::fs::create_dir_all(dir.join("real/tollgate")).unwrap();
        std::os::unix::fs::symlink("real", dir.join(base)).unwrap();
        if there {
            std::fs::write(dir.join("real/tollgate/config.toml"), "policy = \"agent\"\n").unwrap();
        }
        let script = format!(
            "for d in {base} real; do echo x >>$d/tollgate/config.toml; \
             echo x >$d/tollgate/policy.toml; rm $d/tollgate/config.toml; done; \
             mkdir -p evil/tollgate; echo x >evil/tollgate/policy.toml; ln -sfn evil {base}; \
             rm {base}; mv -T evil/tollgate real/tollgate; mv real gone; readlink {base}"
        );
        let mut command = tollgate();
        command.args(["run", "--policy"]).arg(project.path("policy.toml")).arg(&dir);
        command.args(["--", "sh", "-c", &script]).env_remove("XDG_CONFIG_HOME");
        let home = if variable == "HOME" { dir.clone() } else { dir.join(base) };
        let out = command.env(variable, home).output().unwrap();
        assert_eq!(text(&out.stdout), "real\n", "{base}: {}", all(&out));
        let kept = std::fs::read_to_string(dir.join("real/tollgate/config.toml")).ok();
        assert_eq!(kept.as_deref(), there.then_some("policy = \"agent\"\n"), "{}", all(&out));
        assert!(!dir.join("real/tollgate/policy.toml").exists(), "{}", all(&out));
    }
}

/// A policy of no bytes would allow everything.
#[test]
fn nothing_is_left_of_what_a_full_disk_had_no_room_for() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "mkdir x; mount -t tmpfs -o size=64k none x; mkdir x/p; cd x
        init() { (cd p; $T init \"$@\"); }
        head -c 99999 /dev/zero >fill || true
        init && echo made; $T seal init --new-key-file k p && echo made; ls -A . p; rm fill
        init --output - >/dev/null && echo then; init --output p.toml && echo then
        $T seal init --new-key-file k p >/dev/null && echo then";
    let out = project.in_mount_namespace(script);
    assert_eq!(text(&out.stdout), ".:\nfill\np\n\np:\nthen\nthen\nthen\n", "{}", all(&out));
    assert!(
        text(&out.stderr).contains(
            "/p/.tollgate.toml` cannot be written: No space left on device (os error 28)\n"
        ),
        "{}",
        all(&out)
    );
}
