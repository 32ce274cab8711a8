//! `[[view]]`: several directories of one policy, each with its rules, by one server.

mod names;
mod reload;

use std::fs;
use std::process::{Command, Output, Stdio};

use crate::caseless::Caseless;
use crate::project::{Project, SECRET, all, can_mount, first_line, text, tollgate};

/// A project, and a home directory around another one, with secrets.
fn project() -> Project {
    let project = Project::new();
    for (name, content) in [
        ("notes/secret", SECRET),
        ("notes/plan", "plan\n"),
        ("notes/old/a", "old\n"),
        ("data/d", "data\n"),
        ("home/.ssh/id", SECRET),
        ("home/.profile", "profile\n"),
        ("home/work/dir/.env", SECRET),
        ("home/work/dir/a.txt", "plain\n"),
    ] {
        let path = project.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let policy = format!(
        "[[rule]]\npath = \"**/.env\"\naction = \"hide\"\n\n\
         [[view]]\ndir = \"{0}/notes\"\n[[view.rule]]\nname = \"mine\"\npath = \"secret\"\n\
         action = \"hide\"\n[[view.rule]]\nname = \"old\"\npath = \"old/**\"\n\
         operation = [\"write\", \"create\"]\naction = \"read-only\"\n\n\
         [[view]]\ndir = \"{0}/data\"\ndefault = \"read-only\"\n",
        fs::canonicalize(project.path("")).unwrap().display()
    );
    fs::write(project.path("several.toml"), policy).unwrap();
    let policy = "[[rule]]\npath = \"**/.env\"\naction = \"hide\"\n\n\
                  [[view]]\ndir = \"~\"\n[[view.rule]]\nname = \"keys\"\npath = \".ssh/**\"\n\
                  action = \"hide\"\n";
    fs::write(project.path("home.toml"), policy).unwrap();
    project
}

/// `tollgate run` over `dir`, with the policy file `policy`.
fn run(project: &Project, policy: &str, dir: &str, options: &[&str]) -> Command {
    let mut command = tollgate();
    command.args(["run", "--sandbox", "strict", "--policy"]).arg(project.path(policy));
    command.args(options).arg(project.path(dir)).current_dir(project.path(dir));
    command.env("HOME", project.path("home")).env("T", env!("CARGO_BIN_EXE_tollgate"));
    command.stdin(Stdio::null());
    command
}

fn sh(mut command: Command, script: &str) -> Output {
    command.args(["--", "sh", "-c", script]).output().unwrap()
}

#[test]
fn each_directory_has_its_rules() {
    if !can_mount() {
        return;
    }
    let project = project();
    let script = "cat .env ../notes/secret; cat ../notes/plan ../data/d; echo x >../notes/old/b; \
                  echo new >../notes/new; echo x >../data/e; echo x >../x; ls ../notes";
    let output = sh(run(&project, "several.toml", "dir", &[]), script);
    let said = all(&output);
    assert_eq!(text(&output.stdout), "plan\ndata\nnew\nold\nplan\n", "{said}");
    assert!(!said.contains(SECRET), "{said}");
    assert_eq!(fs::read_to_string(project.path("notes/new")).unwrap(), "new\n");
    for name in ["notes/old/b", "data/e", "x"] {
        assert!(!project.path(name).exists(), "{name} was made: {said}");
    }
    // The summary names the whole path where it is not in DIR.
    let notes = fs::canonicalize(project.path("notes")).unwrap();
    let line = format!("{}/secret: ENOENT, hidden by rule `mine`", notes.display());
    assert!(said.contains(&line), "{line} is not in: {said}");
}

#[test]
fn one_server_shows_all_of_them() {
    if !can_mount() {
        return;
    }
    let project = project();
    let output = sh(run(&project, "several.toml", "dir", &["--quiet"]), "\"$T\" status --json");
    let reports: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let top = fs::canonicalize(project.path("")).unwrap();
    let own = reports.as_array().unwrap().iter().filter(|report| {
        report["dir"].as_str().is_some_and(|dir| dir.starts_with(top.to_str().unwrap()))
    });
    let mut dirs: Vec<_> = own.clone().map(|report| report["dir"].as_str().unwrap()).collect();
    dirs.sort_unstable();
    let expected = ["data", "dir", "notes"].map(|name| top.join(name));
    assert_eq!(dirs, expected.each_ref().map(|path| path.to_str().unwrap()), "{reports:#}");
    let mut servers: Vec<_> = own.map(|report| report["pid"].as_u64()).collect();
    servers.dedup();
    assert_eq!(servers.len(), 1, "{reports:#}");
}

/// DIR lies in the home directory, whose rules do not decide in DIR.
#[test]
fn a_home_can_be_a_view() {
    if !can_mount() {
        return;
    }
    let project = project();
    let script = "cat ~/.ssh/id .env ~/work/dir/.env; cat ~/.profile a.txt; echo new >~/.new; \
                  mv ~/work ~/moved; mv ~/work/dir ~/dir; umount -l ~/work/dir; umount -l ~; \
                  unshare -m umount -l ~/work/dir; cat ~/work/dir/.env ~/.ssh/id; \
                  ln ~/.profile ~/work/dir/link; cp a.txt ~/copied; echo more >>~/work/dir/a.txt";
    let output = sh(run(&project, "home.toml", "home/work/dir", &[]), script);
    let said = all(&output);
    assert_eq!(text(&output.stdout), "profile\nplain\n", "{said}");
    assert!(!said.contains(SECRET), "{said}");
    let read = |name: &str| fs::read_to_string(project.path(name)).unwrap();
    assert_eq!(read("home/.new"), "new\n");
    assert_eq!(
        (read("home/copied"), read("home/work/dir/a.txt")),
        ("plain\n".into(), "plain\nmore\n".into())
    );
    assert!(!project.path("home/moved").exists() && !project.path("home/dir").exists());
}

#[test]
fn a_user_has_them_too() {
    if !can_mount() {
        return;
    }
    let project = project();
    let output = project.in_mount_namespace(
        "cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 home notes data dir
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; export HOME=$PWD/home
        unset XDG_RUNTIME_DIR
        as='setpriv --reuid 4321 --regid 4321 --clear-groups'
        $as ./tollgate run --policy home.toml home/work/dir -- \
            sh -c 'cat ~/.ssh/id .env ~/work/dir/.env; cat ~/.profile a.txt; echo new >~/.new'
        $as ./tollgate run --policy several.toml dir -- \
            sh -c 'cat ../notes/secret .env; cat ../notes/plan; echo x >../data/e' || true",
    );
    let said = all(&output);
    if said.contains("user namespaces are not allowed") {
        eprintln!("skipped: {said}");
        return;
    }
    assert_eq!(text(&output.stdout), "profile\nplain\nplan\n", "{said}");
    assert!(!said.contains(SECRET), "{said}");
    assert_eq!(fs::read_to_string(project.path("home/.new")).unwrap(), "new\n");
    assert!(!project.path("data/e").exists(), "{said}");
}

#[test]
fn why_and_the_log_name_the_rule_and_the_whole_path() {
    if !can_mount() {
        return;
    }
    let project = project();
    let log = project.path("log.jsonl");
    let options = ["--audit", log.to_str().unwrap(), "--audit-level", "opens"];
    let script = "\"$T\" why ../notes/secret; \"$T\" why --write ../notes/old/a; \
                  \"$T\" why --write ../data/d; \"$T\" why ../notes/plan; cat ../notes/plan; \
                  mv ../notes/plan ../notes/plan2";
    let output = sh(run(&project, "several.toml", "dir", &options), script);
    let said = all(&output);
    let lines: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    let expected = [
        "no (ENOENT), by rule `mine`",
        "no (EROFS), by rule `old`",
        "no (EROFS), by the default",
        "yes, by the default",
        "plan",
    ];
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, part) in lines.iter().zip(expected) {
        assert!(line.contains(part), "{part} is not in: {said}");
    }
    let records = fs::read_to_string(&log).unwrap();
    let notes = fs::canonicalize(project.path("notes")).unwrap();
    let records: Vec<serde_json::Value> =
        records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let path = |name: &str| notes.join(name).to_str().unwrap().to_owned();
    let moved =
        records.iter().find(|record| record["op"] == "rename" || record["operation"] == "rename");
    let moved = moved.unwrap_or_else(|| panic!("{records:?}"));
    assert_eq!(
        (moved["path"].as_str(), moved["to"].as_str()),
        (Some(&*path("plan")), Some(&*path("plan2")))
    );
}

