//! Two `run`s over one directory, and the directory itself: locks exclude each other.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::project::{Project, all, can_mount, first_line};

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
