//! A broker, and callers that are not root.
#![expect(unsafe_code, reason = "a descriptor for a child")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) use crate::mounting::can_mount;

/// A user without privilege, and the group of that number.
pub(crate) const USER: u32 = 65534;
/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `test` where everybody may open /dev/fuse, if views can be mounted at all.
pub(crate) fn with_open_device(test: impl FnOnce() + Send) {
    if can_mount() {
        crate::device::with_open_device(test);
    }
}

/// The same with an empty `/run` for the test and its children alone.
pub(crate) fn with_own_run(test: impl FnOnce() + Send) {
    with_open_device(|| {
        // The namespace of mounts is this thread's.
        let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
        rustix::mount::mount("run", "/run", "tmpfs", flags, c"mode=755").unwrap();
        test();
    });
}

/// The same where a user can mount outside of every user namespace of the user's own: by
/// fusermount3, which is not part of every machine.
pub(crate) fn with_mount_helper(test: impl FnOnce() + Send) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let helper = std::env::split_paths(&path).map(|directory| directory.join("fusermount3"));
    let of_root = |meta: &fs::Metadata| meta.uid() == 0 && meta.permissions().mode() & 0o4000 != 0;
    if helper.filter_map(|file| fs::metadata(file).ok()).any(|meta| of_root(&meta)) {
        with_open_device(test);
    } else {
        println!("skipped: no fusermount3 in PATH that runs as root (package fuse3)");
    }
}

/// Waits until `done`, and fails with `what` when that takes too long.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A directory that other users can enter.
pub(crate) fn open_directory() -> TempDir {
    let base = tempfile::tempdir().unwrap();
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    base
}

/// `tollgate broker`, of root.
pub(crate) struct Broker {
    process: Child,
    pub(crate) socket: PathBuf,
    said: Arc<Mutex<String>>,
}

