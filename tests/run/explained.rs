//! What `explain` says of each operation is what the system call gets, over many policies.

use std::process::Stdio;

use serde_json::Value;

use crate::project::{Project, all, can_mount, first_line, text, tollgate};

/// Tries each operation on each path, each on a fresh copy of what it changes, and prints what came
/// of it: `PATH OPERATION ERRNO`.
const PYTHON: &str = r#"
import os, errno, sys
def tried(do):
    try: do(); return None
    except OSError as e: return errno.errorcode[e.errno]
def make(path):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.close(fd); os.unlink(path)
for path in sys.argv[1:]:
    kind = 'new' if os.path.basename(path).startswith('new') else 'old'
    if kind == 'new':
        print(path, 'create', tried(lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT))))
        continue
    if path.endswith('link'):
        print(path, 'read', tried(lambda: os.readlink(path)))
        continue
    if path.endswith('/'):
        print(path, 'list', tried(lambda: os.listdir(path)))
    else:
        print(path, 'read', tried(lambda: os.close(os.open(path, os.O_RDONLY))))
        print(path, 'in-part', tried(lambda: os.close(os.open(path, os.O_WRONLY))))
    print(path, 'write', tried(lambda: os.utime(path)))
"#;

const PATHS: [&str; 17] = [
    ".env",
    "a.txt",
    "big.bin",
    "key.pem",
    "cert.pem",
    "link",
    "new.txt",
    "new.env",
    "docs/",
    "docs/guide.md",
    "docs/new.md",
    "docs/inner/",
    "docs/inner/.env",
    "docs/inner/x",
    "docs/inner/new",
    "logs/app.log",
    "logs/new.log",
];

const POLICIES: [&str; 18] = [
    "",
    "default = 'read-only'",
    "default = 'deny'",
    "default = 'userspace'",
    "[[rule]]\npath = '**/.env'\naction = 'hide'",
    "[[rule]]\npath = '**/*.env'\naction = 'hide'",
    "[[rule]]\npath = 'docs'\naction = 'hide'",
    "[[rule]]\npath = 'docs/**'\naction = 'hide'",
    "[[rule]]\npath = 'docs/inner/x'\naction = 'passthrough'\n[[rule]]\npath = 'docs/inner'\naction = 'hide'",
    "[[rule]]\npath = 'docs'\naction = 'deny'",
    "[[rule]]\npath = 'docs/**'\naction = 'deny'",
    "[[rule]]\npath = 'docs'\noperation = 'list'\naction = 'deny'",
    "[[rule]]\npath = '**'\noperation = ['write', 'create']\naction = 'read-only'",
    "[[rule]]\npath = '**'\ncontent = { regex = 'PRIVATE' }\noperation = 'read'\naction = 'deny'",
    "[[rule]]\npath = '**'\nsize = { min = '1 KiB' }\naction = 'deny'",
    "[[rule]]\npath = '**'\nkind = 'symlink'\naction = 'deny'",
    "default = 'deny'\n[[rule]]\npath = ['docs/inner/x', 'a.txt']\naction = 'passthrough'",
    "[[rule]]\npath = '**'\nuid = 7\naction = 'deny'\n[[rule]]\npath = 'logs'\nuid = 0\naction = 'read-only'",
];

