//! What real programs do with locks.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::agent::{Agent, Family, WRITE};
use super::{ALL, View, can_mount};

/// Inserts rows, one transaction each, and says how many were committed.
const WRITER: &str = "
import sqlite3, sys
path, name, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
base = sqlite3.connect(path, timeout=60, isolation_level=None)
for row in range(rows):
    base.execute('BEGIN IMMEDIATE')
    base.execute('INSERT INTO t VALUES (?, ?)', (name, row))
    base.execute('COMMIT')
print(rows)
";

const MAKE: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
base.execute('PRAGMA journal_mode=' + sys.argv[2])
base.execute('PRAGMA synchronous=OFF')
base.execute('CREATE TABLE t (name TEXT, row INTEGER, PRIMARY KEY (name, row))')
base.commit()
";

const CHECK: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
print(base.execute('PRAGMA integrity_check').fetchone()[0], base.execute('SELECT count(*) FROM t').fetchone()[0])
";

fn python(script: &str, args: &[&str]) -> Child {
    let mut command = Command::new("python3");
    command.arg("-c").arg(script).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn said(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn has_sqlite() -> bool {
    let mut probe = Command::new("python3");
    let there = probe.args(["-c", "import sqlite3"]).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    if !there {
        println!("skipped: no python3 with sqlite3");
    }
    there
}

fn write_from(paths: &[&Path], mode: &str, rows: usize) {
    let any = paths[0].to_str().unwrap();
    said(python(MAKE, &[any, mode]));
    let writers: Vec<Child> = paths
        .iter()
        .enumerate()
        .map(|(writer, path)| {
            let name = format!("writer {writer}");
            python(WRITER, &[path.to_str().unwrap(), &name, &rows.to_string()])
        })
        .collect();
    for writer in writers {
        assert_eq!(said(writer), rows.to_string());
    }
    assert_eq!(said(python(CHECK, &[any])), format!("ok {}", rows * paths.len()), "{mode}");
}

fn rows() -> usize {
    std::env::var("TOLLGATE_TEST_ROWS").map_or(60, |rows| rows.parse().unwrap())
}

/// Of 600 rows that two writers had committed, 341 were there afterwards when each side had locks
/// of its own.
#[test]
fn sqlite_writers_on_both_sides_lose_no_row() {
    if !can_mount() || !has_sqlite() {
        return;
    }
    for mode in ["WAL", "DELETE"] {
        let view = View::new("");
        let (inside, beneath) = (view.at("db"), view.below("db"));
        write_from(&[&beneath, &inside], mode, rows());
        let (inside, beneath) = (view.at("db3"), view.below("db3"));
        write_from(&[&beneath, &inside, &inside], mode, rows());
    }
}

#[test]
fn sqlite_writers_in_three_views_at_once_lose_no_row() {
    if !can_mount() || !has_sqlite() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let views = [(); 3].map(|()| View::of(dir.path(), "", &[]));
    for mode in ["WAL", "DELETE"] {
        let name = format!("db-{mode}");
        let paths = views.each_ref().map(|view| view.at(&name));
        write_from(&paths.each_ref().map(std::path::PathBuf::as_path), mode, rows());
    }
}

/// Reads and writes that come to the server are not what the lower file's mappings see, so only
/// the mode without shared memory is safe.
#[test]
fn sqlite_in_user_space_without_shared_memory_loses_no_row() {
    if !can_mount() || !has_sqlite() {
        return;
    }
    let view = View::new("default = \"userspace\"");
    write_from(&[&view.below("db"), &view.at("db"), &view.at("db")], "DELETE", rows());
}

/// cargo locks its build directory with flock: one on the other side waits, and says so.
#[test]
fn cargos_build_lock_holds_on_both_sides() {
    let Ok(cargo) = std::env::var("CARGO") else {
        println!("skipped: not run by cargo");
        return;
    };
    if !can_mount() {
        return;
    }
    let view = View::with(
        "",
        &[
            ("Cargo.toml", "[package]\nname = \"one\"\nversion = \"0.1.0\"\nedition = \"2021\"\n"),
            ("src/lib.rs", ""),
        ],
    );
    let check = |dir: &Path| {
        let mut command = Command::new(&cargo);
        command.args(["check", "--offline"]).current_dir(dir).env_remove("CARGO_TARGET_DIR");
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    assert!(check(view.lower()).wait().unwrap().success());
    let mut holder = Agent::new();
    holder.open(0, &view.below("target/debug/.cargo-lock"), "rw");
    assert_eq!(holder.set(0, Family::Flock, WRITE, ALL), 0);
    let mut waiting = check(view.root());
    super::until_waiting(&view, 1);
    assert!(waiting.try_wait().unwrap().is_none());
    holder.close(0);
    let output = waiting.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("waiting for file lock"), "{said}");
}

/// git's lock is a file that must not exist: no lock of the kernel is involved.
#[test]
fn gits_index_lock_holds_on_both_sides() {
    if !can_mount() {
        return;
    }
    let view = View::with("", &[("a", "text")]);
    let git = |dir: &Path, args: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "safe.directory=*", "-c", "user.name=t", "-c", "user.email=t@t"]);
        command.args(args).current_dir(dir).output().unwrap()
    };
    assert!(git(view.root(), &["init", "-q"]).status.success());
    fs::write(view.below(".git/index.lock"), "").unwrap();
    let refused = git(view.root(), &["add", "a"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("index.lock"), "{said}");
    fs::remove_file(view.below(".git/index.lock")).unwrap();
    assert!(git(view.root(), &["add", "a"]).status.success());
    let commit = git(view.root(), &["commit", "-qm", "one"]);
    assert!(commit.status.success(), "{}", String::from_utf8_lossy(&commit.stderr));
}
