//! What `explain` says of making directories and links, and of moves, is what the system call gets,
//! over many policies.

use std::collections::BTreeMap;
use std::process::Stdio;

use serde_json::Value;

use crate::project::{Project, all, can_mount, text, tollgate};

/// Tries one operation after the other and prints what came of each: `NUMBER ERRNO`. Ends early
/// where it cannot undo one.
const PYTHON: &str = r#"
import os, errno, sys
def tried(do):
    try: do(); return None
    except OSError as e: return errno.errorcode[e.errno]
for number, case in [(int(n), c.split(' ')) for n, c in (line.split(':') for line in sys.argv[1:])]:
    what, path = case[0], case[1]
    do, undo = {
        'mkdir': (lambda: os.mkdir(path), lambda: os.rmdir(path)),
        'symlink': (lambda: os.symlink('a.txt', path), lambda: os.unlink(path)),
        'rename': (lambda: os.rename(path, case[2]), lambda: os.rename(case[2], path)),
    }[what]
    replaces = what == 'rename' and os.path.lexists(case[2])
    error = tried(do)
    print(number, error)
    if error is None and (replaces or tried(undo) is not None): break
"#;

const CASES: [&str; 99] = [
    "mkdir newdir",
    "mkdir newdir/",
    "mkdir .env",
    "mkdir .env/",
    "mkdir .vscode",
    "mkdir docs/newdir/",
    "mkdir docs/inner/newdir",
    "mkdir docs",
    "mkdir .aws",
    "mkdir built/x",
    "symlink newlink",
    "symlink .env",
    "symlink .vscode",
    "symlink .aws",
    "symlink docs/newlink",
    "symlink docs/.vscode",
    "symlink .git/hooks",
    "symlink tools",
    "symlink built/x",
    "rename a.txt b.txt",
    "rename a.txt docs/b.md",
    "rename a.txt .env",
    "rename a.txt new.pem",
    "rename .env env",
    "rename docs papers",
    "rename docs .vscode",
    "rename docs/inner inner",
    "rename docs/inner/.env docs/inner/env",
    "rename docs/guide.md a.txt",
    "rename stage docs/stage",
    "rename stage .vscode",
    "rename stage .aws",
    "rename stage tools",
    "rename stage built/stage",
    "rename stage/tasks.json stage/other",
    "rename key.pem key.txt",
    "rename cert.pem docs/cert.pem",
    "rename link link2",
    "rename link docs/link2",
    "rename logs docs/logs",
    "rename logs/app.log app.log",
    "rename built/y y",
    "rename built y",
    "rename docs docs/inner/docs",
    "rename docs docs/new",
    "rename docs/inner docs",
    "rename docs/guide.md docs",
    "rename docs stage",
    "rename docs empty",
    "rename empty stage",
    "rename empty stage/hooks/x",
    "rename empty built/y",
    "rename a.txt stage",
    "rename a.txt empty",
    "rename a.txt missing/b",
    "rename a.txt a.txt",
    "rename a.txt a.txt/b",
    "rename a.txt cert.pem/b",
    "rename a.txt new/",
    "rename docs missing/deep/d",
    "rename empty docs/inner/.env",
    "rename empty node_modules/empty",
    "rename docs node_modules/docs",
    "rename cert.pem cert.pem.link",
    "rename built built",
    "rename built docs",
    "rename built a.txt",
    "rename built empty",
    "rename built built/x",
    "rename built missing/x",
    "rename built a.txt/x",
    "rename built/y built",
    "rename built/y built/z",
    "rename built/y missing/z",
    "rename built/y web/nm/y",
    "rename a.txt built",
    "rename a.txt built/",
    "rename empty built",
    "rename .env built/env",
    "rename web site",
    "rename web web",
    "rename web web/x",
    "rename web empty",
    "rename web a.txt",
    "rename web docs/web",
    "rename web missing/x",
    "rename web/file web",
    "rename web/nm web",
    "rename web/nm/f web/nm",
    "rename web/nm web/nm/x",
    "rename a.txt web",
    "rename empty web",
    "rename link web",
    "rename web/nm web/other",
    "rename deep/link deep",
    "rename deep/link deep/b",
    "rename deep/link empty",
    "rename deep/link link",
    "rename link deep/b",
];

