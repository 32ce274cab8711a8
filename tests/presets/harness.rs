//! A project and a home directory to try a preset on.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

pub(crate) const SECRET: &str = "the-planted-secret";
pub(crate) const PRESETS: [&str; 6] = ["agent", "node", "python", "rust", "ci", "read-only"];

pub(crate) fn has(tool: &str) -> bool {
    let there = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    let required = std::env::var_os("TOLLGATE_REQUIRE_TOOLS").is_some_and(|value| value == "1");
    assert!(there || !required, "no {tool}");
    if !there {
        eprintln!("skipped: no {tool}");
    }
    there
}

pub(crate) struct Tree(tempfile::TempDir);

impl Tree {
    pub(crate) fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(tree.path("home")).unwrap();
        std::fs::create_dir_all(tree.path("p")).unwrap();
        tree
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        std::fs::canonicalize(self.0.path()).unwrap().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path("p").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A script, outside of the view.
    pub(crate) fn bare(&self, script: &str) {
        let output = self.at_home(Command::new("sh").args(["-ec", script]));
        assert!(output.status.success(), "{script}: {}", all(&output));
    }

    /// A script in the view.
    pub(crate) fn fenced(&self, preset: &str, script: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["run", "--quiet", "--fence", "off", "--policy", preset]).arg(self.path("p"));
        self.at_home(command.args(["--", "timeout", "300", "sh", "-ec", script]))
    }

    #[track_caller]
    pub(crate) fn works(&self, preset: &str, script: &str) {
        let output = self.fenced(preset, script);
        assert!(output.status.success(), "{preset}: {script}: {}", all(&output));
        let refused = ["Permission denied", "Read-only file system", "EACCES", "EROFS"];
        for word in refused {
            assert!(!all(&output).contains(word), "{preset}: {script}: {}", all(&output));
        }
    }

    pub(crate) fn at_home(&self, command: &mut Command) -> Output {
        command
            .current_dir(self.path("p"))
            .env("HOME", self.path("home"))
            .env("XDG_CONFIG_HOME", self.path("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@b")])
            .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@b")])
            .env_remove("TOLLGATE_POLICY")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

pub(crate) fn all(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// As PEM; the text is no key, but has the form of one.
pub(crate) fn private_key(kind: &str) -> String {
    format!("-----BEGIN {kind}PRIVATE KEY-----\n{SECRET}\n-----END {kind}PRIVATE KEY-----\n")
}

pub(crate) fn certificate(kilobytes: usize) -> String {
    let line = "MIIDXTCCAkWgAwIBAgIJAJC1HiIAZAiIMA0GCSqGSIb3DQEBBQUAMEUxCzAJBgNV\n";
    format!(
        "-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n",
        line.repeat(16 * kilobytes)
    )
}
