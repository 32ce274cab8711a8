//! A server of `run` that is killed while CMD, and somebody outside, work in the same directory: a
//! thread of it tells the kernel of a change, which waits for CMD, which waits for the server.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

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

/// A program that serves a FUSE file system, and whose thread waits for an answer of it.
const SERVES_ITSELF: &str = r#"
import ctypes, os, struct, threading, time
libc = ctypes.CDLL(None)
os.makedirs("/tmp/m", exist_ok=True)
fd = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd
assert libc.mount(b"x", b"/tmp/m", b"fuse", 0, options) == 0
unique = struct.unpack("IIQ", os.read(fd, 70000)[:16])[2]
os.write(fd, struct.pack("IiQIIIIHHI40x", 80, 0, unique, 7, 31, 0, 0, 0, 0, 4096))
threading.Thread(target=libc.access, args=(b"/tmp/m/x", 0), daemon=True).start()
os.read(fd, 70000)
print("waits", flush=True)
"#;

/// Neither its own end, nor that of its parent, nor a signal ends such a thread.
#[test]
fn a_command_that_waits_for_itself_in_the_kernel_does_not_keep_run() {
    if !can_mount() {
        return;
    }
    let waits = format!("{SERVES_ITSELF}time.sleep(1000)\n");
    let left =
        format!("import os, time\nif os.fork() == 0:\n    exec('''{waits}''')\ntime.sleep(1)\n");
    for (what, program, signal) in [
        ("its own end", format!("{SERVES_ITSELF}os._exit(0)\n"), None),
        ("the end of its parent", left, None),
        ("a signal", waits.clone(), Some(Signal::TERM)),
        ("the end of the server", waits, Some(Signal::KILL)),
    ] {
        let project = Project::new();
        let mut run = project.run_with(&["--quiet"]);
        run.args(["python3", "-c", &program]).stdout(Stdio::piped());
        let mut run = run.spawn().unwrap();
        assert_eq!(first_line(&mut run), "waits", "{what}");
        let started = children(run.id());
        if let Some(signal) = signal {
            rustix::process::kill_process(Pid::from_child(&run), signal).unwrap();
        }
        let begun = Instant::now();
        let is_there = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
        while run.try_wait().unwrap().is_none() || started.iter().any(is_there) {
            assert!(begun.elapsed() < PATIENCE, "{what}: it is still there");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The processes that a process started and that are there.
fn children(pid: u32) -> Vec<u32> {
    let parent = format!("\nPPid:\t{pid}\n");
    let all = fs::read_dir("/proc").unwrap().flatten();
    let is_child = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| text.contains(&parent))
    };
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}