const POLICIES: [&str; 24] = [
    "",
    "default = 'read-only'",
    "default = 'deny'",
    "default = 'userspace'",
    "[[rule]]\npath = '**/.env'\naction = 'hide'",
    "[[rule]]\npath = '**/.vscode/tasks.json'\naction = 'read-only'",
    "[[rule]]\npath = ['**/.aws/config', 'tools/hooks/x']\naction = 'hide'",
    "[[rule]]\npath = 'tools/**'\noperation = 'create'\naction = 'deny'",
    "[[rule]]\npath = 'docs'\naction = 'deny'",
    "[[rule]]\npath = 'docs'\naction = 'hide'",
    "[[rule]]\npath = 'docs/inner'\naction = 'hide'",
    "[[rule]]\npath = 'docs/inner/x'\naction = 'deny'",
    "[[rule]]\npath = 'docs/**'\noperation = ['write', 'create']\naction = 'read-only'",
    "[[rule]]\npath = 'docs/**'\noperation = 'read'\naction = 'deny'",
    "[[rule]]\npath = '**'\nkind = 'symlink'\naction = 'deny'",
    "[[rule]]\npath = '**/*.pem'\ncontent = { regex = 'PRIVATE' }\naction = 'deny'",
    "[[rule]]\npath = 'logs'\naction = 'redact'",
    "[[rule]]\npath = 'logs'\naction = 'userspace'",
    "[[rule]]\npath = 'docs/**'\naction = 'deny'\nmode = 'audit'",
    "[[rule]]\npath = 'built'\naction = 'native'",
    "[[rule]]\npath = ['built', 'web/nm']\naction = 'native'\n[[rule]]\npath = 'docs/**'\noperation = 'read'\n\
     action = 'deny'\n[[rule]]\npath = '**/.env'\naction = 'hide'",
    "[[rule]]\npath = 'web/nm'\naction = 'native'\n[[rule]]\npath = ['web', 'empty']\n\
     operation = ['write', 'create']\naction = 'read-only'",
    "[[rule]]\npath = '**/deep/**/x'\naction = 'hide'",
    "agent",
];