#[test]
fn what_cannot_be_shown_is_said_before_the_command_starts() {
    let project = project();
    let top = fs::canonicalize(project.path("")).unwrap();
    let top = top.display();
    let at = |dir: &str| format!("# first\n[[view]]\ndir = \"{dir}\"\n");
    for (policy, part) in [
        (at(&format!("{top}/none")), "wrong.toml:2:1: `[[view]]` of"),
        (at(&format!("{top}/none")), "does not exist"),
        (at("/"), "not `/` itself"),
        (at(&format!("{top}/dir")), "is DIR, whose rules stand outside of every `[[view]]`"),
        (at(&format!("{top}/dir/docs")), "whose rules decide there"),
        (
            at(&format!("{top}/notes")) + &at(&format!("{top}/notes/old")),
            "write one with the rules of both",
        ),
        (at("/proc"), "steer the kernel"),
        (at("notes"), "allowed is a path that begins with `/` or `~/`"),
    ] {
        fs::write(project.path("wrong.toml"), policy).unwrap();
        let output = sh(run(&project, "wrong.toml", "dir", &[]), "echo started");
        let said = all(&output);
        assert!(said.contains(part) && !said.contains("started\n"), "{part} is not in: {said}");
        assert_eq!(output.status.code(), Some(125), "{said}");
    }
    let inside = project.path("notes/old");
    let options = ["--allow", inside.to_str().unwrap()];
    let output = sh(run(&project, "several.toml", "dir", &options), "true");
    assert!(all(&output).contains("whose rules decide"), "{}", all(&output));
}

