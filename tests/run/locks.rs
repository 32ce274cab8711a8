//! Two `run`s over one directory, and the directory itself: locks exclude each other.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::project::{Project, all, can_mount, first_line, text};

#[test]
fn two_runs_and_the_directory_exclude_each_other() {
    if !can_mount() {
        return;
    }
    if Command::new("flock").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: no flock(1)");
        return;
    }
    let project = Project::new();
    let holding = "exec 9<>a.txt; flock -x 9; echo up; read line";
    let mut holder = project
        .run()
        .args(["sh", "-c", holding])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(first_line(&mut holder), "up");
    let beneath = || {
        let mut flock = Command::new("flock");
        flock.args(["-n", "a.txt", "true"]).current_dir(project.path("dir")).status().unwrap()
    };
    let second = project.sh("flock -n a.txt true");
    assert_eq!(second.status.code(), Some(1), "{}", all(&second));
    assert_eq!(beneath().code(), Some(1));
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(holder.wait().unwrap().success());
    let second = project.sh("flock -n a.txt true");
    assert!(second.status.success(), "{}", all(&second));
    assert!(beneath().success());
}

/// Inserts rows, one transaction each, and says how many were committed.
const WRITER: &str = "
import sqlite3, sys
name, rows = sys.argv[1], int(sys.argv[2])
base = sqlite3.connect('db', timeout=300, isolation_level=None)
for row in range(rows):
    base.execute('BEGIN IMMEDIATE')
    base.execute('INSERT INTO t VALUES (?, ?)', (name, row))
    base.execute('COMMIT')
print(rows)
";

const MAKE: &str = "
import sqlite3, sys
base = sqlite3.connect('db')
base.execute('PRAGMA journal_mode=' + sys.argv[1])
base.execute('PRAGMA synchronous=OFF')
base.execute('CREATE TABLE t (name TEXT, row INTEGER, PRIMARY KEY (name, row))')
base.commit()
";

const CHECK: &str = "
import sqlite3
base = sqlite3.connect('db')
print(base.execute('PRAGMA integrity_check').fetchone()[0])
print(base.execute('SELECT count(*) FROM t').fetchone()[0])
";

/// Two agents in their `run`s, and an editor beside them: what each committed is there.
#[test]
fn sqlite_writers_in_two_runs_and_beneath_lose_no_row() {
    let probe = Command::new("python3").args(["-c", "import sqlite3"]).output();
    if !can_mount() || !probe.is_ok_and(|output| output.status.success()) {
        println!("skipped, unless it said why: no python3 with sqlite3");
        return;
    }
    let rows = std::env::var("TOLLGATE_TEST_ROWS").unwrap_or_else(|_| "40".to_owned());
    for mode in ["WAL", "DELETE"] {
        let project = Project::new();
        let beneath = |script: &str, args: &[&str]| {
            let mut python = Command::new("python3");
            python.args(["-c", script]).args(args).current_dir(project.path("dir"));
            python.stdout(Stdio::piped()).stderr(Stdio::piped());
            python
        };
        let made = beneath(MAKE, &[mode]).output().unwrap();
        assert!(made.status.success(), "{}", all(&made));
        let in_run = |name: &str| {
            let mut run = project.run();
            run.args(["python3", "-c", WRITER, name, &rows]).stdin(Stdio::null());
            run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let third = beneath(WRITER, &["editor", &rows]).spawn().unwrap();
        for writer in [in_run("one"), in_run("two"), third] {
            let output = writer.wait_with_output().unwrap();
            assert!(output.status.success(), "{mode}: {}", all(&output));
            assert_eq!(text(&output.stdout).trim(), rows, "{mode}: {}", all(&output));
        }
        let checked = beneath(CHECK, &[]).output().unwrap();
        let expected = format!("ok\n{}\n", 3 * rows.parse::<usize>().unwrap());
        assert_eq!(text(&checked.stdout), expected, "{mode}: {}", all(&checked));
    }
}
