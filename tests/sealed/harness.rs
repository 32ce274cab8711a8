//! A view with a `seal` rule for the length of a test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) use crate::mounting::can_mount;

/// Longest time for something that happens by itself.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

const POLICY: &str = "\
[[rule]]
name = \"vault\"
path = \"vault/**\"
kind = \"file\"
action = \"seal\"
domain = \"vault\"

[[rule]]
name = \"other\"
path = \"other/**\"
kind = \"file\"
action = \"seal\"
domain = \"other\"
";

/// A directory with a keyring, a key file, and a place to mount.
pub(crate) struct Place {
    pub(crate) base: TempDir,
    lower: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Place {
        let base = tempfile::tempdir().unwrap();
        let lower = base.path().join("lower");
        fs::create_dir(&lower).unwrap();
        Place::of(base, lower)
    }

    /// With `lower` as the directory below.
    pub(crate) fn of(base: TempDir, lower: PathBuf) -> Place {
        for dir in ["mnt", "beside", "lower/vault", "lower/other", "lower/open"] {
            fs::create_dir_all(base.path().join(dir)).unwrap();
        }
        fs::write(base.path().join("policy.toml"), POLICY).unwrap();
        let place = Place { base, lower };
        let key = place.key();
        let made = place.seal(&["init", "--new-key-file", &key, place.lower.to_str().unwrap()]);
        assert!(made.status.success(), "{made:?}");
        place
    }

    pub(crate) fn key(&self) -> String {
        self.base.path().join("key").to_str().unwrap().to_owned()
    }

    pub(crate) fn below(&self, path: &str) -> PathBuf {
        self.lower.join(path)
    }

    pub(crate) fn seal(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("seal").args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// `tollgate seal check` of the sealed files of one domain: whether all are good.
    pub(crate) fn is_good(&self, domain: &str) -> bool {
        let (dir, below) = (self.lower.to_str().unwrap(), self.below(domain));
        let checked = self.seal(&[
            "check",
            "--dir",
            dir,
            "--key-file",
            &self.key(),
            "--domain",
            domain,
            below.to_str().unwrap(),
        ]);
        print!("{}", String::from_utf8_lossy(&checked.stderr));
        checked.status.success()
    }

    fn command(&self, at: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("mount");
        // Named by the environment, it does not hold alone: a policy of DIR tightens it.
        match self.lower.join(".tollgate.toml").exists() {
            true => command.env("TOLLGATE_POLICY", self.base.path().join("policy.toml")),
            false => command.arg("--policy").arg(self.base.path().join("policy.toml")),
        };
        // A system call that the sandbox does not expect ends the server, and so the test.
        command.args(["--sandbox", "strict"]).args(more);
        command.arg(&self.lower).arg(self.base.path().join(at));
        command.env_remove("TOLLGATE_SEAL_KEY_FILE").stdin(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Tries to mount, which is to fail.
    pub(crate) fn refused(&self, more: &[&str]) -> String {
        let output = self.command("mnt", more).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    pub(crate) fn mount(&self, more: &[&str]) -> View<'_> {
        self.mount_at("mnt", more)
    }

    /// A further server of the same directory.
    pub(crate) fn mount_beside(&self) -> View<'_> {
        self.mount_at("beside", &[])
    }

    /// By a server that may not set the times of files of others, as one of a user. `None` after saying why
    /// that cannot be had.
    pub(crate) fn mount_by_non_owner(&self) -> Option<View<'_>> {
        let key = self.key();
        let mount = self.command("mnt", &["--seal-key-file", &key]);
        let mut command = Command::new("setpriv");
        command.arg("--bounding-set=-fowner").arg(mount.get_program()).args(mount.get_args());
        command.env_remove("TOLLGATE_SEAL_KEY_FILE").stdin(Stdio::null()).stderr(Stdio::piped());
        match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: no setpriv in PATH (package util-linux)");
                None
            }
            server => Some(self.served_by(server.unwrap(), "mnt")),
        }
    }

    fn mount_at(&self, at: &str, more: &[&str]) -> View<'_> {
        let key = self.key();
        let server = self.command(at, &[&["--seal-key-file", &key], more].concat()).spawn();
        self.served_by(server.unwrap(), at)
    }

    fn served_by(&self, mut server: Child, at: &str) -> View<'_> {
        let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
        let mut said = String::new();
        loop {
            let Some(line) = lines.next() else { panic!("the server ended: {said}") };
            let line = line.unwrap();
            if line.contains("ready") {
                break;
            }
            said += &line;
            said.push('\n');
        }
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| println!("{line}")));
        View { _place: self, root: self.base.path().join(at), said, server }
    }
}

/// A served view.
pub(crate) struct View<'a> {
    _place: &'a Place,
    root: PathBuf,
    /// Before it was ready.
    pub(crate) said: String,
    server: Child,
}

impl View<'_> {
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The server may make no file larger than this any more.
    pub(crate) fn limit_files(&self, bytes: u64) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        prlimit(Some(Pid::from_child(&self.server)), Resource::Fsize, limit).unwrap();
    }

    /// Ends the server without a word, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        let ended = self.end();
        let _ = rustix::mount::unmount(&self.root, rustix::mount::UnmountFlags::DETACH);
        assert!(ended || std::thread::panicking(), "the server did not end within {PATIENCE:?}");
    }
}

impl View<'_> {
    /// Has the server unmount and end; whether it did.
    fn end(&mut self) -> bool {
        let begun = Instant::now();
        let server = rustix::process::Pid::from_child(&self.server);
        while self.server.try_wait().unwrap().is_none() {
            // Once more: the view may have been busy.
            let _ = rustix::process::kill_process(server, rustix::process::Signal::TERM);
            if begun.elapsed() > PATIENCE {
                let _ = self.server.kill();
                let _ = self.server.wait();
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

/// Waits for a condition that comes true by itself.
pub(crate) fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