/// Who writes in DIR does not open other directories.
#[test]
fn a_policy_that_is_found_in_dir_has_none() {
    let project = project();
    let own = project.path("dir/.tollgate.toml");
    fs::copy(project.path("several.toml"), &own).unwrap();
    let mut command = tollgate();
    command.args(["run", "--", "true"]).current_dir(project.path("dir"));
    command.env_remove("TOLLGATE_POLICY").env("XDG_CONFIG_HOME", project.path("none"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = all(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("a policy that is found in DIR cannot have `[[view]]` tables"), "{said}");
}

#[test]
fn check_and_explain_know_them() {
    let project = project();
    let mut check = tollgate();
    check.arg("check").arg(project.path("several.toml"));
    let said = all(&check.output().unwrap());
    assert!(said.contains("notes of ") && said.contains("2 rules, default passthrough"), "{said}");
    assert!(said.contains("0 rules, default read-only"), "{said}");
    let mut check = tollgate();
    check.args(["check", "--json"]).arg(project.path("several.toml"));
    let report: serde_json::Value =
        serde_json::from_slice(&check.output().unwrap().stdout).unwrap();
    assert_eq!(report["views"][0]["rules"][1]["name"], "old", "{report:#}");
    let mut explain = tollgate();
    explain.args(["explain", "--policy"]).arg(project.path("several.toml")).arg("--dir");
    let output = explain.arg(project.path("notes")).arg("secret").output().unwrap();
    assert!(all(&output).contains("`mine`"), "{}", all(&output));
}

#[test]
fn check_looks_at_the_directories_as_run_does() {
    let project = project();
    let top = fs::canonicalize(project.path("")).unwrap();
    let check = |policy: &str, options: &[&str]| {
        fs::write(project.path("p.toml"), policy).unwrap();
        let mut check = tollgate();
        check.arg("check").args(options).arg("--policy").arg(project.path("p.toml"));
        check.output().unwrap()
    };
    let view = |dir: &str| format!("[[view]]\ndir = \"{}/{dir}\"\n", top.display());
    for (policy, part) in [
        ("[[view]]\ndir = \"/proc\"\n".to_owned(), "files steer the kernel"),
        (view("none"), "p.toml:1:1: `[[view]]` of"),
        (view("several.toml"), "is not a directory"),
        (view("notes") + &view("notes/old"), "write one with the rules of both"),
    ] {
        let output = check(&policy, &[]);
        let said = all(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(part) && !said.contains("DIR"), "{said}");
    }
    let dir = project.path("dir");
    let inside = check(&view("dir/docs"), &["--dir", dir.to_str().unwrap()]);
    assert!(all(&inside).contains("whose rules decide there"), "{}", all(&inside));
    // Rules for other directories alone are no mistake.
    let alone = check(&(view("notes") + "[[view.rule]]\npath = \"x\"\naction = \"deny\"\n"), &[]);
    assert!(alone.status.success() && text(&alone.stderr).is_empty(), "{}", all(&alone));
    // `run` calls the directory what it is, too.
    fs::write(project.path("p.toml"), view("several.toml")).unwrap();
    let said = all(&sh(run(&project, "p.toml", "dir", &[]), "true"));
    assert!(said.contains("is not a directory") && !said.contains("DIR"), "{said}");
}

/// `mount` shows one directory, and one of a `[[view]]` by its own rules.
#[test]
fn mount_shows_one_directory_by_the_rules_of_that() {
    if !can_mount() {
        return;
    }
    let project = project();
    let output = project.in_mount_namespace(
        "mount -t tmpfs none /run
        $T mount --daemon --policy several.toml dir mnt
        ls mnt/.env || echo hidden; $T umount mnt
        until $T status | grep -q 'no server'; do sleep 0.1; done
        $T mount --daemon --policy several.toml notes mnt
        ls mnt/secret || echo hidden; cat mnt/plan
        $T reload; $T umount mnt; until $T status | grep -q 'no server'; do sleep 0.1; done
        $T reload || echo nobody
        mkdir mnt2; $T mount --daemon --policy several.toml dir mnt
        $T mount --daemon --policy policy.toml dir mnt2
        $T reload || echo several; $T umount mnt; $T umount mnt2",
    );
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let words: Vec<_> = out.lines().filter(|line| !line.contains("is in force")).collect();
    assert_eq!(words, ["hidden", "hidden", "plan", "nobody", "several"], "{out}{err}");
    assert!(err.contains("each other one if it is mounted itself"), "{err}");
    assert!(err.contains("several servers run; name a directory, or `--all`"), "{err}");
}

/// Between DIR and the view around it, a bind mount keeps `run` from starting: it says which, and
/// without that it starts.
#[test]
fn a_bind_mount_between_dir_and_the_view_around_it_is_named() {
    if !can_mount() {
        return;
    }
    let project = project();
    let top = fs::canonicalize(project.path("")).unwrap();
    let (dir, home) = (top.join("home/work/dir"), top.join("home"));
    for (from, to, what) in [
        ("home/.ssh", "home/work/dir/in", "home/.ssh"),
        ("home/.ssh", "home/work", "home/.ssh/dir"),
        ("home", "home/work/dir/in", "home"),
        ("home/work/dir", "home/in", ""),
        ("home/work", "home/in", ""),
        ("home/work/dir/docs", "home/in", ""),
    ] {
        let output = project.in_mount_namespace(&format!(
            "mkdir -p home/in home/work/dir/in home/work/dir/docs home/.ssh/dir
            export HOME=$PWD/home; mount --bind {from} {to}
            run() {{ $T run --policy home.toml home/work/dir -- echo started; }}
            run && exit 3; umount {to}; run"
        ));
        let (said, point) = (all(&output), top.join(to));
        let point = point.display();
        let (dir, home) = (dir.display(), home.display());
        let shows = match what {
            "" => format!("shows files of `{dir}` a second time, in the `[[view]]` of `{home}`"),
            what => {
                format!("shows `{}` a second time, which lies in the", top.join(what).display())
            }
        };
        let line = format!("what is mounted at `{point}` {shows}");
        let remedy = format!("(`umount {point}`)");
        assert!(said.contains(&line) && said.contains(&remedy), "{from} at {to}: {line}: {said}");
        assert_eq!(text(&output.stdout), "started\n", "{from} at {to}: {said}");
    }
}

/// A bind mount shows files of one view in another: it is not entered, and keeps nobody from
/// starting.
#[test]
fn bind_mounts_between_views_are_not_entered() {
    if !can_mount() {
        return;
    }
    let project = project();
    let output = project.in_mount_namespace(
        "mkdir dir/in notes/in; n=$PWD/notes
        at() {
            mount --bind $1 $2; shift 2
            $T run --policy $1 $2 -- sh -c \"cat $3; echo PWN >>$4; echo started\"
        }
        at dir notes/in several.toml dir $n/in/.env $n/in/x; umount notes/in
        at dir/keys notes/in several.toml dir $n/in/id_rsa $n/in/x; umount notes/in
        at notes dir/in several.toml dir in/secret in/old/a; umount dir/in
        at dir/keys dir/in policy.toml dir in/id_rsa in/x; umount dir/in",
    );
    let said = all(&output);
    assert!(!said.contains(SECRET), "{said}");
    assert_eq!(text(&output.stdout).matches("started\n").count(), 4, "{said}");
    for path in ["dir/x", "dir/keys/x"] {
        assert!(!project.path(path).exists(), "{path}: {said}");
    }
    assert_eq!(fs::read_to_string(project.path("notes/old/a")).unwrap(), "old\n", "{said}");
}

/// Who writes the policy of the next start decides over it: also in a directory whose `[[view]]` has
/// no rule of its own.
#[test]
fn policy_files_are_kept_in_a_view_without_rules() {
    if !can_mount() {
        return;
    }
    let project = project();
    let policy = "[[rule]]\npath = \"**/.env\"\naction = \"hide\"\n[[view]]\ndir = \"~\"\n";
    fs::write(project.path("p.toml"), policy).unwrap();
    fs::create_dir_all(project.path("home/.config/tollgate")).unwrap();
    let script = "echo 'policy = \"none\"' >~/.config/tollgate/config.toml; echo >~/.tollgate.toml; \
                  echo >~/work/.tollgate.toml; echo x >~/free";
    let mut command = run(&project, "p.toml", "dir", &[]);
    command.env_remove("XDG_CONFIG_HOME");
    let said = all(&sh(command, script));
    for name in [".config/tollgate/config.toml", ".tollgate.toml", "work/.tollgate.toml"] {
        assert!(!project.path("home").join(name).exists(), "{name}: {said}");
    }
    assert!(project.path("home/free").exists(), "{said}");
}

/// Where names have several spellings no rule can be about one, and each `[[view]]` in which something
/// can be changed has a rule: about the files of policies.
#[test]
fn where_spellings_do_not_count_a_view_is_to_be_read_or_refused() {
    if !can_mount() {
        return;
    }
    let project = project();
    let Some(caseless) = Caseless::new(&project.path("")) else { return };
    let at = fs::canonicalize(caseless.dir()).unwrap();
    let at = at.display();
    let with = |view: &str, options: &[&str]| {
        fs::write(project.path("p.toml"), view).unwrap();
        let script = format!("echo started; cat {at}/ID_RSA; echo x >{at}/.TOLLGATE.TOML");
        sh(run(&project, "p.toml", "dir", options), &script)
    };
    for view in [
        format!("[[view]]\ndir = \"{at}\"\n"),
        format!("[[view]]\ndir = \"{at}\"\ndefault = \"read-only\"\nmode = \"audit\"\n"),
        format!("[[view]]\ndir = \"{at}\"\n[[view.rule]]\npath = \"a\"\naction = \"deny\"\n"),
    ] {
        let output = with(&view, &[]);
        let said = all(&output);
        let line = format!("`[[view]]` of `{at}` cannot be viewed with its rules");
        assert!(said.contains(&line) && said.contains("case-insensitive"), "{said}");
        assert!(said.contains(&format!("`--allow {at}:rw`")), "{said}");
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(!said.contains("started\n"), "{said}");
    }
    // What it says helps, also where a rule is what lets it be read.
    let read = "[[view.rule]]\npath = \"**\"\noperation = [\"read\", \"list\"]\naction = \"passthrough\"\n";
    for rest in ["default = \"read-only\"\n", &format!("default = \"deny\"\n{read}")] {
        let output = with(&format!("[[view]]\ndir = \"{at}\"\n{rest}"), &[]);
        assert_eq!(text(&output.stdout), "started\nkey\n", "{}", all(&output));
        assert!(!caseless.dir().join(".tollgate.toml").exists(), "{}", all(&output));
    }
    let output = with("", &["--allow", &format!("{at}:rw")]);
    assert_eq!(text(&output.stdout), "started\nkey\n", "{}", all(&output));
    assert!(caseless.dir().join(".tollgate.toml").exists(), "{}", all(&output));
}