impl Broker {
    /// One that listens in `directory`.
    pub(crate) fn start(directory: &Path, options: &[&str]) -> Self {
        let socket = directory.join("broker.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("broker").arg("--socket").arg(&socket).args(options);
        Self::of(command, socket)
    }

    /// One that gets `listener`, which listens at `socket`, as systemd hands it over.
    pub(crate) fn start_with(listener: OwnedFd, socket: &Path) -> Self {
        let mut command = Command::new("sh");
        // And a descriptor that it must not keep.
        let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" broker 7<\"$0\"";
        command.args(["-c", script, env!("CARGO_BIN_EXE_tollgate")]);
        let hand_over = move || {
            let third = std::mem::ManuallyDrop::new(rustix::io::dup(&listener)?);
            // SAFETY: both numbers are of this child, which is about to execute a program and has
            // nothing else at 3 that it needs.
            let done = unsafe { libc::dup2(third.as_raw_fd(), 3) };
            if done == 3 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
        unsafe { command.pre_exec(hand_over) };
        Self::of(command, socket.to_owned())
    }

    fn of(mut command: Command, socket: PathBuf) -> Self {
        let mut process = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let broker = Self { process, socket, said };
        until("the broker does not get ready", || broker.said().contains("ready"));
        broker
    }

    /// What it said so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has said `what`.
    pub(crate) fn has_said(&self, what: &str) {
        until(&format!("`{what}` is not in the log"), || self.said().contains(what));
    }

    /// The processes that serve connections. One that has ended, and waits for the next connection
    /// to be forgotten, is none of them.
    pub(crate) fn children(&self) -> Vec<u32> {
        let pid = self.process.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let lives = |child: &u32| {
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        children.split_whitespace().map(|pid| pid.parse().unwrap()).filter(lives).collect()
    }

    /// The files that it has open, by their names.
    pub(crate) fn open_files(&self) -> Vec<PathBuf> {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap();
        descriptors.map(|entry| fs::read_link(entry.unwrap().path()).unwrap()).collect()
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have been ended by the test.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A directory of [`USER`], with the program where the user can reach it.
pub(crate) struct Home {
    base: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let home = Self { base: open_directory() };
        // By another process: what is open here to be written, a child that another test forks
        // at this moment holds too, and nobody can execute it then.
        let mut copy = std::process::Command::new("cp");
        copy.arg(env!("CARGO_BIN_EXE_tollgate")).arg(home.at("tollgate"));
        assert!(copy.status().unwrap().success());
        for name in ["lower", "run"] {
            fs::create_dir(home.at(name)).unwrap();
            chown(home.at(name), Some(USER), Some(USER)).unwrap();
        }
        home
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// `name` in the user's directory.
    pub(crate) fn below(&self, name: &str) -> PathBuf {
        self.at("lower").join(name)
    }

    /// A file of the user's.
    pub(crate) fn write(&self, name: &str, content: &[u8], mode: u32) {
        let directory = self.below(name).parent().unwrap().to_owned();
        if fs::create_dir(&directory).is_ok() {
            chown(directory, Some(USER), Some(USER)).unwrap();
        }
        fs::write(self.below(name), content).unwrap();
        chown(self.below(name), Some(USER), Some(USER)).unwrap();
        fs::set_permissions(self.below(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn tollgate(&self) -> Command {
        self.as_user(self.at("tollgate"))
    }

    /// `program` of the user.
    pub(crate) fn as_user(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.uid(USER).gid(USER).env("XDG_RUNTIME_DIR", self.at("run"));
        command.env("HOME", self.at("run")).current_dir(self.at("lower"));
        command
    }

    /// `run` of a shell script over the user's directory, which waits for its input to end.
    pub(crate) fn start(&self, options: &[&str], script: &str) -> Run<'_> {
        let mut command = self.tollgate();
        command.args(["run", "--policy", "none"]).args(options).arg(".");
        command.args(["--", "sh", "-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run { home: self, process: Some(command.spawn().unwrap()) }
    }

    /// `mount` of the user's directory at `mnt`, when it shows.
    pub(crate) fn mount(&self, options: &[&str]) -> Run<'_> {
        let mut command = self.tollgate();
        command.args(["mount", "--policy", "none"]).args(options);
        command.arg(self.at("lower")).arg(self.at("mnt"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = Run { home: self, process: Some(command.spawn().unwrap()) };
        run.report(|report| report["kind"] == "mount");
        run
    }

    /// What the one server of the user reports.
    fn report(&self) -> Option<Value> {
        let output = self.tollgate().args(["status", "--json"]).output().unwrap();
        let reports: Value = serde_json::from_slice(&output.stdout).ok()?;
        reports.as_array()?.first().cloned()
    }
}

/// A `run` under way.
pub(crate) struct Run<'a> {
    home: &'a Home,
    process: Option<Child>,
}

impl Run<'_> {
    /// The report, once `ready` says that it is what the test waits for.
    pub(crate) fn report(&self, mut ready: impl FnMut(&Value) -> bool) -> Value {
        let mut last = None;
        let start = Instant::now();
        loop {
            if let Some(report) = self.home.report() {
                if ready(&report) {
                    return report;
                }
                last = Some(report);
            }
            assert!(start.elapsed() < PATIENCE, "the report never says so: {last:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A line for the script to read.
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.process.as_mut().unwrap().stdin.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
    }

    /// The text of `status`.
    pub(crate) fn status(&self) -> String {
        let output = self.home.tollgate().arg("status").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.as_ref().unwrap().id().cast_signed()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.as_mut().unwrap().try_wait().unwrap().is_none()
    }

    /// Ends the script's input, and waits for it.
    pub(crate) fn finish(mut self) -> Output {
        let mut process = self.process.take().unwrap();
        drop(process.stdin.take());
        process.wait_with_output().unwrap()
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = kill_process(Pid::from_child(&process), Signal::TERM);
            let _ = process.wait();
        }
    }
}

/// A count of a report.
pub(crate) fn count(report: &Value, name: &str) -> u64 {
    report["view"]["counts"][name].as_u64().unwrap()
}
