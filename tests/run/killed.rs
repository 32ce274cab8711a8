//! A server of `run` that is killed while CMD, and somebody outside, work in the same directory: a
//! thread of it tells the kernel of a change, which waits for CMD, which waits for the server.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::project::{Project, can_mount, first_line};

/// Longest time for a killed server to be gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// Not a test: what CMD is in the other one. Tells the device of the view first.
#[test]
#[ignore = "a program for another test"]
fn client_as_command() {
    use std::os::unix::fs::MetadataExt;
    if std::env::var_os("TOLLGATE_RUN").is_none() {
        return;
    }
    println!("device {}", fs::metadata(".").unwrap().dev());
    std::thread::scope(|scope| {
        for client in 0..3 {
            scope.spawn(move || {
                for number in (0..50).cycle() {
                    let path = format!("sub/client {client} {number}");
                    if fs::write(&path, "").and_then(|()| fs::remove_file(&path)).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// A fusectl of this test's own, by which a view that hangs is ended from outside.
struct Connections(tempfile::TempDir);

impl Connections {
    fn mount() -> Self {
        let at = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        assert!(mount.args(["-t", "fusectl", "none"]).arg(at.path()).status().unwrap().success());
        Self(at)
    }

    fn open(&self, path: &str) -> fs::File {
        fs::File::options().write(true).open(self.0.path().join(path)).unwrap()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Creates and removes files beneath the view until it is over.
fn change_beneath(project: &Project, over: &AtomicBool) {
    for number in (0..50).cycle().take_while(|_| !over.load(Ordering::SeqCst)) {
        let path = project.path(&format!("dir/sub/beneath {number}"));
        let _ = fs::write(&path, "").and_then(|()| fs::remove_file(&path));
    }
}

#[test]
fn a_killed_server_does_not_hang_with_its_command() {
    if !can_mount() {
        return;
    }
    let connections = Connections::mount();
    for round in 0..6 {
        let project = Project::new();
        fs::create_dir(project.path("dir/sub")).unwrap();
        let mut command = project.run_with(&["--quiet", "--watch", "on", "--transport", "devfuse"]);
        command.arg(std::env::current_exe().unwrap()).args(["--ignored", "--nocapture", "--exact"]);
        command.arg("killed::client_as_command").stdout(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        // The harness of the tests says something of its own before.
        let mut lines = std::iter::repeat_with(|| first_line(&mut child)).take(20);
        let device = lines.find_map(|line| line.split_once("device ")?.1.parse::<u64>().ok());
        let device = device.expect("CMD tells the device of its view");
        let path = format!("{}/abort", rustix::fs::minor(device));
        let mut abort = connections.open(&path);
        let over = AtomicBool::new(false);
        let is_gone = std::thread::scope(|scope| {
            scope.spawn(|| change_beneath(&project, &over));
            // The load, not a synchronisation: the moment of what follows is part of the test.
            std::thread::sleep(Duration::from_millis(400 + 60 * round));
            child.kill().unwrap();
            let (start, threads) = (Instant::now(), format!("/proc/{}/task", child.id()));
            // The first thread's exit status is left.
            let is_there = || fs::read_dir(&threads).is_ok_and(|threads| threads.count() > 1);
            while is_there() && start.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(10));
            }
            let is_gone = !is_there();
            // Whatever that was, nothing hangs from here on.
            let _ = abort.write_all(b"1");
            over.store(true, Ordering::SeqCst);
            is_gone
        });
        child.wait().unwrap();
        assert!(is_gone, "the server is killed, and its view hangs");
    }
}
