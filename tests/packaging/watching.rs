//! The way to restart node on changes from outside that docs/run.md shows, where there is node.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::helper::{Place, can_mount};

/// The shell script that stands in the page.
fn recipe() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/run.md");
    let text = std::fs::read_to_string(page).unwrap();
    let (_, section) = text.split_once("## Changes seen by inotify").unwrap();
    let (_, script) = section.split_once("```sh\n").unwrap();
    script.split_once("```").unwrap().0.to_owned()
}

#[test]
fn a_change_from_outside_restarts_node_by_polling() {
    if !can_mount() {
        return;
    }
    if Command::new("node").arg("--version").output().is_err() {
        eprintln!("skipped: there is no node");
        return;
    }
    let place = Place::new();
    let server = "console.log('value ' + require('./value.js')); setInterval(() => {}, 1000);";
    std::fs::write(place.path("dir/server.js"), server).unwrap();
    std::fs::write(place.path("dir/value.js"), "module.exports = 1;").unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["run", "--quiet", "--policy", "none"])
        .arg(place.path("dir"))
        .args(["--", "timeout", "30", "sh", "-c", &recipe()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "value 1");
    // The script takes note of the time once it has started the server.
    std::thread::sleep(Duration::from_secs(1));
    std::fs::write(place.path("dir/value.js"), "module.exports = 2;").unwrap();
    assert_eq!(lines.next().expect("it restarts").unwrap(), "value 2");
    let pid = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    run.wait().unwrap();
}
