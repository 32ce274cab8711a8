//! Signals to the server of a view, and what is mounted where it was by then.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fs::CWD;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::can_mount;
use crate::pty::Terminal;

/// Longest time for a server to say something, or to end.
const PATIENCE: Duration = Duration::from_secs(20);

const NATIVE: &str = "[[rule]]\npath = 'target'\naction = 'native'\n";

/// Two directories, and places to show them at. Nothing stays mounted below when this is dropped.
struct Place {
    base: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { base: tempfile::tempdir().unwrap() };
        for dir in ["one", "two"] {
            fs::create_dir_all(place.at(dir).join("target")).unwrap();
            fs::write(place.at(dir).join("file"), dir).unwrap();
            fs::write(place.at(dir).join("target/built"), dir).unwrap();
        }
        fs::create_dir_all(place.at("above/mnt")).unwrap();
        fs::write(place.at("policy.toml"), NATIVE).unwrap();
        place
    }

    fn at(&self, path: &str) -> PathBuf {
        self.base.path().canonicalize().unwrap().join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| error.to_string())
    }

    /// What is mounted below, the type of each by its path.
    fn mounts(&self) -> Vec<(PathBuf, String)> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let fields = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let all = fields.map(|of| (PathBuf::from(of[1]), of[2].to_owned()));
        all.filter(|(point, _)| point.starts_with(self.at(""))).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for (point, _) in self.mounts().iter().rev() {
            let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
        }
    }
}

/// A server in the foreground, killed when this is dropped.
struct Server {
    process: Child,
    lines: Receiver<String>,
}

impl Server {
    fn start(place: &Place, dir: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["mount", "--policy"]).arg(place.at("policy.toml"));
        Self::at(Stdio::null(), command.arg(place.at(dir)).arg(place.at("above/mnt")))
    }

    fn at(input: Stdio, command: &mut Command) -> Self {
        let mut process = command.stdin(input).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(process.stderr.take().unwrap());
        let (line, lines) = channel();
        std::thread::spawn(move || {
            said.lines().map_while(Result::ok).try_for_each(|said| line.send(said))
        });
        let server = Self { process, lines };
        server.says("ready: ");
        server
    }

    /// Waits for a line that has `word` in it.
    #[track_caller]
    fn says(&self, word: &str) {
        let mut said = String::new();
        while !said.contains(word) {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => said.push_str(&line),
                Err(error) => panic!("no `{word}` ({error}): {said}"),
            }
        }
    }

    fn gets(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    #[track_caller]
    fn ends(&mut self) {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.process.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server goes on");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn unmount_lazily(mnt: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    assert!(command.args(["umount", "--lazy"]).arg(mnt).status().unwrap().success());
}

#[test]
fn a_server_whose_view_was_detached_leaves_the_next_view_there() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mnt = place.at("above/mnt");
    let mut first = Server::start(&place, "one");
    let in_use = File::open(mnt.join("file")).unwrap();
    unmount_lazily(&mnt);
    let mut second = Server::start(&place, "two");
    let before = place.mounts();
    assert_eq!(before.len(), 2, "{before:?}");
    first.gets(Signal::TERM);
    first.says("a second signal ends it now");
    assert_eq!(place.mounts(), before);
    assert_eq!(place.read("above/mnt/file"), "two");
    assert_eq!(place.read("above/mnt/target/built"), "two");
    first.gets(Signal::TERM);
    first.ends();
    drop(in_use);
    assert_eq!(place.mounts(), before);
    second.gets(Signal::TERM);
    second.ends();
    assert_eq!(place.mounts(), []);
}

#[test]
fn what_is_mounted_over_a_view_stays_when_its_server_ends() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mnt = place.at("above/mnt");
    let server = Server::start(&place, "one");
    rustix::mount::mount("over", &mnt, "tmpfs", MountFlags::empty(), c"").unwrap();
    fs::write(mnt.join("file"), "over").unwrap();
    let before = place.mounts();
    server.gets(Signal::TERM);
    server.says("is beneath another mount");
    assert_eq!(place.mounts(), before);
    assert_eq!(place.read("above/mnt/file"), "over");
    rustix::mount::unmount(&mnt, UnmountFlags::empty()).unwrap();
    assert_eq!(place.read("above/mnt/file"), "one");
}

/// In the kernel's table such a mount comes before the one that it covers.
#[test]
fn what_was_made_before_a_view_and_moved_over_it_stays_when_its_server_ends() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mnt = place.at("above/mnt");
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let over = rustix::mount::open_tree(CWD, place.at("two"), flags).unwrap();
    let server = Server::start(&place, "one");
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&over, "", CWD, &mnt, flags).unwrap();
    // It keeps the mount in use.
    drop(over);
    let before = place.mounts();
    server.gets(Signal::TERM);
    server.says("is beneath another mount");
    assert_eq!(place.mounts(), before);
    assert_eq!(place.read("above/mnt/file"), "two");
    rustix::mount::unmount(&mnt, UnmountFlags::empty()).unwrap();
    assert_eq!(place.read("above/mnt/file"), "one");
}

#[test]
fn a_view_is_unmounted_where_it_is_after_a_directory_above_it_was_renamed() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mut server = Server::start(&place, "one");
    fs::rename(place.at("above"), place.at("renamed")).unwrap();
    assert_eq!(place.read("renamed/mnt/target/built"), "one");
    server.gets(Signal::TERM);
    server.ends();
    assert_eq!(place.mounts(), []);
}

/// As `tollgate mount DIR MNT &` in a script, and under nohup(1).
#[test]
fn signals_that_the_caller_ignored_do_not_end_a_server() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let Terminal { master, slave } = Terminal::new();
    // It leads a session at this terminal, so that the kernel tells it when that goes away.
    let mut command = Command::new("setsid");
    command.args(["--ctty", "sh", "-c", "trap '' INT HUP; exec \"$@\" </dev/null", "sh"]);
    command.args([env!("CARGO_BIN_EXE_tollgate"), "mount", "--policy"]);
    command.arg(place.at("policy.toml")).arg(place.at("one")).arg(place.at("above/mnt"));
    let mut server = Server::at(slave.into(), &mut command);
    let pid = Pid::from_child(&server.process);
    let mut stays = || {
        std::thread::sleep(Duration::from_millis(500));
        assert!(server.process.try_wait().unwrap().is_none(), "the server ended");
        assert_eq!(place.read("above/mnt/file"), "one");
    };
    kill_process(pid, Signal::INT).unwrap();
    stays();
    drop(master);
    stays();
    // Sent by a process, it has the policy read again all the same.
    fs::write(place.at("policy.toml"), "wrong").unwrap();
    server.gets(Signal::HUP);
    server.says("policy.toml");
    server.gets(Signal::TERM);
    server.ends();
    assert_eq!(place.mounts(), []);
}
