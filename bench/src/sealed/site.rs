//! Where it happens: one view with sealed and unsealed files, and gocryptfs if it is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::harness::Report;
use crate::mounts::{Launcher, Server};

/// Files that the server reads and writes as they are: what the road costs without encryption.
pub(super) const USER_SPACE: &str = "user space";
/// Sealed files.
pub(super) const SEALED: &str = "sealed";
/// The peer.
pub(super) const GOCRYPTFS: &str = "gocryptfs";

const POLICY: &str = "\
[[rule]]
path = \"user/**\"
kind = \"file\"
action = \"userspace\"

[[rule]]
path = \"vault/**\"
kind = \"file\"
action = \"seal\"
domain = \"bench\"
";

/// Dropping it unmounts and deletes everything.
pub(super) struct Site {
    columns: Vec<(&'static str, PathBuf)>,
    servers: Vec<Server>,
    _base: TempDir,
}

impl Site {
    pub(super) fn new(report: &mut Report) -> Result<Site> {
        ensure!(rustix::process::geteuid().is_root(), "this benchmark must run as root");
        let base = tempfile::Builder::new().prefix("tollgate-bench-").tempdir()?;
        let (lower, view) = (base.path().join("lower"), base.path().join("view"));
        for name in ["user", "vault"] {
            std::fs::create_dir_all(lower.join(name))?;
        }
        let (policy, key) = (base.path().join("policy.toml"), base.path().join("key"));
        std::fs::write(&policy, POLICY)?;
        let launcher = Launcher::new()?;
        let mut init = Command::new(launcher.binary());
        init.args(["seal", "init", "--new-key-file"]).arg(&key).arg(&lower);
        ensure!(init.stdout(Stdio::null()).status()?.success(), "{init:?} failed");
        let arguments: [&Path; 4] =
            [Path::new("--policy"), &policy, Path::new("--seal-key-file"), &key];
        let server = launcher.tollgate(&arguments, &lower, &view, None)?;
        let columns = vec![(USER_SPACE, view.join("user")), (SEALED, view.join("vault"))];
        let mut site = Site { columns, servers: vec![server], _base: base };
        match site.gocryptfs() {
            Ok(()) => {}
            Err(error) => report.note(format!("{GOCRYPTFS}: not measured: {error:#}")),
        }
        Ok(site)
    }

    fn gocryptfs(&mut self) -> Result<()> {
        let base = self._base.path();
        let (cipher, view, word) = (base.join("cipher"), base.join("plain"), base.join("word"));
        std::fs::create_dir_all(&cipher)?;
        std::fs::write(&word, "bench\n")?;
        let mut init = Command::new("gocryptfs");
        init.args(["-q", "-init", "-scryptn", "10", "-passfile"]).arg(&word).arg(&cipher);
        let status = init.stdout(Stdio::null()).status().context("is it installed?")?;
        ensure!(status.success(), "{init:?} failed");
        let mut serve = Command::new("gocryptfs");
        serve.args(["-q", "-fg", "-nosyslog", "-passfile"]).arg(&word).arg(&cipher);
        self.servers.push(Server::start(serve, &view)?);
        self.columns.push((GOCRYPTFS, view));
        Ok(())
    }

    /// The names of all columns that are there.
    pub(super) fn columns(&self) -> Vec<&'static str> {
        self.columns.iter().map(|(name, _)| *name).collect()
    }

    /// A file of a column.
    pub(super) fn file(&self, column: usize, name: &str) -> PathBuf {
        self.columns[column].1.join(name)
    }

    /// Resident memory of Tollgate's server in bytes.
    pub(super) fn resident_bytes(&self) -> Result<u64> {
        self.servers[0].resident_bytes()
    }

    /// Writes all dirty pages, so that none are written during a sample.
    pub(super) fn settle(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(std::fs::File::open(self._base.path())?)?)
    }
}
