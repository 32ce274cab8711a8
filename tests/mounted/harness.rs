//! A served view for the length of a test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) use crate::mounting::can_mount;

/// Longest time for a server to start or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A directory, a view of it, and the server between them.
pub(crate) struct View {
    base: TempDir,
    lower: PathBuf,
    mnt: PathBuf,
    server: Child,
}

impl View {
    /// A view of a new directory under `policy`.
    pub(crate) fn new(policy: &str) -> Self {
        let base = tempfile::tempdir().unwrap();
        let lower = base.path().join("lower");
        fs::create_dir(&lower).unwrap();
        Self::serve(base, lower, policy, &[])
    }

    /// The same, with files made before the server starts.
    pub(crate) fn with(policy: &str, files: &[(&str, &str)]) -> Self {
        let base = tempfile::tempdir().unwrap();
        let lower = base.path().join("lower");
        fs::create_dir(&lower).unwrap();
        for (path, text) in files {
            fs::create_dir_all(lower.join(path).parent().unwrap()).unwrap();
            fs::write(lower.join(path), text).unwrap();
        }
        Self::serve(base, lower, policy, &[])
    }

    /// A view of `lower`, a directory that outlives it.
    pub(crate) fn of(lower: &Path, policy: &str, options: &[&str]) -> Self {
        Self::serve(tempfile::tempdir().unwrap(), lower.to_owned(), policy, options)
    }

    fn serve(base: TempDir, lower: PathBuf, policy: &str, options: &[&str]) -> Self {
        let mnt = base.path().join("mnt");
        fs::create_dir(&mnt).unwrap();
        let policy_file = base.path().join("policy.toml");
        // A file of no bytes is refused.
        fs::write(&policy_file, if policy.is_empty() { "# all\n" } else { policy }).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("mount").arg("--policy").arg(&policy_file);
        if !options.contains(&"--sandbox") {
            // A system call that the sandbox does not expect ends the server, and so the test.
            command.args(["--sandbox", "strict"]);
        }
        let is_named = options.contains(&"--transport");
        if let Some(transport) = std::env::var_os("TOLLGATE_TEST_TRANSPORT").filter(|_| !is_named) {
            command.arg("--transport").arg(transport);
        }
        command.args(options);
        command.arg(&lower).arg(&mnt).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut server = command.spawn().unwrap();
        wait_until_ready(&mut server);
        let view = Self { base, lower, mnt, server };
        assert_ne!(
            fs::metadata(&view.mnt).unwrap().dev(),
            fs::metadata(view.base.path()).unwrap().dev()
        );
        view.assert_transport(options);
        view
    }

    /// `TOLLGATE_TEST_TRANSPORT=uring` is a requirement, not a wish.
    fn assert_transport(&self, options: &[&str]) {
        let asked = std::env::var("TOLLGATE_TEST_TRANSPORT");
        if asked.as_deref() == Ok("uring") && !options.contains(&"--transport") {
            let transport = &self.server_report()["transport"];
            let reason = &transport["uring_unavailable"];
            assert_eq!(transport["kind"], "uring", "io_uring is required here, but: {reason}");
        }
    }