fn fill(project: &Project) {
    let write = |name: &str, text: &str| {
        let path = project.path("dir").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("docs/inner/.env", "x");
    write("docs/inner/x", "x");
    write("key.pem", "-----BEGIN PRIVATE KEY-----\n");
    write("cert.pem", "-----BEGIN CERTIFICATE-----\n");
    write("big.bin", &"x".repeat(5000));
    std::os::unix::fs::symlink("a.txt", project.path("dir/link")).unwrap();
}

#[test]
fn explain_says_what_the_kernel_answers() {
    if !can_mount() {
        return;
    }
    for policy in POLICIES {
        let project = Project::new();
        fill(&project);
        std::fs::write(project.path("policy.toml"), format!("# {policy:?}\n{policy}")).unwrap();
        // Before CMD makes what is not there yet.
        let explained = tollgate()
            .args(["explain", "--json", "--policy"])
            .arg(project.path("policy.toml"))
            .args(["--as", "uid=0,gid=0,exe=/usr/bin/python3"])
            .args(PATHS.iter().filter(|path| !path.contains("new")))
            .current_dir(project.path("dir"))
            .arg("--dir")
            .arg(project.path("dir"))
            .output()
            .unwrap();
        let made = tollgate()
            .args(["explain", "--json", "--policy"])
            .arg(project.path("policy.toml"))
            .args(PATHS.iter().filter(|path| path.contains("new")))
            .output()
            .unwrap();
        let list = |output: &std::process::Output| -> Vec<Value> {
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", all(output)))
        };
        let answers = [list(&explained), list(&made)].concat();
        let says = |path: &str, operation: &str| {
            let plain = path.trim_end_matches('/');
            let answer = answers.iter().find(|one| one["path"] == plain).unwrap();
            let operations = answer["operations"].as_array().unwrap();
            let named = if operation == "in-part" { "write" } else { operation };
            let one = operations.iter().find(|one| one["operation"] == named).unwrap();
            let in_part = one["in_part"].as_str().filter(|_| operation == "in-part");
            in_part.or(one["errno"].as_str()).unwrap_or("None").to_owned()
        };
        let output = project
            .run_with(&["--quiet"])
            .args(["python3", "-c", PYTHON])
            .args(PATHS)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        if output.status.code() == Some(127) {
            eprintln!("skipped: no python3");
            return;
        }
        assert!(output.status.success(), "{policy}: {}", all(&output));
        let found = text(&output.stdout);
        assert!(found.lines().count() >= PATHS.len(), "{policy}: {}", all(&output));
        for line in found.lines() {
            let [path, operation, errno] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            assert_eq!(says(path, operation), errno, "{operation} of {path} under:\n{policy}\n");
        }
    }
}

/// Relative paths are meant from the working directory, if that lies in DIR.
#[test]
fn paths_are_taken_from_where_one_stands() {
    let project = Project::new();
    let explain = |from: &str, arguments: &[&str]| {
        let mut command = tollgate();
        command.args(["explain", "--json", "--operation", "write", "--policy"]);
        command.arg(project.path("policy.toml")).args(arguments).current_dir(project.path(from));
        let output = command.output().unwrap();
        let answer: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", all(&output)));
        answer["path"].as_str().unwrap().to_owned()
    };
    let dir = project.path("dir");
    let dir = dir.to_str().unwrap();
    assert_eq!(explain("dir/docs", &["--dir", dir, "guide.md"]), "docs/guide.md");
    assert_eq!(explain("dir/docs", &["--dir", "..", "guide.md"]), "docs/guide.md");
    assert_eq!(explain("mnt", &["--dir", dir, "docs/guide.md"]), "docs/guide.md");
}

/// `status` of a server in another pid namespace, and of a run inside a run.
#[test]
fn status_is_answered_across_pid_namespaces() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = std::fs::canonicalize(project.path("dir")).unwrap();
    // The inner one shows `docs` of the view that the outer one shows.
    let script = "$T run --quiet --policy none docs -- sh -c '$T status --json; $T status >&2'";
    let output = project
        .run_with(&["--quiet"])
        .args(["sh", "-c", script])
        .env("T", env!("CARGO_BIN_EXE_tollgate"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let reports: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", all(&output)));
    let of = |dir: &std::path::Path| {
        let found =
            reports.as_array().unwrap().iter().find(|one| one["dir"].as_str() == dir.to_str());
        found.unwrap_or_else(|| panic!("{}", all(&output))).clone()
    };
    let (outer, inner) = (of(&dir), of(&dir.join("docs")));
    assert!(outer["pid_here"].is_null(), "the server is in another pid namespace: {outer:#}");
    assert!(outer["policy"].as_str().unwrap().ends_with("policy.toml"));
    assert!(inner["policy"].is_null());
    let said = text(&output.stderr);
    assert!(!said.contains("does not answer") && !said.contains("roken pipe"), "{said}");
    assert!(said.contains("in another pid namespace"), "{said}");
}

/// The mount is on the directory, and goes with it: what somebody outside puts at its path shows by no
/// rule. CMD cannot bring that about, but whoever looks is told.
#[test]
fn a_directory_that_was_replaced_outside_is_told_of() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = project.path("dir");
    let mut command = project.run();
    let script = "echo ready; read go; \"$T\" why keys/id_rsa 2>&1; \"$T\" why \"$DIR/.env\" 2>&1";
    command.args(["sh", "-c", script]).env("T", env!("CARGO_BIN_EXE_tollgate")).env("DIR", &dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    assert_eq!(first_line(&mut running), "ready");
    let unavailable = || {
        let output = tollgate().args(["status", "--json"]).arg(&dir).output().unwrap();
        let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
        reports[0]["view"]["unavailable"].to_string()
    };
    assert!(!unavailable().contains("was moved"), "{}", unavailable());
    std::fs::rename(&dir, project.path("elsewhere")).unwrap();
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join(".env"), "another").unwrap();
    assert!(unavailable().contains("was moved or removed outside"), "{}", unavailable());
    drop(running.stdin.take());
    let output = running.wait_with_output().unwrap();
    let (said, told) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(said.matches("is not what it was when `run` began").count(), 1, "{said}");
    assert!(told.contains("warning: `") && told.contains("elsewhere` now"), "{told}");
}

/// The rules go with it, and are asked for by its new path.
#[test]
fn why_knows_the_rules_of_a_directory_where_others_have_moved_it() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let more = project.path("more");
    std::fs::create_dir(&more).unwrap();
    std::fs::write(more.join("secret"), "x").unwrap();
    let view = format!(
        "\n[[view]]\ndir = '{}'\n[[view.rule]]\nname = 'of more'\npath = 'secret'\naction = 'deny'\n",
        more.display()
    );
    let policy = std::fs::read_to_string(project.path("policy.toml")).unwrap();
    std::fs::write(project.path("policy.toml"), policy + &view).unwrap();
    let script = r#"
        echo ready; read go; cd "$HERE"
        for path in more.old/secret dir/old/.env; do "$T" why $path; done
        for path in more.old/f dir/old/f; do "$T" why --write $path && echo x >$path; done
        "$T" why more.old; "$T" why more/secret; "$T" why --write more/f; "$T" why elsewhere/x; "$T" why dir/x"#;
    let mut command = project.run();
    command.args(["sh", "-c", script]).env("T", env!("CARGO_BIN_EXE_tollgate"));
    command.env("HERE", project.path("")).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    assert_eq!(first_line(&mut running), "ready");
    for name in ["more", "dir"] {
        let from = project.path(name);
        std::fs::rename(&from, from.with_extension("old")).unwrap();
        std::fs::create_dir(&from).unwrap();
    }
    // Into the directory that has its path now.
    std::fs::rename(project.path("dir.old"), project.path("dir/old")).unwrap();
    drop(running.stdin.take());
    let output = running.wait_with_output().unwrap();
    let said = text(&output.stdout);
    let answer = |path: &str| {
        let found = said.lines().find(|line| line.contains(&format!("/{path}: ")));
        found.unwrap_or_else(|| panic!("{path}: {}", all(&output))).to_owned()
    };
    assert!(answer("more.old/secret").contains("no (EACCES), by rule `of more`"), "{said}");
    assert!(answer("dir/old/.env").contains(": no (ENOENT), by rule `"), "{said}");
    for path in ["more.old/f", "dir/old/f", "more.old"] {
        assert!(answer(path).contains(": yes, by the default"), "{said}");
        assert!(path == "more.old" || project.path(path).exists(), "{}", all(&output));
    }
    let told = text(&output.stderr);
    assert_eq!(told.matches("is not what it was when `run` began").count(), 3, "{told}");
    assert!(answer("elsewhere/x").contains("no (ENOENT), there is nothing at this path"), "{said}");
}

/// The view stays where it is when the mount beneath DIR is detached, or moved, elsewhere.
#[test]
fn a_mount_that_was_detached_outside_is_no_moved_directory() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        mount --make-rprivate /; mkdir tm to; mount -t tmpfs none tm; echo secret >tm/hidden
        printf '[[rule]]\npath = "hidden"\naction = "hide"\n' >p.toml; mkfifo go
        for change in "umount --lazy tm" "mount --move tm to"; do
            rm -f said
            $T run --quiet --policy p.toml tm -- sh -c 'echo ready; read go <../go; ls' >said 2>told &
            while ! grep -qs ready said; do sleep 0.01; done
            $change; echo >go; wait $!
            cat said told; mountpoint -q to && umount to; mount -t tmpfs none tm; echo >tm/hidden
        done"#;
    let output = project.in_mount_namespace(script);
    assert_eq!(all(&output), "ready\nready\n", "nothing is said, and nothing shows");
}
