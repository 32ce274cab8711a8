//! A project with secrets, and `tollgate run` and `mount` over it.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) use crate::mounting::can_mount;

pub(crate) const POLICY: &str = r#"
[[rule]]
name = "env"
path = "**/.env"
action = "hide"

[[rule]]
name = "keys"
path = "**/id_*"
action = "deny"

[[rule]]
name = "docs"
path = "docs/**"
operation = ["write", "create"]
action = "read-only"

[[rule]]
name = "logs"
path = "logs/**"
action = "userspace"
"#;

pub(crate) const SECRET: &str = "the-secret-of-this-test";

/// Longest wait for anything here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Project {
    home: tempfile::TempDir,
}

impl Project {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("dir/.env", SECRET),
            ("dir/keys/id_rsa", SECRET),
            ("dir/a.txt", "plain\n"),
            ("dir/docs/guide.md", "guide\n"),
            ("dir/logs/app.log", "log\n"),
            ("policy.toml", POLICY),
        ] {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        std::fs::create_dir(home.path().join("mnt")).unwrap();
        Self { home }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// `tollgate run --policy ... DIR --`, to be continued with CMD.
    pub(crate) fn run(&self) -> Command {
        self.run_with(&[])
    }

    /// The same with further options.
    pub(crate) fn run_with(&self, options: &[&str]) -> Command {
        let mut command = tollgate();
        // A system call that the server's sandbox does not expect ends the server, and so the test.
        command.args(["run", "--sandbox", "strict"]).args(options);
        command.arg("--policy").arg(self.path("policy.toml"));
        command.arg(self.path("dir")).arg("--").current_dir(self.path("dir"));
        command
    }

    pub(crate) fn sh(&self, script: &str) -> Output {
        self.run().args(["sh", "-c", script]).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a script outside of the view, in a mount namespace of its own; `$T` is the program.
    pub(crate) fn in_mount_namespace(&self, script: &str) -> Output {
        Command::new("unshare")
            .args(["-m", "sh", "-ec", script])
            .env("T", env!("CARGO_BIN_EXE_tollgate"))
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

pub(crate) fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env("LC_ALL", "C");
    // A `cargo` inside would build where it cannot write.
    command.env_remove("CARGO_TARGET_DIR");
    // `run` would name them on standard error.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_uppercase();
        if ["TOKEN", "KEY", "SECRET", "PASS", "AUTH", "URL"].iter().any(|word| text.contains(word))
        {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn all(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

pub(crate) fn until(what: &str, done: impl FnMut() -> bool) {
    until_within(PATIENCE, what, done);
}

pub(crate) fn until_within(time: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < time, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a line on the child's standard output.
pub(crate) fn first_line(child: &mut Child) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    let out = child.stdout.as_mut().unwrap();
    while out.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.extend(byte);
    }
    text(&line)
}

/// A daemon at `mnt`, unmounted when the test ends, however it ends.
pub(crate) struct Daemon<'p>(pub(crate) &'p Project);

impl<'p> Daemon<'p> {
    pub(crate) fn start(project: &'p Project) -> Self {
        let output = Self::try_start(project);
        assert!(output.status.success(), "{}", all(&output));
        Self(project)
    }

    pub(crate) fn try_start(project: &Project) -> Output {
        tollgate()
            .args(["mount", "--daemon", "--sandbox", "strict", "--policy"])
            .arg(project.path("policy.toml"))
            .arg("--log")
            .arg(project.path("log"))
            .args([project.path("dir"), project.path("mnt")])
            .output()
            .unwrap()
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        let output =
            tollgate().args(["status", "--json"]).arg(self.0.path("mnt")).output().unwrap();
        assert!(output.status.success(), "{}", all(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()[0].clone()
    }

    pub(crate) fn umount(&self) -> Output {
        tollgate().arg("umount").arg(self.0.path("mnt")).output().unwrap()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = tollgate().args(["umount", "--lazy"]).arg(self.0.path("mnt")).output();
    }
}

pub(crate) fn kill(report: &serde_json::Value) -> i32 {
    let pid = i32::try_from(report["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    pid.as_raw_nonzero().get()
}