    /// `path` in the view.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.mnt.join(path)
    }

    /// `path` in the directory beneath.
    pub(crate) fn below(&self, path: &str) -> PathBuf {
        self.lower.join(path)
    }

    /// Where the view is mounted.
    pub(crate) fn root(&self) -> &Path {
        &self.mnt
    }

    /// What `reload` reads.
    pub(crate) fn policy_file(&self) -> PathBuf {
        self.base.path().join("policy.toml")
    }

    /// The directory that is shown.
    pub(crate) fn lower(&self) -> &Path {
        &self.lower
    }

    /// What the server counted under `name`.
    pub(crate) fn count(&self, name: &str) -> u64 {
        number(&self.report()["counts"], name)
    }

    /// What the server says of `name` about the directories that it watches.
    pub(crate) fn watch(&self, name: &str) -> u64 {
        number(&self.report()["watch"], name)
    }

    /// Whether the server is told of files that get names elsewhere.
    pub(crate) fn reports_files(&self) -> bool {
        self.report()["watch"]["files"].as_bool().unwrap()
    }

    /// What the server has of `name` at the moment.
    pub(crate) fn status(&self, name: &str) -> u64 {
        number(&self.report(), name)
    }

    /// What `tollgate status` says about the view.
    fn report(&self) -> serde_json::Value {
        self.server_report()["view"].clone()
    }

    /// What `tollgate status` says about the server.
    pub(crate) fn server_report(&self) -> serde_json::Value {
        let mut status = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = status.args(["status", "--json"]).arg(&self.mnt).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        report[0].clone()
    }

    /// CPU time that the server has used, in clock ticks of 10 ms.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.server.id())).unwrap();
        let fields = stat.rsplit_once(") ").unwrap().1;
        // utime and stime, fields 14 and 15; `fields` begins with the third.
        fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
    }

    /// Names of the server's threads.
    pub(crate) fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.server.id())).unwrap();
        let name = |task: std::io::Result<fs::DirEntry>| {
            Some(fs::read_to_string(task.ok()?.path().join("comm")).ok()?.trim().to_owned())
        };
        tasks.filter_map(name).collect()
    }

    /// Memory that the server took, in KiB: without the pages of its program, of which more are there
    /// when other processes use them, too.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// A line of /proc/PID/status for each of the server's threads.
    pub(crate) fn of_each_thread(&self, key: &str) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.server.id())).unwrap();
        let value = |task: std::io::Result<fs::DirEntry>| {
            let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            Some(line.trim().to_owned())
        };
        tasks.filter_map(value).collect()
    }

    /// Of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.server.id()
    }

    /// Kills the server with SIGKILL. What it mounted stays until the end of the test.
    pub(crate) fn kill_server(&self) {
        kill_process(Pid::from_child(&self.server), Signal::KILL).unwrap();
    }

    fn stop(&mut self) -> Result<(), String> {
        let pid = Pid::from_child(&self.server);
        kill_process(pid, Signal::TERM).map_err(|error| error.to_string())?;
        let start = Instant::now();
        let mut asked_again = false;
        while start.elapsed() < PATIENCE {
            // The mount namespace of another test may hold a copy of this view, which the first
            // signal leaves served.
            if !asked_again && start.elapsed() > PATIENCE / 4 {
                kill_process(pid, Signal::TERM).map_err(|error| error.to_string())?;
                asked_again = true;
            }
            if let Ok(Some(status)) = self.server.try_wait() {
                let killed =
                    std::os::unix::process::ExitStatusExt::signal(&status) == Some(libc::SIGKILL);
                return (killed || status.success())
                    .then_some(())
                    .ok_or_else(|| status.to_string());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
        Err("the server did not end".to_owned())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let stopped = self.stop();
        unmount(&self.mnt);
        if !std::thread::panicking() {
            stopped.unwrap();
        }
    }
}

fn number(report: &serde_json::Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no `{name}`: {report}"))
}

/// Takes away whatever is mounted at `mnt`, if anything.
fn unmount(mnt: &Path) {
    let _ = rustix::mount::unmount(mnt, rustix::mount::UnmountFlags::DETACH);
}

/// Reads what the server says until it is ready; the rest is read by a thread, so that it never
/// blocks.
fn wait_until_ready(server: &mut Child) {
    let mut said = BufReader::new(server.stderr.take().unwrap());
    let mut all = String::new();
    while !all.contains("ready: ") {
        let before = all.len();
        said.read_line(&mut all).unwrap();
        if all.len() == before {
            let status = server.wait().unwrap();
            panic!("the server ended with {status}: {all}");
        }
    }
    std::thread::spawn(move || {
        // Shown with the output of a test that fails.
        for line in said.lines().map_while(Result::ok) {
            eprintln!("{line}");
        }
    });
}

/// Runs `work` on a thread that has given root up for `uid` and `gid`.
pub(crate) fn as_user<T: Send>(uid: u32, gid: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            become_user(uid, gid);
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Changes the calling thread's identity alone: the C library's functions would change every
/// thread's.
fn become_user(uid: u32, gid: u32) {
    use rustix::process::{Gid, Uid};
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_groups(&[]).unwrap();
    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
}