fn fill(project: &Project) {
    let write = |name: &str, text: &str| {
        let path = project.path("dir").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for name in ["docs/inner/.env", "docs/inner/x", "stage/tasks.json", "stage/config", "built/y"] {
        write(name, "x");
    }
    for name in ["web/file", "web/nm/f", "deep/b/y"] {
        write(name, "x");
    }
    write("stage/hooks/x", "x");
    std::fs::create_dir_all(project.path("dir/empty")).unwrap();
    std::fs::create_dir_all(project.path("dir/node_modules")).unwrap();
    write(".git/HEAD", "ref: refs/heads/main\n");
    write("key.pem", "-----BEGIN PRIVATE KEY-----\n");
    write("cert.pem", "-----BEGIN CERTIFICATE-----\n");
    let link = project.path("dir/cert.pem.link");
    std::fs::hard_link(project.path("dir/cert.pem"), link).unwrap();
    for link in ["dir/link", "dir/deep/link"] {
        std::os::unix::fs::symlink("a.txt", project.path(link)).unwrap();
    }
}

/// The policy as an argument.
fn with_policy(policy: &str) -> (Project, String) {
    let project = Project::new();
    fill(&project);
    if policy == "agent" {
        return (project, policy.to_owned());
    }
    let file = project.path("policy.toml");
    std::fs::write(&file, format!("# rules\n{policy}")).unwrap();
    (project, file.to_str().unwrap().to_owned())
}

/// What `explain` says that each of `cases` gets.
fn explained(project: &Project, policy: &str, cases: &BTreeMap<usize, &str>) -> Vec<String> {
    let mut said = vec![String::new(); cases.len()];
    let of = |operation: &str| {
        let mut own = Vec::new();
        for (at, case) in cases {
            if let Some((_, words)) = case.split_once(' ').filter(|(word, _)| *word == operation) {
                own.push((*at, words));
            }
        }
        own
    };
    for operation in ["mkdir", "symlink"] {
        let paths = of(operation);
        let mut arguments = vec!["--operation", operation];
        arguments.extend(paths.iter().map(|(_, path)| *path));
        let answers = ask(project, policy, &arguments);
        for ((at, _), answer) in paths.iter().zip(answers.as_array().unwrap()) {
            said[*at] = errno(&answer["operations"][0]);
        }
    }
    for (at, words) in of("rename") {
        let (from, to) = words.split_once(' ').unwrap();
        said[at] = errno(&ask(project, policy, &["--to", to, from]));
    }
    said
}

fn errno(answer: &Value) -> String {
    answer["errno"].as_str().unwrap_or("None").to_owned()
}

fn ask(project: &Project, policy: &str, arguments: &[&str]) -> Value {
    let mut command = tollgate();
    command.args(["explain", "--json", "--policy", policy, "--dir"]).arg(project.path("dir"));
    command.args(["--as", "uid=0,gid=0,exe=/usr/bin/python3"]).args(arguments);
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{arguments:?}: {}", all(&output)))
}

/// What each of `cases` gets in a view, each in a project as it was at the beginning.
fn answered(policy: &str, cases: &BTreeMap<usize, &str>) -> Option<BTreeMap<usize, String>> {
    let mut answers = BTreeMap::new();
    while answers.len() < cases.len() {
        let (project, policy) = with_policy(policy);
        let left = cases.iter().filter(|(number, _)| !answers.contains_key(*number));
        let output = tollgate()
            .args(["run", "--quiet", "--sandbox", "strict", "--policy", &policy])
            .arg(project.path("dir"))
            .args(["--", "python3", "-c", PYTHON])
            .args(left.map(|(number, case)| format!("{number}:{case}")))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        if output.status.code() == Some(127) {
            eprintln!("skipped: no python3");
            return None;
        }
        assert!(output.status.success(), "{policy}: {}", all(&output));
        let before = answers.len();
        for line in text(&output.stdout).lines() {
            let (number, errno) = line.split_once(' ').unwrap();
            answers.insert(number.parse().unwrap(), errno.to_owned());
        }
        assert!(answers.len() > before, "{policy}: {}", all(&output));
    }
    Some(answers)
}

#[test]
fn explain_says_what_making_and_moving_gets() {
    if !can_mount() {
        return;
    }
    let cases: BTreeMap<_, _> = CASES.into_iter().enumerate().collect();
    let mut wrong = Vec::new();
    let mut kinds = BTreeMap::<String, usize>::new();
    for policy in POLICIES {
        let Some(answers) = answered(policy, &cases) else { return };
        let (project, file) = with_policy(policy);
        let all_said = explained(&project, &file, &cases);
        for (number, found) in answers {
            let said = &all_said[number];
            *kinds.entry(found.clone()).or_default() += 1;
            if *said != found {
                wrong
                    .push(format!("{}: {found}, explained as {said}, by {policy}", cases[&number]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
    for errno in [
        "None",
        "EACCES",
        "EROFS",
        "EXDEV",
        "ENOENT",
        "EBUSY",
        "EEXIST",
        "EINVAL",
        "EISDIR",
        "ENOTDIR",
        "ENOTEMPTY",
    ] {
        assert!(kinds.contains_key(errno), "no case with {errno}: {kinds:?}");
    }
}

/// What has the name already is opened, and without a directory nothing is made.
#[test]
fn explain_says_what_making_a_file_gets() {
    let project = Project::new();
    fill(&project);
    let dir = project.path("dir");
    let said = |operation: &str, path: &str| {
        let mut command = tollgate();
        command.args(["explain", "--policy", "none", "--exit-code", "--operation", operation]);
        let output = command.arg("--dir").arg(&dir).arg(path).output().unwrap();
        (output.status.code(), all(&output))
    };
    for path in ["a.txt", "docs"] {
        let (code, said) = said("create", path);
        assert_eq!(code, Some(0), "{said}");
        let note = "note: there already, so open(2) with O_CREAT opens it";
        assert!(said.contains(note) && said.contains(&format!("EEXIST: `{path}`")), "{said}");
    }
    for operation in ["create", "mkdir", "symlink"] {
        for (path, errno) in [("missing/new", "ENOENT"), ("a.txt/new", "ENOTDIR")] {
            let (code, said) = said(operation, path);
            assert_eq!(code, Some(3), "{said}");
            let answer = format!("create: there is no directory that it could be in ({errno})\n");
            assert!(said.contains(&answer), "{operation}: {said}");
        }
        let (code, said) = said(operation, "docs/new");
        assert!(code == Some(0) && !said.contains("there already"), "{said}");
    }
}

/// Words that are wrong are told apart from refusals.
#[test]
fn explain_says_what_cannot_be_asked() {
    let project = Project::new();
    fill(&project);
    let dir = project.path("dir");
    let said = |arguments: &[&str]| {
        let mut command = tollgate();
        command.args(["explain", "--policy", "none", "--dir"]).arg(&dir).args(arguments);
        let output = command.output().unwrap();
        (output.status.code(), all(&output))
    };
    for (arguments, message) in [
        (&["a.txt/"][..], "`a.txt/` is a file, so with a slash at its end"),
        (&["--to", "b", "a.txt", ".env"], "`--to` is the new name of one PATH, and 2 are given"),
        (&["--to", "/elsewhere/b", "a.txt"], "PATH `/elsewhere/b` is not in DIR"),
        (&["--to", "b", "."], "DIR itself cannot be moved"),
        (&["--to", "b", "a.tx"], "did you mean"),
        (&["link/x"], "a symbolic link is on the way"),
    ] {
        let (code, said) = said(arguments);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(message), "{arguments:?}: {said}");
    }
    std::os::unix::fs::symlink("docs", dir.join("papers")).unwrap();
    for (arguments, named, meant) in [
        (&["papers/guide.md"][..], "PATH `papers/guide.md` in DIR", "`docs/guide.md`"),
        (&["--to", "papers/.env", "a.txt"], "PATH `papers/.env` in DIR", "`docs/.env`"),
    ] {
        let (code, said) = said(arguments);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(named), "{said}");
        assert!(said.contains(&format!("name what it leads to: {meant}")), "{said}");
    }
}
